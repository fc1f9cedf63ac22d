"""The directory that the pipeline writes to: one writer, one store, whole files; and what it refuses, by name."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql.types import VariantVal

from strobe.errors import UsageError
from strobe.spark.evaluation import _brief
from strobe.spark.outputs import CHECKPOINT, TABLES, TOO_LARGE, VERDICTS, VIOLATIONS, Outputs, variant
from strobe.spark.results import Results

VERDICT = {"snapshot_id": "s", "check": "proof", "verdict": "holds", "reason": None, "batch_id": 0}


def test_a_second_pipeline_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    with Outputs(tmp_path), pytest.raises(UsageError, match="another pipeline is writing"):
        Outputs(tmp_path).claim()
    Outputs(tmp_path).claim().release()


def test_another_store_is_refused(tmp_path: Path) -> None:
    with Outputs(tmp_path) as outputs:
        outputs.identify("one", "/stores/one")
        outputs.identify("one", "/moved/one")
        with pytest.raises(UsageError, match=r"verdicts on another store \(/stores/one\)"):
            outputs.identify("two", "/stores/two")


def test_a_directory_with_other_things_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds other things \(thesis.txt\)"):
        Outputs(tmp_path).claim()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(UsageError, match="is not a directory"):
        Outputs(tmp_path / "thesis.txt").claim()


def test_verdicts_whose_checkpoint_was_taken_away_are_not_added_to(tmp_path: Path) -> None:
    with Outputs(tmp_path) as outputs:
        outputs.identify("one", "/stores/one")
        (outputs.checkpoint / "offsets").mkdir(parents=True)
        outputs.write(VERDICTS, 0, [VERDICT])
        outputs.identify("one", "/stores/one")
        shutil.rmtree(tmp_path / CHECKPOINT)
        with pytest.raises(UsageError, match="verdicts but no checkpoint"):
            outputs.identify("one", "/stores/one")


def test_a_write_that_fails_leaves_nothing_under_a_final_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Outputs(tmp_path) as outputs:
        monkeypatch.setattr("os.fsync", _full)
        with pytest.raises(OSError, match="No space left"):
            outputs.write(VERDICTS, 0, [VERDICT])
        assert not outputs.is_done(0)
        assert list((tmp_path / "tmp").iterdir()) == []


def _full(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def test_what_a_killed_pipeline_left_unfinished_is_removed(tmp_path: Path) -> None:
    Outputs(tmp_path).claim().release()
    (tmp_path / "tmp" / "1-verdicts-batch-0.parquet").write_bytes(b"half")
    Outputs(tmp_path).claim().release()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_the_second_try_of_a_batch_replaces_what_the_first_has_written(tmp_path: Path) -> None:
    violation = {"snapshot_id": "s", "check": "x", "subject": "a", "detail": None}
    with Outputs(tmp_path) as outputs:
        outputs.write(VIOLATIONS, 0, [violation])
        outputs.write(VIOLATIONS, 0, [])
        assert outputs.read(VIOLATIONS, 0) == []
        outputs.write(VIOLATIONS, 1, [])
        assert not outputs.path(VIOLATIONS, 1).exists()
    assert all((tmp_path / table / "columns.parquet").exists() for table in TABLES)


def test_what_was_judged_before_is_not_read_again_to_say_what_is_new(tmp_path: Path) -> None:
    """A pipeline that has run for months has a million batches behind it."""
    with Outputs(tmp_path) as outputs:
        outputs.write(VERDICTS, 0, [VERDICT])
        outputs.write(VERDICTS, 1, [VERDICT | {"snapshot_id": name} for name in "tuv"])
        for name, text in (("commits/0", "v1\n{}"), ("offsets/0", 'v1\n{}\n{"position": 2}'), ("offsets/1", "v1")):
            (outputs.checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
            (outputs.checkpoint / name).write_text(text)
        outputs.path(VERDICTS, 0).write_bytes(b"it is not looked at")
        results = Results(outputs)
        results.refresh()
        assert (results.snapshots, results.rows, outputs.noted_position()) == (3, 3, 2)


def test_a_detail_that_no_variant_can_hold_is_known_by_its_size() -> None:
    nested = '{"a":' + "[" * 1500 + "]" * 1500 + "}"
    kept = variant(nested)
    assert VariantVal(kept["value"], kept["metadata"]).toPython() == {"problem": TOO_LARGE % len(nested)}
    assert _brief({"detail": nested}).endswith("...")
