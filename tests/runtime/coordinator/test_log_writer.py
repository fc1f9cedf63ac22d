"""S1, E9: the snapshot that is chosen for a rollback while an older copy of the store is in its place."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.storage.samples import VIEW, commit, sample

from strobe.process import System
from strobe.protocol.coordinator.messages import RestoreRefused, SnapshotChosen
from strobe.protocol.values.log_entries import EpochStart
from strobe.runtime.coordinator import log_writer
from strobe.runtime.coordinator.log_writer import CoordinatorLog, SnapshotSkipped
from strobe.runtime.recovery.restore_point import Topology
from strobe.storage import Store
from strobe.storage.content.blobs import blob_name

HERE = Topology("chandy-lamport", (VIEW,))
SYSTEM = System({}, [])


class Replaced:
    """A store with two snapshots, and an older copy with the first one, which can be put in its place."""

    def __init__(self, directory: Path) -> None:
        self._store, self._copy, self._real = directory / "store", directory / "copy", directory / "real"
        self.problems: list[str] = []
        store = Store.create(self._store)
        store.append(EpochStart(1, 0, None), 0)
        self.first = commit(store, sample(1))
        shutil.copytree(self._store, self._copy)
        self.second = commit(store, sample(2, balance=200))
        manifest = store.known.committed[self.second].manifest
        self.state = self._store / blob_name(manifest.processes["a"].state)  # type: ignore[arg-type]
        self.log = CoordinatorLog(str(self._store), lambda: 0, self._report)
        self.log.open()
        self.log.poll()

    def put_copy(self) -> None:
        self._store.rename(self._real)
        self._copy.rename(self._store)

    def put_back(self) -> None:
        if self._real.exists():
            self._store.rename(self._copy)
            self._real.rename(self._store)

    def choose(self, wanted: str | None = None) -> list[Any]:
        return self.log.choose(wanted, HERE, False, SYSTEM)

    def _report(self, problem: str | None) -> None:
        """Put the real store back as soon as the coordinator reports that it waits."""
        if problem is not None:
            self.problems.append(problem)
            self.put_back()


@pytest.fixture
def replaced(tmp_path: Path) -> Replaced:
    return Replaced(tmp_path)


@pytest.mark.parametrize("by_name", [False, True])
def test_S1_the_choice_waits_while_an_older_copy_is_in_place(replaced: Replaced, by_name: bool) -> None:
    """Before, the newest snapshot was passed over as corrupt, or, if requested by name, refused."""
    replaced.put_copy()
    assert replaced.choose(replaced.second if by_name else None) == [SnapshotChosen(replaced.second, VIEW)]
    assert any("holds an older copy of that store" in one for one in replaced.problems)


def test_S1_an_older_copy_that_was_in_place_for_a_moment_changes_no_choice(
    replaced: Replaced, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose, times = log_writer.choose, iter([True, False, False])

    def during_a_swap(*arguments: Any) -> Any:
        swapped = next(times)
        if swapped:
            replaced.put_copy()
        answer = choose(*arguments)
        replaced.put_back()
        assert bool(answer.passed_over) is swapped
        return answer

    monkeypatch.setattr(log_writer, "choose", during_a_swap)
    assert replaced.choose() == [SnapshotChosen(replaced.second, VIEW)]
    assert replaced.problems == []


def test_S1_a_coordinator_that_starts_waits_while_an_older_copy_is_in_place(replaced: Replaced) -> None:
    """It has read the log, and then finds less of it. Before, it ended with that error, and `strobe up` with it."""
    replaced.put_copy()
    replaced.log.lead("alpha")
    assert any("holds an older copy of that store" in one for one in replaced.problems)
    leader = Store.open(replaced.log.store.url).state().term
    assert leader is not None
    assert leader.coordinator == "alpha"


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")


@pytest.mark.parametrize("harm", [damage, Path.unlink], ids=["damaged", "missing"])
def test_E9_a_damaged_snapshot_is_passed_over(replaced: Replaced, harm: Callable[[Path], None]) -> None:
    harm(replaced.state)
    skipped, chosen = replaced.choose()
    assert isinstance(skipped, SnapshotSkipped)
    assert f"snapshot {replaced.second} is corrupt" in skipped.reason
    assert chosen == SnapshotChosen(replaced.first, VIEW)
    (refused,) = replaced.choose(replaced.second)
    assert isinstance(refused, RestoreRefused)
