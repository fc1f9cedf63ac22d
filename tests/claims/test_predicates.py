"""G2 and G4: stable predicates, from snapshots and online."""

from functools import cache

import pytest
from tests.simulation.predicate_runs import NO_CHANNELS, ONE_AFTER_THE_OTHER, SNAPSHOT, run
from tests.simulation.test_predicates import RARELY, eat_again, reached_again, steps_since

from strobe.causality.predicates import deadlock, garbage, termination

NAIVE = (NO_CHANNELS, ONE_AFTER_THE_OTHER)
SEEDS = range(20, 23)

once = cache(run)


def test_G2_a_deadlock_is_found_and_is_for_ever():
    for seed in SEEDS:
        ran = once("philosophers:greedy", seed, deadlock, 80, RARELY)
        assert ran.last.processes == ("p0", "p1", "p2", "p3", "p4")
        assert not any(eat_again(ran, claim) for claim in ran.claims[SNAPSHOT])


@pytest.mark.parametrize("detector", NAIVE)
def test_G2_phantom_deadlocks_are_seen_by_naive_detectors_and_never_in_snapshots(detector):
    runs = [once("philosophers:polite", seed, deadlock) for seed in SEEDS]
    assert any(ran.claims[detector] for ran in runs)
    assert not any(ran.claims[SNAPSHOT] for ran in runs)


@pytest.mark.parametrize("detector", NAIVE)
def test_G2_the_end_is_seen_early_by_naive_detectors_and_never_in_snapshots(detector):
    runs = [once("stealing:pool", seed, termination, 90) for seed in SEEDS]
    assert any(steps_since(ran, claim) for ran in runs for claim in ran.claims[detector])
    assert all(ran.claims[SNAPSHOT] for ran in runs)
    assert not any(steps_since(ran, claim) for ran in runs for claim in ran.claims[SNAPSHOT])


@pytest.mark.parametrize("detector", NAIVE)
def test_G2_what_is_referred_to_is_garbage_to_naive_detectors_and_never_in_snapshots(detector):
    runs = [once("objects:remembered", seed, garbage) for seed in SEEDS]
    assert any(reached_again(ran, claim) for ran in runs for claim in ran.claims[detector])
    assert not any(reached_again(ran, claim) for ran in runs for claim in ran.claims[SNAPSHOT])
