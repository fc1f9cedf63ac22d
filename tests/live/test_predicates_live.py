"""Deadlock, termination and garbage in live systems: found by snapshots, and stable (G2, G4)."""

from itertools import pairwise

import msgspec
import pytest
from tests.live.support import detected
from tests.live.support.checks import complete_snapshots
from tests.live.support.harness import running, wait_until
from tests.simulation.predicate_runs import EXAMPLES

from strobe.causality.predicate_input import predicate_input_of
from strobe.causality.predicates import deadlock, garbage, termination
from strobe.runtime.api.client import RequestRefused

PHILOSOPHERS = ("p0", "p1", "p2", "p3", "p4")


def wait_for(live, predicate):
    """Take snapshots until `predicate` holds; return the one in which it does."""

    def look():
        snapshot = live.last_snapshot()
        return snapshot if predicate(predicate_input_of(snapshot)).holds else None

    return wait_until(f"a snapshot that shows {predicate.__name__}", look, between=live.tick)


def states(snapshot):
    return {name: msgspec.msgpack.decode(fragment.state.data) for name, fragment in snapshot.fragments.items()}


def found_in(store, predicate):
    """Return what `predicate` finds in each complete snapshot, in the order of their commits."""
    return [predicate(predicate_input_of(snapshot)) for snapshot in complete_snapshots(store)]


def test_G2_live_greedy_philosophers_are_found_deadlocked(tmp_path):
    system = f"{EXAMPLES / 'philosophers.py'}:greedy"
    with running(tmp_path, system, PHILOSOPHERS, "--interval", "0.1") as live:
        live.wait_running()
        first = wait_for(live, deadlock)
        later = live.last_snapshot()
    assert deadlock(predicate_input_of(later)).processes == PHILOSOPHERS
    assert [len(core) for core in deadlock(predicate_input_of(later)).cores] == [5]
    assert states(later) == states(first)


def test_G2_live_philosophers_and_workers_that_finish_are_never_deadlocked(tmp_path):
    for number, (name, names) in enumerate((("philosophers.py:polite", PHILOSOPHERS), ("stealing.py:pool", "abcd"))):
        directory = tmp_path / str(number)
        directory.mkdir()
        with running(directory, f"{EXAMPLES / name}", tuple(names), "--interval", "0.05") as live:
            live.wait_running()
            ended = wait_for(live, termination)
            assert states(live.last_snapshot()) == states(ended)
        assert not any(found.holds for found in found_in(directory / "store", deadlock))
        holds = [found.holds for found in found_in(directory / "store", termination)]
        assert holds == sorted(holds)
        if number == 0:
            assert {seat["meals"] for seat in states(ended).values()} == {5}
        else:
            assert sum(bench["done"] for bench in states(ended).values()) == 200


def objects_to_their_end(directory, system):
    """Run the objects until no timer is left; return the last snapshot, its objects, and each snapshot's garbage."""
    with running(directory, f"{EXAMPLES / 'objects.py'}:{system}", tuple("abc"), "--interval", "0.05") as live:
        live.wait_running()
        live.wait("the end of all steps", lambda _: not any(timers_of(live)))
        last = live.last_snapshot()
    lost = [set(found.garbage) for found in found_in(directory / "store", garbage)]
    return last, {name for heap in states(last).values() for name in heap["objects"]}, lost


def test_G2_live_objects_referenced_across_processes_are_not_garbage(tmp_path):
    last, objects, lost = objects_to_their_end(tmp_path, "remembered")
    (kept,) = states(last)["a"]["roots"]
    assert lost[-1] < objects
    assert kept not in lost[-1]
    assert all(before <= after for before, after in pairwise(lost))


def test_G2_live_objects_without_references_are_garbage_also_in_cycles(tmp_path):
    _, objects, lost = objects_to_their_end(tmp_path, "forgotten")
    assert lost[-1] == objects != set()
    assert all(before <= after for before, after in pairwise(lost))


def test_G2_live_workers_that_stay_active_are_never_terminated(tmp_path):
    """G2: no task is left, and no process is active; but some process always requests work, or will."""
    with running(tmp_path, f"{EXAMPLES / 'stealing.py'}:restless", tuple("abcd"), "--interval", "0.05") as live:
        live.wait_running()
        live.wait("the end of all work", lambda _: done_in(live.last_snapshot()) == 200)
        live.wait_committed(5)
        last = live.last_snapshot()
    assert done_in(last) == 200
    assert not termination(predicate_input_of(last)).active
    for predicate in (termination, deadlock):
        assert not any(found.holds for found in found_in(tmp_path / "store", predicate))


def done_in(snapshot):
    return sum(bench["done"] for bench in states(snapshot).values())


def timers_of(live):
    return [fragment.state.timers for fragment in live.last_snapshot().fragments.values()]


def test_G4_a_process_under_termination_detection_cannot_leave(tmp_path):
    with running(tmp_path, f"{detected.__file__}:tree", detected.NAMES, "--interval", "0.05") as live:
        live.wait_running()
        with pytest.raises(RequestRefused, match="process b cannot leave: its termination is being detected"):
            live.client.leave("b")
        ended = states(wait_for(live, termination))
        assert {process.name for process in live.wait_running().processes} == set(detected.NAMES)
        assert not live.gone
    assert [worker["state"]["announced"] for worker in ended.values()] == [1, 0, 0]


def test_G4_termination_is_announced_online_and_shown_by_a_snapshot(tmp_path):
    with running(tmp_path, f"{detected.__file__}:tree", detected.NAMES, "--interval", "0.05") as live:
        live.wait_running()
        ended = states(wait_for(live, termination))
    assert sum(worker["state"]["done"] for worker in ended.values()) == 2**9 - 1
    assert [worker["state"]["announced"] for worker in ended.values()] == [1, 0, 0]
    # A snapshot that has the announcement has no work left.
    for snapshot in complete_snapshots(tmp_path / "store"):
        if states(snapshot)["a"]["state"]["announced"]:
            assert not any(worker["state"]["tasks"] for worker in states(snapshot).values())
