"""The bound on what one event may leave in memory: a handler that sends without end is stopped, and named.

What an event sends cannot leave before its handler returns, so nothing else holds such a handler back: credit and
back-pressure apply between events. Sent messages, output, timers and requested snapshots count together.

The cost per message is next to nothing: bytes are added up when a frame is sealed, and it is asked which event they are
of once in `LOOK_BYTES`. What came since an event was first asked for is its own; so an event is not charged for others,
except for what these have left in frames that are still open.
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

    __slots__ = ("_bytes", "_event", "_last", "bytes_max", "exceeded", "look_bytes", "pending", "process")

    def __init__(self, process: str, bytes_max: int, event: Callable[[], int]) -> None:
        self.process = process
        self.bytes_max = bytes_max
        # Whether the event that was last looked at has exceeded the bound.
        self.exceeded = False
        self.pending = 0
        self._event = event
        self._last = -1
        self._bytes = 0
        self.look_bytes = min(LOOK_BYTES, bytes_max // 4)

    def spend(self, size: int) -> None:
        """Count `size` bytes before they are used; raise UsageError if the event under way has exceeded the bound."""
        self.pending += size
        if self.exceeded or self.pending >= self.look_bytes:
            self.look()

    def look(self) -> None:
        """Attribute what is pending; raise UsageError if the event under way has exceeded the bound."""
        self.exceeds()
        self.check()

    def exceeds(self) -> bool:
        """Attribute what is pending to the event under way, if all of it is; tell whether it has exceeded the bound."""
        event, pending = self._event(), self.pending
        self.pending = 0
        if event == self._last:
            self._bytes += pending
        else:  # some of what is pending may be another event's
            self._last, self._bytes = event, 0
        self.exceeded = self._bytes > self.bytes_max
        return self.exceeded

    def check(self) -> None:
        """Raise UsageError if the event under way has exceeded the bound."""
        if self.exceeded and self._event() == self._last:
            raise UsageError(
                f"process {self.process!r} has sent, emitted and set timers for more than {self.bytes_max:,} bytes in "
                f"one event, in {handler_running()}; do less in one event, and go on in the next one (by a timer of "
                "0 s), or raise event_bytes_max under [node]"
            )
        self.exceeded = False
