"""Calls in a separate thread, so that they can be abandoned: a user's function may never return."""

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

POLL_S = 0.2

Left = Callable[[], bool]
"""Returns whether the caller has abandoned the call."""
_T = TypeVar("_T")
_numbers = itertools.count()


class Abandoned(Exception):
    """The call was abandoned, because the pipeline is being stopped."""


class CallTimedOut(Exception):
    """The call did not return in time."""


def run_cancellable(
    spark: SparkSession, work: Callable[[Left], _T], stopping: Stopping, timeout_s: float | None = None
) -> _T:
    """Return the result of `work`, or raise its error; on a stop or time-out, abandon it and cancel its jobs."""
    answer: Future[_T] = Future()
    left = threading.Event()
    tag = f"strobe-question-{next(_numbers)}"

    def find() -> None:
        try:
            spark.addTag(tag)
            answer.set_result(work(left.is_set))
        except BaseException as error:  # noqa: BLE001 -- raised again in the waiting thread
            answer.set_exception(error)

    _thread(spark, find).start()
    until_s = time.monotonic() + timeout_s if timeout_s is not None else None
    while not wait([answer], POLL_S).done:
        late = until_s is not None and time.monotonic() > until_s
        if late or stopping():
            left.set()
            with suppress(Exception):  # the call or Java may just have ended
                spark.interruptTag(tag)
            raise CallTimedOut(f"took longer than {timeout_s:g} s") if late else Abandoned
    return answer.result()


def pause(pause_s: float, stopping: Stopping) -> None:
    """Wait for `pause_s`, or until the pipeline is being stopped."""
    until_s = time.monotonic() + pause_s
    while not stopping() and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(POLL_S, left_s))


def _thread(spark: SparkSession, target: Callable[[], None]) -> threading.Thread:
    """Return a daemon thread that inherits the stream's job settings."""
    if is_remote(spark):
        return threading.Thread(target=target, daemon=True)
    return InheritableThread(target=target, daemon=True)
