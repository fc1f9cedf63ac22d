"""Exponential back-off: how long to wait before the next attempt. It has no clock: the caller waits."""

from typing import TypeVar

Duration = TypeVar("Duration", int, float)
_POWER_MAX = 32
"""Beyond that the limit applies anyway; larger powers would only overflow."""


def wait_after(failures: int, shortest: Duration, longest: Duration, factor: int = 2) -> Duration:
    """Return the wait after this number of failures in a row, at least one."""
    grown: int = factor ** min(failures - 1, _POWER_MAX)
    return min(longest, shortest * grown)


class Backoff:
    """The waits of one retry loop: `min_s` after the first failure, then `factor` times as long, up to `max_s`."""

    def __init__(self, min_s: float, max_s: float, factor: int = 2) -> None:
        self.failures = 0
        self._min_s = min_s
        self._max_s = max_s
        self._factor = factor

    def next(self) -> float:
        """Count another failure, and return the wait before the next attempt, in seconds."""
        self.failures += 1
        return wait_after(self.failures, self._min_s, self._max_s, self._factor)

    def reset(self) -> None:
        """An attempt has succeeded."""
        self.failures = 0
