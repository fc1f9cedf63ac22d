"""Failures of Spark while an invariant runs are not blamed on the invariant or on a snapshot."""

import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.spark.pipeline.test_query import id_of, invariants_in, samples
from tests.spark.pipelines import judge_once, reasons, verdicts

import strobe.spark.pipeline.invariant_runner as evaluation_module
from strobe.spark.log.spark_errors import is_cancelled, is_disk_full, is_worker_lost
from strobe.spark.pipeline.batch import BatchStep
from strobe.spark.pipeline.query import Options, Pipeline, PipelineObserver

IN_A_WORKER = """
import os, pathlib, signal, time
from strobe.spark import invariant

mark = pathlib.Path({mark!r})

def through(batches):
    for batch in batches:
{body}
        yield batch

@invariant
def patient(tables):
    snapshots = tables.snapshots.select("snapshot_id")
    return snapshots.mapInArrow(through, snapshots.schema).where("snapshot_id = ''")
"""


def in_a_worker(directory: Path, body: str) -> dict[str, object]:
    """An invariant that runs `body` in a worker, and then holds."""
    text = IN_A_WORKER.format(mark=str(directory / "mark"), body=textwrap.indent(body, " " * 8))
    return invariants_in(directory / "rules", patient_py=text)


class WhenItRuns(PipelineObserver):
    """Stops the pipeline as soon as there is a mark, or, if the mark was missed, verdicts."""

    def __init__(self, mark: Path, to: Path) -> None:
        self._mark = mark
        self._to = to

    def poll(self) -> bool:
        return self._mark.exists() or bool(verdicts(self._to))


def test_a_batch_stopped_in_an_invariant_is_judged_the_next_time(spark: SparkSession, tmp_path: Path) -> None:
    """D2: stopping cancels the job, which is not an error of the invariant."""
    store, to, mark = samples(tmp_path / "store", 1), tmp_path / "to", tmp_path / "mark"
    rules = in_a_worker(tmp_path, "if not mark.exists():\n    mark.touch()\n    time.sleep(600)")
    pipeline = Pipeline(spark, store.url, to, Options(drift_window=0, **rules))
    steps: list[BatchStep] = []
    pipeline.on_step = lambda step, batch_id: steps.append(step)
    pipeline.run(watch=WhenItRuns(mark, to))
    assert steps == [BatchStep.BEGUN, BatchStep.EXAMINED]
    assert verdicts(to) == {}
    judge_once(spark, store.url, to, drift_window=0, **rules)
    assert verdicts(to) == {(id_of(1), "proof"): "holds", (id_of(1), "patient"): "holds"}


@pytest.mark.parametrize(("deaths", "verdict"), [(2, "holds"), (9, "error")])
def test_only_a_worker_that_dies_every_time_is_an_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: int, verdict: str
) -> None:
    """G1: a machine short of memory kills workers, but an invariant that does so must not block the stream."""
    monkeypatch.setattr(evaluation_module, "LOST_PAUSE_S_MAX", 0.0)
    store = samples(tmp_path / "store", 1)
    die = (
        f"if not mark.exists() or len(mark.read_text()) < {deaths}:\n"
        f"    mark.open('a').write('x')\n    os.kill(os.getpid(), {signal.SIGKILL:d})"
    )
    judge_once(spark, store.url, tmp_path / "to", drift_window=0, **in_a_worker(tmp_path, die))
    assert verdicts(tmp_path / "to")[id_of(1), "patient"] == verdict
    if verdict == "error":
        assert reasons(tmp_path / "to")[id_of(1), "patient"].startswith("Python worker exited unexpectedly")


HANGING = """
import pathlib, time
from strobe.spark import invariant

mark, over = pathlib.Path({mark!r}), pathlib.Path({over!r})

@invariant
def hanging(tables):
    while tables.snapshots.take(1) and not over.exists():
        mark.touch()
        time.sleep(0.05)
    return tables.snapshots.where("false")
"""


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[dict[str, object]]:
    """An invariant that does not return before the test ends, except for an empty table."""
    over = tmp_path / "over"
    yield invariants_in(tmp_path / "rules", hanging_py=HANGING.format(mark=str(tmp_path / "mark"), over=str(over)))
    over.touch()


def test_a_pipeline_whose_invariant_hangs_can_be_stopped(
    spark: SparkSession, tmp_path: Path, hanging: dict[str, object]
) -> None:
    store, to = samples(tmp_path / "store", 1), tmp_path / "to"
    Pipeline(spark, store.url, to, Options(drift_window=0, **hanging)).run(watch=WhenItRuns(tmp_path / "mark", to))
    assert verdicts(to) == {}


def test_an_invariant_over_its_time_limit_is_an_error(
    spark: SparkSession, tmp_path: Path, hanging: dict[str, object]
) -> None:
    """G1."""
    store, to = samples(tmp_path / "store", 1), tmp_path / "to"
    judge_once(spark, store.url, to, drift_window=0, invariant_timeout_s=0.5, **hanging)
    assert verdicts(to) == {(id_of(1), "proof"): "holds", (id_of(1), "hanging"): "error"}
    assert reasons(to)[id_of(1), "hanging"] == "took longer than 0.5 s"


LOST = (
    "Job aborted due to stage failure: Task 0 in stage 2.0 failed 4 times, most recent failure: Lost task 0.3 in stage"
)
FAILURES = [
    (is_cancelled, "[SPARK_JOB_CANCELLED] Job 0 cancelled as part of cancellation of all jobs SQLSTATE: XXKDA"),
    (is_worker_lost, f"{LOST} 2.0 (TID 7) (10.0.0.1 executor 3): ExecutorLostFailure (executor 3 exited) Reason: x"),
    (is_disk_full, f"{LOST} 2.0 (TID 7) (10.0.0.1 executor 3): java.io.IOException: No space left on device"),
    (is_disk_full, "[STREAM_FAILED] Query [id = 7] terminated with exception: No space left on device SQLSTATE: XXKST"),
]


@pytest.mark.parametrize(("recognizes", "message"), FAILURES)
def test_spark_failures_are_not_mistaken_in_quoted_user_data(recognizes: object, message: str) -> None:
    assert callable(recognizes)
    assert recognizes(PySparkException(message))
    assert not recognizes(PySparkException(f"[CAST_INVALID_INPUT] The value '\n{message}' cannot be cast"))
    assert not recognizes(ValueError(message))
