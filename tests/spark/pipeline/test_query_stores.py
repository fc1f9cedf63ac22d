"""Changes of a store while a pipeline runs: another one is in its place, or it is temporarily unreadable (D2)."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.pipelines import CONSERVATION, judge_once, verdicts, written
from tests.storage.samples import commit, sample

import strobe.spark.pipeline.query as pipeline_module
from strobe.errors import UsageError
from strobe.spark.pipeline.batch import BatchStep, OnStep
from strobe.spark.pipeline.invariants import read_invariants
from strobe.spark.pipeline.query import Options, Pipeline, PipelineObserver
from strobe.storage import Store
from strobe.storage.content.blobs import blob_name


def samples(root: Path, *counters: int, balance: int = 100) -> Store:
    store = Store.create(root)
    for counter in counters:
        commit(store, sample(counter, balance=balance))
    return store


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once, and often."""
    monkeypatch.setattr(pipeline_module, "PAUSE_S_MAX", 0.0)
    monkeypatch.setattr(pipeline_module, "TRIES_MAX", 20)


@pytest.mark.parametrize("moment", [BatchStep.BEGUN, BatchStep.EXAMINED])
def test_another_store_is_not_examined_and_the_first_is_waited_for(
    spark: SparkSession, tmp_path: Path, moment: BatchStep
) -> None:
    """Even if it has snapshots of the same ids, and is still there when the batch is retried."""
    store, hidden, other = samples(tmp_path / "store", 1, 2), tmp_path / "hidden", tmp_path / "other"
    samples(other, 1, 2, 3, balance=7)
    reports: list[str] = []

    class BringItBack(PipelineObserver):
        def report(self, reason: str) -> None:
            reports.append(reason)
            if len(reports) == 2:
                Path(store.url).rename(other)
                hidden.rename(store.url)

    def replace_it(step: BatchStep, batch_id: int) -> None:
        if step == moment and not reports:
            Path(store.url).rename(hidden)
            other.rename(store.url)  # made before, so that there is a store at any time

    judge(spark, store, tmp_path, replace_it, BringItBack())
    assert ["is another store" in reason for reason in reports] == [True, True], reports


def test_a_state_that_is_temporarily_unreadable_is_retried(spark: SparkSession, tmp_path: Path) -> None:
    """The store exists, but the workers cannot read a state; their error is recognized as temporary."""
    store, aside = samples(tmp_path / "store", 1, 2), tmp_path / "aside"
    blobs = (Path(store.url) / blob_name(store.list()[1][2].processes["a"].state)).parent
    reports: list[str] = []

    class PutItBack(PipelineObserver):
        def report(self, reason: str) -> None:
            reports.append(reason)
            blobs.unlink()
            aside.rename(blobs)

    def put_a_file_there(step: BatchStep, batch_id: int) -> None:
        if step == BatchStep.EXAMINED and not reports:
            blobs.rename(aside)
            blobs.touch()

    judge(spark, store, tmp_path, put_a_file_there, PutItBack())
    assert len(reports) == 1
    assert reports[0].startswith(f"store {store.url}: cannot read blobs/")


def test_a_diverged_copy_of_the_store_is_refused_at_the_start(spark: SparkSession, tmp_path: Path) -> None:
    """Its new snapshots are at positions that were judged before, so they would never be read."""
    store, to = samples(tmp_path / "store", 1), tmp_path / "to"
    shutil.copytree(store.url, tmp_path / "copy")
    commit(store, sample(2))
    judge_once(spark, store.url, to, drift_window=0)
    Path(store.url).rename(tmp_path / "newer")
    (tmp_path / "copy").rename(store.url)
    for counter in (3, 4):
        commit(Store.open(store.url), sample(counter))
    with pytest.raises(UsageError, match=r"an older copy of the store.*\(--to\)"):
        judge_once(spark, store.url, to, drift_window=0)
    shutil.rmtree(store.url)
    (tmp_path / "newer").rename(store.url)
    commit(store, sample(3))
    judge_once(spark, store.url, to, drift_window=0)
    assert len(verdicts(to)) == 3


def judge(spark: SparkSession, store: Store, root: Path, on_step: OnStep, watch: PipelineObserver) -> None:
    """Judge the snapshots 1 and 2, which all hold, while `on_step` and `watch` change the store."""
    (root / "rules").mkdir()
    (root / "rules" / "conservation.sql").write_text(CONSERVATION)
    pipeline = Pipeline(spark, store.url, root / "to", Options(tuple(read_invariants(root / "rules")), drift_window=0))
    pipeline.on_step = on_step
    pipeline.run(once=True, watch=watch)
    ids = [f"000001-{counter:08d}-coordinator" for counter in (1, 2)]
    assert verdicts(root / "to") == {(name, check): "holds" for name in ids for check in ("proof", "conservation")}
    assert written(root / "to")["quarantine"] == []
