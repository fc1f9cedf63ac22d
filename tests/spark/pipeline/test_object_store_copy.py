"""The tables of a pipeline in an object store: whole batches, verdicts last; failed copies are made up for later."""

import io
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.spark.pipelines import judge_once
from tests.storage.samples import commit, sample
from tests.support.object_server import ObjectServer

from strobe.errors import MissingComponent, UsageError
from strobe.spark.pipeline import object_store_copy
from strobe.spark.pipeline.output_tables import QUARANTINE, VERDICTS, VIOLATIONS, Outputs
from strobe.storage import Store
from strobe.storage.files.urls import backend_at

VERDICT = {"snapshot_id": "s", "check": "proof", "verdict": "holds", "reason": None}
VIOLATION = {"snapshot_id": "s", "check": "proof", "subject": "a->b"}
COLUMNS = "columns.parquet"


@pytest.fixture
def to(objects: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A URL without any objects yet; local files go below tmp_path."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return objects.new_url()


def name_of(batch_id: int) -> str:
    return f"batch-{batch_id:020d}.parquet"


def there(to: str, table: str) -> list[str]:
    return backend_at(to).names(table)


def test_a_batch_is_copied_only_once_its_verdicts_are_written(to: str) -> None:
    with Outputs(to) as outputs:
        outputs.identify("one", "/stores/one")
        outputs.write(VIOLATIONS, 0, [VIOLATION])
        outputs.publish()
        assert there(to, VIOLATIONS) == [COLUMNS]
        outputs.write(VERDICTS, 0, [VERDICT])
        outputs.publish()
        assert there(to, VIOLATIONS) == there(to, VERDICTS) == [name_of(0), COLUMNS]
        assert there(to, QUARANTINE) == [COLUMNS]
        raw = backend_at(to).read(f"{VERDICTS}/{name_of(0)}")
        assert raw == outputs.path(VERDICTS, 0).read_bytes()
        assert pq.read_table(io.BytesIO(raw)).to_pylist()[0]["verdict"] == "holds"


def test_batches_that_could_not_be_copied_are_copied_later(to: str, objects: ObjectServer) -> None:
    with Outputs(to) as outputs:
        outputs.identify("one", "/stores/one")
        outputs.publish()
        outputs.write(VERDICTS, 0, [VERDICT])
        objects.fail("PUT", VERDICTS, "deny")
        with pytest.raises(OSError, match=VERDICTS):
            outputs.publish()
    object_store_copy._known.clear()  # as in a new program
    with Outputs(to) as outputs:
        assert there(to, VERDICTS) == [name_of(0), COLUMNS]
        outputs.write(VERDICTS, 1, [VERDICT])
        outputs.remove_from(1)
        assert there(to, VERDICTS) == [name_of(0), COLUMNS]


def test_an_object_store_that_refuses_is_named_before_anything_runs(to: str, objects: ObjectServer) -> None:
    objects.fail("PUT", "columns", "deny")
    with pytest.raises(MissingComponent, match=f"{to} cannot be written to"):
        Outputs(to).claim()


def test_another_machine_does_not_continue_without_the_checkpoint(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Outputs(to) as outputs:
        outputs.identify("one", "/stores/one")
        outputs.publish()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    with pytest.raises(UsageError, match="whose checkpoint is not on this machine"):
        Outputs(to).refuse_others()


def test_D2_a_pipeline_writes_its_verdicts_into_an_object_store(to: str, spark: SparkSession, tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    for count in (1, 2, 3):
        commit(store, sample(count))
        judge_once(spark, store.url, to)
    rows = [
        row
        for name in there(to, VERDICTS)
        for row in pq.read_table(io.BytesIO(backend_at(to).read(f"{VERDICTS}/{name}") or b"")).to_pylist()
    ]
    proofs = [row for row in rows if row["check"] == "proof"]
    assert [row["verdict"] for row in proofs] == ["holds"] * 3
    assert len({row["snapshot_id"] for row in proofs}) == 3
