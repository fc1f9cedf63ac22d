"""Asks a coordinator something without waiting for it: it may hang, and who looks after its nodes must not."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Answer = TypeVar("Answer")


def ask(call: Callable[[], Answer]) -> "Future[Answer]":
    """Call it in a thread of its own, and return its answer to come, or what it raises."""
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:  # noqa: BLE001 -- it is raised where the answer is looked at
            answer.set_exception(error)

    # No executor: a program that ends would wait for its threads, and so for who does not answer.
    Thread(target=run, daemon=True).start()
    return answer
