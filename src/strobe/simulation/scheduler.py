"""The time of a simulated world, and the calls that are scheduled in it."""

from collections.abc import Callable
from heapq import heappush
from typing import Any

Due = tuple[int, int, Callable[[Any, Any], None], Any, Any]
"""A scheduled call: its time, a number that breaks ties, the function and its two arguments."""


class Scheduler:
    """Scheduled calls, ordered by their time, and calls at the same time in the order in which they were scheduled."""

    __slots__ = ("calls", "now_us", "scheduled")

    def __init__(self) -> None:
        self.now_us = 0
        self.calls: list[Due] = []
        self.scheduled = 0

    def at(self, at_us: int, action: Callable[[Any, Any], None], first: Any, second: Any = None) -> None:
        self.scheduled += 1
        heappush(self.calls, (at_us, self.scheduled, action, first, second))

    def after(self, delay_us: int, action: Callable[[Any, Any], None], first: Any, second: Any = None) -> None:
        self.at(self.now_us + delay_us, action, first, second)
