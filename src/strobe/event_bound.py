"""The bound on the memory that one event may use: a handler that sends without end is stopped, and named in the error.

Messages leave only when the handler returns, so credit and back-pressure, which apply between events, do not stop such
a handler. Sent messages, output, timers and requested snapshots count together.

The cost per message is negligible: bytes are added up when a frame is sealed, and attributed to an event once per
`LOOK_BYTES`. An event is charged for what was spent since it was first seen. So it is not charged for other events,
except for messages that they left in open frames.
"""

from collections.abc import Callable

from strobe.errors import UsageError
from strobe.user_code import handler_running

EVENT_BYTES_MAX = 1 << 30
LOOK_BYTES = 1 << 20
"""Number of bytes spent before they are attributed to an event."""

# Approximate memory for each of these, without its content.
FRAME_BYTES = 512
MESSAGE_BYTES = 64
TIMER_BYTES = 512
RECORD_BYTES = 128
REQUEST_BYTES = 256


class EventBound:
    """Counts for one process. `event` returns a number that identifies the current event."""

    __slots__ = ("_bytes", "_event", "_last", "bytes_max", "exceeded", "look_bytes", "pending", "process")

    def __init__(self, process: str, bytes_max: int, event: Callable[[], int]) -> None:
        self.process = process
        self.bytes_max = bytes_max
        # Whether the event seen last has exceeded the bound.
        self.exceeded = False
        self.pending = 0
        self._event = event
        self._last = -1
        self._bytes = 0
        self.look_bytes = min(LOOK_BYTES, bytes_max // 4)

    def spend(self, size: int) -> None:
        """Count `size` bytes before they are used; raise UsageError if the current event has exceeded the bound."""
        self.pending += size
        if self.exceeded or self.pending >= self.look_bytes:
            self.look()

    def look(self) -> None:
        """Attribute the pending bytes; raise UsageError if the current event has exceeded the bound."""
        self.exceeds()
        self.check()

    def exceeds(self) -> bool:
        """Attribute the pending bytes if all are the current event's; return whether it has exceeded the bound."""
        event, pending = self._event(), self.pending
        self.pending = 0
        if event == self._last:
            self._bytes += pending
        else:  # some of the pending bytes may be another event's
            self._last, self._bytes = event, 0
        self.exceeded = self._bytes > self.bytes_max
        return self.exceeded

    def check(self) -> None:
        """Raise UsageError if the current event has exceeded the bound."""
        if self.exceeded and self._event() == self._last:
            raise UsageError(
                f"process {self.process!r} has sent, emitted and set timers for more than {self.bytes_max:,} bytes in "
                f"one event, in {handler_running()}; split the work over several events (set a "
                "timer of 0 s), or raise event_bytes_max under [node]"
            )
        self.exceeded = False
