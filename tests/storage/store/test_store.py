"""Creating, opening and refusing stores."""

import json
from pathlib import Path

import pytest
from tests.storage.samples import begin, commit, sample, sample_id

from strobe.errors import SnapshotError, SnapshotIncomplete, StoreCorrupt, StoreFormatError, StrobeError, UsageError
from strobe.protocol.values.log_entries import Abort, BlobRef, EpochStart, Manifest
from strobe.storage import Store
from strobe.storage.files.checksummed_json import seal
from strobe.storage.files.disk import Disk


def test_a_store_is_opened_by_path_or_file_url(tmp_path: Path) -> None:
    name = Store.create(tmp_path / "a store").header.store
    for url in (tmp_path / "a store", str(tmp_path / "a store"), f"file://{tmp_path}/a%20store"):
        assert Store.open(url).header.store == name
    assert Store.open_or_create(tmp_path / "a store").header.store == name


def test_a_store_is_made_with_the_directories_above_it(tmp_path: Path) -> None:
    assert Store.open_or_create(tmp_path / "x" / "y").list() == []


def test_two_stores_differ_in_their_names(tmp_path: Path) -> None:
    assert Store.create(tmp_path / "a").header.store != Store.create(tmp_path / "b").header.store


@pytest.mark.parametrize("url", ["ftp://host/store", "http://host/store"])
def test_other_schemes_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not a kind of store"):
        Store.open(url)


def test_a_file_url_with_a_host_is_refused() -> None:
    with pytest.raises(UsageError, match="three slashes"):
        Store.open("file://store")


def test_a_path_without_a_store_is_refused_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("?")
    (tmp_path / "empty").mkdir()
    for name, problem in (
        ("absent", "does not exist"),
        ("file", "not a directory"),
        ("empty", "is empty; if"),
    ):
        with pytest.raises(StoreFormatError, match=problem) as caught:
            Store.open(tmp_path / name)
        assert caught.value.exit_code == 2


def test_creating_never_touches_a_store_or_foreign_files(tmp_path: Path) -> None:
    Store.create(tmp_path / "store")
    with pytest.raises(UsageError, match="a store already"):
        Store.create(tmp_path / "store")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    for make in (Store.create, Store.open_or_create):
        with pytest.raises(StoreFormatError, match=r"letter\.txt"):
            make(tmp_path / "home")
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["letter.txt"]


def test_an_interrupted_creation_is_completed(tmp_path: Path) -> None:
    for name in ("log", "blobs", "tmp"):
        (tmp_path / "store" / name).mkdir(parents=True)
    assert Store.open_or_create(tmp_path / "store").list() == []


@pytest.mark.parametrize("listings", range(3))
def test_a_store_just_made_by_another_process_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listings: int
) -> None:
    """The other process makes the store and its first entry after this many listings of directories."""
    url, names, seen = tmp_path / "store", Disk.names, 0

    def list_names(backend: Disk, directory: str) -> list[str]:
        nonlocal seen
        found, seen = names(backend, directory), seen + 1
        if seen == listings:
            monkeypatch.setattr(Disk, "names", names)
            begin(Store.create(url), 1)
        return found

    if listings:
        monkeypatch.setattr(Disk, "names", list_names)
    else:
        begin(Store.create(url), 1)
    assert Store.open_or_create(url).state().next_position in (0, 1)
    assert Store.open(url).verify_bytes() == []


def test_a_log_without_a_header_is_damage_and_not_an_empty_place(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    store.append(EpochStart(1, 0), 0)
    (tmp_path / "store" / "strobe.json").unlink()
    for make in (Store.open, Store.create, Store.open_or_create):
        with pytest.raises(StoreCorrupt, match=r"strobe\.json: is missing"):
            make(tmp_path / "store")


def reseal(path: Path, **changes: object) -> None:
    header = json.loads(path.read_bytes()) | {"blake3": "0" * 64} | changes
    raw, _ = seal(json.dumps(header, separators=(",", ":")).encode() + b"\n")
    path.write_bytes(raw)


def test_another_version_is_refused_naming_both(tmp_path: Path) -> None:
    Store.create(tmp_path / "store")
    reseal(tmp_path / "store" / "strobe.json", version=2)
    with pytest.raises(StoreFormatError, match=r"version 2 of the format, and this Strobe reads version 1") as caught:
        Store.open(tmp_path / "store")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("raw", [b"", b"not json", b"\0" * 300, b'{"format":"strobe-store","version":1}\n'])
def test_a_damaged_header_is_named(tmp_path: Path, raw: bytes) -> None:
    Store.create(tmp_path / "store")
    (tmp_path / "store" / "strobe.json").write_bytes(raw)
    with pytest.raises(StoreCorrupt, match=r"strobe\.json"):
        Store.open(tmp_path / "store")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def test_nothing_is_stored_for_a_snapshot_that_has_not_begun(store: Store) -> None:
    with pytest.raises(SnapshotError, match="has not begun"):
        store.write_snapshot(sample(1))
    with pytest.raises(SnapshotError, match="has not begun"):
        store.write_blob(str(sample_id(1)), b"data")


def test_a_process_without_a_state_is_refused(store: Store) -> None:
    begin(store, 1)
    incomplete = sample(1)
    del incomplete.fragments["b"]
    with pytest.raises(SnapshotIncomplete, match="no state was recorded for b"):
        store.write_snapshot(incomplete)


def test_a_commit_that_the_log_would_ignore_is_refused(store: Store) -> None:
    first = commit(store, sample(1))
    second = begin(store, 2)
    manifest = store.write_snapshot(sample(2))
    store.append(Abort(second, "timed out", 1), store.state().next_position)
    end = store.state().next_position
    with pytest.raises(SnapshotIncomplete, match="timed out"):
        store.commit(second, manifest, end, 1)
    with pytest.raises(SnapshotError, match="committed already"):
        store.commit(first, manifest, end, 1)
    with pytest.raises(SnapshotError, match="has not begun"):
        store.commit(str(sample_id(9)), manifest, end, 1)
    assert store.state().next_position == end


def test_a_stale_coordinator_cannot_commit(store: Store) -> None:
    name = begin(store, 1)
    stale = Store.open(store.url)
    manifest = stale.write_snapshot(sample(1))
    store.append(EpochStart(2, 0), 1)
    with pytest.raises(StrobeError):
        stale.commit(name, manifest, 1, 0)
    with pytest.raises(SnapshotIncomplete, match="epoch 2 began"):
        stale.commit(name, manifest, 2, 0)


def test_a_manifest_of_another_view_epoch_or_parent_is_refused(store: Store) -> None:
    import msgspec

    first = commit(store, sample(1))
    name = begin(store, 2)
    manifest = store.write_snapshot(sample(2))
    changes = {"parent": first, "epoch": 2, "view": msgspec.structs.replace(manifest.view, number=9)}
    for field, value in changes.items():
        with pytest.raises(UsageError, match=field):
            store.commit(name, msgspec.structs.replace(manifest, **{field: value}), store.state().next_position, 1)


def test_S2_a_parent_that_has_the_same_bytes_at_two_begins_shares_both(store: Store) -> None:
    import msgspec

    def with_states(manifest: Manifest, **states: BlobRef) -> Manifest:
        records = {name: msgspec.structs.replace(manifest.processes[name], state=ref) for name, ref in states.items()}
        return msgspec.structs.replace(manifest, processes={**manifest.processes, **records})

    def store_one(counter: int, parent: str | None, **states: BlobRef) -> tuple[str, Manifest]:
        name = begin(store, counter, parent)
        manifest = with_states(store.write_snapshot(sample(counter)), **states)
        store.commit(name, manifest, store.state().next_position, 1)
        return name, manifest

    first, manifest = store_one(1, None)
    shared = manifest.processes["a"].state
    position = store.state().next_position
    begin(store, 2, first)
    own = store.blobs.write(position, [store.read_blob(shared)], {})
    manifest = with_states(store.write_snapshot(sample(2)), a=shared, b=own)
    second = str(sample(2).id)
    store.commit(second, manifest, store.state().next_position, 1)
    assert own.blake3 == shared.blake3
    assert own != shared
    store_one(3, second, a=shared, b=own)


def test_a_manifest_with_a_foreign_or_missing_blob_is_refused(store: Store) -> None:
    commit(store, sample(1))
    other = store.list()[0][2]
    name = begin(store, 2)
    manifest = store.write_snapshot(sample(2))
    with pytest.raises(UsageError, match="neither its own blob nor its parent's"):
        store.commit(name, other, store.state().next_position, 1)
    blob = Path(store.url) / f"blobs/{2:020d}" / manifest.processes["a"].state.blake3
    blob.unlink()
    with pytest.raises(StoreCorrupt, match="is missing"):
        store.commit(name, manifest, store.state().next_position, 1)
