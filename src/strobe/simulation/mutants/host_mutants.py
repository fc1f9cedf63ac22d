"""Hosts with one rule broken each: of a snapshot, of a restart (E4, E7), of a rollback (R1)."""

import msgspec

from strobe.protocol import Fragment, Frame, InFlight, Lifecycle, LocalState
from strobe.protocol.coordinator.messages import CoordinatorEffect, RestoreState
from strobe.protocol.process.effects import DeliverFrame
from strobe.simulation.channel_queues import Item
from strobe.simulation.node import Node
from strobe.simulation.restorable import RestorableNode


class SharedStateNode(Node):
    """E4 broken: the state is captured by reference, and written when the fragment is finished."""

    def _finish(self, fragment: Fragment) -> None:
        early = self.captured[fragment.snapshot]
        self.captured[fragment.snapshot] = msgspec.structs.replace(early, data=self.capture().data)
        super()._finish(fragment)


class FieldLostNode(Node):
    """S3 broken: one field of the state is not stored. What the other fields conserve is still conserved."""

    def capture(self) -> LocalState:
        local = super().capture()
        fields = msgspec.msgpack.decode(local.data)
        del fields["paid"]
        return msgspec.structs.replace(local, data=msgspec.msgpack.encode(fields))


class ForgetsAfterRestart(Lifecycle):
    """E7 broken: a restarted coordinator ignores the snapshots that were under way."""

    def _recover(self, now_us: int) -> list[CoordinatorEffect]:
        self.open.clear()
        return super()._recover(now_us)


class StateNotRestored(RestorableNode):
    """A process that has not crashed keeps its state: it counts from the snapshot, but has applied more."""

    def take_state(self, former: RestorableNode, restored: str, state: LocalState) -> None:
        if former.blank:
            super().take_state(former, restored, state)
        else:
            self.process, self.applied = former.process, former.applied


class CountersNotRestored(RestorableNode):
    """The state is that of the snapshot, but messages are counted from 1."""

    def take_counters(self, order: RestoreState, fragment: Fragment, sent_counts: dict[str, int]) -> None:
        pass


class NotRedelivered(RestorableNode):
    """Messages in flight are lost, but counted as received."""

    def take_counters(self, order: RestoreState, fragment: Fragment, sent_counts: dict[str, int]) -> None:
        super().take_counters(order, fragment, sent_counts)
        for channel, items in fragment.in_flight.items():
            for item in items:
                self.protocol.incoming[channel].accept(item.frame, self.name, item.consumed)

    def redeliver(self, in_flight: dict[str, tuple[InFlight, ...]]) -> None:
        pass


class RedeliveredTwice(RestorableNode):
    """Messages in flight are counted once, but delivered twice."""

    def redeliver(self, in_flight: dict[str, tuple[InFlight, ...]]) -> None:
        for channel, items in in_flight.items():
            for item in items:
                self._deliver(DeliverFrame(channel, item.frame, item.consumed))
                self.frames_taken += 1
        super().redeliver(in_flight)


class OldEpochAccepted(RestorableNode):
    """A frame of an older epoch is accepted if its ordinal fits."""

    def is_fenced_off(self, channel: str, item: Item) -> bool:
        incoming = self.protocol.incoming.get(channel)
        if incoming is None or channel in self.held_items or not isinstance(item, Frame):
            return True
        return item.first_ordinal != incoming.next_ordinal or item.last_ordinal > len(
            self.received_journals[channel].payloads
        )
