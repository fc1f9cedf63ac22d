"""The bound on what one event may leave in memory: a handler that sends without end is stopped, and named.

What an event sends cannot leave before its handler returns, so nothing else holds such a handler back: credit and
back-pressure apply between events. Sent messages, output, timers and requested snapshots count together.

The cost per message is nothing: bytes are counted when a frame is sealed, and for the rest once in `LOOK_BYTES`.
"""

from collections.abc import Callable

from strobe.errors import UsageError
from strobe.user_code import handler_running

EVENT_BYTES_MAX = 1 << 30
LOOK_BYTES = 1 << 20
"""What is spent adds up to this before it is asked which event spends it."""

# What each of these takes in memory beside its content, roughly.
FRAME_BYTES = 512
MESSAGE_BYTES = 64
TIMER_BYTES = 512
RECORD_BYTES = 128
REQUEST_BYTES = 256


class EventBound:
    """Counts for one process. `event` returns what tells the event under way from every other."""

    __slots__ = ("_bytes", "_event", "_last", "_look_bytes", "bytes_max", "exceeded", "pending", "process")

    def __init__(self, process: str, bytes_max: int, event: Callable[[], int]) -> None:
        self.process = process
        self.bytes_max = bytes_max
        # Whether the event that was last looked at has exceeded the bound.
        self.exceeded = False
        self.pending = 0
        self._event = event
        self._last = -1
        self._bytes = 0
        self._look_bytes = min(LOOK_BYTES, bytes_max // 4)

    def sealed(self, begun: int, size: int) -> int:
        """Count a frame that was begun during the event `begun`; return the event in which the next one begins.

        A frame that an earlier event has begun is not counted: most of it may be the earlier one's.
        """
        event = self._event()
        if begun == event:
            self._count(event, FRAME_BYTES + size)
        return event

    def spend(self, size: int) -> None:
        """Count `size` bytes before they are used; raise UsageError if the event under way has exceeded the bound."""
        self.pending += size
        if self.exceeded or self.pending >= self._look_bytes:
            self.look()

    def look(self) -> None:
        """Attribute what is pending, if all of it is this event's; raise UsageError if it has exceeded the bound."""
        event, pending = self._event(), self.pending
        self.pending = 0
        # After a look at another event, some of what is pending may be that one's.
        self._count(event, pending if event == self._last else 0)
        self.check()

    def check(self) -> None:
        """Raise UsageError if the event under way has exceeded the bound."""
        if self.exceeded and self._event() == self._last:
            raise UsageError(
                f"process {self.process!r} has sent, emitted and set timers for more than {self.bytes_max:,} bytes in "
                f"one event, in {handler_running()}; do less in one event, and go on in the next one (by a timer of "
                "0 s), or raise event_bytes_max under [node]"
            )
        self.exceeded = False

    def _count(self, event: int, size: int) -> None:
        if event != self._last:
            self._last, self._bytes, self.exceeded = event, 0, False
        self._bytes += size
        if self._bytes > self.bytes_max:
            self.exceeded = True
