"""Limits the time of a user's function in the main thread, by an alarm that raises where the function is."""

import signal
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

Result = TypeVar("Result")


class TimeIsUp(BaseException):
    """Raised in the middle of a function; not an Exception, so that few functions catch it."""


def limited(timeout_s: float | None, call: Callable[[], Result]) -> Result:
    """Return the result of `call`; raise TimeIsUp after `timeout_s`, unless it runs inside a C function."""
    if timeout_s is None:
        return call()
    text = f"it took longer than verdict_timeout_s = {timeout_s:g} s"

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise TimeIsUp(text)

    former = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        try:
            return call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, former)
