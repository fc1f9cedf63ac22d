"""A node in a world with rollbacks: it may lose its state, and the coordinator may order a rollback (R1).

A rollback replaces each node by a new one; timers of the old one have no effect, since it stays stopped. Every item on
a channel carries the epoch in which it was sent. An item of an older epoch is dropped. An item of a newer epoch waits
until the node has restored that epoch, like a connection that is refused for now.
"""

from collections import deque
from typing import TYPE_CHECKING, Protocol

from strobe.handlers import call
from strobe.process import Process, Random
from strobe.protocol import Fragment, InFlight, LocalState, View
from strobe.protocol.coordinator.messages import CoordinatorEffect, Dismiss, Drained, Reset, RestoreState
from strobe.protocol.process.events import FrameReceived
from strobe.simulation.channel_queues import Item
from strobe.simulation.node import Node
from strobe.simulation.node_world import NodeWorld
from strobe.storage.content.state_codec import decode_state
from strobe.user_code import calling

if TYPE_CHECKING:
    from strobe.simulation.rollbacks import Rollbacks


class RestorableWorld(NodeWorld, Protocol):
    """What a node uses of a world with rollbacks."""

    rollbacks: "Rollbacks | None"


class RestorableNode(Node):
    """One process in one epoch; `blank` until it is ordered to start or restore."""

    def __init__(
        self, world: RestorableWorld, name: str, process: Process, view: View, random: Random, epoch: int = 1
    ) -> None:
        super().__init__(world, name, process, view, random, epoch)
        assert world.rollbacks is not None
        self.rollbacks = world.rollbacks
        self.blank = False
        self.applied = []
        # Its state while it was not a member, before joining or after leaving. It is restored if the change is undone.
        self.nonmember_state: LocalState | None = None
        # Recorded frames still to be redelivered, and the items that arrived on their channels meanwhile.
        self.redelivery: dict[str, deque[InFlight]] = {}
        self.held_items: dict[str, list[Item]] = {}
        self.early_items: list[tuple[int, str, Item]] = []

    # Inputs

    def arrive(self, channel: str, epoch: int, item: Item) -> None:
        """Take, hold back or drop an item from the network, by the epoch in which it was sent."""
        if epoch > self.epoch:
            self.early_items.append((epoch, channel, item))
        elif epoch == self.epoch or not self.is_fenced_off(channel, item):
            self.taking_epoch = epoch
            self.take(channel, item)
            self.taking_epoch = self.epoch

    def is_fenced_off(self, channel: str, item: Item) -> bool:
        """Whether an item of an older epoch is dropped: always."""
        return True

    def take(self, channel: str, item: Item) -> None:
        if channel in self.held_items:
            self.held_items[channel].append(item)
        else:
            super().take(channel, item)

    def apply(self, order: CoordinatorEffect) -> None:
        """Carry out an order of the coordinator, unless this node is crashed or lacks the state for it."""
        crashed = self.down and not self.waiting
        match order:
            case RestoreState() if not crashed and order.epoch > self.epoch:
                self.rollbacks.roll_back(self, order)
            case Reset() if not crashed:
                self.rollbacks.discard(self.name)
            case Dismiss() if not crashed and not self.departed:
                self.rollbacks.discard(self.name)
            case Dismiss() if not crashed:
                self.world.remove(self.name)
            case RestoreState() | Reset() | Dismiss():
                pass
            case _ if not self.blank:
                super().apply(order)

    def _depart(self) -> None:
        super()._depart()
        self.nonmember_state = self.capture()

    # Restoring

    def begin_epoch(self, former: "RestorableNode", order: RestoreState) -> None:
        """Restore the snapshot, or start from the beginning."""
        self.instance, self.nonmember_state = former.instance, former.nonmember_state
        if order.restored is None:
            self.report(Drained(self.name, order.view.number))
            self.run_event("start", lambda: self.process.start(self.context))
        else:
            self._restore(former, order)
            self.report(Drained(self.name, order.view.number))
        for epoch, channel, item in former.early_items:
            self.arrive(channel, epoch, item)

    def _restore(self, former: "RestorableNode", order: RestoreState) -> None:
        assert order.restored is not None
        snapshot = self.rollbacks.load(order.restored)
        fragment = snapshot.fragments[self.name]
        assert fragment.state is not None
        sent = {
            spec.id: snapshot.fragments[spec.source].sent[spec.id].count for spec in snapshot.view.incoming(self.name)
        }
        self.take_counters(order, fragment, sent)
        self.take_state(former, order.restored, fragment.state)
        self.take_position(fragment.state)
        self.redeliver(fragment.in_flight)

    def take_counters(self, order: RestoreState, fragment: Fragment, sent_counts: dict[str, int]) -> None:
        """Restore the counters of the snapshot."""
        kind = self.world.protocol_class
        self.protocol = kind.restored(self.name, order.view, order.epoch, fragment, sent_counts)
        self.view_changed()

    def take_state(self, former: "RestorableNode", restored: str, state: LocalState) -> None:
        """Give the new process its recorded state."""
        restore_state(self.name, self.process, state, f" of {restored}")
        self.applied = self.rollbacks.applied_at(restored, self.name)

    def take_position(self, state: LocalState) -> None:
        """Restore the rest of the state: the position, the random generator, the timers."""
        self.position = state.position
        assert state.random is not None
        self.context.random.state = state.random
        for name, after_s in state.timers:
            self.timers.set(name, after_s)

    def redeliver(self, in_flight: dict[str, tuple[InFlight, ...]]) -> None:
        """Redeliver the recorded frames one by one; items that arrive on their channels meanwhile wait."""
        for channel, items in in_flight.items():
            if items and self.queues is not None:
                self.queues.redeliver(channel, items)
            elif items:
                self.redelivery[channel] = deque(items)
                self.held_items[channel] = []
                self._redeliver_later(channel)

    def _redeliver_later(self, channel: str) -> None:
        self.scheduler.after(self.network.delay_us_min, self._redeliver, channel)

    def _redeliver(self, channel: str, _: None) -> None:
        if self.down:
            self.backlog.append((self._redeliver, channel, None))
            return
        item = self.redelivery[channel].popleft()
        self.take_frame(FrameReceived(channel, item.frame, item.consumed))
        if self.redelivery[channel]:
            self._redeliver_later(channel)
            return
        del self.redelivery[channel]
        for waiting in self.held_items.pop(channel):
            self.take(channel, waiting)


def restore_state(name: str, process: Process, state: LocalState, origin: str = "") -> None:
    """Give `process` its recorded state; raise UserCodeFailed if it cannot take it."""
    with calling(f"process {name!r} failed in restore(){origin}"):
        call(process, "restore", decode_state(process, state))
