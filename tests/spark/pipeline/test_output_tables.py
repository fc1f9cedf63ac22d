"""The output directory of the pipeline: one writer, one store, complete files; and what is refused."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql.types import VariantVal

from strobe.errors import UsageError
from strobe.spark.pipeline.checkpoint import last_batch
from strobe.spark.pipeline.invariant_runner import _brief
from strobe.spark.pipeline.output_tables import CHECKPOINT, TABLES, VERDICTS, VIOLATIONS, Outputs
from strobe.spark.pipeline.results import Results
from strobe.spark.schema.output_schema import TOO_LARGE, variant

VERDICT = {"snapshot_id": "s", "check": "proof", "verdict": "holds", "reason": None, "batch_id": 0}
VIOLATION = {"snapshot_id": "s", "check": "x", "subject": "a", "detail": None}


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


def test_a_directory_with_other_files_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds other files \(thesis.txt\)"):
        Outputs(tmp_path).claim()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(UsageError, match="is not a directory"):
        Outputs(tmp_path / "thesis.txt").claim()


def test_no_verdicts_are_added_without_their_checkpoint(tmp_path: Path) -> None:
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


def test_unfinished_files_of_a_killed_pipeline_are_removed(tmp_path: Path) -> None:
    Outputs(tmp_path).claim().release()
    (tmp_path / "tmp" / "1-verdicts-batch-0.parquet").write_bytes(b"half")
    Outputs(tmp_path).claim().release()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_the_second_try_of_a_batch_replaces_the_first_ones_files(tmp_path: Path) -> None:
    with Outputs(tmp_path) as outputs:
        outputs.write(VIOLATIONS, 0, [VIOLATION])
        outputs.write(VIOLATIONS, 0, [])
        assert outputs.read(VIOLATIONS, 0) == []
        outputs.write(VIOLATIONS, 1, [])
        assert not outputs.path(VIOLATIONS, 1).exists()
    assert all((tmp_path / table / "columns.parquet").exists() for table in TABLES)


def test_judged_commits_are_not_read_again_to_find_new_ones(tmp_path: Path) -> None:
    """A pipeline that has run for months has written a million batches."""
    with Outputs(tmp_path) as outputs:
        outputs.write(VERDICTS, 0, [VERDICT])
        outputs.write(VERDICTS, 1, [VERDICT | {"snapshot_id": name} for name in "tuv"])
        for name, text in (("commits/0", "v1\n{}"), ("offsets/0", 'v1\n{}\n{"position": 2}'), ("offsets/1", "v1")):
            (outputs.checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
            (outputs.checkpoint / name).write_text(text)
        outputs.path(VERDICTS, 0).write_bytes(b"it is not looked at")
        results = Results(outputs)
        results.refresh()
        assert (results.snapshots, results.rows, outputs.recorded_position()) == (3, 3, 2)


def test_a_detail_too_large_for_a_variant_is_replaced_by_its_size() -> None:
    nested = '{"a":' + "[" * 1500 + "]" * 1500 + "}"
    kept = variant(nested)
    assert VariantVal(kept["value"], kept["metadata"]).toPython() == {"problem": TOO_LARGE % len(nested)}
    assert _brief({"detail": nested}).endswith("...")


def written_batches(outputs: Outputs, count: int) -> None:
    for batch_id in range(count):
        outputs.write(VIOLATIONS, batch_id, [VIOLATION])
        outputs.write(VERDICTS, batch_id, [VERDICT])


@pytest.mark.parametrize("removals", range(6))
def test_a_crash_while_batches_are_removed_leaves_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removals: int
) -> None:
    """D2: otherwise a removed batch could remain beside the verdicts that are written again."""
    with Outputs(tmp_path) as outputs:
        written_batches(outputs, 4)
        left = [None] * removals
        unlink = Path.unlink

        def crash_in_time(path: Path, missing_ok: bool = False) -> None:
            if not left:
                raise KeyboardInterrupt
            left.pop()
            unlink(path, missing_ok)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", crash_in_time)
            with pytest.raises(KeyboardInterrupt):
                outputs.remove_from(1)
        done = outputs.batches()
        assert done == list(range(len(done)))
        assert all(outputs.path(VIOLATIONS, batch_id).exists() for batch_id in done)
        outputs.remove_from(1)
        assert outputs.batches() == [0]
        assert not outputs.path(VIOLATIONS, 1).exists()


def checkpointed(outputs: Outputs, count: int) -> None:
    for directory in ("offsets", "commits"):
        (outputs.checkpoint / directory).mkdir(parents=True)
        for batch_id in range(count):
            (outputs.checkpoint / directory / str(batch_id)).write_text(f'v1\n{{}}\n{{"position": {batch_id}}}')


def test_batches_unknown_to_spark_are_removed_at_the_start(tmp_path: Path) -> None:
    """D2: also batches after a gap that an earlier crash left."""
    with Outputs(tmp_path) as outputs:
        outputs.identify("one", "/stores/one")
        written_batches(outputs, 6)
        outputs.path(VERDICTS, 3).unlink()
        checkpointed(outputs, 2)
        outputs.identify("one", "/stores/one")
        assert outputs.batches() == [0, 1]
        assert [batch_id for batch_id in range(6) if outputs.path(VIOLATIONS, batch_id).exists()] == [0, 1]


@pytest.mark.parametrize("content", [b"", bytes(40)])
@pytest.mark.parametrize(("torn", "given", "noted"), [("offsets", 1, 1), ("commits", 2, 1)])
def test_empty_checkpoint_files_after_a_power_cut_are_removed(
    tmp_path: Path, content: bytes, torn: str, given: int, noted: int
) -> None:
    """D2: otherwise Spark would fail on it at each start."""
    outputs = Outputs(tmp_path)
    checkpointed(outputs, 3)
    (outputs.checkpoint / torn / "2").write_bytes(content)
    (outputs.checkpoint / torn / ".2.crc").write_bytes(b"crc")
    with outputs:
        assert last_batch(outputs.checkpoint / "offsets") == given
        assert outputs.last_recorded() == noted
        assert not (outputs.checkpoint / torn / ".2.crc").exists()


def test_each_batch_has_the_totals_up_to_it_even_if_repeated(tmp_path: Path) -> None:
    with Outputs(tmp_path) as outputs:
        outputs.write(VERDICTS, 0, [VERDICT, VERDICT | {"check": "x", "verdict": "violated"}])
        outputs.write(VERDICTS, 1, [VERDICT, VERDICT])
        outputs.write(VERDICTS, 1, [VERDICT])
        results = Results(outputs)
        results.refresh()
        assert results.document()["totals"] == {"proof": {"holds": 2}, "x": {"violated": 1}}
        outputs.path(VERDICTS, 0).unlink()
        outputs.write(VERDICTS, 1, [VERDICT])
        assert outputs.totals(1) is None
