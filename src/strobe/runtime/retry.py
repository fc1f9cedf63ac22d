"""Retries after transient failures: an unreachable store, a full disk, output that another process still holds.

A process that cannot start for such a reason has not failed: if it ended, its peers would roll back again without need.
Damaged data and wrong usage are not transient, and are raised.
"""

import logging
from asyncio import sleep
from collections.abc import Awaitable, Callable
from typing import TypeVar

from strobe.backoff import Backoff
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
    """Return whether a retry may succeed without a change to the program or the data."""
    if isinstance(error, OSError):
        return not isinstance(error, IsADirectoryError | NotADirectoryError)
    if isinstance(error, StoreMissing):
        return True  # it existed when this process was ordered to start
    if isinstance(error, (UsageError, SnapshotError, StoreCorrupt, StoreFormatError)):
        return False
    cause = error.__cause__
    return isinstance(error, StoreError) or (isinstance(cause, OSError) and is_transient(cause))


class RetryLoop:
    """The retries of one process. `waiting` is what it waits for, or empty."""

    def __init__(self, name: str, to_do: str = "begin") -> None:
        self.waiting = ""
        self._name = name
        self._to_do = to_do

    async def until_done(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of `attempt`, retried with growing back-off while its errors are transient."""
        backoff = Backoff(PAUSE_S_MIN, PAUSE_S_MAX)
        try:
            while True:
                try:
                    return await attempt()
                except (StrobeError, OSError) as error:
                    if not is_transient(error):
                        raise
                    self._note(text_of(error))
                await sleep(backoff.next())
        finally:
            self.waiting = ""

    def _note(self, problem: str) -> None:
        if problem != self.waiting:
            logger.warning("process %s cannot %s yet: %s; trying again", self._name, self._to_do, problem)
        self.waiting = problem
