"""The coordinator's clock: the time of day when it started, and from then on only forward."""

import time


class Clock:
    """Microseconds since 1970. Setting the machine's clock back or ahead neither stops the schedule nor ends a wait."""

    def __init__(self) -> None:
        self._offset_us = time.time_ns() // 1000 - time.monotonic_ns() // 1000

    def now_us(self) -> int:
        return time.monotonic_ns() // 1000 + self._offset_us
