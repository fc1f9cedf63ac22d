"""Interrupts that a command obeys in its own time: Ctrl-C and SIGTERM."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def interruptible() -> Iterator[list[int]]:
    """Give a list that is not empty any more when somebody has interrupted; a second time ends at once."""
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
