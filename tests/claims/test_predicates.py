"""G2, D2, D4 and G4: stable predicates, from snapshots, on Spark and online."""

from functools import cache
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.simulation.long.test_detection import ForgetsAnAnswer, SignalsTooEarly
from tests.simulation.long.test_detection import run as detect
from tests.simulation.long.test_predicates import RARELY, eat_again, reached_again, steps_since
from tests.simulation.predicate_runs import NO_CHANNELS, ONE_AFTER_THE_OTHER, SNAPSHOT, example, run
from tests.spark import conftest
from tests.spark.pipelines import judge_once, verdicts
from tests.spark.stores import store_with

from strobe.causality.predicate_input import predicate_input_of
from strobe.causality.predicates import deadlock, garbage, termination
from strobe.protocol.values.fragment import Snapshot
from strobe.simulation import World
from strobe.spark import deadlocked, tables_from_snapshots

spark = conftest.spark
NAIVE = (NO_CHANNELS, ONE_AFTER_THE_OTHER)
SEEDS = range(20, 23)

once = cache(run)


def test_G2_a_deadlock_is_found_and_lasts_forever():
    for seed in SEEDS:
        ran = once("philosophers:greedy", seed, deadlock, 80, RARELY)
        assert ran.last.processes == ("p0", "p1", "p2", "p3", "p4")
        assert not any(eat_again(ran, claim) for claim in ran.claims[SNAPSHOT])


@pytest.mark.parametrize("detector", NAIVE)
def test_G2_naive_detectors_see_phantom_deadlocks_and_snapshots_never(detector):
    runs = [once("philosophers:polite", seed, deadlock) for seed in SEEDS]
    assert any(ran.claims[detector] for ran in runs)
    assert not any(ran.claims[SNAPSHOT] for ran in runs)


@pytest.mark.parametrize("detector", NAIVE)
def test_G2_naive_detectors_see_termination_early_and_snapshots_never(detector):
    runs = [once("stealing:pool", seed, termination, 90) for seed in SEEDS]
    assert any(steps_since(ran, claim) for ran in runs for claim in ran.claims[detector])
    assert all(ran.claims[SNAPSHOT] for ran in runs)
    assert not any(steps_since(ran, claim) for ran in runs for claim in ran.claims[SNAPSHOT])


@pytest.mark.parametrize("detector", NAIVE)
def test_G2_naive_detectors_collect_live_objects_and_snapshots_never(detector):
    runs = [once("objects:remembered", seed, garbage) for seed in SEEDS]
    assert any(reached_again(ran, claim) for ran in runs for claim in ran.claims[detector])
    assert not any(reached_again(ran, claim) for ran in runs for claim in ran.claims[SNAPSHOT])


def test_G4_termination_is_detected_online_and_snapshots_agree():
    for seed in range(40, 50):
        _, truths, found = detect(seed)
        assert truths == [True]
        assert found.holds


@pytest.mark.parametrize("mutant", [SignalsTooEarly, ForgetsAnAnswer])
def test_G4_a_detector_with_a_broken_rule_is_caught(mutant):
    results = [detect(seed, mutant)[1] for seed in range(40, 60)]
    assert any(truths != [True] for truths in results)


@pytest.fixture(scope="module")
def philosophers() -> list[Snapshot]:
    """Snapshots of greedy philosophers, before and after they are deadlocked."""
    world = World(example("philosophers:greedy"), 6, policy=RARELY)
    snapshots: list[Snapshot] = []
    world.on_commit = snapshots.append
    world.run(20)
    return snapshots


def stuck_in(snapshots):
    return {
        (str(snapshot.id), process)
        for snapshot in snapshots
        for process in deadlock(predicate_input_of(snapshot)).processes
    }


def test_D4_deadlocks_are_found_by_a_dataframe_program(spark: SparkSession, philosophers: list[Snapshot]) -> None:
    found = deadlocked(tables_from_snapshots(spark, philosophers)).collect()
    assert {(row.snapshot_id, row.process) for row in found} == stuck_in(philosophers)
    assert 0 < len({row.snapshot_id for row in found}) < len(philosophers)


def test_D2_the_stream_evaluates_stable_predicates(
    spark: SparkSession, philosophers: list[Snapshot], tmp_path: Path
) -> None:
    store = store_with(tmp_path / "store", philosophers)
    judge_once(spark, store.url, tmp_path / "to", drift_window=0, predicates=("deadlock", "termination"))
    found = verdicts(tmp_path / "to")
    violated = {name for (name, check), verdict in found.items() if check == "deadlock" and verdict == "violated"}
    assert violated == {name for name, _ in stuck_in(philosophers)}
    assert {verdict for (_, check), verdict in found.items() if check == "termination"} == {"undecided"}
