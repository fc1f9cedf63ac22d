"""Simulated runs that keep their snapshots on disk: the store contains exactly what was committed, despite crashes."""

import pytest
from tests.simulation.systems import players

from strobe.causality import verify
from strobe.simulation import Faults, World, all_checkers
from strobe.storage import CommitStep, Store


@pytest.mark.parametrize("protocol", ["chandy-lamport", "lai-yang"])
def test_a_store_outlives_crashes_of_its_coordinator(protocol, tmp_path):
    faults = Faults(delay_us_max=2000, coordinator_crash_every_us=60_000, crash_every_us=200_000)
    world = World(
        players("complete", protocol), 4, faults=faults, store=Store.create(str(tmp_path)), checkers=all_checkers()
    )
    world.run(8)
    assert world.violations == []
    assert world.injected["coordinator crashes"] >= 2
    store = Store.open(str(tmp_path))
    assert store.verify_bytes() == []
    assert [name for _, name, _ in store.list()] == world.committed
    assert all(verify(store.load(name)).holds for name in world.committed)


# The simulator writes no checkpoints; tests/storage/processes/test_crashes.py kills a writer at each of their steps.
STEPS = [f"blobs {step.name}" for step in CommitStep if not step.name.startswith(("ENTRY", "CHECKPOINT"))] + [
    f"{entry} {step.name}" for entry in ("Begin", "Commit") for step in CommitStep if step.name.startswith("ENTRY")
]


@pytest.mark.parametrize("step", STEPS)
def test_the_coordinator_crashes_at_any_step_of_a_commit(step, tmp_path):
    """The coordinator first crashes at `step`; in the end there is no violation and the store is complete."""
    world = World(players("pair", "chandy-lamport"), 1, store=Store.create(str(tmp_path)), checkers=all_checkers())
    inject = world.injector

    def crash_at_step(name):
        if name == step and not inject.crashed_at:
            inject.steps_left = 0
        inject._step(name)

    world.coordinator.log.on_step = crash_at_step
    world.run(2)
    assert inject.crashed_at == [step]
    assert world.violations == []
    assert [name for _, name, _ in Store.open(str(tmp_path)).list()] == world.committed


def test_random_crashes_hit_every_step_of_a_commit(tmp_path):
    """The steps hit range from the first blob to the last sync of the entry."""
    hit = set()
    for seed in range(12):
        faults = Faults(coordinator_crash_every_us=15_000, coordinator_crash_us=1000)
        store = Store.create(str(tmp_path / str(seed)))
        world = World(players("pair", "chandy-lamport"), seed, faults=faults, store=store)
        world.run(6)
        hit |= set(world.injector.crashed_at)
    assert {step.split()[0] for step in hit} >= {"Begin", "blobs", "Commit"}
    assert {"Commit ENTRY_LINKED", "blobs BLOBS_DURABLE"} & hit


def test_unchanged_states_are_shared_between_snapshots(tmp_path):
    """S2: a state that has not changed is not written again."""
    from strobe import Process, System

    class Still(Process):
        def capture(self):
            return b"always the same" * 100

    World(System({"a": Still()}, []), 1, store=Store.create(str(tmp_path))).run(3)
    blobs = {
        record.state for _, _, manifest in Store.open(str(tmp_path)).list() for record in manifest.processes.values()
    }
    assert len(blobs) == 1
