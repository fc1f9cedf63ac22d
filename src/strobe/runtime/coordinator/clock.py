"""The coordinator's clock: starts at the time of day, then only moves forward."""

import time


class Clock:
    """Microseconds since 1970. Changing the machine's clock affects neither the schedule nor any timeout."""

    def __init__(self) -> None:
        self._offset_us = time.time_ns() // 1000 - time.monotonic_ns() // 1000

    def now_us(self) -> int:
        return time.monotonic_ns() // 1000 + self._offset_us
