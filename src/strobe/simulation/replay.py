"""Replay of a full trace: runs the processes again along recorded events, in any legal order, and compares (P2, R4).

All that a process cannot determine by itself comes from the trace: what set each event off, the time, the channels it
saw and the state of its random generator. What it sends must come out the same, message for message; where it does not,
the process is not deterministic, and the first difference is named.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from strobe.causality.cuts import Cut, channel_contents
from strobe.causality.reordering import reorder
from strobe.causality.trace import EventRef, Trace, TracedEvent
from strobe.causality.trace_lines import Receive
from strobe.errors import StrobeError, UsageError
from strobe.process import Context, Process, Random, System
from strobe.protocol import ChannelSpec, Snapshot
from strobe.simulation.checkers.channels_exact import recorded_messages
from strobe.simulation.node import frame_body
from strobe.simulation.recorder import Sight
from strobe.simulation.states import encode_state

_encode = msgspec.msgpack.encode
_to_json = msgspec.json.encode
_decode = msgspec.msgpack.decode


class ReplayDiverged(StrobeError):
    """A process did something else than the trace says: it is not deterministic, or not the one that was traced."""

    def __init__(self, event: EventRef, problem: str) -> None:
        super().__init__(event, problem)
        self.event = event
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.event}: {self.problem}; time, randomness and timers must come from the context"


class ReplayContext(Context):
    """Gives back what was recorded, and collects what is sent."""

    random: Random

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs = ()
        self.outputs = ()
        self.random = Random(0)
        self.at = 0.0
        self.sent: dict[str, list[bytes]] = {}
        self.ids: list[str] = []

    def send(self, channel: str, message: Any) -> None:
        self.sent.setdefault(channel, []).append(_encode(message))

    def set_timer(self, name: str, after_s: float) -> None:
        pass  # the trace says when it fires

    def cancel_timer(self, name: str) -> None:
        pass

    def now(self) -> float:
        return self.at

    def emit(self, record: Any) -> None:
        pass

    def snapshot(self) -> str:
        return self.ids.pop(0) if self.ids else ""


class Replay:
    """A run of `system`, which must be fresh, along the events of `trace`."""

    def __init__(self, system: System, trace: Trace) -> None:
        missing = set(trace.processes) - set(system.processes)
        if missing:
            raise UsageError(f"{trace.name} has the process {min(missing)!r}, which the system does not have")
        self.system = system
        self.trace = trace
        self.contexts = {process: ReplayContext(process) for process in trace.processes}
        self.positions = dict.fromkeys(trace.processes, 0)
        self.channels: dict[str, dict[int, bytes]] = {channel: {} for channel in trace.channels}
        self._initiated: dict[tuple[str, int], list[str]] = {}
        for snapshot, records in trace.records().items():
            initiator = snapshot.split("-", 2)[-1]
            if initiator in records:
                self._initiated.setdefault((initiator, records[initiator]), []).append(snapshot)

    def run(self, events: Iterable[EventRef]) -> None:
        """Run `events`; raise ReplayDiverged where a process does something else than it did."""
        for ref in events:
            self._run(self.trace.event(ref))

    def state(self, process: str) -> bytes:
        """Return the state of `process` now, encoded as a snapshot has it."""
        _, data = encode_state(self.system.processes[process])
        return data

    def _run(self, event: TracedEvent) -> None:
        process, position = event.ref
        if event.lead is None or event.lead.at is None:
            raise UsageError(
                f"{self.trace.name} cannot be replayed: {event.ref} has no time; record it with level 'full'"
            )
        context = self.contexts[process]
        context.at = event.lead.at
        context.ids = list(self._initiated.get((process, position), ()))
        if event.lead.payload:
            sight = msgspec.json.decode(bytes(event.lead.payload), type=Sight)
            context.inputs, context.outputs, context.random.state = sight.inputs, sight.outputs, sight.random
        self._handle(self.system.processes[process], context, event)
        self.positions[process] = position
        self._compare_sends(event, context)

    def _handle(self, process: Process, context: ReplayContext, event: TracedEvent) -> None:
        lead = event.lead
        if isinstance(lead, Receive):
            payload = self.channels[lead.channel].pop(lead.ordinal)
            channel = channel_id(self.trace.channels[lead.channel])
            process.receive(context, channel, self.system.decoder.decode(frame_body([payload]))[0])
            return
        name = (lead.name if lead is not None else None) or ""
        if name.startswith("timer "):
            process.timer(context, name.removeprefix("timer "))
        elif name in ("start", "leave"):
            getattr(process, name)(context)

    def _compare_sends(self, event: TracedEvent, context: ReplayContext) -> None:
        sent, context.sent = context.sent, {}
        flat = [(channel, payload) for channel, payloads in sent.items() for payload in payloads]
        if len(flat) != len(event.sends):
            raise ReplayDiverged(event.ref, f"it sent {len(event.sends)} messages, and sends {len(flat)} in the replay")
        for (channel, payload), line in zip(flat, event.sends, strict=True):
            was = channel_id(self.trace.channels[line.channel])
            if channel != was or _to_json(_decode(payload)) != bytes(line.payload):
                raise ReplayDiverged(event.ref, f"it sent message {line.ordinal} of {was} differently")
            self.channels[line.channel][line.ordinal] = payload


def channel_id(spec: ChannelSpec) -> str:
    """Return the id by which processes know a channel of a trace: without the incarnation that a trace may add."""
    return spec.id.removesuffix(f"#{spec.incarnation}")


def compare_at_cut(system: System, trace: Trace, snapshot: Snapshot) -> list[str]:
    """Replay `system` along the reordered run to the cut of `snapshot`; return what differs from what it recorded.

    Nothing differs where the snapshot is right: the recorded state occurs in a legal execution (P2).
    """
    cut = {name: fragment.state.position for name, fragment in snapshot.fragments.items() if fragment.state}
    cut |= {process: trace.event_count(process) for process in trace.processes if process not in cut}
    reordering = reorder(trace, cut)
    problems = [f"the reordering is not legal: {problem}" for problem in reordering.check(trace)]
    replay = Replay(system, trace)
    replay.run(reordering.events[: reordering.cut_index])
    problems += _compare_states(replay, snapshot)
    problems += _compare_channels(replay, trace, cut, snapshot)
    replay.run(reordering.events[reordering.cut_index :])
    return problems


def _compare_states(replay: Replay, snapshot: Snapshot) -> list[str]:
    return [
        f"the state of {process} in the replay is not the one recorded"
        for process, fragment in snapshot.fragments.items()
        if fragment.state is None or fragment.state.data != replay.state(process)
    ]


def _compare_channels(replay: Replay, trace: Trace, cut: Cut, snapshot: Snapshot) -> list[str]:
    problems = []
    contents: Mapping[str, list[int]] = channel_contents(trace, cut)
    for spec in snapshot.view.channels:
        name = next(known for known, traced in trace.channels.items() if _same(traced, spec))
        recorded = dict(recorded_messages(snapshot, spec.target, spec.id))
        expected = {ordinal: replay.channels[name][ordinal] for ordinal in contents[name]}
        if recorded != expected:
            problems.append(f"{spec.id} holds {sorted(expected)} in the replay, and {sorted(recorded)} was recorded")
    return problems


def _same(traced: ChannelSpec, spec: ChannelSpec) -> bool:
    return channel_id(traced) == spec.id and traced.incarnation == spec.incarnation
