"""Yields the GIL to the writer thread while the event loop is busy.

A waiting thread is woken when the event loop releases the GIL, but by then the loop has usually taken it again. Python
forces a switch only if a callback takes longer than the switch interval. Callbacks of a busy node are shorter: a writer
thread with a few microseconds of work, and so a snapshot, was seen to wait for half a second. So while the thread has
work, the event loop sleeps briefly from time to time. It sleeps less often for longer jobs, which mostly wait for the
disk.
"""

import asyncio
from time import sleep
from types import TracebackType

AFTER_S = 0.001
AFTER_S_MAX = 0.004
MOMENT_S = 50e-6


class GilYield:
    """Used in a `with` statement while the writer thread has work."""

    def __init__(self) -> None:
        self._jobs = 0
        self._after_s = AFTER_S
        self._timer: asyncio.Handle | None = None

    def __enter__(self) -> None:
        self._jobs += 1
        self._after_s = AFTER_S
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_soon(self._give_way)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._jobs -= 1

    def _give_way(self) -> None:
        self._timer = None
        if self._jobs:
            sleep(MOMENT_S)
            self._timer = asyncio.get_running_loop().call_later(self._after_s, self._give_way)
            self._after_s = min(2 * self._after_s, AFTER_S_MAX)
