"""The coordinator under hundreds of random faults (R1, R2, E2, E7); each run is determined by its seed.

In every run: output is neither lost nor released twice; no process is restored to the state of another, and all
processes begin an epoch from the same snapshot and view; the coordinator never halts or raises. After the faults,
snapshots complete again, and all processes in the view run in the current epoch.
"""

import asyncio
import inspect
import os
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.coordinator_world import Mix, World
from tests.runtime.modelled_nodes import Node

from strobe.protocol.coordinator.collecting import Collecting
from strobe.protocol.coordinator.departures import Departures
from strobe.protocol.coordinator.membership import Membership
from strobe.protocol.coordinator.restarts import Restarts
from strobe.runtime.coordinator.log_writer import CoordinatorLog
from strobe.runtime.coordinator.node_sessions import NodeSessions
from strobe.runtime.recovery import restore_point
from strobe.storage.checkpoints import checkpoint_writer
from strobe.storage.log.log import Log
from strobe.storage.log.terms import Terms

STEPS = 1500
EVENTS_SHOWN = 40
SEEDS = range(5)
SEEDS_FOR_MUTANTS = (44, 25, 37, 7, *range(120))
"""The first ones are known to detect the mutants that are hardest to detect."""

EVERYTHING = Mix("want want want leave rejoin break crash restart")
LEAVERS = Mix("want leave rejoin restart", percent=10)
SLOW_STORE = Mix("want want want leave rejoin rejoin", percent=12, store_pace=1)
RESTORED = Mix("want want leave rejoin break crash restore")
SECOND_LIVES = Mix("want want want leave rejoin restore", percent=8)
CRASHES_OF_SECOND_LIVES = Mix("want want leave leave rejoin rejoin crash", percent=10)
SECOND_LIVES_AND_RESTARTS = Mix("want want want leave rejoin rejoin restart", percent=12)
RESTORED_AND_RESTARTED = Mix("want want leave rejoin break crash restart restore", percent=8)
OVERLAPPING = Mix("want want want want break crash", percent=8)
BROKEN_LINES = Mix("want break break break break crash", percent=10)
TAKEN_OVER = Mix("want want want leave rejoin break crash restart take_over", percent=8)
TAKEN_OVER_AND_RESTORED = Mix("want want take_over take_over restart restore crash", percent=8)
TAKEN_OVER_BY_WRITERS_WITHOUT_RULES = Mix("want want want take_over stray leave rejoin break restart", percent=8)
HANDED_OVER = Mix("want hand_over hand_over hand_over hand_over break crash", percent=12)
HANDED_OVER_AND_LEFT = Mix("want hand_over hand_over hand_over leave rejoin break crash restart restore", percent=12)
HANDED_OVER_AND_TAKEN_OVER = Mix("want hand_over hand_over hand_over break crash restart take_over", percent=12)
CONTINUED_ON_COPIES = Mix("want want want want restart break crash copy take_over", percent=8)


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync: there are no power cuts here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def checkpoints_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then most restarted coordinators start from a checkpoint, and are compared with one that reads the whole log."""
    monkeypatch.setattr(checkpoint_writer, "EVERY", 16)


def survived(mix: Mix, seed: int, directory: Path) -> World:
    """Return the world after all its faults; if a promise was broken, report how to reproduce it."""

    async def run() -> World:
        world = World(mix, seed, directory)
        try:
            world.run(STEPS)
        except Exception as error:
            events = "\n".join(world.outside.events[-EVENTS_SHOWN:])
            raise AssertionError(f"{error!r}\nin {mix}, seed {seed}, after:\n{events}") from error
        return world

    return asyncio.run(run())


def without_needless_rollbacks(mix: Mix, seed: int, directory: Path) -> World:
    """While the coordinator runs, only a process that has lost its state, or a request, causes a rollback."""
    world = survived(mix, seed, directory)
    rollbacks, reasons = world.epoch - 1, world.rollback_reasons
    events = "\n".join(world.outside.events)
    assert rollbacks <= reasons, f"{rollbacks} rollbacks for {reasons} reasons\nin {mix}, seed {seed}:\n{events}"
    return world


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "mix", [EVERYTHING, LEAVERS, SLOW_STORE], ids=["everything", "leavers and restarts", "leavers on a slow store"]
)
def test_E2_E7_R2_no_output_is_lost_in_random_leaves_and_crashes(tmp_path: Path, mix: Mix, seed: int) -> None:
    survived(mix, seed, tmp_path)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "mix",
    [RESTORED, SECOND_LIVES, CRASHES_OF_SECOND_LIVES, SECOND_LIVES_AND_RESTARTS, RESTORED_AND_RESTARTED],
    ids=["crashes", "second lives", "crashes of second lives", "second lives and restarts", "crashes and restarts"],
)
def test_R1_R2_no_requested_restore_goes_below_released_output(tmp_path: Path, mix: Mix, seed: int) -> None:
    survived(mix, seed, tmp_path)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mix", [OVERLAPPING, BROKEN_LINES], ids=["overlapping snapshots", "broken connections"])
def test_R1_R2_only_a_lost_state_rolls_back_and_never_below_output(tmp_path: Path, mix: Mix, seed: int) -> None:
    without_needless_rollbacks(mix, seed, tmp_path)


@pytest.mark.parametrize("seed", SEEDS)
def test_E11_a_planned_restart_rolls_nothing_back(tmp_path: Path, seed: int) -> None:
    """E11: and no process runs twice from the same state, whichever program crashes meanwhile."""
    world = without_needless_rollbacks(HANDED_OVER, seed, tmp_path)
    assert sum("resumes in epoch" in event for event in world.outside.events) > 5


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mix", [HANDED_OVER_AND_LEFT, HANDED_OVER_AND_TAKEN_OVER], ids=["leavers", "takeovers"])
def test_E11_no_hand_over_is_used_twice_or_in_another_epoch(tmp_path: Path, mix: Mix, seed: int) -> None:
    survived(mix, seed, tmp_path)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "mix",
    [TAKEN_OVER, TAKEN_OVER_AND_RESTORED, TAKEN_OVER_BY_WRITERS_WITHOUT_RULES],
    ids=["crashes", "restores", "entries of old terms"],
)
def test_S1_a_replaced_coordinator_writes_nothing_and_ends(tmp_path: Path, mix: Mix, seed: int) -> None:
    """S1: whatever it was doing when it was paused, and whichever nodes are still connected to it."""
    survived(mix, seed, tmp_path)


@pytest.mark.parametrize("seed", SEEDS)
def test_S1_R1_no_process_continues_with_state_of_a_copy_of_the_store(tmp_path: Path, seed: int) -> None:
    survived(CONTINUED_ON_COPIES, seed, tmp_path)


def test_the_same_seed_gives_the_same_world(tmp_path: Path) -> None:
    first, second = (survived(EVERYTHING, 1, tmp_path / name) for name in ("one", "other"))
    assert first.outside.events == second.outside.events


@pytest.mark.parametrize(
    ("owner", "name", "rule", "broken", "mix"),
    [
        pytest.param(
            Collecting,
            "commit_complete",
            "self._rollback.pending or self._membership.unstaged",
            "self._rollback.pending",
            LEAVERS,
            id="commits before a leaver has said how far its output goes",
        ),
        pytest.param(
            Membership,
            "_depart",
            "if process not in self.view.members",
            "",
            SLOW_STORE,
            id="who has joined again has left for a snapshot that is logged late",
        ),
        pytest.param(
            restore_point,
            "_below_later",
            "return next((problem for problem in found if problem is not None), None)",
            "return None",
            RESTORED,
            id="goes back below what later ones have let out",
        ),
        pytest.param(
            restore_point,
            "below_released",
            "interval is not None and interval.joined == later.joined",
            "interval is not None",
            SECOND_LIVES,
            id="takes output of an earlier membership for that of a later one",
        ),
        pytest.param(
            restore_point,
            "_of_earlier_membership",
            "joined.get(process, at_cut) != at_cut",
            "False",
            SECOND_LIVES,
            id="goes back to an earlier membership, whose output lies elsewhere",
        ),
        pytest.param(
            Membership,
            "unreleased",
            "gone.view > self._out.get(process, -1)",
            "not gone.released",
            CRASHES_OF_SECOND_LIVES,
            id="takes one whose join is undone for its life before, with output still to be let out",
        ),
        pytest.param(
            Departures,
            "released",
            "departed is not None and departed.view == event.view",
            "departed is not None and not self._membership.released(event.process, event.view) and False",
            SECOND_LIVES_AND_RESTARTS,
            id="lets one end before the log has that its output is out",
        ),
        pytest.param(
            CoordinatorLog,
            "_overtaken",
            "below_released(manifest, earlier) is None",
            "True",
            OVERLAPPING,
            id="commits below what an overlapping one has let out",
        ),
        pytest.param(
            NodeSessions,
            "_notify_lifecycle",
            "register.epoch, again)",
            "register.epoch, again and register.epoch == 0)",
            BROKEN_LINES,
            id="takes who has not read of a rollback for one that has lost its state",
        ),
        pytest.param(
            Log,
            "require_lead",
            "self.term > self._led",
            "False",
            TAKEN_OVER,
            id="goes on although another coordinator leads",
        ),
        pytest.param(
            CoordinatorLog,
            "lead",
            "begin_term(self.store, coordinator, self._now_us())",
            "self.store.state()",
            TAKEN_OVER,
            id="begins no term",
        ),
        pytest.param(
            Terms,
            "take",
            "decoded.term < before",
            "False",
            TAKEN_OVER_BY_WRITERS_WITHOUT_RULES,
            id="counts entries of an old term",
        ),
        pytest.param(
            NodeSessions,
            "_refusal",
            "register.term > coordinator.term",
            "False",
            TAKEN_OVER,
            id="lets in who knows a coordinator of a higher term",
        ),
        pytest.param(
            NodeSessions,
            "_another_history",
            "case EntryMatch.HELD:",
            "case EntryMatch.HELD | EntryMatch.OTHER:",
            CONTINUED_ON_COPIES,
            id="goes on with the state of a copy of the store",
        ),
        pytest.param(
            Restarts,
            "epoch_started",
            "self.under_way.clear()",
            "pass",
            HANDED_OVER,
            id="resumes from a hand-over of an older epoch",
        ),
        pytest.param(
            Restarts,
            "handed_over",
            "event.epoch != epoch or",
            "",
            HANDED_OVER_AND_LEFT,
            id="accepts a hand-over of an older epoch",
        ),
        pytest.param(
            Node,
            "_resume",
            "self.outside.claims.setdefault(name, self.instance) != self.instance",
            "False",
            HANDED_OVER,
            id="uses a hand-over twice",
        ),
        pytest.param(
            Restarts,
            "resume",
            "restart.given = True",
            "",
            HANDED_OVER,
            id="repeats the order to end to a successor, and takes its crash for a restart",
        ),
    ],
)
def test_a_broken_rule_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, rule: str, broken: str, mix: Mix
) -> None:
    monkeypatch.setattr(owner, name, mutant(getattr(owner, name), rule, broken))
    check = survived if "restart" in mix.faults else without_needless_rollbacks
    with pytest.raises(AssertionError, match="in Mix"):
        all(check(mix, seed, tmp_path / str(seed)) for seed in SEEDS_FOR_MUTANTS)


def mutant(function: Any, rule: str, broken: str) -> Any:
    """Return `function` with one rule broken."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(rule) == 1, f"{rule!r} is not one place of {function.__name__}"
    names = dict(function.__globals__)
    exec(compile(source.replace(rule, broken), "mutant", "exec"), names)
    return names[function.__name__]
