"""What waits at one machine until its process may take it: in the order in which it came, channel by channel (V3).

Each channel has a queue of its own, and `_turns` says which queue is next. A channel that is held back loses its turns,
which are skipped when they come up; when it goes on, what waits on it is at the end of the line.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from strobe.protocol import Frame, InFlight


class QueuedItem(NamedTuple):
    """Something that waits at this machine; `frame`, where it is one, is still in its `channel`."""

    needs_room: bool
    action: Callable[[], None]
    channel: str | None = None
    frame: Frame | None = None
    consumed: int = 0


class Inbox:
    """The queues of one process; what came on no channel has one too. Its length is what may be taken."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self._queues: dict[str | None, deque[QueuedItem]] = {}
        self._turns: deque[str | None] = deque()
        # Of the turns ahead, so many are to be skipped: of each channel the first ones, and in all.
        self._lost: Counter[str] = Counter()
        self._lost_turns = 0

    def __len__(self) -> int:
        return len(self._turns) - self._lost_turns

    def append(self, waiting: QueuedItem) -> None:
        self._queues.setdefault(waiting.channel, deque()).append(waiting)
        if waiting.channel not in self.held:
            self._turns.append(waiting.channel)

    def next(self) -> QueuedItem | None:
        """Return whose turn it is, and leave it there."""
        while self._turns:
            channel = self._turns[0]
            if channel is None or not self._lost[channel]:
                return self._queues[channel][0]
            self._turns.popleft()
            self._lost[channel] -= 1
            self._lost_turns -= 1
        return None

    def take(self) -> QueuedItem:
        """Take out what `next` has returned."""
        return self._queues[self._turns.popleft()].popleft()

    def frames(self, channel: str) -> Iterator[InFlight]:
        """Yield the frames that wait on `channel`."""
        for waiting in self._queues.get(channel, ()):
            if waiting.frame is not None:
                yield InFlight(waiting.frame, waiting.consumed)

    def hold(self, channel: str) -> None:
        """Let nothing more be taken of `channel`, whatever of it waits already."""
        if channel not in self.held:
            self.held.add(channel)
            waiting = len(self._queues.get(channel, ()))
            self._lost[channel] += waiting
            self._lost_turns += waiting

    def resume(self, channel: str) -> None:
        """Go on with what has come on `channel`."""
        if channel in self.held:
            self.held.discard(channel)
            self._turns.extend([channel] * len(self._queues.get(channel, ())))

    def clear(self) -> None:
        for kept in (self.held, self._queues, self._turns, self._lost):
            kept.clear()
        self._lost_turns = 0
