"""How much a source lets wait on a channel: what its target takes in a moment, and not all that would fit (C7).

A marker stays behind what was sent before it. Behind megabytes, on the way to a process that takes a hundred kilobytes
a second, every snapshot would time out. So what may be on the way, and what may wait at the source before its process
is held back, follow the pace at which the target takes it: up to the settings, and down to some frames.

That holds back a process sooner than the settings would. On a channel that is part of a cycle those who are held back
could wait for each other, where with more room they would not; so it is for the other channels only.
"""

START_BYTES = 256 << 10
LEAST_BYTES = 32 << 10
AHEAD_S = 0.25
"""So much of what a target takes may be on the way to it, and as much may wait at the source."""
KEEPING_UP_S = 0.05
"""Where no more waits than the target takes in so long, it is not what holds things up."""
MEASURED_S = 0.05


class AdaptiveWindow:
    """The bounds of one channel: `room_bytes` on the way to the target, `backlog_bytes_max` at its source."""

    __slots__ = (
        "_allowed_bytes",
        "_backlog_bytes_max",
        "_busy_s",
        "_since_s",
        "_taken_bytes",
        "_window_bytes",
        "applies",
    )

    def __init__(self, backlog_bytes_max: int) -> None:
        # Whether the bounds follow the pace, or are those of the settings.
        self.applies = False
        self._window_bytes = 0
        self._backlog_bytes_max = backlog_bytes_max
        self._allowed_bytes = START_BYTES
        # What the target has taken since the last look at its pace, and how long it had something to take.
        self._taken_bytes = 0
        self._busy_s = 0.0
        self._since_s = 0.0

    @property
    def room_bytes(self) -> int:
        return min(self._window_bytes, self._allowed_bytes) if self.applies else self._window_bytes

    @property
    def backlog_bytes_max(self) -> int:
        return min(self._backlog_bytes_max, self._allowed_bytes) if self.applies else self._backlog_bytes_max

    def welcome(self, window_bytes: int) -> None:
        """The target has room for so much."""
        self._window_bytes = window_bytes

    def begin(self, now_s: float) -> None:
        """The target had taken everything; from now on it has something to take again."""
        self._since_s = now_s

    def note(self, taken_bytes: int, waiting_bytes: int, now_s: float) -> None:
        """The target has taken so much since the last time, and so much waits for it, wherever."""
        self._taken_bytes += taken_bytes
        self._busy_s += now_s - self._since_s
        self._since_s = now_s
        if self._busy_s < MEASURED_S:
            return
        bytes_per_s = self._taken_bytes / self._busy_s
        self._taken_bytes, self._busy_s = 0, 0.0
        allowed = 2 * self._allowed_bytes  # at most: one quick moment does not show that the next will be
        if waiting_bytes > bytes_per_s * KEEPING_UP_S:
            allowed = min(allowed, int(bytes_per_s * AHEAD_S))
        most = max(self._window_bytes, self._backlog_bytes_max)
        self._allowed_bytes = max(LEAST_BYTES, min(most, allowed))
