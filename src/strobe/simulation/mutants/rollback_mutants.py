"""Hosts that roll back wrongly, each with one rule of R1 broken."""

from strobe.protocol import Fragment, Frame, InFlight, LocalState
from strobe.protocol.coordinator.messages import TellRestore
from strobe.protocol.process.effects import DeliverFrame
from strobe.simulation.queues import Item
from strobe.simulation.restorable import RestorableNode


class StateNotRestored(RestorableNode):
    """A process that has not crashed keeps its state: it counts from the snapshot, but has applied more."""

    def take_state(self, former: RestorableNode, restored: str, state: LocalState) -> None:
        if former.blank:
            super().take_state(former, restored, state)
        else:
            self.process, self.applied = former.process, former.applied


class CountersNotRestored(RestorableNode):
    """The state is that of the snapshot, but messages are counted from 1."""

    def take_counters(self, order: TellRestore, fragment: Fragment, sent_counts: dict[str, int]) -> None:
        pass


class NotRedelivered(RestorableNode):
    """Messages in flight are lost, but counted as received."""

    def take_counters(self, order: TellRestore, fragment: Fragment, sent_counts: dict[str, int]) -> None:
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

    def fences_off(self, channel: str, item: Item) -> bool:
        incoming = self.protocol.incoming.get(channel)
        if incoming is None or channel in self.behind or not isinstance(item, Frame):
            return True
        return item.first_ordinal != incoming.next_ordinal or item.last_ordinal > len(
            self.received_journals[channel].payloads
        )
