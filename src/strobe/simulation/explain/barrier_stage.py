"""The stage for barriers (V3-V5): queues at senders, inputs held back, overtaking barriers."""

from collections.abc import Iterable
from typing import Any

import msgspec

from strobe.protocol import Frame, InFlight, SnapshotId, View
from strobe.protocol.process.effects import (
    Effect,
    HoldChannel,
    RecordState,
    ResumeChannel,
    SendBarrier,
    SendFrame,
    SendMarker,
    SetAlignmentTimer,
)
from strobe.protocol.process.events import (
    AlignmentTimedOut,
    BarrierArrived,
    Event,
    MarkerReceived,
    SnapshotRequested,
)
from strobe.simulation.explain.stage import Stage, short


class BarrierStage(Stage):
    """If barriers overtake, messages wait at their sender until the script sends them (`forward`)."""

    def __init__(self, view: View, protocol_class: Any, balances: dict[str, int], unit: str = "$") -> None:
        super().__init__(view, protocol_class, balances, unit)
        self.overtaking = protocol_class.overtakes
        self.outboxes: dict[str, list[Frame | MarkerReceived]] = {spec.id: [] for spec in view.channels}
        self.held: set[str] = set()
        # The inputs on which a barrier has had its turn, for each process and snapshot.
        self.turns: dict[tuple[str, SnapshotId], set[str]] = {}

    # Actions of a script

    def forward(self, channel: str, *, arrives: bool = True) -> None:
        """Send the first item waiting at the sender of `channel`; a barrier arrives at once."""
        item = self.outboxes[channel].pop(0)
        self.wires[channel].append(item)
        if isinstance(item, MarkerReceived) and arrives:
            self.arrive(channel)

    def arrive(self, channel: str) -> None:
        """Let the first barrier on `channel` reach its machine, ahead of the items before it."""
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
        """Fire the alignment timer."""
        self._handle(process, AlignmentTimedOut(snapshot))

    def roll_back(self, snapshot: SnapshotId | None, epoch: int) -> None:
        self.outboxes = {channel: [] for channel in self.wires}
        self.held = set()
        super().roll_back(snapshot, epoch)

    def take_item(self, channel: str, item: Event) -> None:
        """Take this item from `channel`; a barrier may be announced before its turn."""
        if not isinstance(item, BarrierArrived):
            super().take_item(channel, item)
            return
        self.wires[channel] = [
            queued
            for queued in self.wires[channel]
            if not (isinstance(queued, BarrierArrived) and queued.marker == item.marker)
        ]
        self._handle(self.ends[channel][1], item)

    def finish(self) -> None:
        """Deliver everything still in flight."""
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
            else:
                return

    # Notes

    def _introduce(self, process: str, event: Event, effects: list[Effect], was_open: dict[SnapshotId, None]) -> None:
        match event:
            case MarkerReceived():
                self.turns.setdefault((process, event.marker.snapshot), set()).add(event.channel)
                rule, text = self._turn_rule(event, effects, process)
                self._note("marker", process, self.ends[event.channel][0], short(event.marker.snapshot), rule, text)
            case BarrierArrived():
                self._introduce_barrier(process, event)
            case AlignmentTimedOut():
                text = f"{process}: the time for {short(event.snapshot)} to align is over"
                self._note("order", process, "", "", "T2", text)
            case SnapshotRequested():
                self._note("order", process, "", "", "A1", f"{process} is asked to record {short(event.snapshot)}")
            case _:
                super()._introduce(process, event, effects, was_open)

    def _turn_rule(self, event: MarkerReceived, effects: list[Effect], process: str) -> tuple[str, str]:
        """Describe the effect of a barrier whose turn has come."""
        what = f"barrier of {short(event.marker.snapshot)} on {event.channel}"
        if any(isinstance(effect, HoldChannel) for effect in effects):
            return "A2", f"{what}: {process} receives no message after it until the others have arrived"
        if any(isinstance(effect, RecordState) for effect in effects):
            inputs = {channel for channel, ends in self.ends.items() if ends[1] == process}
            if self.turns[process, event.marker.snapshot] < inputs:
                return "A3", f"{what}: {process} records, and does not wait for the others"
            return "A3", f"{what}, the last: {process} has all that was sent before the barriers, and nothing else"
        return "A3", f"{what} has its turn, and is ignored"

    def _introduce_barrier(self, process: str, event: BarrierArrived) -> None:
        """Note a barrier that reaches the machine, and the messages it overtook."""
        here = self._labels(item.frame for item in event.waiting)
        there = self._labels(event.overtaken)
        over = " and ".join(f"{what} {where}" for what, where in ((here, "here"), (there, "at its sender")) if what)
        source, name = self.ends[event.channel][0], short(event.marker.snapshot)
        if event.overtakes:
            text = f"barrier of {name} on {event.channel}"
            text += f" has overtaken {over}: that is in flight" if over else ": nothing is in flight"
            self._note("marker", process, source, name, "U2", text)
        elif over:
            text = f"barrier of {name} on {event.channel} has arrived, and waits behind {over}"
            self._note("note", process, "", "", "A2", text)

    def _carry_out(self, process: str, effect: Effect, records: bool) -> None:
        match effect:
            case SendFrame():
                self._put(effect.channel, effect.frame)
            case SendMarker():
                self._put(effect.channel, MarkerReceived(effect.channel, effect.marker))
                text = f"{process} sends the barrier on {effect.channel}, before any later message"
                self._note_sent(process, effect.channel, effect.marker.snapshot, "A3", text)
            case SendBarrier():
                self._send_barrier(process, effect)
            case HoldChannel():
                self.held.add(effect.channel)
                self._note("note", process, "", "", "A2", f"{process} holds {effect.channel} back")
            case ResumeChannel():
                self.held.discard(effect.channel)
                self._note("note", process, "", "", "A3", f"{process} continues to receive on {effect.channel}")
            case SetAlignmentTimer():
                name = short(effect.snapshot)
                self._note("note", process, "", "", "T1", f"{process}: the alignment timer for {name} starts")
            case _:
                super()._carry_out(process, effect, records)

    def _put(self, channel: str, item: Frame | MarkerReceived) -> None:
        if self.overtaking:
            self.outboxes[channel].append(item)
        else:
            self.wires[channel].append(item)

    def _send_barrier(self, process: str, effect: SendBarrier) -> None:
        """Put the barrier ahead of everything waiting at its sender, with copies of that."""
        channel, sent = effect.channel, effect.marker.sent_count
        assert sent is not None
        waiting = [item for item in self.outboxes[channel] if isinstance(item, Frame)]
        overtaken = tuple(frame for frame in waiting if frame.first_ordinal <= sent)
        self.wires[channel].append(BarrierArrived(channel, effect.marker, (), overtaken, overtakes=True))
        over = f", ahead of {self._labels(overtaken)}" if overtaken else ""
        self._note_sent(
            process, channel, effect.marker.snapshot, "U1", f"{process} sends the barrier on {channel}{over}"
        )

    def _note_sent(self, process: str, channel: str, snapshot: SnapshotId, rule: str, text: str) -> None:
        self._note("marker-sent", process, self.ends[channel][1], short(snapshot), rule, text)

    def _record_rule(self) -> str:
        if isinstance(self._event, MarkerReceived):
            return "A3"
        if isinstance(self._event, AlignmentTimedOut):
            return "T2"
        return "A1" if isinstance(self._event, SnapshotRequested) else "U1"

    def _labels(self, frames: Iterable[Frame]) -> str:
        return " and ".join(map(self._label, frames))
