"""What may become of a store under a pipeline: another lies in its place, or it cannot be read for a moment (D2)."""

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
    """Try again at once, and often."""
    monkeypatch.setattr(pipeline_module, "PAUSE_S_MAX", 0.0)
    monkeypatch.setattr(pipeline_module, "TRIES_MAX", 20)


@pytest.mark.parametrize("moment", [BatchStep.BEGUN, BatchStep.EXAMINED])
def test_another_store_is_not_examined_and_the_first_is_waited_for(
    spark: SparkSession, tmp_path: Path, moment: BatchStep
) -> None:
    """Though it has snapshots of the same ids, and is still there when the batch is tried again."""
    store, hidden, other = samples(tmp_path / "store", 1, 2), tmp_path / "hidden", tmp_path / "other"
    samples(other, 1, 2, 3, balance=7)
    told: list[str] = []

    class BringItBack(PipelineObserver):
        def report(self, reason: str) -> None:
            told.append(reason)
            if len(told) == 2:
                Path(store.url).rename(other)
                hidden.rename(store.url)

    def replace_it(step: BatchStep, batch_id: int) -> None:
        if step == moment and not told:
            Path(store.url).rename(hidden)
            other.rename(store.url)  # made before: nobody is to find no store at all

    judge(spark, store, tmp_path, replace_it, BringItBack())
    assert ["is another store" in reason for reason in told] == [True, True], told


def test_a_state_that_an_invariant_cannot_read_now_is_retried(spark: SparkSession, tmp_path: Path) -> None:
    """The workers cannot read it, though the store is there: what they raise is known for that."""
    store, aside = samples(tmp_path / "store", 1, 2), tmp_path / "aside"
    blobs = (Path(store.url) / blob_name(store.list()[1][2].processes["a"].state)).parent
    told: list[str] = []

    class PutItBack(PipelineObserver):
        def report(self, reason: str) -> None:
            told.append(reason)
            blobs.unlink()
            aside.rename(blobs)

    def put_a_file_there(step: BatchStep, batch_id: int) -> None:
        if step == BatchStep.EXAMINED and not told:
            blobs.rename(aside)
            blobs.touch()

    judge(spark, store, tmp_path, put_a_file_there, PutItBack())
    assert len(told) == 1
    assert told[0].startswith(f"store {store.url}: cannot read blobs/")


def test_a_diverged_copy_of_the_store_is_refused_at_the_start(spark: SparkSession, tmp_path: Path) -> None:
    """Its new snapshots are at positions that were judged before, and would never be looked at."""
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
    """Judge the snapshots 1 and 2, all of which hold, with the store treated by `on_step` and `watch`."""
    (root / "rules").mkdir()
    (root / "rules" / "conservation.sql").write_text(CONSERVATION)
    pipeline = Pipeline(spark, store.url, root / "to", Options(tuple(read_invariants(root / "rules")), drift_window=0))
    pipeline.on_step = on_step
    pipeline.run(once=True, watch=watch)
    ids = [f"000001-{counter:08d}-coordinator" for counter in (1, 2)]
    assert verdicts(root / "to") == {(name, check): "holds" for name in ids for check in ("proof", "conservation")}
    assert written(root / "to")["quarantine"] == []
