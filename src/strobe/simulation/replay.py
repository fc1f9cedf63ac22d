"""Replay of a full trace: runs the processes again along recorded events, in any legal order, and compares (P2, R4).

All inputs that a process cannot compute by itself come from the trace: the trigger of each event, the time, the
channels it saw and the state of its random generator. Its sends must be the same, message for message. If not, the
process is not deterministic, and the first difference is reported.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import msgspec

from strobe.causality.cuts import Cut, channel_contents
from strobe.causality.reordering import reorder
from strobe.causality.trace import EventRef, Trace, TracedEvent
from strobe.causality.trace_lines import EventContext, Receive
from strobe.encodable import encode_message, frame_body
from strobe.errors import StrobeError, UsageError
from strobe.handlers import call
from strobe.keyed_state import KeyedState
from strobe.process import Context, Process, Random, System, takes_batches
from strobe.protocol import ChannelSpec, LocalState, Snapshot
from strobe.simulation.checkers.snapshot_checkers import recorded_messages
from strobe.simulation.restorable import restore_state
from strobe.storage.content.state_codec import is_captured
from strobe.user_code import calling

_to_json = msgspec.json.encode
_decode = msgspec.msgpack.decode


class ReplayDiverged(StrobeError):
    """A process differs from the trace: it is not deterministic, or not the one that was traced."""

    def __init__(self, event: EventRef, problem: str) -> None:
        super().__init__(event, problem)
        self.event = event
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.event}: {self.problem}; time, randomness and timers must come from the context"


class ReplayContext(Context):
    """Returns the recorded values, and collects sends."""

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
        self.sent.setdefault(channel, []).append(encode_message(self.name, channel, message))

    def set_timer(self, name: str, after_s: float) -> None:
        pass  # the trace has the time at which it fires

    def cancel_timer(self, name: str) -> None:
        pass

    def now(self) -> float:
        return self.at

    def emit(self, record: Any) -> None:
        pass

    def snapshot(self) -> str:
        return self.ids.pop(0) if self.ids else ""


class Replay:
    """A run of `system`, which must be fresh, along the events of `trace`.

    If the trace begins at the cut of a snapshot, that is `begun`, and everything is first restored from it. `renew`
    makes a new system, for processes with several incarnations in the trace.
    """

    def __init__(
        self,
        system: System,
        trace: Trace,
        begun: Snapshot | None = None,
        renew: Callable[[], System] | None = None,
    ) -> None:
        lives = trace.header.lives
        missing = set(trace.processes) - set(system.processes) - set(lives)
        if missing:
            raise UsageError(f"{trace.name} has the process {min(missing)!r}, which the system does not have")
        self.trace = trace
        # The process of each incarnation. One that left and rejoined has several, each with the initial state.
        self.process_of = {name: lives.get(name, name) for name in trace.processes}
        # A new system has its own types, also for messages and records.
        self.systems = {name: renew() if renew is not None and name in lives else system for name in trace.processes}
        self.processes = {name: self.systems[name].processes[process] for name, process in self.process_of.items()}
        if renew is None:
            self.processes |= {name: deepcopy(self.processes[name]) for name in lives}
        self.contexts = {name: ReplayContext(process) for name, process in self.process_of.items()}
        self.positions = dict.fromkeys(trace.processes, 0)
        self.channels: dict[str, dict[int, bytes]] = {channel: {} for channel in trace.channels}
        self._initiated: dict[tuple[str, int], list[str]] = {}
        for snapshot, records in trace.records().items():
            recorder = self.recorder(records, snapshot.split("-", 2)[-1])
            if recorder is not None:
                self._initiated.setdefault((recorder, records[recorder]), []).append(snapshot)
        start = trace.header.start
        if begun is not None and start.snapshot == str(begun.id):
            self._restore(begun)
        elif any(map(trace.first_count, trace.processes)):
            raise UsageError(f"{trace.name} begins at snapshot {start.snapshot}; give the store that has it")

    def run(self, events: Iterable[EventRef]) -> None:
        """Run `events`; raise ReplayDiverged if a process behaves differently."""
        for ref in events:
            self._run(self.trace.event(ref))

    def recorder(self, records: Mapping[str, int], process: str) -> str | None:
        """Return the incarnation of `process` that recorded: the last that had begun, as a cut has no later events.

        If none had begun, all of them are in their initial state, and the first is returned.
        """
        lives = [name for name in records if self.process_of[name] == process]
        return next((name for name in reversed(lives) if records[name]), lives[0] if lives else None)

    def has_state(self, process: str, state: LocalState) -> bool:
        """Return whether `process` now has the state of a snapshot."""
        with calling(f"process {process!r} failed in capture()"):
            return is_captured(process, self.processes[process], state)

    def plain_state(self, process: str) -> Any:
        """Return the current state of `process` as numbers, strings, lists and dicts, like a reader of a snapshot."""
        with calling(f"process {process!r} failed in capture()"):
            captured = self.processes[process].capture()
            return msgspec.to_builtins(dict(captured.items()) if isinstance(captured, KeyedState) else captured)

    def _restore(self, begun: Snapshot) -> None:
        """Give every process its recorded state, and every channel the messages in flight."""
        for name, process in self.processes.items():
            fragment = begun.fragments.get(self.process_of[name])
            local = fragment.state if fragment is not None else None
            if local is not None and local.position == self.trace.first_count(name):
                restore_state(name, process, local, " at the beginning of the trace")
                self.positions[name] = local.position
        for channel, spec in self.trace.channels.items():
            pending = set(self.trace.tables.channels[self.trace.tables.channel_names[channel]].pending())
            recorded = recorded_messages(begun, self.process_of[spec.target], channel_id(spec))
            self.channels[channel] = {ordinal: payload for ordinal, payload in recorded if ordinal in pending}

    def _run(self, event: TracedEvent) -> None:
        process, position = event.ref
        if event.lead is None or event.lead.at is None:
            raise UsageError(
                f"{self.trace.name} cannot be replayed: {event.ref} has no time; record it with level 'full'"
            )
        context = self.contexts[process]
        context.at = event.lead.at
        context.ids = list(self._initiated.get((process, position), ()))
        payload = bytes(event.lead.payload) or b"{}"
        recorded = msgspec.json.decode(payload, type=EventContext)
        if recorded.inputs is not None and recorded.outputs is not None:
            context.inputs, context.outputs = recorded.inputs, recorded.outputs
        if recorded.random is not None:
            context.random.state = recorded.random
        with calling(f"process {process!r} failed in event {position} of the trace"):
            self._handle(process, context, event, recorded.record)
        self.positions[process] = position
        self._compare_sends(event, context)

    def _handle(self, name: str, context: ReplayContext, event: TracedEvent, record: msgspec.Raw) -> None:
        process, system, lead = self.processes[name], self.systems[name], event.lead
        if isinstance(lead, Receive):
            received = (lead, *event.further)
            payloads = [self.channels[one.channel].pop(one.ordinal) for one in received]
            messages = system.decoder.decode(frame_body(payloads))
            self._receive(process, context, event, channel_id(self.trace.channels[lead.channel]), messages)
            return
        cause = (lead.name if lead is not None else None) or ""
        if cause.startswith("timer "):
            call(process, "timer", context, cause.removeprefix("timer "))
        elif cause.startswith("source "):
            source = cause.removeprefix("source ")
            self._receive(process, context, event, source, [self._from_outside(system, source, record)])
        elif cause in ("start", "leave"):
            call(process, cause, context)

    def _receive(
        self, process: Process, context: ReplayContext, event: TracedEvent, channel: str, messages: list[Any]
    ) -> None:
        if takes_batches(process):
            call(process, "receive_many", context, channel, messages)
            return
        if event.further:
            kind = type(process).__name__
            raise ReplayDiverged(
                event.ref, f"it received {len(messages)} messages in one event, but {kind} has no receive_many()"
            )
        call(process, "receive", context, channel, messages[0])

    def _from_outside(self, system: System, source: str, record: msgspec.Raw) -> Any:
        """Decode a record of a source."""
        if source not in system.sources:
            raise UsageError(f"{self.trace.name} has records of the source {source!r}, which the system does not have")
        # A missing record means null.
        return msgspec.json.decode(bytes(record) or b"null", type=system.sources[source].type)

    def _compare_sends(self, event: TracedEvent, context: ReplayContext) -> None:
        sent, context.sent = context.sent, {}
        count = sum(map(len, sent.values()))
        if count != len(event.sends):
            raise ReplayDiverged(event.ref, f"it sent {len(event.sends)} messages, and sends {count} in the replay")
        # Channel by channel: a live recorder does not know the order of an event's sends across channels.
        again = {channel: iter(payloads) for channel, payloads in sent.items()}
        for line in event.sends:
            channel = channel_id(self.trace.channels[line.channel])
            payload = next(again.get(channel, iter(())), None)
            if payload is None or _to_json(_decode(payload)) != bytes(line.payload):
                raise ReplayDiverged(event.ref, f"it sent message {line.ordinal} of {channel} differently")
            self.channels[line.channel][line.ordinal] = payload


def channel_id(spec: ChannelSpec) -> str:
    """Return the channel id that processes use: without the incarnation that a trace may add."""
    return spec.id.removesuffix(f"#{spec.incarnation}")


def compare_at_cut(system: System, trace: Trace, snapshot: Snapshot) -> list[str]:
    """Replay `system` along the reordered run to the cut of `snapshot`; return the differences from its recorded state.

    There is none if the snapshot is right: the recorded state occurs in a legal execution (P2).
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


def compare_along(
    load: Callable[[], System], trace: Trace, snapshots: Sequence[Snapshot], begun: Snapshot | None
) -> list[str]:
    """Replay all of `trace`; return the processes whose state at a cut differs from the one in `snapshots` (R4)."""
    replay = Replay(load(), trace, begun, load)
    at: dict[tuple[str, int], list[tuple[str, LocalState]]] = {}
    records = trace.records()
    for snapshot in snapshots:
        for process, fragment in snapshot.fragments.items():
            recorder = replay.recorder(records.get(str(snapshot.id), {}), process) or process
            if fragment.state is not None:
                at.setdefault((recorder, fragment.state.position), []).append((str(snapshot.id), fragment.state))
    problems = _compare_cuts(replay, at, [EventRef(*place) for place in replay.positions.items()])
    for event in trace.events():
        replay.run((event,))
        problems += _compare_cuts(replay, at, (event,))
    return problems


def states_along(load: Callable[[], System], trace: Trace, begun: Snapshot | None) -> dict[str, list[Any]]:
    """Replay all of `trace`; return the plain states of each process, beginning before its first event."""
    replay = Replay(load(), trace, begun, load)
    states = {name: [replay.plain_state(name)] for name in replay.processes}
    for event in trace.events():
        replay.run((event,))
        states[event.process].append(replay.plain_state(event.process))
    return states


def _compare_cuts(
    replay: Replay, at: Mapping[tuple[str, int], list[tuple[str, LocalState]]], reached: Iterable[EventRef]
) -> list[str]:
    return [
        f"snapshot {snapshot}: the state of {event.process} after event {event.position} is not the one recorded"
        for event in reached
        for snapshot, state in at.get(event, ())
        if not replay.has_state(event.process, state)
    ]


def _compare_states(replay: Replay, snapshot: Snapshot) -> list[str]:
    return [
        f"the state of {process} in the replay is not the one recorded"
        for process, fragment in snapshot.fragments.items()
        if fragment.state is None or not replay.has_state(process, fragment.state)
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
