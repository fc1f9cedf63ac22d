"""Waiting in a command: interrupts that it handles when it is ready, and calls that may hang."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from types import FrameType
from typing import Any, TypeVar

Answer = TypeVar("Answer")


@contextmanager
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


def ask(call: Callable[[], Answer]) -> "Future[Answer]":
    """Run `call` in a new thread; return a future with its result or exception."""
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:  # noqa: BLE001 -- raised when the result is read
            answer.set_exception(error)

    # No executor: a program that ends would wait for the executor's threads, and so for a hung coordinator.
    Thread(target=run, daemon=True).start()
    return answer
