"""Asking in a thread of its own, so that what does not end can be left: a user's function may never return."""

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TypeVar

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from strobe.spark.log.spark_errors import Stopping
from strobe.spark.session.shipping import is_remote

LOOK_EVERY_S = 0.2

Left = Callable[[], bool]
"""Tells whoever is asked whether anybody still waits for the answer."""
_T = TypeVar("_T")
_numbers = itertools.count()


class Abandoned(Exception):
    """The answer was not waited for, because the pipeline is being stopped."""


class TookTooLong(Exception):
    """There was no answer in time."""


def ask(spark: SparkSession, question: Callable[[Left], _T], stopping: Stopping, timeout_s: float | None = None) -> _T:
    """Return the answer, or raise what `question` raises; leave it, and cancel its jobs, when it is time to."""
    answer: Future[_T] = Future()
    left = threading.Event()
    tag = f"strobe-question-{next(_numbers)}"

    def find() -> None:
        try:
            spark.addTag(tag)
            answer.set_result(question(left.is_set))
        except BaseException as error:  # noqa: BLE001 -- raised again in the thread that waits
            answer.set_exception(error)

    _thread(spark, find).start()
    until_s = time.monotonic() + timeout_s if timeout_s is not None else None
    while not wait([answer], LOOK_EVERY_S).done:
        late = until_s is not None and time.monotonic() > until_s
        if late or stopping():
            left.set()
            with suppress(Exception):  # it may end just now, or Java may have
                spark.interruptTag(tag)
            raise TookTooLong(f"took longer than {timeout_s:g} s") if late else Abandoned
    return answer.result()


def pause(pause_s: float, stopping: Stopping) -> None:
    """Wait so long, or until the pipeline is being stopped."""
    until_s = time.monotonic() + pause_s
    while not stopping() and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(LOOK_EVERY_S, left_s))


def _thread(spark: SparkSession, target: Callable[[], None]) -> threading.Thread:
    """Return a thread that does not keep the program from ending, and whose jobs are those of the stream."""
    if is_remote(spark):
        return threading.Thread(target=target, daemon=True)
    return InheritableThread(target=target, daemon=True)
