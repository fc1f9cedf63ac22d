"""Deferred interrupts: a command handles Ctrl-C and SIGTERM when it is ready."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def interruptible() -> Iterator[list[int]]:
    """Yield a list that receives the first interrupt; a second one ends the program at once."""
    seen: list[int] = []

    def note_signal(number: int, _: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before: dict[int, Any] = {number: signal.signal(number, note_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
