"""Lets the thread that writes have the interpreter, also where the loop has no moment to spare.

A thread that waits for the interpreter is woken whenever the loop lets go of it, between two callbacks; by the time it
is awake the loop has it again. Python makes the loop yield only when a callback takes longer than the switch interval,
and those of a busy node take less: a thread with a few microseconds of work was seen to wait for half a second, with
a snapshot waiting for it. So while it has work the loop sleeps for a moment, once a millisecond.
"""

import asyncio
from time import sleep
from types import TracebackType

EVERY_S = 0.001
MOMENT_S = 50e-6


class GivingWay:
    """In use (`with`) while the thread has something to do."""

    def __init__(self) -> None:
        self._jobs = 0
        self._timer: asyncio.Handle | None = None

    def __enter__(self) -> None:
        self._jobs += 1
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
            self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._give_way)
