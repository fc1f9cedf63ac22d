"""Spark and `strobe.causality.proof` agree on thousands of snapshots, in every verdict and every finding."""

import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.generate import Execution, good_snapshots
from tests.spark.mutations import HARMLESS, MUTATIONS, mutants
from tests.spark.stores import commit_if_possible

from strobe.causality.proof import Verdict, verify
from strobe.protocol.values.fragment import Snapshot
from strobe.protocol.values.ids import COORDINATOR, SnapshotId
from strobe.spark import proof_violations, tables_from_snapshots, verdicts_from
from strobe.spark import tables as read_tables
from strobe.spark.schema import columns as c
from strobe.storage import Store

GOOD = 600
OF_EACH = 40
MUTATED_TWICE = 200
ROOM = 10_000
"""Distance between the first counters of two kinds, so that ids never clash."""

Findings = dict[str, list[tuple[str, str, str]]]


class Agreement(NamedTuple):
    kinds: dict[str, list[Snapshot]]
    reference: dict[str, Verdict]
    verdicts: dict[str, tuple[str, str]]
    findings: Findings


def mutated_twice(count: int, first_counter: int) -> Iterator[Snapshot]:
    """Snapshots with two mutations, one of which may hide the other; both verifiers must still agree."""
    rng = random.Random("twice")
    counter = first_counter
    while counter < first_counter + count:
        snapshot: Snapshot | None = Execution(rng).snapshot(SnapshotId(1, counter, COORDINATOR))
        try:
            for mutation in rng.sample(list(MUTATIONS.values()), 2):
                snapshot = snapshot and mutation(snapshot, rng)
        except KeyError:
            continue  # the first mutation has removed what the second changes
        if snapshot is not None:
            yield snapshot
            counter += 1


def findings_of(violations: DataFrame) -> Findings:
    found: Findings = defaultdict(list)
    columns = (c.SNAPSHOT_ID, c.CHECK, c.SUBJECT, f"{c.DETAIL}:problem::string")
    for snapshot_id, check, subject, problem in violations.selectExpr(*columns).collect():
        found[snapshot_id].append((check, subject, problem))
    return found


def expected(verdict: Verdict) -> list[tuple[str, str, str]]:
    return sorted((finding.check, finding.subject, finding.problem) for finding in verdict.findings)


@pytest.fixture(scope="module")
def agreement(spark: SparkSession) -> Agreement:
    kinds = {"good": list(good_snapshots(1, GOOD)), "twice": list(mutated_twice(MUTATED_TWICE, ROOM))}
    for number, (name, mutation) in enumerate({**MUTATIONS, **HARMLESS}.items(), start=2):
        kinds[name] = list(mutants(mutation, name, OF_EACH, number * ROOM))
    everything = [snapshot for snapshots in kinds.values() for snapshot in snapshots]
    tables = tables_from_snapshots(spark, everything)
    violations = proof_violations(tables).persist()
    findings = findings_of(violations)
    verdicts = {row.snapshot_id: (row.verdict, row.reason) for row in verdicts_from(tables, violations).collect()}
    violations.unpersist()
    tables.unpersist()
    return Agreement(kinds, {str(s.id): verify(s) for s in everything}, verdicts, findings)


def test_thousands_of_snapshots_have_the_verdict_of_the_reference(agreement: Agreement) -> None:
    assert len(agreement.reference) >= 2000
    assert {name: verdict for name, (verdict, _) in agreement.verdicts.items()} == {
        name: c.HOLDS if verdict.holds else c.VIOLATED for name, verdict in agreement.reference.items()
    }


def test_every_finding_is_about_the_same_thing_for_the_same_reason(agreement: Agreement) -> None:
    assert {name: sorted(found[:2] for found in findings) for name, findings in agreement.findings.items()} == {
        name: [found[:2] for found in expected(verdict)]
        for name, verdict in agreement.reference.items()
        if not verdict.holds
    }


def test_every_finding_has_the_same_text(agreement: Agreement) -> None:
    assert {name: sorted(found) for name, found in agreement.findings.items()} == {
        name: expected(verdict) for name, verdict in agreement.reference.items() if not verdict.holds
    }


def test_the_reason_of_a_verdict_names_every_finding(agreement: Agreement) -> None:
    for name, verdict in agreement.reference.items():
        if verdict.holds:
            assert agreement.verdicts[name][1] == "self-consistent, signer unknown"
        else:
            assert sorted(agreement.verdicts[name][1].split("; ")) == sorted(str(f) for f in verdict.findings)


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_is_found_by_both(agreement: Agreement, name: str) -> None:
    for snapshot in agreement.kinds[name]:
        assert not agreement.reference[str(snapshot.id)].holds
        assert agreement.verdicts[str(snapshot.id)][0] == c.VIOLATED


@pytest.mark.parametrize("name", ["good", *HARMLESS])
def test_a_good_snapshot_holds_for_both(agreement: Agreement, name: str) -> None:
    for snapshot in agreement.kinds[name]:
        assert agreement.reference[str(snapshot.id)].holds
        assert agreement.verdicts[str(snapshot.id)][0] == c.HOLDS


def test_every_check_of_the_reference_is_exercised(agreement: Agreement) -> None:
    checks = {check for found in agreement.findings.values() for check, _, _ in found}
    assert checks == {"membership", "forgotten", "frame", "order", "cut", "count", "hash"}


@pytest.fixture
def without_ansi(spark: SparkSession) -> Iterator[None]:
    """ANSI mode is off on many clusters; functions of NULL then return other results."""
    spark.conf.set("spark.sql.ansi.enabled", "false")
    yield
    spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.usefixtures("without_ansi")
def test_snapshots_in_a_store_are_judged_alike_without_ansi_mode(spark: SparkSession, tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    snapshots = list(good_snapshots(7, 30))
    for number, (name, mutation) in enumerate({**MUTATIONS, **HARMLESS}.items(), start=1):
        snapshots += mutants(mutation, f"stored {name}", 3, number * ROOM)
    stored = [str(snapshot.id) for snapshot in snapshots if commit_if_possible(store, snapshot)]
    assert len(stored) > 80
    tables = read_tables(spark, store.url)
    violations = proof_violations(tables).persist()
    verdicts = {row.snapshot_id: row.verdict for row in verdicts_from(tables, violations).collect()}
    findings = findings_of(violations)
    violations.unpersist()
    tables.unpersist()
    reference = {name: verify(store.load(name)) for name in stored}
    assert verdicts == {name: c.HOLDS if verdict.holds else c.VIOLATED for name, verdict in reference.items()}
    assert {name: sorted(found) for name, found in findings.items()} == {
        name: expected(verdict) for name, verdict in reference.items() if not verdict.holds
    }
