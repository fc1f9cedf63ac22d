"""The queues at both ends of a channel, for protocols with barriers (V3-V5): barriers overtake what waits there.

A channel has a window of unreceived frames; frames beyond that wait for credit at the sender. Arrived frames wait until
the process handles them, which takes a little time for each, or are held back by the protocol. Other protocols have no
such queues: nothing reads what waits.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from strobe.protocol import Frame, InFlight, SnapshotId
from strobe.protocol.process.effects import Effect, HoldChannel, ResumeChannel, SendBarrier, SetAlignmentTimer
from strobe.protocol.process.events import (
    AlignmentTimedOut,
    BarrierArrived,
    FrameReceived,
    Marker,
    MarkerReceived,
    ViewReceived,
)

if TYPE_CHECKING:
    from strobe.simulation.node import Node

WINDOW_FRAMES = 12
"""Maximum number of frames in flight or waiting at the receiver, before the sender has to wait."""
SERVICE_US_MAX = 600
"""Maximum time until a process handles a waiting frame."""
ALIGNMENT_US = 8_000
"""Maximum time for alignment before it becomes unaligned (V5)."""
BARRIER_EFFECTS = (SendBarrier, HoldChannel, ResumeChannel, SetAlignmentTimer)


class SimulatedOvertaking(msgspec.Struct, frozen=True):
    """A barrier that overtakes, with copies of the frames it overtook at its sender."""

    marker: Marker
    overtaken: tuple[Frame, ...]


Item = Frame | MarkerReceived | ViewReceived | SimulatedOvertaking


class ChannelQueue:
    """Both ends of one channel in one epoch."""

    __slots__ = ("arrived", "credit", "held", "outbox", "serving")

    def __init__(self) -> None:
        self.credit = WINDOW_FRAMES
        self.outbox: deque[Frame | MarkerReceived | ViewReceived] = deque()
        self.arrived: deque[Frame | InFlight | MarkerReceived | ViewReceived] = deque()
        self.held = False
        self.serving = False


class ChannelQueues:
    """The queues of one node's channels."""

    def __init__(self, node: "Node", transmit: Callable[[str, Item, int], None]) -> None:
        self.node = node
        self.network = node.network
        self._transmit = transmit

    def of(self, channel: str) -> ChannelQueue:
        """Return the queue of a channel, in its current incarnation in the network and in the node's epoch."""
        key = (channel, self.network.links[channel].incarnation, self.node.epoch)
        return self.node.world.channel_queues.setdefault(key, ChannelQueue())

    def carry_out(self, effect: Effect) -> None:
        """Carry out an effect of a protocol with barriers."""
        match effect:
            case SendBarrier():
                self._overtake(effect.channel, effect.marker)
            case HoldChannel():
                self.of(effect.channel).held = True
                self.node.world.free_later(self.node, effect.snapshot)
            case ResumeChannel():
                queue = self.of(effect.channel)
                queue.held = False
                self._serve_later(effect.channel, queue)
            case SetAlignmentTimer():
                self.network.scheduler.after(ALIGNMENT_US, self._alignment_over, effect.snapshot)
            case _:
                raise AssertionError(f"{effect} is not an effect of barriers")

    def _alignment_over(self, snapshot: SnapshotId, _: None) -> None:
        if self.node.down:
            self.node.backlog.append((self._alignment_over, snapshot, None))
        else:
            self.node.dispatch(AlignmentTimedOut(snapshot))

    # At the sender

    def transmit(self, channel: str, item: Frame | MarkerReceived | ViewReceived, epoch: int) -> None:
        """Send `item` after everything that waits; a frame also waits for credit."""
        queue = self.of(channel)
        queue.outbox.append(item)
        self._send(channel, queue)

    def _overtake(self, channel: str, marker: Marker) -> None:
        """Send a barrier ahead of everything that waits here."""
        assert marker.sent_count is not None
        waiting = (item for item in self.of(channel).outbox if isinstance(item, Frame))
        overtaken = tuple(frame for frame in waiting if frame.first_ordinal <= marker.sent_count)
        self._transmit(channel, SimulatedOvertaking(marker, overtaken), self.node.epoch)

    def _send(self, channel: str, queue: ChannelQueue) -> None:
        while queue.outbox and (queue.credit or not isinstance(queue.outbox[0], Frame)):
            item = queue.outbox.popleft()
            queue.credit -= isinstance(item, Frame)
            self._transmit(channel, item, self.node.epoch)

    def _credited(self, channel: str, queue: ChannelQueue) -> None:
        queue.credit += 1
        self._send(channel, queue)

    # At the receiver

    def arrive(self, channel: str, item: Item) -> None:
        """Handle an item that has reached the machine; a barrier is announced to the protocol at once."""
        queue = self.of(channel)
        if isinstance(item, SimulatedOvertaking):
            barrier = BarrierArrived(channel, item.marker, _waiting(queue), item.overtaken, overtakes=True)
            self.node.dispatch(barrier)
            return
        if isinstance(item, MarkerReceived):
            self.node.dispatch(BarrierArrived(channel, item.marker, _waiting(queue)))
        queue.arrived.append(item)
        self._serve_later(channel, queue)

    def redeliver(self, channel: str, items: tuple[InFlight, ...]) -> None:
        """Put restored frames before anything from the network (R1)."""
        queue = self.of(channel)
        queue.arrived.extend(items)
        self._serve_later(channel, queue)

    def held(self) -> list[str]:
        """Return the channels that are held back."""
        return [channel for channel in self.node.context.inputs if self.of(channel).held]

    def _serve_later(self, channel: str, queue: ChannelQueue) -> None:
        if queue.arrived and not queue.serving and not queue.held:
            queue.serving = True
            service_us = 1 + int(self.network.random() * SERVICE_US_MAX)
            self.network.scheduler.after(service_us, self._serve, channel, queue)

    def _serve(self, channel: str, queue: ChannelQueue) -> None:
        node = self.node
        if node.down:
            node.backlog.append((self._serve, channel, queue))
            return
        queue.serving = False
        if queue.held or not queue.arrived:
            return
        item = queue.arrived.popleft()
        if isinstance(item, Frame):
            node.take_frame(FrameReceived(channel, item))
            self.network.scheduler.after(self.network.draw_delay_us(), self._credited, channel, queue)
        elif isinstance(item, InFlight):
            node.take_frame(FrameReceived(channel, item.frame, item.consumed))
        else:
            node.dispatch(item)
        self._serve_later(channel, queue)


def _waiting(queue: ChannelQueue) -> tuple[InFlight, ...]:
    """Return the frames that have arrived and wait to be received."""
    frames = (item for item in queue.arrived if isinstance(item, Frame | InFlight))
    return tuple(InFlight(item) if isinstance(item, Frame) else item for item in frames)
