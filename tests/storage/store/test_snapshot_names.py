"""The names of snapshots that people type, and the snapshots they mean."""

from pathlib import Path

import pytest
from tests.storage.samples import begin, commit, sample, sample_id

from strobe.errors import SnapshotIncomplete, SnapshotNotFound
from strobe.protocol.values.log_entries import Abort, Remove
from strobe.storage import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.create(tmp_path / "store")
    for counter in (1, 2, 12):
        commit(store, sample(counter))
    return store


def test_latest_an_id_and_a_unique_prefix_are_resolved(store: Store) -> None:
    assert store.resolve("latest") == str(sample_id(12))
    assert store.resolve(str(sample_id(1))) == str(sample_id(1))
    assert store.resolve("000001-00000012") == str(sample_id(12))


@pytest.mark.parametrize("name", ["000001-0000000", "0"])
def test_an_ambiguous_prefix_is_refused_with_its_snapshots(store: Store, name: str) -> None:
    with pytest.raises(SnapshotNotFound, match=f"{sample_id(1)}, {sample_id(2)}"):
        store.resolve(name)


@pytest.mark.parametrize("name", ["", "000009", "last"])
def test_an_unknown_name_is_refused_with_the_known_ones(store: Store, name: str) -> None:
    with pytest.raises(SnapshotNotFound, match=f"no such snapshot; complete ones are: {sample_id(1)}") as caught:
        store.resolve(name)
    assert caught.value.exit_code == 2


def test_in_an_empty_store_the_error_names_the_next_step(tmp_path: Path) -> None:
    for name in ("latest", "000001"):
        with pytest.raises(SnapshotNotFound, match="strobe snapshot take"):
            Store.create(tmp_path / name).resolve(name)


def test_open_aborted_and_removed_snapshots_are_named_as_such(store: Store) -> None:
    aborted = begin(store, 20)
    store.append(Abort(aborted, "process b crashed", 0), store.state().next_position)
    opened = begin(store, 21)
    store.append(Remove(str(sample_id(1)), "retention", 0), store.state().next_position)
    with pytest.raises(SnapshotIncomplete, match="process b crashed"):
        store.resolve(aborted)
    with pytest.raises(SnapshotIncomplete, match="no outcome yet"):
        store.load(opened)
    with pytest.raises(SnapshotNotFound, match="removed: retention"):
        store.resolve(str(sample_id(1)))


def test_of_many_snapshots_only_the_newest_are_named(store: Store) -> None:
    for counter in range(30, 40):
        commit(store, sample(counter))
    with pytest.raises(SnapshotNotFound, match=f"{sample_id(39)} and 8 older"):
        store.resolve("nothing")
