"""Lets the thread that writes have the interpreter, also where the loop has no moment to spare.

A thread that waits for the interpreter is woken whenever the loop lets go of it, between two callbacks; by the time it
is awake the loop has it again. Python makes the loop yield only when a callback takes longer than the switch interval,
and those of a busy node take less: a thread with a few microseconds of work was seen to wait for half a second, with
a snapshot waiting for it. So while it has work the loop sleeps for a moment, now and then: the longer the work takes,
the more of it is the disk's, and the less often.
"""

import asyncio
from time import sleep
from types import TracebackType

AFTER_S = 0.001
AFTER_S_MAX = 0.004
MOMENT_S = 50e-6


class GilYield:
    """In use (`with`) while the thread has something to do."""

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
