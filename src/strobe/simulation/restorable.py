"""A node in a world of rollbacks: it may lose its state, and everybody may be told to go back (R1).

A node that goes back is a new node: what still holds on to the old one, such as a timer, finds it down for good. What
comes on a channel carries the epoch in which it was sent. Older than the node's own, it is dropped; newer, it waits
until the node has got there, as a connection does that is refused for now.
"""

from collections import deque
from typing import TYPE_CHECKING

from strobe.handlers import call
from strobe.process import Process, Random
from strobe.protocol import Fragment, InFlight, LocalState, View
from strobe.protocol.coordinator.messages import CoordinatorEffect, Dismiss, Drained, Reset, TellRestore
from strobe.protocol.process.events import FrameReceived
from strobe.simulation.node import Node
from strobe.simulation.queues import Item
from strobe.storage.content.state_codec import decode_state

if TYPE_CHECKING:
    from strobe.simulation.world import World


class RestorableNode(Node):
    """One process in one epoch; `blank` before it was told what to be."""

    def __init__(self, world: "World", name: str, process: Process, view: View, random: Random, epoch: int = 1) -> None:
        super().__init__(world, name, process, view, random, epoch)
        assert world.rollbacks is not None
        self.rollbacks = world.rollbacks
        self.blank = False
        self.applied = []
        # What it had when it was away, before it joined or after it left: what it has again where that is undone.
        self.away_with: LocalState | None = None
        # Recorded frames that are still to be taken again, and what came on their channels meanwhile.
        self.redelivery: dict[str, deque[InFlight]] = {}
        self.behind: dict[str, list[Item]] = {}
        self.ahead: list[tuple[int, str, Item]] = []

    # What comes in

    def arrive(self, channel: str, epoch: int, item: Item) -> None:
        """Take something from the network, or hold it back, or drop it, by the epoch in which it was sent."""
        if epoch > self.epoch:
            self.ahead.append((epoch, channel, item))
        elif epoch == self.epoch or not self.fences_off(channel, item):
            self.taking_epoch = epoch
            self.take(channel, item)
            self.taking_epoch = self.epoch

    def fences_off(self, channel: str, item: Item) -> bool:
        """Tell whether something of an older epoch is dropped: always."""
        return True

    def take(self, channel: str, item: Item) -> None:
        if channel in self.behind:
            self.behind[channel].append(item)
        else:
            super().take(channel, item)

    def apply(self, order: CoordinatorEffect) -> None:
        """Do what the coordinator says, as far as this node is there and has something to do it with."""
        crashed = self.down and not self.waiting
        match order:
            case TellRestore() if not crashed and order.epoch > self.epoch:
                self.rollbacks.go_back(self, order)
            case Reset() if not crashed:
                self.rollbacks.forget(self)
            case Dismiss() if not crashed and not self.departed:
                self.rollbacks.forget(self)
            case Dismiss() if not crashed:
                self.world.remove(self.name)
            case TellRestore() | Reset() | Dismiss():
                pass
            case _ if not self.blank:
                super().apply(order)

    def _depart(self) -> None:
        super()._depart()
        self.away_with = self.capture()

    # Coming back

    def come_back(self, former: "RestorableNode", order: TellRestore) -> None:
        """Become what the snapshot says, or start from the beginning."""
        self.instance, self.away_with = former.instance, former.away_with
        if order.restored is None:
            self.world.tell_coordinator(self.name, Drained(self.name, order.view.number))
            self.run_event("start", lambda: self.process.start(self.context))
        else:
            self._restore(former, order)
            self.world.tell_coordinator(self.name, Drained(self.name, order.view.number))
        for epoch, channel, item in former.ahead:
            self.arrive(channel, epoch, item)

    def _restore(self, former: "RestorableNode", order: TellRestore) -> None:
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

    def take_counters(self, order: TellRestore, fragment: Fragment, sent_counts: dict[str, int]) -> None:
        """Go on counting where the snapshot was."""
        kind = self.world.protocol_class
        self.protocol = kind.restored(self.name, order.view, order.epoch, fragment, sent_counts)
        self.view_changed()

    def take_state(self, former: "RestorableNode", restored: str, state: LocalState) -> None:
        """Give the process, which is a new one, the state it had."""
        call(self.process, "restore", decode_state(self.process, state))
        self.applied = self.rollbacks.applied_at(restored, self.name)

    def take_position(self, state: LocalState) -> None:
        """Take over what else is part of a state: the position, the random generator, the timers."""
        self.position = state.position
        assert state.random is not None
        self.context.random.state = state.random
        for name, after_s in state.timers:
            self.set_timer(name, after_s)

    def redeliver(self, in_flight: dict[str, tuple[InFlight, ...]]) -> None:
        """Take the recorded frames again, one by one; what comes on their channels meanwhile waits behind them."""
        for channel, items in in_flight.items():
            if items and self.queues is not None:
                self.queues.redeliver(channel, items)
            elif items:
                self.redelivery[channel] = deque(items)
                self.behind[channel] = []
                self._redeliver_later(channel)

    def _redeliver_later(self, channel: str) -> None:
        self.world.schedule(self.world.now_us + self.world.network.delay_us_min, self._redeliver, channel, None)

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
        for waiting in self.behind.pop(channel):
            self.take(channel, waiting)
