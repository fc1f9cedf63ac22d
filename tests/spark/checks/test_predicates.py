"""Spark and `strobe.causality.predicates` agree on hundreds of snapshots, in every process and object (G2, D4)."""

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.declaring import declaring_snapshots
from tests.spark.pipelines import judge_once, reasons, verdicts
from tests.spark.stores import damage, store_with
from tests.storage.samples import commit, declaring, sample

from strobe.causality.predicate_input import predicate_input_of
from strobe.causality.predicates import deadlock, garbage, termination
from strobe.causality.proof import verify
from strobe.declarations import Declared, Waits
from strobe.protocol.values.fragment import Snapshot
from strobe.spark import tables as read_tables
from strobe.spark.checks import predicates
from strobe.spark.checks.predicate_checks import CHECKS
from strobe.spark.dataframes.store import Tables, tables_from_snapshots
from strobe.storage import Store
from strobe.storage.content.blobs import blob_name
from strobe.storage.content.manifests import blobs_of

COUNT = 300

Rows = Mapping[str, Any]


class Found(NamedTuple):
    """The findings, by snapshot."""

    deadlocked: Rows
    until_timeout: Rows
    terminated: set[str]
    garbage: Rows


def by_spark(tables: Tables) -> Found:
    stuck = predicates.deadlocked(tables)
    at_most = predicates.deadlocked(tables, timeouts_end=False)
    return Found(
        {name: dict(rows) for name, rows in grouped(stuck).items()},
        {name: {row[0] for row in rows} for name, rows in grouped(at_most).items()},
        {row.snapshot_id for row in predicates.terminated(tables).collect()},
        {name: sorted(row[0] for row in rows) for name, rows in grouped(predicates.garbage(tables)).items()},
    )


def grouped(found: DataFrame) -> dict[str, list[tuple[Any, ...]]]:
    rows = defaultdict(list)
    for snapshot_id, *rest in found.collect():
        rows[snapshot_id].append(tuple(rest))
    return rows


def by_definition(snapshots: list[Snapshot]) -> Found:
    inputs = {str(snapshot.id): predicate_input_of(snapshot) for snapshot in snapshots}
    deadlocks = {name: deadlock(facts) for name, facts in inputs.items()}
    stuck = {name: {p: list(w) for p, w in found.waits.items()} for name, found in deadlocks.items() if found.holds}
    at_most = {name: {*found.processes, *found.until_timeout} for name, found in deadlocks.items()}
    lost = {name: list(garbage(facts).garbage) for name, facts in inputs.items()}
    return Found(
        stuck,
        {name: found for name, found in at_most.items() if found},
        {name for name, facts in inputs.items() if termination(facts).holds},
        {name: found for name, found in lost.items() if found},
    )


@pytest.fixture(scope="module")
def snapshots() -> list[Snapshot]:
    found = list(declaring_snapshots(3, COUNT))
    assert all(verify(snapshot).holds for snapshot in found)
    return found


@pytest.fixture(scope="module")
def both(spark: SparkSession, snapshots: list[Snapshot]) -> tuple[Found, Found]:
    return by_spark(tables_from_snapshots(spark, snapshots)), by_definition(snapshots)


def test_deadlocks_and_waits_are_those_of_the_definition(both: tuple[Found, Found]) -> None:
    spark, definition = both
    assert spark.deadlocked == definition.deadlocked
    assert 20 < len(definition.deadlocked) < COUNT - 20
    assert spark.until_timeout == definition.until_timeout
    assert len(definition.until_timeout) > len(definition.deadlocked)


def test_termination_is_that_of_the_definition(both: tuple[Found, Found]) -> None:
    spark, definition = both
    assert spark.terminated == definition.terminated
    assert 10 < len(definition.terminated) < COUNT - 10


def test_garbage_is_that_of_the_definition(both: tuple[Found, Found]) -> None:
    spark, definition = both
    assert spark.garbage == definition.garbage
    assert 20 < len(definition.garbage) < COUNT - 20


def test_stored_snapshots_give_the_same_rows(spark: SparkSession, snapshots: list[Snapshot], tmp_path: Path) -> None:
    some = snapshots[:40]
    stored = read_tables(spark, store_with(tmp_path / "store", some).url)
    in_memory = tables_from_snapshots(spark, some)
    for name in ("activity", "declared_waits", "declared_references"):
        rows = [sorted(map(repr, getattr(tables, name).collect())) for tables in (stored, in_memory)]
        assert rows[0] == rows[1]
        assert rows[0]
    stored.unpersist()


# As checks of the pipeline


def test_every_snapshot_gets_a_verdict_on_each_requested_predicate(
    spark: SparkSession, snapshots: list[Snapshot], tmp_path: Path
) -> None:
    """G2, D2: a deadlock is a violation; termination and garbage are findings."""
    some = snapshots[40:100]
    store = store_with(tmp_path / "store", some)
    judge_once(spark, store.url, tmp_path / "to", drift_window=0, predicates=tuple(CHECKS))
    found, texts, definition = verdicts(tmp_path / "to"), reasons(tmp_path / "to"), by_definition(some)
    for snapshot in some:
        name = str(snapshot.id)
        assert found[name, "deadlock"] == ("violated" if name in definition.deadlocked else "holds")
        assert found[name, "termination"] == ("holds" if name in definition.terminated else "undecided")
        assert found[name, "garbage"] == ("undecided" if name in definition.garbage else "holds")
        assert texts[name, "deadlock"] == str(deadlock(predicate_input_of(snapshot)))
    assert len(found) == 4 * len(some)
    rows = spark.read.parquet(str(tmp_path / "to" / "violations")).selectExpr("snapshot_id", "subject")
    assert sorted(map(tuple, rows.collect())) == sorted(
        (name, process) for name, waits in definition.deadlocked.items() for process in waits
    )


def test_an_undecided_predicate_gives_its_reason(spark: SparkSession, tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    waiting = declaring(sample(1), a=Declared(Waits.all("b")))
    lossy = declaring(sample(2), a=Declared(Waits.all("b")))
    lossy.fragments["b"].in_flight["a->b"] = ()
    for snapshot in (waiting, lossy, sample(3), declaring(sample(4), a=Declared(Waits.all("b")))):
        commit(store, snapshot)
    damage(Path(store.url) / blob_name(next(iter(blobs_of(store.list()[3][2])))))
    judge_once(spark, store.url, tmp_path / "to", drift_window=0, predicates=("deadlock",))
    found = {name[7:15]: verdict for (name, check), verdict in verdicts(tmp_path / "to").items() if check == "deadlock"}
    assert found == {"00000001": "holds", "00000002": "undecided", "00000003": "undecided", "00000004": "error"}
    texts = [reason for (_, check), reason in sorted(reasons(tmp_path / "to").items()) if check == "deadlock"]
    assert texts == [
        "no process is deadlocked",
        "not checked: the proof does not hold",
        "no process declares anything",
        "not checked: the snapshot could not be read",
    ]


def test_the_program_of_the_page_finds_the_same_as_the_functions(
    spark: SparkSession, snapshots: list[Snapshot], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/predicates.md"""
    store = store_with(tmp_path / "table", snapshots[:3])
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[3] / "docs" / "predicates.md").read_text("utf-8")
    (block,) = (
        block for block in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE) if "spark" in block
    )
    names: dict[str, Any] = {}
    exec(block, names)
    assert by_spark(names["stored"]) == by_spark(read_tables(spark, store.url))
