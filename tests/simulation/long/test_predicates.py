"""Deadlock, termination and garbage, as found by snapshots and by naive detectors, over many seeds (G2).

All three are stable, so later events test each claim: a deadlocked process never eats again, a terminated system takes
no step, and garbage is never reached.
"""

from functools import cache, partial

import msgspec
import pytest
from tests.simulation.predicate_runs import (
    EXAMPLES,
    NO_CHANNELS,
    NO_GRANTS,
    NO_REQUESTS,
    ONE_AFTER_THE_OTHER,
    SNAPSHOT,
    run,
    unordered,
)
from tests.simulation.systems import ANY_OF_TWO, ONE_OR_TWO, clerks, friends

from strobe.causality.predicates import deadlock, garbage, termination
from strobe.declarations import Waits
from strobe.protocol import Policy
from strobe.simulation import Faults

SEEDS = range(8)
NAIVE = (NO_CHANNELS, ONE_AFTER_THE_OTHER)
RARELY = Policy(interval_us=10_000, overlapping_max=2, timeout_us=400_000, backoff_us=10_000)

once = cache(run)


def eat_again(ran, claim):
    """Return the processes that were reported as deadlocked and have eaten since."""
    return [name for name in claim.found.processes if ran.end[name]["meals"] > claim.states[name]["meals"]]


def steps_since(ran, claim):
    return [name for name, state in claim.states.items() if ran.end[name]["position"] > state["position"]]


def reached_again(ran, claim):
    """Return the objects that were reported as garbage and were reachable in a snapshot begun later."""
    return {name for later in ran.later(claim) for name in set(claim.found.garbage) - set(later.garbage)}


@pytest.mark.parametrize("name", ["philosophers", "stealing", "objects"])
def test_an_example_has_less_than_eighty_lines(name):
    assert len((EXAMPLES / f"{name}.py").read_text("utf-8").splitlines()) < 80


@pytest.mark.parametrize("seed", SEEDS)
def test_greedy_philosophers_end_in_a_stable_deadlock_that_is_found(seed):
    ran = run("philosophers:greedy", seed, deadlock, snapshots=80, policy=RARELY)
    assert ran.last.processes == ("p0", "p1", "p2", "p3", "p4")
    assert [set(core) for core in ran.last.cores] == [{"p0", "p1", "p2", "p3", "p4"}]
    assert [eat_again(ran, claim) for claim in ran.claims[SNAPSHOT] if eat_again(ran, claim)] == []


@pytest.mark.parametrize("seed", SEEDS)
def test_polite_philosophers_are_never_reported_as_deadlocked(seed):
    ran = once("philosophers:polite", seed, deadlock)
    assert ran.claims[SNAPSHOT] == []
    assert {state["meals"] for state in ran.end.values()} == {5}


@pytest.mark.parametrize("detector", NAIVE)
def test_naive_detectors_see_phantom_deadlocks(detector):
    runs = [once("philosophers:polite", seed, deadlock) for seed in SEEDS]
    phantoms = [claim for ran in runs for claim in ran.claims[detector]]
    assert len(phantoms) > len(runs)


def test_both_grants_and_requests_in_flight_have_to_be_seen():
    """If one of them is ignored there are phantoms; with both there are none."""
    assert any(once("philosophers:polite", seed, deadlock).claims[NO_GRANTS] for seed in SEEDS)
    # The outgoing channels of the initiator are recorded as empty, so it must not always be the same process.
    any_initiator = Faults(delay_us_max=3000, initiator_every_us=3000)
    yielding = [run(clerks, seed, deadlock, faults=any_initiator) for seed in range(5)]
    assert any(ran.claims[NO_REQUESTS] for ran in yielding)
    assert not any(ran.claims[SNAPSHOT] for ran in yielding)
    assert all(desk["meals"] > 5 for ran in yielding for desk in ran.end.values())


CHOICES = pytest.mark.parametrize("choices", [ANY_OF_TWO, ONE_OR_TWO], ids=["any of two", "one, or both others"])


@CHOICES
def test_waits_for_any_lead_to_a_stable_knot_that_is_found(choices):
    runs = [run(partial(friends, choices), seed, deadlock, policy=RARELY) for seed in range(4)]
    assert {ran.last.processes for ran in runs} == {("a", "b", "c", "d")}
    assert all([set(core) for core in ran.last.cores] == [{"a", "b", "c", "d"}] for ran in runs)
    assert not any(eat_again(ran, claim) for ran in runs for claim in ran.claims[SNAPSHOT])
    assert any(len(ran.snapshots) > len(ran.claims[SNAPSHOT]) for ran in runs)  # some snapshots precede the deadlock


@CHOICES
def test_one_process_that_helps_while_it_waits_prevents_a_knot(choices):
    """At times all four wait, and only the messages in flight to or from one of them rule out a deadlock."""
    any_initiator = Faults(delay_us_max=3000, initiator_every_us=3000)
    runs = [run(partial(friends, choices, kind="d"), seed, deadlock, faults=any_initiator) for seed in range(4)]
    assert not any(ran.claims[SNAPSHOT] for ran in runs)
    assert all(any(ran.claims[detector] for ran in runs) for detector in (*NAIVE, NO_GRANTS, NO_REQUESTS))
    assert all(need["meals"] > 5 for ran in runs for need in ran.end.values())


@CHOICES
def test_a_wait_for_any_treated_as_for_all_shows_false_deadlocks(choices):
    runs = [run(partial(friends, choices, kind="d"), seed, lambda facts: deadlock(for_all(facts))) for seed in (0, 1)]
    assert any(eat_again(ran, claim) for ran in runs for claim in ran.claims[SNAPSHOT])


def for_all(facts):
    """Change the facts so that each wait for any of several processes is a wait for all of them."""
    declarations = {}
    for name, declaration in facts.declarations.items():
        waits = declaration.declared.waits
        every = waits and Waits.all(*waits.processes)
        declarations[name] = msgspec.structs.replace(
            declaration, declared=msgspec.structs.replace(declaration.declared, waits=every)
        )
    return msgspec.structs.replace(facts, declarations=declarations)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_happens_after_a_snapshot_shows_termination(seed):
    ran = once("stealing:pool", seed, termination, 90)
    assert ran.claims[SNAPSHOT]
    assert [steps_since(ran, claim) for claim in ran.claims[SNAPSHOT] if steps_since(ran, claim)] == []
    assert sum(state["done"] for state in ran.end.values()) == 200


@pytest.mark.parametrize("detector", NAIVE)
def test_naive_detectors_report_termination_too_early(detector):
    runs = [once("stealing:pool", seed, termination, 90) for seed in SEEDS]
    premature = [claim for ran in runs for claim in ran.claims[detector] if steps_since(ran, claim)]
    assert len(premature) > len(runs)


def test_workers_that_keep_polling_are_done_but_not_terminated():
    ran = run("stealing:restless", 4, termination)
    assert ran.claims[SNAPSHOT] == []
    assert sum(state["done"] for state in ran.end.values()) == 200
    assert ran.claims[NO_CHANNELS]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["objects:forgotten", "objects:remembered"])
def test_garbage_found_by_a_snapshot_is_never_reached_again(name, seed):
    ran = once(name, seed, garbage)
    assert [reached_again(ran, claim) for claim in ran.claims[SNAPSHOT] if reached_again(ran, claim)] == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_forgotten_graph_is_garbage_until_one_reference_remains(seed):
    forgotten, remembered = (once(f"objects:{name}", seed, garbage) for name in ("forgotten", "remembered"))
    objects = {name for state in forgotten.end.values() for name in state["objects"]}
    assert set(forgotten.last.garbage) == objects
    (kept,) = remembered.end["a"]["roots"]
    assert kept not in remembered.last.garbage
    assert set(remembered.last.garbage) < objects


@pytest.mark.parametrize("detector", NAIVE)
def test_naive_collectors_would_collect_referenced_objects(detector):
    runs = [once("objects:remembered", seed, garbage) for seed in SEEDS]
    lost = [reached_again(ran, claim) for ran in runs for claim in ran.claims[detector]]
    assert sum(map(bool, lost)) > len(runs)


FAULTS = Faults.parse("delays,partitions,crashes,coordinator")


@pytest.mark.parametrize("seed", range(3))
def test_no_snapshot_shows_a_false_predicate_under_faults(seed):
    philosophers = run("philosophers:polite", seed, deadlock, 20, faults=FAULTS)
    assert philosophers.claims[SNAPSHOT] == []
    pool = run("stealing:pool", seed, termination, 20, faults=FAULTS)
    assert pool.claims[SNAPSHOT]
    assert not any(steps_since(pool, claim) for claim in pool.claims[SNAPSHOT])
    objects = run("objects:remembered", seed, garbage, 20, faults=FAULTS)
    assert any(objects.later(claim) for claim in objects.claims[SNAPSHOT])
    assert not any(reached_again(objects, claim) for claim in objects.claims[SNAPSHOT])


@pytest.mark.parametrize("seed", range(3))
def test_unordered_channels_under_another_protocol_give_the_same_result(seed):
    pool = run(partial(unordered, "stealing:pool"), seed, termination, 90)
    assert pool.claims[SNAPSHOT]
    assert not any(steps_since(pool, claim) for claim in pool.claims[SNAPSHOT])
    objects = run(partial(unordered, "objects:remembered"), seed, garbage)
    assert objects.claims[SNAPSHOT]
    assert not any(reached_again(objects, claim) for claim in objects.claims[SNAPSHOT])
