"""Calls a coordinator in the background: it may hang, and its supervisor must not."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Answer = TypeVar("Answer")


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
