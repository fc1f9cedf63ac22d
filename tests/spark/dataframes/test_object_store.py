"""A store in an object store, read by Spark's workers: its tables, its proofs, and the pipeline (D1, D2)."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.pipelines import CONSERVATION, judge_once, verdicts
from tests.spark.session_program import counts
from tests.storage.samples import commit, sample
from tests.support.object_server import ObjectServer

from strobe.errors import StoreFormatError
from strobe.spark.pipeline.invariants import read_invariants
from strobe.spark.rows.events import traces_at
from strobe.storage import Store

SNAPSHOTS = 3


def test_D2_a_store_in_an_object_store_is_judged_as_on_disk(
    spark: SparkSession, objects: ObjectServer, tmp_path: Path
) -> None:
    store = Store.create(objects.new_url())
    ids = [commit(store, sample(counter)) for counter in range(1, SNAPSHOTS + 1)]
    assert counts(spark, store.url) == {
        "snapshots": SNAPSHOTS,
        "process_states": 3 * SNAPSHOTS,
        "channel_messages": 5 * SNAPSHOTS,
        "balances": 150 * SNAPSHOTS,
        "events": 0,
        "proofs holds": SNAPSHOTS,
    }
    (tmp_path / "conservation.sql").write_text(CONSERVATION)
    judge_once(spark, store.url, tmp_path / "to", invariants=tuple(read_invariants(tmp_path)), drift_window=0)
    assert verdicts(tmp_path / "to") == {(name, check): "holds" for name in ids for check in ("proof", "conservation")}


def test_an_object_store_has_no_events_and_a_missing_one_is_named(objects: ObjectServer) -> None:
    """Traces are local files: with an object store they stay on the machines of the programs."""
    assert traces_at(Store.create(objects.new_url()).url) == []
    with pytest.raises(StoreFormatError, match="holds no store"):
        traces_at(objects.new_url())
