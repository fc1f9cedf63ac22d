"""The names of snapshots that people type, and the snapshots they mean."""

from pathlib import Path

import msgspec
import pytest
from tests.storage.samples import begin, commit, sample, sample_id

from strobe.errors import SnapshotIncomplete, SnapshotNotFound
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import Abort, Begin, Remove
from strobe.storage import Store
from strobe.storage.store.snapshot_names import printed_names


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


def test_a_short_id_is_resolved(store: Store) -> None:
    assert store.resolve("1.12") == store.resolve("001.0012") == str(sample_id(12))
    for name in ("1.3", "2.1", "1.", "1.1.1"):
        with pytest.raises(SnapshotNotFound, match="no such snapshot"):
            store.resolve(name)


def test_a_short_id_of_two_snapshots_is_refused_and_not_printed(store: Store) -> None:
    twin = str(SnapshotId(1, 2, "b"))
    open_another(store, twin)
    fragments = {
        name: msgspec.structs.replace(fragment, snapshot=SnapshotId(1, 2, "b"))
        for name, fragment in sample(2).fragments.items()
    }
    manifest = store.write_snapshot(msgspec.structs.replace(sample(2), id=SnapshotId(1, 2, "b"), fragments=fragments))
    store.commit(twin, manifest, store.state().next_position, 0)
    with pytest.raises(SnapshotNotFound, match=f"2 snapshots have this number .{sample_id(2)}, {twin}"):
        store.resolve("1.2")
    shown = printed_names(store.state())
    assert [shown(name) for name in store.state().committed] == ["1.1", str(sample_id(2)), "1.12", twin]


def test_a_short_id_finds_incomplete_snapshots_too(store: Store) -> None:
    aborted, opened = begin(store, 20), begin(store, 21)
    removed = str(sample_id(1))
    store.append(Abort(aborted, "process b crashed", 0), store.state().next_position)
    store.append(Remove(removed, "retention", 0), store.state().next_position)
    with pytest.raises(SnapshotIncomplete, match=f"{aborted}: was aborted: process b crashed"):
        store.resolve("1.20")
    with pytest.raises(SnapshotIncomplete, match=f"{opened}: has begun"):
        store.resolve("1.21")
    with pytest.raises(SnapshotNotFound, match="removed: retention"):
        store.resolve("1.1")
    open_another(store, str(SnapshotId(1, 20, "b")))
    shown = printed_names(store.state(), [aborted, opened, removed])
    assert [shown(name) for name in (aborted, opened, removed)] == [aborted, "1.21", "1.1"]


def open_another(store: Store, snapshot: str) -> None:
    store.append(Begin(snapshot, 1, sample(2).protocol, ("b",), 0), store.state().next_position)
