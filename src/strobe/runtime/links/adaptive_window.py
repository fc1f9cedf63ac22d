"""The adaptive window of a channel: limits queued data to what its target consumes in a short time (C7).

A marker stays behind all data sent before it. If megabytes were queued for a process that consumes a hundred kilobytes
a second, every snapshot would time out. So the bytes in flight, and the backlog at the source before its process is
held back, follow the rate of the target: at most the settings, at least a few frames.

This applies back-pressure earlier than the settings would. On a cycle of channels, processes could then block each
other that would not with more room. So it applies only to channels outside cycles.
"""

START_BYTES = 256 << 10
LEAST_BYTES = 32 << 10
AHEAD_S = 0.25
"""Seconds' worth of data allowed in flight to the target, and as much again in the backlog at the source."""
KEEPING_UP_S = 0.05
"""If no more is queued than the target consumes in this time, the target is not the bottleneck."""
MEASURED_S = 0.05


class AdaptiveWindow:
    """The bounds of one channel: `room_bytes` in flight to the target, `backlog_bytes_max` at its source."""

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
        # Whether the bounds follow the target's rate; otherwise they are those of the settings.
        self.applies = False
        self._window_bytes = 0
        self._backlog_bytes_max = backlog_bytes_max
        self._allowed_bytes = START_BYTES
        # Bytes consumed by the target since the last measurement of its rate, and the time it had data to consume.
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
        """Set the window that the target has announced."""
        self._window_bytes = window_bytes

    def begin(self, now_s: float) -> None:
        """Start the clock: the target had consumed everything, and now has data again."""
        self._since_s = now_s

    def note(self, taken_bytes: int, waiting_bytes: int, now_s: float) -> None:
        """Adapt to the bytes consumed since the last call, and to the bytes in flight or in the backlog."""
        self._taken_bytes += taken_bytes
        self._busy_s += now_s - self._since_s
        self._since_s = now_s
        if self._busy_s < MEASURED_S:
            return
        bytes_per_s = self._taken_bytes / self._busy_s
        self._taken_bytes, self._busy_s = 0, 0.0
        allowed = 2 * self._allowed_bytes  # at most double: one fast interval does not predict the next
        if waiting_bytes > bytes_per_s * KEEPING_UP_S:
            allowed = min(allowed, int(bytes_per_s * AHEAD_S))
        most = max(self._window_bytes, self._backlog_bytes_max)
        self._allowed_bytes = max(LEAST_BYTES, min(most, allowed))
