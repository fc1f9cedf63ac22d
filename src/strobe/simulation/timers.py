"""The timers of a simulated process, by name. Setting a timer again replaces it."""

from collections.abc import Callable

from strobe.simulation.scheduler import Scheduler


class Timers:
    """The timers of one process. `due` is called with the name and number of each one, also if it was replaced."""

    def __init__(self, scheduler: Scheduler, due: Callable[[str, int], None]) -> None:
        self._scheduler = scheduler
        self._due = due
        # By name: when it is due, and its number.
        self._pending: dict[str, tuple[int, int]] = {}
        self._number = 0

    def set(self, name: str, after_s: float) -> None:
        self._number += 1
        at_us = self._scheduler.now_us + max(0, round(after_s * 1_000_000))
        self._pending[name] = (at_us, self._number)
        self._scheduler.at(at_us, self._due, name, self._number)

    def cancel(self, name: str) -> None:
        self._pending.pop(name, None)

    def clear(self) -> None:
        self._pending.clear()

    def expire(self, name: str, number: int) -> bool:
        """Remove a timer that is due. Return whether it was still set."""
        pending = self._pending.get(name)
        if pending is None or pending[1] != number:
            return False
        del self._pending[name]
        return True

    def remaining(self) -> tuple[tuple[str, float], ...]:
        """Return each timer with its remaining seconds, as a snapshot stores it."""
        now_us = self._scheduler.now_us
        return tuple((name, max(0, at_us - now_us) / 1_000_000) for name, (at_us, _) in sorted(self._pending.items()))
