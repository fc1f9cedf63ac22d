"""R3, S4: states of an older version are verified, chosen and restored by a program of the current version."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.runtime.recovery.test_restore_point import HERE
from tests.runtime.state_versions import Broken, First, Keeper, Second
from tests.storage.samples import commit, sample

from strobe.keyed_state import KeyedState
from strobe.process import System
from strobe.protocol import Snapshot
from strobe.protocol.coordinator.messages import RestoreRefused, SnapshotChosen
from strobe.runtime.recovery.restore_point import choose
from strobe.runtime.recovery.trial_restore import conserved_value, decode, trial_restore
from strobe.simulation.restorable import restore_state
from strobe.storage import Store
from strobe.storage.content.state_codec import captured_state


class Forgetful(Keeper):
    def restore(self, state: Any) -> None:
        self.state = Second(0)


def keyed(kind: Any, amount: int) -> KeyedState[Any]:
    state: KeyedState[Any] = KeyedState(kind)
    state["ada"] = kind(amount)
    return state


def stored(*states: Any) -> Snapshot:
    """The sample with processes a, b and c in these states."""
    snapshot = sample(1)
    fragments = {
        name: msgspec.structs.replace(fragment, state=captured_state(name, state))
        for (name, fragment), state in zip(snapshot.fragments.items(), states, strict=True)
    }
    return msgspec.structs.replace(snapshot, fragments=fragments)


def system(*states: Any, kind: type[Keeper] = Keeper, **options: Any) -> System:
    return System({name: kind(state) for name, state in zip("abc", states, strict=True)}, [], **options)


OLD = First(5), keyed(First, 7), b""


def new() -> tuple[Any, ...]:
    return Second(0), keyed(Second, 0), b""


def findings(of: System) -> list[str]:
    return [finding.problem for finding in trial_restore(of, stored(*OLD)) if finding.check == "restore"]


def test_R3_a_trial_restore_migrates(tmp_path: Path) -> None:
    tried = system(*new())
    assert findings(tried) == []
    assert tried.processes["a"].capture() == Second(500)
    assert dict(tried.processes["b"].capture()) == {"ada": Second(700)}


def test_R3_a_field_that_is_lost_after_the_migration_is_found() -> None:
    (problem,) = findings(system(*new(), kind=Forgetful))[:1]
    assert "cents changed (500, then 0)" in problem


def test_R3_invariants_are_evaluated_on_migrated_states() -> None:
    def total(states: Any, messages: Any) -> int:
        return int(states["a"].cents + states["b"]["ada"].cents)

    declared = system(*new(), conserved=total)
    assert conserved_value(declared, decode(declared, stored(*OLD)))[0] == 1200


@pytest.mark.parametrize("fork", [False, True])
def test_R3_a_snapshot_restored_by_name_may_need_migrations(tmp_path: Path, fork: bool) -> None:
    store = Store.create(tmp_path / "store")
    name = commit(store, stored(*OLD))
    chosen = choose(store, name, HERE, fork=fork, system=system(*new())).event
    assert isinstance(chosen, SnapshotChosen)
    assert chosen.snapshot == name
    refused = choose(store, name, HERE, fork=fork, system=system(Broken(0), *new()[1:])).event
    assert isinstance(refused, RestoreRefused)
    assert "Broken from version 1 fails: KeyError: 'euro' (tests/runtime/state_versions.py:21)" in refused.reason
    name = commit(store, msgspec.structs.replace(stored(*new()), id=sample(2).id), parent=name)
    refused = choose(store, name, HERE, fork=fork, system=system(*OLD)).event
    assert isinstance(refused, RestoreRefused)
    assert "version 2 of First, written by a newer program" in refused.reason


def test_R3_the_simulator_migrates_what_it_restores() -> None:
    process = Keeper(Second(0))
    restore_state("a", process, captured_state("a", First(5)))
    assert process.state == Second(500)
