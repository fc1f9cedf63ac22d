"""Another store, or another history of it, where the one was that a pipeline is about: it is not judged (D2)."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.pipelines import CONSERVATION, verdicts, written
from tests.storage.samples import commit, sample

import strobe.spark.pipeline as pipeline_module
from strobe.spark.invariants import read_invariants
from strobe.spark.judging import Step
from strobe.spark.pipeline import Options, Pipeline, Watch
from strobe.storage import Store


def samples(root: Path, *counters: int, balance: int = 100) -> Store:
    store = Store.create(root)
    for counter in counters:
        commit(store, sample(counter, balance=balance))
    return store


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again at once, and often."""
    monkeypatch.setattr(pipeline_module, "PAUSES_S", (0.0,) * 20)
    monkeypatch.setattr(pipeline_module, "TRIES_ONCE", 20)


@pytest.mark.parametrize("moment", [Step.BEGUN, Step.EXAMINED])
def test_another_store_in_its_place_is_neither_examined_nor_asked_and_the_first_one_is_waited_for(
    spark: SparkSession, tmp_path: Path, moment: Step
) -> None:
    """Though it has snapshots of the same ids, and is still there when the batch is tried again."""
    store, hidden = samples(tmp_path / "store", 1, 2), tmp_path / "hidden"
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "conservation.sql").write_text(CONSERVATION)
    told: list[str] = []

    class BringItBack(Watch):
        def trouble(self, reason: str) -> None:
            told.append(reason)
            if len(told) == 2:
                Path(store.url).rename(tmp_path / "other")
                hidden.rename(store.url)

    def replace_it(step: Step, batch_id: int) -> None:
        if step == moment and not told:
            Path(store.url).rename(hidden)
            samples(tmp_path / "store", 1, 2, 3, balance=7)

    rules = tuple(read_invariants(tmp_path / "rules"))
    pipeline = Pipeline(spark, store.url, tmp_path / "to", Options(rules, drift_window=0))
    pipeline.on_step = replace_it
    pipeline.run(once=True, watch=BringItBack())
    assert ["is another store" in reason for reason in told] == [True, True]
    ids = [f"000001-{counter:08d}-coordinator" for counter in (1, 2)]
    assert verdicts(tmp_path / "to") == {(name, check): "holds" for name in ids for check in ("proof", "conservation")}
    assert written(tmp_path / "to")["quarantine"] == []
