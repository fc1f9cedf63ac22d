"""The streaming pipeline judges every snapshot once and correctly, and continues after every failure (D2)."""

import shutil
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.spark.frame_mutations import missing_frame, other_message
from tests.spark.generate import good_snapshots
from tests.spark.mutations import mutants
from tests.spark.pipelines import CONSERVATION, judge_once, reasons, verdicts, written
from tests.spark.stores import damage, store_with
from tests.storage.samples import begin, commit, sample
from tests.storage.signing import commit_signed

import strobe.spark.pipeline.query as pipeline_module
from strobe.causality.proof import verify
from strobe.errors import StoreFormatError, UsageError
from strobe.protocol.values.fragment import Snapshot
from strobe.protocol.values.log_entries import Remove
from strobe.spark.checks.drift import CHANNEL_GROWTH, STANDSTILL
from strobe.spark.checks.snapshot_checker import ExpectedSigners
from strobe.spark.pipeline.batch import BatchStep
from strobe.spark.pipeline.invariants import check_invariants, read_invariants
from strobe.spark.pipeline.output_tables import Outputs
from strobe.spark.pipeline.query import Options, Pipeline, PipelineObserver
from strobe.storage import Store
from strobe.storage.content.blobs import blob_name
from strobe.storage.content.manifests import blobs_of
from strobe.storage.entries.log_file import entry_name
from strobe.storage.files.checksummed_json import UNSEALED, seal
from strobe.storage.files.layout import LOG
from strobe.storage.inspection.keys import create_keys, read_public_keys

replace = msgspec.structs.replace


def samples(root: Path, count: int) -> Store:
    """Return a store of samples whose balances add up to 150."""
    store = Store.create(root)
    for counter in range(1, count + 1):
        commit(store, sample(counter))
    return store


def id_of(counter: int) -> str:
    return f"000001-{counter:08d}-coordinator"


def invariants_in(directory: Path, **files: str) -> dict[str, object]:
    directory.mkdir()
    for name, text in files.items():
        (directory / name.replace("_", ".")).write_text(text)
    return {"invariants": tuple(read_invariants(directory))}


def test_workers_recompute_every_proof_from_the_stored_bytes(spark: SparkSession, tmp_path: Path) -> None:
    """P1, D2: the same verdicts and texts as the definition."""
    snapshots = list(good_snapshots(5, 20))
    for counter, mutation in enumerate((other_message, missing_frame), start=len(snapshots) + 1):
        snapshots += mutants(mutation, "pipeline", 1, counter)
    store = store_with(tmp_path / "store", snapshots)
    judge_once(spark, store.url, tmp_path / "to", drift_window=0)
    found, texts = verdicts(tmp_path / "to"), reasons(tmp_path / "to")
    assert len(found) == len(snapshots)
    for snapshot in snapshots:
        proof = verify(snapshot)
        assert found[str(snapshot.id), "proof"] == ("holds" if proof.holds else "violated")
        expected = "; ".join(map(str, proof.findings)) or "self-consistent, signer unknown"
        assert texts[str(snapshot.id), "proof"] == expected
    rows = spark.read.parquet(str(tmp_path / "to" / "violations")).selectExpr("subject", "detail:problem::string")
    findings = [(finding.subject, finding.problem) for snapshot in snapshots for finding in verify(snapshot).findings]
    assert sorted(map(tuple, rows.collect())) == sorted(findings)


def test_damaged_files_are_quarantined_and_the_rest_is_judged(spark: SparkSession, tmp_path: Path) -> None:
    """S2, D2: a flipped byte, a truncated blob, a missing one; a damaged entry, and one of an unknown kind."""
    store = samples(tmp_path / "store", 7)
    begin(store, 9)  # it is open, so the pipeline does not see it
    entries = {name: position for position, name, _ in store.list()}
    blobs = [next(iter(blobs_of(manifest))) for _, _, manifest in store.list()]
    paths = [Path(store.url) / blob_name(ref) for ref in blobs]
    damage(paths[0])
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    paths[2].unlink()
    damage(Path(store.url) / entry_name(entries[id_of(4)]))
    end = store.state().next_position
    newer = {"blake3": UNSEALED, "position": end, "previous": UNSEALED, "entry": {"type": "merge"}}
    (Path(store.url) / entry_name(end)).write_bytes(seal(msgspec.json.encode(newer) + b"\n")[0])
    to = tmp_path / "to"
    judge_once(spark, store.url, to, drift_window=0, **invariants_in(tmp_path / "rules", conservation_sql=CONSERVATION))
    found = verdicts(to)
    assert [found[id_of(counter), "proof"] for counter in (1, 2, 3, 5, 6, 7)] == ["error"] * 3 + ["holds"] * 3
    assert [found[id_of(counter), "conservation"] for counter in (1, 2, 3, 5, 6, 7)] == ["error"] * 3 + ["holds"] * 3
    assert len(found) == 12
    quarantined = reasons(to, "quarantine", "uri")
    assert len(quarantined) == 5
    for counter, problem in enumerate(("do not match", "bytes instead of", "is missing"), start=1):
        assert problem in quarantined[id_of(counter), str(paths[counter - 1])]
    assert "checksum" in quarantined[None, f"{store.url}/{entry_name(entries[id_of(4)])}"]
    assert "a newer Strobe may have written it" in quarantined[None, f"{store.url}/{entry_name(end)}"]


def test_the_second_run_judges_only_new_snapshots(spark: SparkSession, tmp_path: Path) -> None:
    store = samples(tmp_path / "store", 3)
    judge_once(spark, store.url, tmp_path / "to")
    before = written(tmp_path / "to")["verdicts"]
    judge_once(spark, store.url, tmp_path / "to")
    assert written(tmp_path / "to")["verdicts"] == before
    commit(store, sample(4))
    judge_once(spark, store.url, tmp_path / "to")
    assert {name for name, _ in verdicts(tmp_path / "to")} == set(map(id_of, range(1, 5)))


def test_the_checkpoint_is_beside_the_tables_on_any_cluster(spark: SparkSession, tmp_path: Path) -> None:
    """D6: with HDFS as the default file system, a path without a scheme would be in HDFS."""
    store, to, elsewhere = samples(tmp_path / "store", 1), tmp_path / "to %41 b", tmp_path / "elsewhere"
    elsewhere.mkdir()
    spark.conf.set("fs.viewfs.mounttable.cluster.linkMergeSlash", f"file://{elsewhere}/")
    spark.conf.set("fs.defaultFS", "viewfs://cluster/")
    try:
        for count in (1, 2):
            judge_once(spark, store.url, to, drift_window=0)
            assert len(verdicts(to)) == count
            commit(store, sample(count + 1))
    finally:
        spark.conf.unset("fs.defaultFS")
    assert (to / "checkpoint" / "offsets").exists()
    assert list(elsewhere.iterdir()) == []


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once, and often."""
    monkeypatch.setattr(pipeline_module, "PAUSE_S_MAX", 0.0)
    monkeypatch.setattr(pipeline_module, "TRIES_MAX", 20)


class Crash(Exception):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def crash_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = samples(tmp_path_factory.mktemp("crash") / "store", 5)
    commit(store, sample(6, balance=99))
    damage(Path(store.url) / blob_name(next(iter(blobs_of(store.list()[2][2])))))
    return store


def test_a_batch_that_fails_after_any_step_is_judged_exactly_once(
    spark: SparkSession, tmp_path: Path, crash_store: Store, patient: None
) -> None:
    """D2: nothing is lost or doubled; readers see all verdicts of a batch or none."""
    rules = invariants_in(tmp_path / "rules", conservation_sql=CONSERVATION)
    judge_once(spark, crash_store.url, tmp_path / "whole", **rules)
    pipeline = Pipeline(spark, crash_store.url, tmp_path / "to", Options(snapshots_per_batch=3, **rules))
    left = list(BatchStep)

    def crash_once_after_each(step: BatchStep, batch_id: int) -> None:
        if left and step == left[0]:
            left.pop(0)
            raise Crash(step)

    reports: list[str] = []

    class Retrying(PipelineObserver):
        def report(self, reason: str) -> None:
            reports.append(reason)

    pipeline.on_step = crash_once_after_each
    pipeline.run(once=True, watch=Retrying())
    assert not left
    assert len(reports) == len(BatchStep)
    assert written(tmp_path / "to") == written(tmp_path / "whole")


def test_an_invariant_that_fails_on_one_snapshot_is_an_error_there(spark: SparkSession, tmp_path: Path) -> None:
    """G1, and schema drift: in one snapshot the balance is a text that looks like an error of an unreachable store."""
    store = samples(tmp_path / "store", 4)
    drifted = sample(5)
    state = replace(
        drifted.fragments["a"].state, data=msgspec.msgpack.encode({"balance": "much\nUnavailable: see StoreError: x"})
    )
    commit(store, with_state(drifted, "a", state))
    commit(store, sample(6, balance=99))
    python = """
from strobe.spark import invariant

@invariant
def few_messages(tables):
    "At most two in flight on a channel."
    return tables.channel_messages.groupBy("snapshot_id", "channel").count().where("count > 2")
"""
    to = tmp_path / "to"
    rules = invariants_in(tmp_path / "rules", conservation_sql=CONSERVATION, rules_py=python)
    judge_once(spark, store.url, to, drift_window=0, **rules)
    found, texts = verdicts(to), reasons(to)
    assert [found[id_of(counter), "conservation"] for counter in range(1, 7)] == ["holds"] * 4 + ["error", "violated"]
    assert "much" in texts[id_of(5), "conservation"] or "CAST" in texts[id_of(5), "conservation"]
    assert texts[id_of(6), "conservation"] == "1 violating row: total 149"
    assert [found[id_of(counter), "few-messages"] for counter in range(1, 7)] == ["violated"] * 6
    assert "channel b~>c, count 3" in texts[id_of(1), "few-messages"]
    rows = (
        spark.read.parquet(str(to / "violations"))
        .where("check = 'conservation'")
        .selectExpr("snapshot_id", "subject", "detail:total::bigint")
    )
    assert [tuple(row) for row in rows.collect()] == [(id_of(6), id_of(6), 149)]


def with_state(snapshot: Snapshot, process: str, state: object) -> Snapshot:
    fragment = replace(snapshot.fragments[process], state=state)
    return replace(snapshot, fragments={**snapshot.fragments, process: fragment})


def test_large_rows_are_shown_by_size_and_bytes_by_length(spark: SparkSession, tmp_path: Path) -> None:
    """D2: a large result of a rule must not end the stream, although a VARIANT holds 16 MB at most."""
    store, to = samples(tmp_path / "store", 1), tmp_path / "to"
    large = "SELECT snapshot_id, process, repeat('x', 300000) AS text FROM process_states WHERE process = 'a'"
    some = "SELECT snapshot_id, X'00' AS hash, encode(repeat('x', 999), 'utf-8') AS `a``b`, NULL AS n FROM snapshots"
    rules = invariants_in(tmp_path / "rules", large_sql=large, some_sql=some)
    judge_once(spark, store.url, to, drift_window=0, **rules)
    assert reasons(to)[id_of(1), "large"] == "1 violating row: problem a row of 300069 bytes, too large to keep"
    assert reasons(to)[id_of(1), "some"] == "1 violating row: hash AA==, a`b 999 bytes, n null"
    rows = spark.read.parquet(str(to / "violations")).where("check = 'large'").select("subject")
    assert [row.subject for row in rows.collect()] == ["a"]


WRONG_FILES = [
    ("SELECT snapshot_id\nFROM snapshots WHERE = 1", "one.sql:2:", "syntax error"),
    ("-- name: x\nSELECT snapshot_id\nFROM snapshots\nWHERE colour = 1", "one.sql:4:", "colour"),
    ("SELECT 1 AS one", "one.sql: ", "snapshot_id as well"),
    ("DROP TABLE snapshots", "one.sql:1:", ""),
    ("-- name: proof\nSELECT snapshot_id FROM snapshots", "one.sql: ", "taken by a check of Strobe's own"),
    ("SELECT snapshot_id, process, process FROM process_states", "one.sql: ", "column process twice"),
    ("SELECT snapshot_id\nFROM snapshots; -- that's not all\nSELECT 1", "one.sql:2:", "';'"),
]


@pytest.mark.parametrize(("text", "place", "problem"), WRONG_FILES)
def test_a_mistake_in_sql_is_named_with_its_line_before_anything_runs(
    spark: SparkSession, tmp_path: Path, text: str, place: str, problem: str
) -> None:
    rules = invariants_in(tmp_path / "rules", one_sql=text)
    with pytest.raises(UsageError) as error:
        judge_once(spark, tmp_path / "store", tmp_path / "to", **rules)
    assert place in str(error.value)
    assert problem in str(error.value).lower() or problem in str(error.value)
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("one.sql", "\ufeffSELECT snapshot_id FROM snapshots WHERE false"),
        ("one.sql", "SELECT snapshot_id FROM snapshots WHERE snapshot_id = ';--' ; -- the end\n\n-- really\n"),
        ("one.sql", "SELECT snapshot_id FROM snapshots WHERE snapshot_id = '; -- x'"),
        ("one.sql", "SELECT SNAPSHOT_ID FROM snapshots WHERE false"),
        ("ONE.SQL", "SELECT snapshot_id FROM snapshots WHERE false;"),
        ("one.sql", "-- it's ours\nSELECT snapshot_id FROM snapshots WHERE false; -- that's all\n-- \"really\n"),
        ("one.sql", "SELECT snapshot_id FROM snapshots WHERE false;\n/* that's\nall; */ -- really"),
        ("one.sql", r"SELECT snapshot_id FROM snapshots WHERE snapshot_id IN ('\'; --', r'\', 'it''s') /* ; */ ; -- '"),
        ("one.sql", "SELECT snapshot_id AS snapshot_id, 1 AS `; -- x` FROM snapshots WHERE false"),
    ],
)
def test_sql_files_with_comments_and_quotes_are_accepted(
    spark: SparkSession, tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    (found,) = read_invariants(tmp_path)
    check_invariants(spark, [found], ())
    assert found.name.lower() == "one"


WRONG_PYTHON = [
    ("def f(:\n  pass", "one.py:1: "),
    ("import nothing_of_this_name", "one.py:1: ModuleNotFoundError"),
    ("from strobe.spark import invariant\n@invariant\ndef f(tables):\n    return tables.nothing", "one.py:4: "),
    ("from strobe.spark import invariant\n@invariant\ndef f(tables):\n    return 1", "one.py:"),
    (
        "from strobe.spark import invariant\n@invariant\ndef f(tables):\n    return tables.snapshots.select('colour')",
        "one.py:4: ",
    ),
]


@pytest.mark.parametrize(("text", "place"), WRONG_PYTHON)
def test_a_mistake_in_python_is_named_with_its_line_before_it_runs(
    spark: SparkSession, tmp_path: Path, text: str, place: str
) -> None:
    with pytest.raises(UsageError) as error:
        judge_once(spark, tmp_path / "store", tmp_path / "to", **invariants_in(tmp_path / "rules", one_py=text))
    assert place in str(error.value)


@pytest.mark.parametrize("moment", [BatchStep.BEGUN, BatchStep.EXAMINED])
def test_a_store_that_vanishes_in_a_batch_is_waited_for(
    spark: SparkSession, tmp_path: Path, patient: None, moment: BatchStep
) -> None:
    """Before the snapshots are examined, or before the invariants run: neither snapshot nor invariant is blamed."""
    store, hidden = samples(tmp_path / "store", 3), tmp_path / "hidden"
    reports: list[str] = []

    class BringItBack(PipelineObserver):
        def report(self, reason: str) -> None:
            reports.append(reason)
            if hidden.exists():
                hidden.rename(store.url)

    def take_it_away(step: BatchStep, batch_id: int) -> None:
        if step == moment and not reports:
            Path(store.url).rename(hidden)

    rules = invariants_in(tmp_path / "rules", conservation_sql=CONSERVATION)
    pipeline = Pipeline(spark, store.url, tmp_path / "to", Options(drift_window=0, **rules))
    pipeline.on_step = take_it_away
    pipeline.run(once=True, watch=BringItBack())
    assert "does not exist" in reports[0] or "is missing; put it back" in reports[0]
    assert set(verdicts(tmp_path / "to").values()) == {"holds"}
    assert written(tmp_path / "to")["quarantine"] == []


def test_once_does_not_end_while_the_log_is_unreadable(spark: SparkSession, tmp_path: Path, patient: None) -> None:
    """D2: the obstacle is reported, and everything is judged when it is gone."""
    store = samples(tmp_path / "store", 3)
    log, aside = Path(store.url) / LOG, tmp_path / "aside"
    log.rename(aside)
    log.touch()
    reports: list[str] = []

    class PutItBack(PipelineObserver):
        def report(self, reason: str) -> None:
            reports.append(reason)
            if aside.exists():
                log.unlink()
                aside.rename(log)

    judge_once(spark, store.url, tmp_path / "to", watch=PutItBack(), drift_window=0)
    assert "Not a directory" in reports[0]
    assert len(verdicts(tmp_path / "to")) == 3


def test_batches_missing_in_the_checkpoint_are_judged_again_once(spark: SparkSession, tmp_path: Path) -> None:
    """D2: Spark does not sync its checkpoint, and after a power failure gives a batch number to other commits."""
    store, to = samples(tmp_path / "store", 4), tmp_path / "to"
    judge_once(spark, store.url, to, drift_window=0, snapshots_per_batch=2)
    for directory in ("offsets", "commits"):
        for path in (to / "checkpoint" / directory).iterdir():
            path.unlink()
    commit(store, sample(5))
    judge_once(spark, store.url, to, drift_window=0)
    assert set(verdicts(to)) == {(id_of(counter), "proof") for counter in range(1, 6)}
    assert len(Outputs(to).batches()) == 1


@pytest.mark.parametrize("torn", ["offsets", "commits"])
def test_a_checkpoint_whose_last_file_is_empty_is_continued(spark: SparkSession, tmp_path: Path, torn: str) -> None:
    """D2: this is what a power failure usually leaves."""
    store, to = samples(tmp_path / "store", 3), tmp_path / "to"
    judge_once(spark, store.url, to, drift_window=0, snapshots_per_batch=2)
    (to / "checkpoint" / torn / "1").write_bytes(b"")
    (to / "checkpoint" / torn / ".1.crc").unlink(missing_ok=True)
    commit(store, sample(4))
    judge_once(spark, store.url, to, drift_window=0)
    assert set(verdicts(to)) == {(id_of(counter), "proof") for counter in range(1, 5)}


def test_a_store_that_vanishes_while_idle_is_reported(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_module, "LOG_POLL_S", 0.0)
    store, hidden, to = samples(tmp_path / "store", 1), tmp_path / "hidden", tmp_path / "to"
    reports: list[str] = []

    class TakeItAway(PipelineObserver):
        """Moves the store away after its first snapshot is judged; puts another in its place; moves it back."""

        def report(self, reason: str) -> None:
            reports.append(reason)
            if len(reports) == 1:
                samples(Path(store.url), 5)
                return
            shutil.rmtree(store.url)
            hidden.rename(store.url)
            commit(Store.open(store.url), sample(2))

        def poll(self) -> bool:
            judged = {name for name, _ in verdicts(to)}
            if judged and not reports and not hidden.exists():
                Path(store.url).rename(hidden)
            return len(judged) == 2

    Pipeline(spark, store.url, to).run(watch=TakeItAway())
    assert ["is missing; put it back" in reports[0], "is another store" in reports[1], len(reports)] == [True, True, 2]
    assert {name for name, _ in verdicts(to)} == {id_of(1), id_of(2)}
    assert written(to)["quarantine"] == []


def test_a_full_disk_under_the_output_is_reported_and_retried(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patient: None
) -> None:
    store = samples(tmp_path / "store", 2)
    write, reports = Outputs.write, []

    def full_at_first(self: Outputs, *what: object) -> None:
        if not reports:
            raise OSError(28, "No space left on device")
        write(self, *what)

    class Freed(PipelineObserver):
        def report(self, reason: str) -> None:
            reports.append(reason)

    monkeypatch.setattr(Outputs, "write", full_at_first)
    judge_once(spark, store.url, tmp_path / "to", watch=Freed())
    assert "cannot be written to: No space left on device" in reports[0]
    assert len(verdicts(tmp_path / "to")) == 2 * 3


def test_a_store_that_does_not_exist_yet_is_waited_for_unless_once(spark: SparkSession, tmp_path: Path) -> None:
    url, to = tmp_path / "store", tmp_path / "to"
    with pytest.raises(StoreFormatError, match="does not exist"):
        judge_once(spark, url, to)
    reports: list[str] = []

    class Begins(PipelineObserver):
        """Creates the store, and commits another snapshot when the first is judged."""

        def report(self, reason: str) -> None:
            reports.append(reason)
            samples(url, 1)

        def poll(self) -> bool:
            judged = {name for name, _ in verdicts(to)}
            if judged == {id_of(1)} and len(Store.open(url).list()) == 1:
                commit(Store.open(url), sample(2))
            return len(judged) == 2

    Pipeline(spark, url, to).run(watch=Begins())
    assert reports == [f"store {url} does not exist yet; waiting for it"]


def test_an_empty_store_has_no_verdicts_and_no_error(spark: SparkSession, tmp_path: Path) -> None:
    Store.create(tmp_path / "store")
    judge_once(spark, tmp_path / "store", tmp_path / "to")
    assert written(tmp_path / "to") == {"verdicts": [], "violations": [], "quarantine": []}


def test_drift_over_several_batches_is_the_same_as_over_one(spark: SparkSession, tmp_path: Path) -> None:
    """G1: the samples do not move, with messages in flight to b and c; this needs state across batches."""
    store = samples(tmp_path / "store", 6)
    judge_once(spark, store.url, tmp_path / "one", drift_window=3)
    judge_once(spark, store.url, tmp_path / "two", drift_window=3, snapshots_per_batch=2)
    assert len(Outputs(tmp_path / "two").batches()) == 3
    assert written(tmp_path / "one") == written(tmp_path / "two")
    found = verdicts(tmp_path / "two")
    assert [found[id_of(counter), STANDSTILL] for counter in range(1, 7)] == ["undecided"] * 2 + ["violated"] * 4
    assert [found[id_of(counter), CHANNEL_GROWTH] for counter in range(3, 7)] == ["holds"] * 4


def test_with_keys_signatures_are_part_of_the_proof(spark: SparkSession, tmp_path: Path) -> None:
    """P1."""
    store = Store.create(tmp_path / "store")
    keys = tmp_path / "keys"
    create_keys(keys, ["a", "b", "c"])
    commit_signed(store, sample(1), keys)
    commit(store, sample(2))
    signers = ExpectedSigners({name: key.public_bytes_raw() for name, key in read_public_keys(keys).items()})
    judge_once(spark, store.url, tmp_path / "to", signers=signers, drift_window=0)
    assert [verdicts(tmp_path / "to")[id_of(counter), "proof"] for counter in (1, 2)] == ["holds", "violated"]
    assert reasons(tmp_path / "to")[id_of(1), "proof"] == "signed by all 3 processes"


def test_a_snapshot_removed_before_it_was_judged_is_undecided(spark: SparkSession, tmp_path: Path) -> None:
    store = samples(tmp_path / "store", 2)
    store.append(Remove(id_of(1), "retention", 40), store.state().next_position)
    shutil.rmtree(Path(store.url) / "blobs" / f"{0:020d}")
    judge_once(spark, store.url, tmp_path / "to", drift_window=0)
    assert verdicts(tmp_path / "to") == {(id_of(1), "proof"): "undecided", (id_of(2), "proof"): "holds"}
    assert written(tmp_path / "to")["quarantine"] == []
