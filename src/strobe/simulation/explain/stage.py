"""A stage for the real protocol classes: a script makes things happen one by one, and each is noted with its rule.

`explain` runs scripts on it; the explorer runs its counterexamples. The notes are made from what the protocol did, not
from what it should have done.
"""

from typing import Any

import msgspec

from strobe.causality.proof import Verdict, verify
from strobe.protocol import FIFO, ChannelSpec, Fragment, Frame, LaiYang, LocalState, Snapshot, SnapshotId, View
from strobe.protocol.process.effects import (
    DeliverFrame,
    DropRecording,
    Effect,
    FinishFragment,
    RecordState,
    ReportSentCounts,
    SendFrame,
    SendMarker,
)
from strobe.protocol.process.events import (
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
    """One row of a space-time diagram. `peer` is the other end of an arrow: its target or its source."""

    kind: str
    process: str
    peer: str = ""
    label: str = ""
    rule: str = ""
    text: str = ""


def view_of_edges(processes: str, edges: str, kind: str = FIFO) -> View:
    """Return a view of processes named by one letter each; `ab bc` is a channel from a to b and one from b to c."""
    channels = tuple(ChannelSpec(f"{edge[0]}->{edge[1]}", edge[0], edge[1], kind) for edge in edges.split())
    return View(1, tuple(processes), channels)


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
        self.relays: list[tuple[str, SentCountRelayed]] = []
        self.captured: dict[tuple[str, SnapshotId], LocalState] = {}
        self.fragments: dict[SnapshotId, dict[str, Fragment]] = {}
        self.moments: list[Moment] = []
        self._event: Event | None = None

    # Actions of a script

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

    def request(self, process: str, snapshot: SnapshotId) -> None:
        """Request `process` to record for `snapshot`."""
        self._handle(process, SnapshotRequested(snapshot, self.view.number))

    def relay(self) -> None:
        """Let the coordinator relay the counts reported so far."""
        relays, self.relays = self.relays, []
        for target, relayed in relays:
            self._handle(target, relayed)

    def order(self, process: str, event: Event) -> None:
        """Give `process` an order unchanged."""
        self._handle(process, event)

    def crash(self, process: str) -> None:
        """Crash `process`, and restart it with only its state and counters."""
        for key in [key for key in self.captured if key[0] == process]:
            del self.captured[key]
        self._handle(process, Restarted())

    def roll_back(self, snapshot: SnapshotId | None, epoch: int) -> None:
        """Roll all processes back to `snapshot`, or to the beginning, in a new epoch (R1)."""
        self.view = msgspec.structs.replace(self.view, number=epoch)
        whole = self.fragments.get(snapshot, {}) if snapshot is not None else {}
        self.wires = {channel: [] for channel in self.wires}
        self.relays = []
        self.captured = {}
        where = "the beginning" if snapshot is None else short(snapshot)
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
        """Take this item from `channel`."""
        wanted = item.frame if isinstance(item, FrameReceived) else item
        self.take(channel, next(place for place, queued in enumerate(self.wires[channel]) if queued == wanted))

    def finish(self) -> None:
        """Deliver everything still in flight."""
        while True:
            busy = [channel for channel, items in self.wires.items() if items]
            if busy:
                self.take(busy[0])
            elif self.relays:
                self.relay()
            else:
                return

    # Results

    def snapshot(self, snapshot: SnapshotId) -> Snapshot:
        """Return the snapshot made of all fragments handed over."""
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
        """Note the event, with the rule that its effects show."""
        records = any(isinstance(effect, RecordState) for effect in effects)
        match event:
            case MarkerReceived():
                source = self.ends[event.channel][0]
                rule, text = _marker_rule(event, records, event.marker.snapshot in was_open, process)
                self._note("marker", process, source, short(event.marker.snapshot), rule, text)
            case FrameReceived():
                source = self.ends[event.channel][0]
                rule, text = self._frame_rule(process, event, effects)
                self._note("receive", process, source, self._label(event.frame), rule, text)
            case SentCountRelayed():
                text = f"{process} learns that {event.count} were sent on {event.channel} before the cut"
                self._note("order", process, "", "", "L5", text)
            case SnapshotRequested():
                again = "" if records else "; it has already"
                text = f"{process} is asked to record {short(event.snapshot)}{again}"
                self._note("order", process, "", "", self._rule("C1", "L3"), text)
            case SnapshotAborted():
                self._note("order", process, "", "", "E6", f"{process} learns that {short(event.snapshot)} is aborted")
            case Restarted():
                self._note("crash", process, "", "", "E6", f"{process} crashes, and comes back without its recordings")

    def _frame_rule(self, process: str, event: FrameReceived, effects: list[Effect]) -> tuple[str, str]:
        label, frame = self._label(event.frame), event.frame
        machine = self.machines[process]
        if any(isinstance(effect, RecordState) for effect in effects):
            return "L2", f"{label} carries index {frame.index}, above {process}'s own: record first, then deliver"
        finished = [effect.fragment for effect in effects if isinstance(effect, FinishFragment)]
        recorded = [
            (snapshot, open_one.frames.get(event.channel, ())) for snapshot, open_one in machine.open.items()
        ] + [(fragment.snapshot, fragment.in_flight.get(event.channel, ())) for fragment in finished]
        named = [short(snapshot) for snapshot, items in recorded if any(item.frame is frame for item in items)]
        if named:
            rule = "L4" if machine.name == LaiYang.name else "C4"
            return rule, f"{label} was in flight at the cut: delivered, and recorded for {' and '.join(named)}"
        rule = "C7" if self._under_way() else "M2"
        return rule, f"{process} receives {label}, message {frame.first_ordinal} of {event.channel}"

    def _under_way(self) -> bool:
        """Whether a snapshot is being recorded anywhere: the application continues meanwhile."""
        return any(machine.open for machine in self.machines.values())

    def _carry_out(self, process: str, effect: Effect, records: bool) -> None:
        match effect:
            case SendFrame():
                self.wires[effect.channel].append(effect.frame)
            case SendMarker():
                self.wires[effect.channel].append(MarkerReceived(effect.channel, effect.marker))
                target = self.ends[effect.channel][1]
                when = "before any later message" if records else "only now"
                text = f"{process} sends the marker on {effect.channel}, {when}"
                self._note("marker-sent", process, target, short(effect.marker.snapshot), "C2", text)
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
                self._note("note", process, "", "", "E6", f"{process} frees what it held for {short(effect.snapshot)}")

    def _record(self, process: str, snapshot: SnapshotId) -> None:
        balance = self.balances[process]
        self.captured[process, snapshot] = LocalState(self.positions[process], "msgpack", _encode(balance))
        text = f"{process} records its state: {self._amount(balance)}"
        self._note("record", process, "", short(snapshot), self._record_rule(), text)

    def _record_rule(self) -> str:
        """Return the rule by which a process records now."""
        asked = isinstance(self._event, SnapshotRequested)
        return "C3" if isinstance(self._event, MarkerReceived) else self._rule("C2", "L3" if asked else "L2")

    def _finish(self, process: str, fragment: Fragment) -> None:
        state = self.captured.pop((process, fragment.snapshot), None)
        whole = msgspec.structs.replace(fragment, state=state)
        self.fragments.setdefault(fragment.snapshot, {})[process] = whole
        text = f"{process} is complete for {short(fragment.snapshot)}"
        self._note("note", process, "", "", self._rule("C5", "L5"), text)

    def _note(self, kind: str, process: str, peer: str, label: str, rule: str, text: str) -> None:
        self.moments.append(Moment(kind, process, peer, label, rule, text))

    def _rule(self, chandy_lamport: str, lai_yang: str) -> str:
        return lai_yang if self.protocol_class.name == LaiYang.name else chandy_lamport

    def _label(self, frame: Frame) -> str:
        return "+".join(self._amount(amount) for amount in _decode(frame.body))

    def _amount(self, amount: int) -> str:
        return f"{self.unit}{amount}"


def short(snapshot: SnapshotId) -> str:
    """Return the short name of a snapshot, for notes and diagrams."""
    return f"S{snapshot.counter}"


def _marker_rule(event: MarkerReceived, records: bool, was_open: bool, process: str) -> tuple[str, str]:
    name = short(event.marker.snapshot)
    if records:
        return "C3", f"first marker of {name}, on {event.channel}: that channel is empty; {process} records at once"
    if was_open:
        return "C4", f"marker of {name} on {event.channel}: its state ends here"
    return "E6", f"marker of {name} on {event.channel} comes late, and is ignored"
