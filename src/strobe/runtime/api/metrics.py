"""Prometheus metrics: counted as events happen, or read from the status at each scrape."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from strobe.plain_text import plain
from strobe.runtime.messages.api_documents import ABORTED, COMMITTED, FinishedSnapshot, Status
from strobe.runtime.messages.verdicts import VERDICTS, ConditionVerdict

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LABEL_LENGTH_MAX = 500
DURATIONS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """All metrics of a coordinator."""

    def __init__(self, rollbacks: Callable[[], int], status: Callable[[], Status]) -> None:
        self.registry = CollectorRegistry()
        self.snapshots = Counter(
            "strobe_snapshots", "Snapshots that have ended, by outcome.", ["outcome"], registry=self.registry
        )
        for outcome in (COMMITTED, ABORTED):
            self.snapshots.labels(outcome)
        self.duration = Histogram(
            "strobe_snapshot_duration_seconds",
            "From the begin of a snapshot to its commit.",
            buckets=DURATIONS_S,
            registry=self.registry,
        )
        self.state_bytes = Counter("strobe_state_bytes", "State in committed snapshots.", registry=self.registry)
        self.written_bytes = Counter(
            "strobe_written_bytes", "Bytes written for committed snapshots.", registry=self.registry
        )
        self.in_flight_bytes = Counter(
            "strobe_in_flight_bytes", "Messages in flight in committed snapshots.", registry=self.registry
        )
        self.verdicts = Counter(
            "strobe_verdicts",
            "Verdicts on committed snapshots, by declared condition.",
            ["condition", "verdict"],
            registry=self.registry,
        )
        self.registry.register(_Now(rollbacks, status))

    def finished(self, snapshot: FinishedSnapshot) -> None:
        self.snapshots.labels(snapshot.outcome).inc()
        if snapshot.outcome == COMMITTED:
            self.duration.observe(snapshot.duration_us / 1e6)
            self.state_bytes.inc(snapshot.state_bytes)
            self.written_bytes.inc(snapshot.written_bytes)
            self.in_flight_bytes.inc(snapshot.in_flight_bytes)

    def judged(self, condition: str, verdict: ConditionVerdict) -> None:
        self.verdicts.labels(condition, verdict.verdict).inc()

    def declare(self, conditions: Iterable[str]) -> None:
        """Create every counter of these conditions at the start."""
        for condition in conditions:
            for verdict in VERDICTS:
                self.verdicts.labels(condition, verdict)

    def text(self) -> bytes:
        return generate_latest(self.registry)


_SYSTEM: tuple[tuple[str, str, Callable[[Status], float]], ...] = (
    ("term", "The term in which the coordinator leads: how often one has started.", lambda status: status.term),
    ("epoch", "The current epoch.", lambda status: status.epoch),
    ("view", "The number of the current view.", lambda status: status.view),
    ("log_position", "How many entries the log has.", lambda status: status.log_position),
    ("open_snapshots", "Snapshots under way.", lambda status: len(status.open)),
    ("complete_snapshots", "Complete snapshots in the store.", lambda status: status.committed),
    ("settled", "Whether every process has installed the view.", lambda status: status.settled),
    ("credit_deadlocks", "Cycles of processes that all wait for credit.", lambda status: _count(status, "credit")),
    ("store_trouble", "Whether the store cannot be used.", lambda status: _count(status, "store")),
)
_PROCESS: tuple[tuple[str, str, str], ...] = (
    ("process_position", "position", "How many events the process has had."),
    ("process_events_per_second", "events_per_s", "How fast the process goes."),
    ("process_memory_bytes", "memory_bytes", "Resident memory."),
    ("process_backlog_bytes", "backlog_bytes", "Messages that wait for credit."),
    ("process_recording_bytes", "recording_bytes", "Channel state held in memory by recordings."),
    ("process_spilled_bytes", "spilled_bytes", "Channel state spilled to disk by recordings."),
)


def _count(status: Status, kind: str) -> int:
    return sum(trouble.kind == kind for trouble in status.troubles)


class _Now(Collector):
    """Metrics that are computed at each scrape."""

    def __init__(self, rollbacks: Callable[[], int], status: Callable[[], Status]) -> None:
        self._rollbacks = rollbacks
        self._status = status

    def describe(self) -> list[Metric]:
        return []  # registering must not compute the status

    def collect(self) -> Iterator[Metric]:
        for metric in self._metrics():
            metric.samples = [_with_plain_labels(sample) for sample in metric.samples]
            yield metric

    def _metrics(self) -> Iterator[Metric]:
        status = self._status()
        for name, text, value in _SYSTEM:
            yield GaugeMetricFamily(f"strobe_{name}", text, value=value(status))
        yield CounterMetricFamily(
            "strobe_rollbacks", "Rollbacks since the coordinator started.", value=self._rollbacks()
        )
        yield CounterMetricFamily(
            "strobe_rejected", "Messages and connections that the coordinator rejected.", value=status.rejected
        )
        skipped = CounterMetricFamily(
            "strobe_verdicts_skipped",
            "Snapshots that were not judged, because newer ones were committed meanwhile.",
            labels=["condition"],
        )
        for condition in status.conditions:
            skipped.add_metric([condition.name], condition.skipped)
        yield skipped
        yield from _processes(status)
        yield from _channels(status)


def _with_plain_labels(sample: Sample) -> Sample:
    return sample._replace(labels={name: plain(value, _LABEL_LENGTH_MAX) for name, value in sample.labels.items()})


def _processes(status: Status) -> Iterator[Metric]:
    up = GaugeMetricFamily("strobe_process_up", "Whether the process is connected and runs.", labels=["process"])
    cpu = CounterMetricFamily("strobe_process_cpu_seconds", "CPU time.", labels=["process"])
    rejected = CounterMetricFamily(
        "strobe_process_rejected",
        "Messages and connections that a process rejected on its channels.",
        labels=["process", "reason"],
    )
    for process in status.processes:
        up.add_metric([process.name], process.state == "running")
        cpu.add_metric([process.name], process.cpu_s)
        for reason, count in process.rejected.items():
            rejected.add_metric([process.name, reason], count)
    yield from (up, cpu, rejected)
    for name, field, text in _PROCESS:
        family = GaugeMetricFamily(f"strobe_{name}", text, labels=["process"])
        for process in status.processes:
            family.add_metric([process.name], getattr(process, field))
        yield family


def _channels(status: Status) -> Iterator[Metric]:
    families: list[tuple[Any, str]] = [
        (CounterMetricFamily("strobe_channel_sent", "Messages sent.", labels=["channel"]), "sent"),
        (CounterMetricFamily("strobe_channel_received", "Messages received.", labels=["channel"]), "received"),
        (GaugeMetricFamily("strobe_channel_waiting_seconds", "Waiting for credit.", labels=["channel"]), "waiting_s"),
        (CounterMetricFamily("strobe_channel_reconnects", "Reconnections.", labels=["channel"]), "reconnects"),
    ]
    for family, field in families:
        for channel in status.channels:
            family.add_metric([channel.id], getattr(channel, field))
        yield family
