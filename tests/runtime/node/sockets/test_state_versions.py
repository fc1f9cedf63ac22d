"""R3: a process of a new version takes the state that an older one has stored, and stores it as the new version."""

from pathlib import Path
from typing import Any

import pytest
from tests.runtime.fake_coordinator import FakeCoordinator, coordinating
from tests.runtime.link_ends import run
from tests.runtime.state_versions import Broken, First, Keeper, Second

from strobe.keyed_state import KeyedState
from strobe.process import System
from strobe.protocol.coordinator.messages import CannotRestore
from strobe.storage.content.state_codec import decode_captured


def ledger(kind: Any, keyed: bool, *values: Any) -> System:
    state = KeyedState(kind) if keyed else values[0]
    if isinstance(state, KeyedState):
        for number, value in enumerate(values):
            state[number] = value
    return System({"a": Keeper(state)}, [])


async def replaced(coordinator: FakeCoordinator, system: System) -> None:
    """End the program of process a, and start one of another version."""
    link = coordinator.links["a"]
    await coordinator.end("a")
    coordinator.system = system
    coordinator.run("a")
    await coordinator.registered("a", after=link)


@pytest.mark.parametrize("keyed", [False, True], ids=["struct", "keyed"])
def test_R3_a_new_version_restores_and_then_stores_its_own(tmp_path: Path, keyed: bool) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path, ledger(First, keyed, First(1), First(2))) as coordinator:
            await coordinator.started("a")
            await coordinator.photograph("a")
            old = coordinator.system.processes["a"].capture()
            if keyed:
                old[0] = First(10)  # the second snapshot is a delta
            else:
                old.balance = 10
            stored = await coordinator.photograph("a")
            record = coordinator.record_of(stored, "a")
            assert (record.state_version, len(record.deltas)) == (1, int(keyed))
            await replaced(coordinator, ledger(Second, keyed, Second(0)))
            await coordinator.begin(["a"], stored, epoch=2)
            state = coordinator.system.processes["a"].capture()
            assert (dict(state) if keyed else state) == ({0: Second(1000), 1: Second(200)} if keyed else Second(1000))
            migrated = await coordinator.photograph("a")
            record = coordinator.record_of(migrated, "a")
            assert (record.state_version, record.deltas) == (2, ())  # never a delta on values of another version
            again = coordinator.record_of(await coordinator.photograph("a"), "a")
            assert (again.state_version, len(again.deltas)) == (2, int(keyed))
            local = coordinator.store.load(migrated).fragments["a"].state
            assert local is not None
            assert decode_captured(state, local) == state

    run(scenario())


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (First(1), Broken(0), r"Broken from version 1 fails: KeyError: 'euro' (tests/runtime/state_versions.py:21)"),
        (Second(1), First(0), "is of version 2 of First, written by a newer program: this one knows versions up to 1"),
    ],
    ids=["a migration fails", "a newer program"],
)
def test_R3_a_node_reports_why_it_cannot_take_a_state(tmp_path: Path, before: Any, after: Any, reason: str) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path, ledger(None, False, before)) as coordinator:
            await coordinator.started("a")
            stored = await coordinator.photograph("a")
            await replaced(coordinator, ledger(None, False, after))
            coordinator.restore(coordinator.links["a"], 2, stored)
            refused = await coordinator.links["a"].handle(CannotRestore)
            assert reason in refused.reason
            assert await coordinator.ended("a") == 1

    run(scenario())
