"""A host for trace recorders: replays a recorded run to live recorders, with the calls of a live host.

Messages are received in frames of several; a frame is noted before its messages are received. Sent messages are noted
when their frame is sealed, some events later, but before the process records for a snapshot.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec

from strobe.causality.trace import Trace, TracedEvent
from strobe.causality.trace_lines import EventContext, Receive, Record
from strobe.process import System
from strobe.protocol import ChannelSpec
from strobe.runtime.tracing.recorder import Tracer
from strobe.runtime.tracing.segment_writer import TraceWriter
from strobe.simulation.replay import Replay

_encode = msgspec.msgpack.encode


def write_segments(
    trace: Trace, directory: Path, level: str = "ordinals", *, system: System | None = None, close: bool = True
) -> Path:
    """Write `trace` as segments of epoch 1; return the directory of the epoch. A full one needs its `system`."""
    states = random_states(trace, system) if system is not None else {}
    for process in trace.processes:
        host = TracingHost(trace, process, directory, level, states)
        host.run()
        if close:
            host.tracer.close(wait=True)
        else:
            host.tracer._thread.shutdown()
    return directory / "epoch-000001"


def random_states(trace: Trace, system: System) -> dict[tuple[str, int], int]:
    """Return the state of each process's random generator after each of its events, found by replaying the run."""
    replay = Replay(system, trace)
    states: dict[tuple[str, int], int] = {}
    for event in trace.events():
        replay.run((event,))
        states[event] = replay.contexts[event.process].random.state
    return states


class TracingHost:
    """Replays one process of a recorded run to a recorder."""

    def __init__(
        self, trace: Trace, process: str, directory: Path, level: str, random_states: dict[tuple[str, int], int]
    ) -> None:
        self.trace = trace
        self.process = process
        self.random = random.Random(process)
        directory.mkdir(parents=True, exist_ok=True)
        self.tracer = Tracer(TraceWriter(directory, process, 1, level, 1 << 30), full=level == "full")
        self.specs = {
            name: msgspec.structs.replace(spec, id=name.removesuffix(f"#{spec.incarnation}"))
            for name, spec in trace.channels.items()
            if process in (spec.source, spec.target)
        }
        self.open: dict[str, list[tuple[int, int, bytes]]] = {}
        self.random_states = random_states
        self.random_state = 0
        self.see((), ())

    def see(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        ends: list[ChannelSpec] = list(self.specs.values())
        self.tracer.set_channels(self.trace.processes, ends, inputs, outputs, lambda: self.random_state)

    def run(self) -> None:
        records = self.records()
        for events in self.frames():
            self.announce(events)
            for event in events:
                for line in event.sends:
                    payload = _encode(msgspec.json.decode(line.payload)) if line.payload else b"\xc0"
                    self.open.setdefault(line.channel, []).append((event.ref.position, line.ordinal, payload))
                    if self.random.random() < 0.2:
                        self.seal(line.channel)
                self.random_state = self.random_states.get(event.ref, 0)
                self.record(records, event.ref.position)
        for channel in list(self.open):
            self.seal(channel)

    def record(self, records: dict[int, list[str]], position: int) -> None:
        for snapshot in records.get(position, ()):
            for channel in list(self.open):
                self.seal(channel)
            self.tracer.recorded(snapshot, position)

    def seal(self, channel: str) -> None:
        messages = self.open.pop(channel)
        events: list[int] = []
        for before, (position, _, _) in enumerate(messages):
            if not events or events[-2] != position:
                events += (position, before)
        body = b"\xdd" + len(messages).to_bytes(4, "big") + b"".join(payload for _, _, payload in messages)
        self.tracer.sent(self.specs[channel].id, messages[0][1], len(messages), events, memoryview(body))

    def announce(self, events: list[TracedEvent]) -> None:
        first, lead = events[0], events[0].lead
        assert lead is not None
        record = None
        if lead.payload:
            recorded = msgspec.json.decode(lead.payload, type=EventContext)
            if recorded.inputs is not None:
                self.random_state = recorded.random
                self.see(recorded.inputs, recorded.outputs)
            record = msgspec.json.decode(recorded.record) if recorded.record else None
        if isinstance(lead, Receive):
            channel = self.specs[lead.channel].id
            count = len(events) + len(first.further)
            one_event = bool(first.further)
            self.tracer.received(channel, lead.ordinal, count, first.ref.position, lead.at, one_event)
        else:
            self.tracer.event(first.ref.position, lead.name or "", lead.at, record)

    def frames(self) -> Iterator[list[TracedEvent]]:
        """Yield groups of events; a group may be the messages of one frame."""
        events: list[TracedEvent] = []
        for position in range(1, self.trace.event_count(self.process) + 1):
            event = self.trace.event((self.process, position))
            if events and not (_follows(events[-1], event) and self.random.random() < 0.9):
                yield events
                events = []
            events.append(event)
        if events:
            yield events

    def records(self) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for line in self.trace.lines():
            if isinstance(line, Record) and line.process == self.process:
                found.setdefault(line.position, []).append(line.snapshot_id)
        for snapshot in found.pop(0, ()):
            self.tracer.recorded(snapshot, 0)
        return found


def _follows(event: TracedEvent, later: TracedEvent) -> bool:
    first, second = event.lead, later.lead
    return (
        not (event.further or later.further)
        and isinstance(first, Receive)
        and isinstance(second, Receive)
        and (first.channel, first.ordinal + 1, first.at) == (second.channel, second.ordinal, second.at)
        and not second.payload
    )
