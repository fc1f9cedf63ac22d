"""Runs in which crashes also lose the state of processes: all go back, and no checker finds a violation (R1)."""

import random
import threading

import msgspec
import pytest
from tests.simulation.systems import SHAPES, players

from strobe import Process, System
from strobe.causality import verify
from strobe.errors import UsageError, UserCodeFailed
from strobe.protocol.coordinator.messages import ProcessWithoutState, RestoreWanted
from strobe.protocol.process.first_view import first_view
from strobe.protocol.values.log_entries import EpochStart
from strobe.simulation import Faults, Recorder, World, all_checkers
from strobe.simulation.faults import KINDS
from strobe.simulation.restorable import RestorableNode
from strobe.storage import CommitStep, Store

PROTOCOLS = ("chandy-lamport", "lai-yang")
EVERYTHING = f"{','.join(KINDS)},rollbacks"


def run(system, seed, faults, snapshots=8, **options):
    made = faults if isinstance(faults, Faults) else Faults.parse(faults)
    world = World(system, seed, faults=made, checkers=all_checkers(), **options)
    world.run(snapshots)
    assert [str(violation) for violation in world.violations] == []
    return world


def epochs(world):
    return [entry for entry in world.coordinator.log.entries(0) if isinstance(entry, EpochStart)]


def drawn(seed):
    """Return a random system, and faults of every kind at random rates."""
    draw = random.Random(seed).choice
    shape = draw([*SHAPES, "complete", "complete"])
    system = players(shape, draw(PROTOCOLS), snapshots=True)
    everyone_sends = {channel.source for channel in system.channels} == set(system.processes)
    faults = Faults(
        delay_us_max=draw([300, 2000, 20_000]),
        partition_every_us=draw([0, 100_000]),
        crash_every_us=draw([0, 80_000, 200_000]),
        crash_us=draw([2000, 20_000]),
        coordinator_crash_every_us=draw([0, 50_000, 150_000]),
        coordinator_crash_us=draw([2000, 40_000]),
        membership_every_us=draw([0, 60_000, 150_000]) if everyone_sends else 0,
        initiator_every_us=draw([0, 40_000]),
        rollback_every_us=draw([60_000, 150_000, 300_000]),
    )
    return system, faults


@pytest.mark.parametrize("batch", range(8))
def test_R1_nothing_is_lost_or_applied_twice_under_all_faults(batch):
    for seed in range(batch * 12, batch * 12 + 12):
        system, faults = drawn(seed)
        run(system, seed, faults)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("shape", SHAPES)
def test_R1_every_shape_is_rolled_back(protocol, shape):
    assert len(epochs(run(players(shape, protocol), 2, "delays,rollbacks", 20))) > 1


def test_a_process_that_cannot_be_copied_is_refused_by_name():
    system = players("pair", "chandy-lamport")
    system.processes["a"].lock = threading.Lock()
    with pytest.raises(UserCodeFailed, match=r"process 'a' cannot be copied.*__deepcopy__"):
        World(system, 1, faults=Faults.parse("rollbacks"))


def test_rollbacks_restore_the_start_the_newest_and_older_snapshots(monkeypatch):
    seen = set()
    redeliver = RestorableNode.redeliver

    def watch(node, in_flight):
        frames = [item for items in in_flight.values() for item in items]
        if frames:
            seen.add("with messages in flight")
        if any(item.consumed for item in frames):
            seen.add("inside a frame")
        redeliver(node, in_flight)

    monkeypatch.setattr(RestorableNode, "redeliver", watch)
    injected = set()
    for seed in range(14):
        world = run(players("complete", "chandy-lamport", snapshots=True), seed, EVERYTHING)
        injected |= set(world.injected)
        for entry in epochs(world)[1:]:
            seen.add("to the beginning" if entry.restored is None else "to a snapshot")
            seen.add("because of a crash" if entry.blamed else "because somebody asked")
    assert {"inside a frame", "with messages in flight", "to the beginning", "to a snapshot"} <= seen
    assert {"because of a crash", "because somebody asked"} <= seen
    assert {"crashes that take the state", "rollbacks asked for", "coordinator crashes", "joins", "leaves"} <= injected


def test_a_later_crash_does_not_restore_an_abandoned_snapshot():
    """After a rollback to an older snapshot, the next crash must not restore the abandoned ones."""
    world = World(players("pair", "chandy-lamport"), 1, faults=Faults(rollback_every_us=10**12))
    world.run(4)
    older = world.committed[0]
    world.coordinator.handle(RestoreWanted(older, "because"))
    world._advance(lambda: world.epoch == 2, 10**6)
    world.lose_state("a")
    world.restart("a")
    world._advance(lambda: world.epoch == 3, 10**6)
    assert [entry.restored for entry in epochs(world)] == [None, older, older]


def test_a_restored_process_has_only_what_restore_gives_it():
    """State that `capture` omits is gone after a rollback, as it is after a crash."""
    world = World(players("pair", "chandy-lamport"), 3, faults=Faults(rollback_every_us=10**12))
    world.run(2)
    former = world.nodes["a"].process
    former.not_captured = True
    world.coordinator.handle(RestoreWanted(None, "because"))
    world._advance(lambda: False, 100_000)
    assert world.nodes["a"].epoch == 2
    assert not hasattr(world.nodes["a"].process, "not_captured")


# The log, and coordinators that crash during a rollback


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_R1_rollbacks_from_a_store_on_disk(protocol, tmp_path):
    faults = Faults(delay_us_max=2000, rollback_every_us=80_000, coordinator_crash_every_us=60_000)
    world = run(players("complete", protocol), 5, faults, store=Store.create(str(tmp_path)))
    store = Store.open(str(tmp_path))
    assert len(epochs(world)) > 2
    assert store.verify_bytes() == []
    assert [name for _, name, _ in store.list()] == world.committed
    assert all(verify(store.load(name)).holds for name in world.committed)
    assert store.state().view == world.coordinator.lifecycle.view
    assert store.state().epoch == world.epoch


@pytest.mark.parametrize("step", [step.name for step in CommitStep if step.name.startswith("ENTRY")])
def test_the_coordinator_crashes_at_any_step_of_a_new_epoch(step, tmp_path):
    faults = Faults(rollback_every_us=40_000)
    made = World(
        players("pair", "chandy-lamport"), 1, faults=faults, store=Store.create(str(tmp_path)), checkers=all_checkers()
    )
    inject = made.injector

    def crash_at_step(name):
        if name == f"EpochStart {step}" and not inject.crashed_at:
            inject.steps_left = 0
        inject._step(name)

    made.coordinator.log.on_step = crash_at_step
    made.run(6)
    assert inject.crashed_at == [f"EpochStart {step}"]
    assert made.violations == []


def test_a_process_that_keeps_crashing_stops_the_world_with_a_report():
    world = World(players("pair", "chandy-lamport"), 1, faults=Faults(rollback_every_us=10**12))
    world.run(2)
    world.coordinator.lifecycle.rollback.policy = msgspec.structs.replace(world.policy, rollbacks_max=0)
    world.coordinator.handle(ProcessWithoutState("a"))
    assert "process a has crashed again" in world.coordinator.halted


def test_the_same_seed_gives_the_same_rollbacks():
    def fingerprint():
        system, faults = drawn(11)
        world = run(system, 11, faults)
        return world.events, world.now_us, world.committed, list(world.coordinator.log.entries(0))

    assert fingerprint() == fingerprint()


# Refused requests


def test_a_process_without_restore_is_named():
    class Still(Process):
        def capture(self):
            return b""

    with pytest.raises(UsageError, match=r"process 'a' cannot be rolled back: Still has no restore\(\)"):
        World(System({"a": Still()}, []), 1, faults=Faults.parse("rollbacks"))


def test_a_trace_of_a_world_with_rollbacks_is_refused():
    system = players("pair", "chandy-lamport")
    with pytest.raises(UsageError, match="a trace has one history"):
        World(system, 1, faults=Faults.parse("rollbacks"), recorder=Recorder(first_view(system), 1, "full"))


def test_rollbacks_are_requested_by_name():
    assert Faults.parse("all").rollback_every_us == 0
    assert Faults.parse("all,rollbacks").rollback_every_us > 0
    assert Faults.parse("all,rollbacks").crash_every_us == Faults.parse("all").crash_every_us
    with pytest.raises(UsageError, match="rollbacks"):
        Faults.parse("rollback")
