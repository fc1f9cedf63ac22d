"""Simulated runs that keep their snapshots on disk: what the store has is what was committed, whatever crashed when."""

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


def test_the_coordinator_crashes_between_any_two_steps_of_a_commit(tmp_path):
    """Each step in turn is where the coordinator dies for the first time; all is well in the end."""
    for step in CommitStep:
        died = []
        store = Store.create(str(tmp_path / step.name))
        world = World(players("pair", "chandy-lamport"), 1, store=store, checkers=all_checkers())
        inject = world.injector

        def dying(name, step=step, inject=inject, died=died):
            if name == step.name and not died:
                died.append(name)
                inject.steps_left = 0
            inject._step(name)

        world.coordinator.log.on_step = dying
        world.run(2)
        assert died == [step.name]
        assert world.violations == [], step
        assert [name for _, name, _ in Store.open(str(tmp_path / step.name)).list()] == world.committed


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
