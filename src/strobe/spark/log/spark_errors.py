"""Failures of Spark itself, which are no findings about a snapshot or an invariant: cancelled, lost, or out of space.

Each error in a chain of causes is matched from its beginning, so that user data quoted in it cannot match.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

Stopping = Callable[[], bool]
"""Returns whether the pipeline is being stopped. Errors during a stop are attributed to it."""

_TASK = r"^(?:Job aborted due to stage failure: .*?\(TID \d+\) \([^)\n]*\): (?:[\w.$]+: )?)?"
_CANCELLED = re.compile(r"^\[(?:SPARK_JOB_CANCELLED|OPERATION_CANCELED)\]|^Job \d+ cancelled|^Stage \d+ cancelled")
_LOST = re.compile(_TASK + r"(?:Python worker (?:exited|failed to connect)|ExecutorLostFailure \()")
_FULL = re.compile(_TASK + r"(?:\[STREAM_FAILED\] .*? terminated with exception: )?No space left on device")

_WRAPPINGS = ("Exception thrown in awaitResult", "Job aborted due to stage failure")


def is_cancelled(error: Exception) -> bool:
    """Return whether the job was cancelled."""
    return _matches(error, _CANCELLED)


def is_worker_lost(error: Exception) -> bool:
    """Return whether an executor or a Python worker was lost during the job."""
    return _matches(error, _LOST)


def is_disk_full(error: Exception) -> bool:
    """Return whether Spark itself ran out of disk space."""
    return _matches(error, _FULL)


def java_problem(error: Py4JJavaError) -> str:
    """Return in one line what Java raised: the outermost error that is more than "a job failed"."""
    lines = [line for link in _causes(error) if (line := link.strip().partition("\n")[0])]
    specific = [line for line in lines if not line.startswith(_WRAPPINGS)]
    return next(iter([*specific, *lines]), type(error).__name__)


def _matches(error: Exception, what: re.Pattern[str]) -> bool:
    return any(what.search(link) for link in _causes(error))


def _causes(error: Exception) -> Iterator[str]:
    """Yield the message of each error in the chain of causes, outermost first."""
    java: Any = None
    if isinstance(error, PySparkException):
        yield str(error)
        java = getattr(error, "_origin", None)
    elif isinstance(error, Py4JJavaError):
        java = error.java_exception
    try:
        while java is not None:
            yield java.getMessage() or ""
            java = java.getCause()
    except Py4JError:
        return  # Java is gone
