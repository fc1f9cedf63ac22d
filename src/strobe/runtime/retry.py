"""Waits for what may pass: a store that cannot be reached, a full disk, output that another process still holds.

A process that is to begin, and cannot for such a reason, has not failed: to end it would take its peers back once more,
for nothing. What is wrong with the data themselves, or was asked for wrongly, does not pass, and is raised.
"""

import logging
from asyncio import sleep
from collections.abc import Awaitable, Callable
from typing import TypeVar

from strobe.errors import (
    SnapshotError,
    StoreCorrupt,
    StoreError,
    StoreFormatError,
    StoreMissing,
    StrobeError,
    UsageError,
)
from strobe.user_code import text_of

PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 5.0

Result = TypeVar("Result")

logger = logging.getLogger("strobe.node")


def is_transient(error: StrobeError | OSError) -> bool:
    """Tell whether the same may succeed later, without anybody having changed the program or the data."""
    if isinstance(error, OSError):
        return not isinstance(error, IsADirectoryError | NotADirectoryError)
    if isinstance(error, StoreMissing):
        return True  # it was there when this process was told to begin
    if isinstance(error, (UsageError, SnapshotError, StoreCorrupt, StoreFormatError)):
        return False
    cause = error.__cause__
    return isinstance(error, StoreError) or (isinstance(cause, OSError) and is_transient(cause))


class RetryLoop:
    """That of one process, while it is to do something. `waiting` is what it waits for; empty: nothing."""

    def __init__(self, name: str, to_do: str = "begin") -> None:
        self.waiting = ""
        self._name = name
        self._to_do = to_do

    async def until_done(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Return what `attempt` returns, made again after longer and longer pauses while what it raises may pass."""
        pause_s = PAUSE_S_MIN
        try:
            while True:
                try:
                    return await attempt()
                except (StrobeError, OSError) as error:
                    if not is_transient(error):
                        raise
                    self._note(text_of(error))
                await sleep(pause_s)
                pause_s = min(PAUSE_S_MAX, 2 * pause_s)
        finally:
            self.waiting = ""

    def _note(self, problem: str) -> None:
        if problem != self.waiting:
            logger.warning("process %s cannot %s yet: %s; trying again", self._name, self._to_do, problem)
        self.waiting = problem
