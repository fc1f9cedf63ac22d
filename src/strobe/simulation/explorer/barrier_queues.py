"""Barriers on the queue of one channel in the explorer: they reach the machine, overtake, and have their turn.

The messages waiting at the sender are a queue of their own; they are sent one by one, at any time. The messages in
flight and those waiting at the receiver are one queue: when a barrier reaches the machine, everything ahead of it is
waiting there. Barriers do not overtake each other.
"""

from collections.abc import Iterator

import msgspec

from strobe.protocol import InFlight
from strobe.protocol.process.events import BarrierArrived, Event, FrameReceived, MarkerReceived


class Announced(msgspec.Struct, frozen=True):
    """A barrier that has reached the machine, and waits for its turn."""

    turn: MarkerReceived


def deliverable(queue: tuple[Event | Announced, ...]) -> Iterator[tuple[Event, tuple[Event | Announced, ...], bool]]:
    """Yield each event that a channel can deliver next, with the remaining queue, and whether it may be held back."""
    ahead: list[InFlight] = []
    for place, item in enumerate(queue):
        if isinstance(item, FrameReceived):
            ahead.append(InFlight(item.frame, item.consumed))
        elif isinstance(item, BarrierArrived):
            arrived = msgspec.structs.replace(item, waiting=tuple(ahead))
            yield arrived, (*queue[:place], *queue[place + 1 :]), False
            break
        elif isinstance(item, MarkerReceived):
            arrived = BarrierArrived(item.channel, item.marker, tuple(ahead))
            yield arrived, (*queue[:place], Announced(item), *queue[place + 1 :]), False
            break
    head = queue[0] if queue else None
    if isinstance(head, FrameReceived):
        yield head, queue[1:], True
    elif isinstance(head, Announced):
        yield head.turn, queue[1:], True


def overtaking(barrier: BarrierArrived, waiting: tuple[Event, ...]) -> BarrierArrived:
    """Return a barrier with copies of the frames that it overtakes at its sender."""
    sent = barrier.marker.sent_count
    assert sent is not None
    frames = (item.frame for item in waiting if isinstance(item, FrameReceived))
    return msgspec.structs.replace(barrier, overtaken=tuple(frame for frame in frames if frame.first_ordinal <= sent))
