"""A stage for the real protocol classes: things happen one by one, as a script says, and each is noted with its rule.

`explain` plays scripts on it; the explorer plays its counterexamples. The notes are made from what the protocol did,
not from what it should have done.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from strobe.causality.proof import Verdict, verify
from strobe.protocol import Fragment, Frame, InFlight, LaiYang, LocalState, Snapshot, SnapshotId, View
from strobe.protocol.effects import (
    DeliverFrame,
    DropRecording,
    Effect,
    FinishFragment,
    HoldChannel,
    RecordState,
    ReportSentCounts,
    ResumeChannel,
    SendBarrier,
    SendFrame,
    SendMarker,
    SetAlignmentTimer,
)
from strobe.protocol.events import (
    AlignmentTimedOut,
    BarrierArrived,
    Event,
    FrameReceived,
    MarkerReceived,
    MessagesSent,
    Restarted,
    SentCountRelayed,
    SnapshotAborted,
    SnapshotRequested,
)

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class Moment(msgspec.Struct, frozen=True):
    """One row of a space-time diagram. `peer` is the other end of an arrow: where it goes to, or comes from."""

    kind: str
    process: str
    peer: str = ""
    label: str = ""
    rule: str = ""
    text: str = ""


class Stage:
    """Protocol machines of one view, channels between them, and a balance at each process."""

    def __init__(self, view: View, protocol_class: Any, balances: dict[str, int], unit: str = "$") -> None:
        self.view = view
        self.unit = unit
        self.protocol_class = protocol_class
        self.machines = {process: protocol_class(process, view) for process in view.processes}
        self.balances = dict(balances)
        self.positions = dict.fromkeys(view.processes, 0)
        self.ends = {spec.id: (spec.source, spec.target) for spec in view.channels}
        self.wires: dict[str, list[Frame | MarkerReceived | BarrierArrived]] = {spec.id: [] for spec in view.channels}
        # Where barriers overtake: what waits at senders, until a script lets it go. And inputs that are held back.
        self.overtaking = protocol_class.overtakes
        self.outboxes: dict[str, list[Frame | MarkerReceived]] = {spec.id: [] for spec in view.channels}
        self.held: set[str] = set()
        # The inputs on which a barrier has had its turn, for each process and snapshot.
        self.turns: dict[tuple[str, SnapshotId], set[str]] = {}
        self.relays: list[tuple[str, SentCountRelayed]] = []
        self.captured: dict[tuple[str, SnapshotId], LocalState] = {}
        self.fragments: dict[SnapshotId, dict[str, Fragment]] = {}
        self.moments: list[Moment] = []
        self._event: Event | None = None

    # What a script does

    def send(self, source: str, channel: str, amount: int) -> None:
        """Run an event at `source` that pays `amount` on `channel`."""
        self.positions[source] += 1
        self.balances[source] -= amount
        label = self._amount(amount)
        ordinal = self.machines[source].outgoing[channel].count + 1
        rule = "C7" if self._under_way() else "M2"
        text = f"{source} sends {label} on {channel}, its message {ordinal}"
        self._note("send", source, self.ends[channel][1], label, rule, text)
        self._handle(source, MessagesSent(channel, 1, _encode([amount])))

    def take(self, channel: str, place: int = 0) -> None:
        """Take the item at `place` from `channel`; any but the first is a reordering."""
        target = self.ends[channel][1]
        item = self.wires[channel].pop(place)
        self._handle(target, FrameReceived(channel, item) if isinstance(item, Frame) else item)

    def forward(self, channel: str) -> None:
        """Let the first thing that waits at the sender of `channel` go on its way."""
        item = self.outboxes[channel].pop(0)
        self.wires[channel].append(item)
        if isinstance(item, MarkerReceived):
            self.arrive(channel)

    def arrive(self, channel: str) -> None:
        """Let the first barrier on `channel` reach its machine, whatever waits before it."""
        wire = self.wires[channel]
        place = next(place for place, item in enumerate(wire) if not isinstance(item, Frame))
        waiting = tuple(InFlight(item) for item in wire[:place] if isinstance(item, Frame))
        item = wire[place]
        if isinstance(item, BarrierArrived):
            del wire[place]
            item = msgspec.structs.replace(item, waiting=waiting)
        else:
            assert isinstance(item, MarkerReceived)
            item = BarrierArrived(channel, item.marker, waiting)
        self._handle(self.ends[channel][1], item)

    def time_out(self, process: str, snapshot: SnapshotId) -> None:
        """Let the time be over that alignment may take."""
        self._handle(process, AlignmentTimedOut(snapshot))

    def request(self, process: str, snapshot: SnapshotId) -> None:
        """Ask `process` to record for `snapshot`."""
        self._handle(process, SnapshotRequested(snapshot, self.view.number))

    def relay(self) -> None:
        """Let the coordinator pass on the counts reported so far."""
        relays, self.relays = self.relays, []
        for target, relayed in relays:
            self._handle(target, relayed)

    def order(self, process: str, event: Event) -> None:
        """Give `process` an order as it stands."""
        self._handle(process, event)

    def crash(self, process: str) -> None:
        """Crash `process`, and let it come back with its state and counters alone."""
        for key in [key for key in self.captured if key[0] == process]:
            del self.captured[key]
        self._handle(process, Restarted())

    def go_back(self, snapshot: SnapshotId | None, epoch: int) -> None:
        """Roll everybody back to `snapshot`, or to the beginning, in a new epoch (R1)."""
        self.view = msgspec.structs.replace(self.view, number=epoch)
        whole = self.fragments.get(snapshot, {}) if snapshot is not None else {}
        self.wires = {channel: [] for channel in self.wires}
        self.outboxes = {channel: [] for channel in self.wires}
        self.held = set()
        self.relays = []
        self.captured = {}
        where = "the beginning" if snapshot is None else _short(snapshot)
        for process in self.view.processes:
            fragment = whole.get(process)
            self.machines[process] = self._machine(process, epoch, whole)
            if fragment is not None and fragment.state is not None:
                self.balances[process] = _decode(fragment.state.data)
                for channel, items in fragment.in_flight.items():
                    self.wires[channel] = [item.frame for item in items]
            self._note("crash", process, "", "", "R1", f"{process} goes back to {where}, in epoch {epoch}")

    def _machine(self, process: str, epoch: int, whole: dict[str, Fragment]) -> Any:
        if process not in whole:
            return self.protocol_class(process, self.view, epoch)
        sent = {spec.id: whole[spec.source].sent[spec.id].count for spec in self.view.incoming(process)}
        return self.protocol_class.restored(process, self.view, epoch, whole[process], sent)

    def take_item(self, channel: str, item: Event) -> None:
        """Take this very item from `channel`; a barrier may be told of before its turn."""
        if isinstance(item, BarrierArrived):
            self.wires[channel] = [
                queued
                for queued in self.wires[channel]
                if not (isinstance(queued, BarrierArrived) and queued.marker == item.marker)
            ]
            self._handle(self.ends[channel][1], item)
            return
        wanted = item.frame if isinstance(item, FrameReceived) else item
        self.take(channel, next(place for place, queued in enumerate(self.wires[channel]) if queued == wanted))

    def finish(self) -> None:
        """Let everything arrive that is still on the way."""
        while True:
            waiting = [channel for channel, items in self.outboxes.items() if items]
            ahead = [
                channel
                for channel, items in self.wires.items()
                if any(isinstance(one, BarrierArrived) for one in items)
            ]
            busy = [channel for channel, items in self.wires.items() if items and channel not in self.held]
            if ahead:
                self.arrive(ahead[0])
            elif waiting:
                self.forward(waiting[0])
            elif busy:
                self.take(busy[0])
            elif self.relays:
                self.relay()
            else:
                return

    # What comes of it

    def snapshot(self, snapshot: SnapshotId) -> Snapshot:
        """Return the snapshot of all fragments handed over."""
        return Snapshot(snapshot, self.protocol_class.name, (), self.view, self.fragments.get(snapshot, {}))

    def verdict(self, snapshot: SnapshotId) -> Verdict:
        return verify(self.snapshot(snapshot))

    def recorded_balances(self, snapshot: SnapshotId) -> dict[str, int]:
        fragments = self.fragments.get(snapshot, {})
        return {name: _decode(fragment.state.data) for name, fragment in fragments.items() if fragment.state}

    def recorded_amounts(self, snapshot: SnapshotId) -> dict[str, list[int]]:
        """Return the amounts recorded in flight, by channel."""
        return {
            channel: [amount for item in items for amount in _decode(item.frame.body)[item.consumed :]]
            for fragment in self.fragments.get(snapshot, {}).values()
            for channel, items in fragment.in_flight.items()
        }

    def _handle(self, process: str, event: Event) -> None:
        self._event = event
        machine = self.machines[process]
        was_open = dict.fromkeys(machine.open)
        effects = machine.handle(event)
        self._introduce(process, event, effects, was_open)
        records = any(isinstance(effect, RecordState) for effect in effects)
        for effect in effects:
            self._carry_out(process, effect, records)

    def _introduce(self, process: str, event: Event, effects: list[Effect], was_open: dict[SnapshotId, None]) -> None:
        """Note what came in, with the rule that its effects show."""
        records = any(isinstance(effect, RecordState) for effect in effects)
        match event:
            case MarkerReceived():
                source = self.ends[event.channel][0]
                rule, text = _marker_rule(event, records, event.marker.snapshot in was_open, process)
                if self.protocol_class.barriers:
                    self.turns.setdefault((process, event.marker.snapshot), set()).add(event.channel)
                    rule, text = self._turn_rule(event, effects, process)
                self._note("marker", process, source, _short(event.marker.snapshot), rule, text)
            case FrameReceived():
                source = self.ends[event.channel][0]
                rule, text = self._frame_rule(process, event, effects)
                self._note("receive", process, source, self._label(event.frame), rule, text)
            case BarrierArrived():
                self._introduce_barrier(process, event)
            case AlignmentTimedOut():
                text = f"{process}: the time is over that {_short(event.snapshot)} may take to align"
                self._note("order", process, "", "", "T2", text)
            case SentCountRelayed():
                text = f"{process} hears that {event.count} were sent on {event.channel} before the cut"
                self._note("order", process, "", "", "L5", text)
            case SnapshotRequested():
                again = "" if records else "; it has already"
                text = f"{process} is asked to record {_short(event.snapshot)}{again}"
                asked = "A1" if self.protocol_class.barriers else self._rule("C1", "L3")
                self._note("order", process, "", "", asked, text)
            case SnapshotAborted():
                self._note("order", process, "", "", "E6", f"{process} hears that {_short(event.snapshot)} is aborted")
            case Restarted():
                self._note("crash", process, "", "", "E6", f"{process} crashes, and comes back without its recordings")

    def _turn_rule(self, event: MarkerReceived, effects: list[Effect], process: str) -> tuple[str, str]:
        """Say what a barrier does whose turn has come."""
        what = f"barrier of {_short(event.marker.snapshot)} on {event.channel}"
        if any(isinstance(effect, HoldChannel) for effect in effects):
            return "A2", f"{what}: {process} receives nothing behind it before the others have come"
        if any(isinstance(effect, RecordState) for effect in effects):
            inputs = {channel for channel, ends in self.ends.items() if ends[1] == process}
            if self.turns[process, event.marker.snapshot] < inputs:
                return "A3", f"{what}: {process} records, and does not wait for the others"
            return "A3", f"{what}, the last: {process} has all that was sent before the barriers, and nothing else"
        return "A3", f"{what} has its turn, and is ignored"

    def _introduce_barrier(self, process: str, event: BarrierArrived) -> None:
        """Note a barrier that reaches the machine, and what it has overtaken."""
        here = self._labels(item.frame for item in event.waiting)
        there = self._labels(event.overtaken)
        over = " and ".join(f"{what} {where}" for what, where in ((here, "here"), (there, "at its sender")) if what)
        source, name = self.ends[event.channel][0], _short(event.marker.snapshot)
        if event.overtakes:
            text = f"barrier of {name} on {event.channel}"
            text += f" has overtaken {over}: that is in flight" if over else ": nothing is in flight"
            self._note("marker", process, source, name, "U2", text)
        elif over:
            text = f"barrier of {name} on {event.channel} has come, and waits behind {over}"
            self._note("note", process, "", "", "A2", text)

    def _frame_rule(self, process: str, event: FrameReceived, effects: list[Effect]) -> tuple[str, str]:
        label, frame = self._label(event.frame), event.frame
        machine = self.machines[process]
        if any(isinstance(effect, RecordState) for effect in effects):
            return "L2", f"{label} carries index {frame.index}, above {process}'s own: record first, then deliver"
        finished = [effect.fragment for effect in effects if isinstance(effect, FinishFragment)]
        recorded = [
            (snapshot, open_one.frames.get(event.channel, ())) for snapshot, open_one in machine.open.items()
        ] + [(fragment.snapshot, fragment.in_flight.get(event.channel, ())) for fragment in finished]
        named = [_short(snapshot) for snapshot, items in recorded if any(item.frame is frame for item in items)]
        if named:
            rule = "L4" if machine.name == LaiYang.name else "C4"
            return rule, f"{label} was in flight at the cut: delivered, and recorded for {' and '.join(named)}"
        rule = "C7" if self._under_way() else "M2"
        return rule, f"{process} receives {label}, message {frame.first_ordinal} of {event.channel}"

    def _under_way(self) -> bool:
        """Tell whether a snapshot is being recorded anywhere: the application goes on all the same."""
        return any(machine.open for machine in self.machines.values())

    def _carry_out(self, process: str, effect: Effect, records: bool) -> None:
        match effect:
            case SendFrame():
                (self.outboxes if self.overtaking else self.wires)[effect.channel].append(effect.frame)
            case SendMarker():
                marker = MarkerReceived(effect.channel, effect.marker)
                (self.outboxes if self.overtaking else self.wires)[effect.channel].append(marker)
                target = self.ends[effect.channel][1]
                when = "before any later message" if records else "only now"
                what, rule = ("barrier", "A3") if self.protocol_class.barriers else ("marker", "C2")
                text = f"{process} sends the {what} on {effect.channel}, {when}"
                self._note("marker-sent", process, target, _short(effect.marker.snapshot), rule, text)
            case SendBarrier():
                self._send_barrier(process, effect)
            case HoldChannel():
                self.held.add(effect.channel)
                self._note("note", process, "", "", "A2", f"{process} holds {effect.channel} back")
            case ResumeChannel():
                self.held.discard(effect.channel)
                self._note("note", process, "", "", "A3", f"{process} goes on with {effect.channel}")
            case SetAlignmentTimer():
                name = _short(effect.snapshot)
                self._note("note", process, "", "", "T1", f"{process}: from now on the time runs for {name} to align")
            case DeliverFrame():
                self.positions[process] += 1
                self.balances[process] += sum(_decode(effect.frame.body))
            case RecordState():
                self._record(process, effect.snapshot)
            case ReportSentCounts():
                for channel, count in effect.counts.items():
                    self.relays.append((self.ends[channel][1], SentCountRelayed(effect.snapshot, channel, count)))
            case FinishFragment():
                self._finish(process, effect.fragment)
            case DropRecording():
                self._note("note", process, "", "", "E6", f"{process} frees what it held for {_short(effect.snapshot)}")

    def _send_barrier(self, process: str, effect: SendBarrier) -> None:
        """Put the barrier ahead of all that waits at its sender, with copies of that."""
        sent = effect.marker.sent_count
        assert sent is not None
        waiting = [item for item in self.outboxes[effect.channel] if isinstance(item, Frame)]
        overtaken = tuple(frame for frame in waiting if frame.first_ordinal <= sent)
        self.wires[effect.channel].append(BarrierArrived(effect.channel, effect.marker, (), overtaken, overtakes=True))
        over = f", ahead of {self._labels(overtaken)}" if overtaken else ""
        text = f"{process} sends the barrier on {effect.channel}{over}"
        self._note("marker-sent", process, self.ends[effect.channel][1], _short(effect.marker.snapshot), "U1", text)

    def _record(self, process: str, snapshot: SnapshotId) -> None:
        balance = self.balances[process]
        self.captured[process, snapshot] = LocalState(self.positions[process], "msgpack", _encode(balance))
        text = f"{process} records its state: {self._amount(balance)}"
        asked = isinstance(self._event, SnapshotRequested)
        rule = "C3" if isinstance(self._event, MarkerReceived) else self._rule("C2", "L3" if asked else "L2")
        if self.protocol_class.barriers:
            rule = self._barrier_rule(asked)
        self._note("record", process, "", _short(snapshot), rule, text)

    def _barrier_rule(self, asked: bool) -> str:
        """Return the rule by which a process records where there are barriers."""
        if isinstance(self._event, MarkerReceived):
            return "A3"
        if isinstance(self._event, AlignmentTimedOut):
            return "T2"
        return "A1" if asked else "U1"

    def _finish(self, process: str, fragment: Fragment) -> None:
        state = self.captured.pop((process, fragment.snapshot), None)
        whole = msgspec.structs.replace(fragment, state=state)
        self.fragments.setdefault(fragment.snapshot, {})[process] = whole
        text = f"{process} is complete for {_short(fragment.snapshot)}"
        self._note("note", process, "", "", self._rule("C5", "L5"), text)

    def _note(self, kind: str, process: str, peer: str, label: str, rule: str, text: str) -> None:
        self.moments.append(Moment(kind, process, peer, label, rule, text))

    def _rule(self, chandy_lamport: str, lai_yang: str) -> str:
        return lai_yang if self.protocol_class.name == LaiYang.name else chandy_lamport

    def _labels(self, frames: Iterable[Frame]) -> str:
        return " and ".join(map(self._label, frames))

    def _label(self, frame: Frame) -> str:
        return "+".join(self._amount(amount) for amount in _decode(frame.body))

    def _amount(self, amount: int) -> str:
        return f"{self.unit}{amount}"


def _short(snapshot: SnapshotId) -> str:
    return f"S{snapshot.counter}"


def _marker_rule(event: MarkerReceived, records: bool, was_open: bool, process: str) -> tuple[str, str]:
    name = _short(event.marker.snapshot)
    if records:
        return "C3", f"first marker of {name}, on {event.channel}: that channel is empty; {process} records at once"
    if was_open:
        return "C4", f"marker of {name} on {event.channel}: its state ends here"
    return "E6", f"marker of {name} on {event.channel} comes late, and is ignored"
