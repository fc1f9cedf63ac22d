"""The queue of items that a process cannot take yet: in order of arrival, and per channel (V3).

Each channel has its own queue, and `turns` is the order of the queues. A held channel loses its turns: they are
skipped when they come up. When it resumes, its items get new turns at the end.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from strobe.protocol import Frame, InFlight
from strobe.protocol.process.events import MarkerReceived, ViewReceived
from strobe.runtime.restarts.document import QueuedArrival


class QueuedItem(NamedTuple):
    """A queued item. If it is a `frame`, the frame still counts as in flight on its `channel`.

    `wire_bytes` is the size of a frame that came over a link, which gets credit for it. `event` is the arrival of a
    marker or a view.
    """

    needs_room: bool
    action: Callable[[], None]
    channel: str | None = None
    frame: Frame | None = None
    consumed: int = 0
    wire_bytes: int = 0
    event: MarkerReceived | ViewReceived | None = None


class Inbox:
    """The queues of one process: one per channel, and one for other items. Its length counts items not held back."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self._queues: dict[str | None, deque[QueuedItem]] = {}
        self.turns: deque[str | None] = deque()
        # The number of turns to skip: the first ones of each channel, and in total.
        self._lost: Counter[str] = Counter()
        self._lost_turns = 0

    def __len__(self) -> int:
        return len(self.turns) - self._lost_turns

    def append(self, waiting: QueuedItem) -> None:
        self._queues.setdefault(waiting.channel, deque()).append(waiting)
        if waiting.channel not in self.held:
            self.turns.append(waiting.channel)

    def next(self) -> QueuedItem | None:
        """Return the next item without removing it."""
        while self.turns:
            channel = self.turns[0]
            if channel is None or not self._lost[channel]:
                return self._queues[channel][0]
            self.turns.popleft()
            self._lost[channel] -= 1
            self._lost_turns -= 1
        return None

    def take(self) -> QueuedItem:
        """Remove and return the item that `next` has returned."""
        return self._queues[self.turns.popleft()].popleft()

    def frames(self, channel: str) -> Iterator[InFlight]:
        """Yield the queued frames of `channel`."""
        for waiting in self._queues.get(channel, ()):
            if waiting.frame is not None:
                yield InFlight(waiting.frame, waiting.consumed)

    def arrivals(self) -> Iterator[QueuedArrival]:
        """Yield all that has come on a channel and was not taken yet, in order for each channel."""
        for channel, queue in self._queues.items():
            if channel is not None:
                yield from (_arrival(channel, waiting) for waiting in queue)

    def hold(self, channel: str) -> None:
        """Hold `channel` back: take no more of its items, including those already queued."""
        if channel not in self.held:
            self.held.add(channel)
            waiting = len(self._queues.get(channel, ()))
            self._lost[channel] += waiting
            self._lost_turns += waiting

    def resume(self, channel: str) -> None:
        """Resume `channel`."""
        if channel in self.held:
            self.held.discard(channel)
            self.turns.extend([channel] * len(self._queues.get(channel, ())))

    def clear(self) -> None:
        for kept in (self.held, self._queues, self.turns, self._lost):
            kept.clear()
        self._lost_turns = 0


def _arrival(channel: str, waiting: QueuedItem) -> QueuedArrival:
    match waiting.event:
        case MarkerReceived():
            return QueuedArrival(channel, marker=waiting.event.marker)
        case ViewReceived():
            return QueuedArrival(channel, view=waiting.event.view, sent_count=waiting.event.sent_count)
        case _:
            return QueuedArrival(channel, waiting.frame, waiting.consumed, waiting.wire_bytes)
