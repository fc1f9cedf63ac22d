"""The collector removes what nothing needs, at any moment of a writer's work (S2, E8)."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.storage.samples import begin, commit, sample

from strobe.errors import StoreAway, StoreCorrupt, StoreError
from strobe.protocol.values.log_entries import Abort, Entry, EpochStart, Pin, Remove
from strobe.storage import CommitStep, LogState, Store, collect
from strobe.storage.content.manifests import blobs_of
from strobe.storage.store import garbage_collection


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def append(store: Store, entry: Entry) -> None:
    store.append(entry, store.state().next_position)


def blob_files(store: Store) -> set[str]:
    return {path.relative_to(store.url).as_posix() for path in Path(store.url).glob("blobs/*/*")}


def needed_by(store: Store, name: str) -> set[str]:
    return {f"blobs/{ref.begin:020d}/{ref.blake3}" for ref in blobs_of(store.state().committed[name].manifest)}


def test_complete_snapshots_are_not_touched(store: Store) -> None:
    first = commit(store, sample(1))
    commit(store, sample(2, balance=7), parent=first)
    before = blob_files(store)
    assert collect(store).names == ()
    assert blob_files(store) == before


def test_blobs_that_children_share_outlive_a_removed_snapshot(store: Store) -> None:
    first = commit(store, sample(1))
    second = commit(store, sample(2, balance=7), parent=first)
    append(store, Remove(first, "retention", 0))
    collected = collect(store)
    assert len(collected.names) == 2
    assert collected.bytes > 0
    assert blob_files(store) == needed_by(store, second)
    assert store.load(second) == sample(2, balance=7)


def test_a_dry_run_reports_the_same_and_removes_nothing(store: Store) -> None:
    append(store, Remove(commit(store, sample(1)), "retention", 0))
    (Path(store.url) / "tmp" / "left").write_bytes(b"123")
    before = blob_files(store)
    planned = collect(store, dry_run=True)
    assert blob_files(store) == before
    done = collect(store)
    assert (planned.names, planned.bytes, planned.dry_run) == (done.names, done.bytes, True)
    assert blob_files(store) == set()
    assert list(Path(store.url).glob("blobs/*")) == []


def test_an_aborted_snapshot_is_removed_and_an_open_one_stays(store: Store) -> None:
    aborted, opened = begin(store, 1), begin(store, 2)
    removable, kept = store.write_blob(aborted, b"aborted"), store.write_blob(opened, b"open")
    append(store, Abort(aborted, "no", 0))
    assert collect(store).names == (f"blobs/{removable.begin:020d}/{removable.blake3}",)
    assert store.read_blob(kept) == b"open"
    append(store, EpochStart(2, 0))
    assert len(collect(store).names) == 1


def test_a_pinned_snapshot_stays_even_if_its_removal_is_logged(store: Store) -> None:
    name = commit(store, sample(1))
    append(store, Pin(name, True, 0))
    append(store, Remove(name, "retention", 0))
    assert collect(store).names == ()
    assert store.load(name) == sample(1)


def test_a_removed_parent_stays_until_its_child_has_an_outcome(store: Store) -> None:
    first = commit(store, sample(1))
    child = begin(store, 2, parent=first)
    append(store, Remove(first, "retention", 0))
    assert collect(store).names == ()
    manifest = store.write_snapshot(sample(2))
    assert {ref.begin for ref in blobs_of(manifest)} == {0}
    store.commit(child, manifest, store.state().next_position, at_us=0)
    assert collect(store).names == ()
    assert store.load(child) == sample(2)


def test_nothing_is_removed_if_the_log_is_damaged(store: Store) -> None:
    append(store, Remove(commit(store, sample(1)), "retention", 0))
    (Path(store.url) / "tmp" / "left").write_bytes(b"")
    (Path(store.url) / "log" / f"{1:020d}.json").write_bytes(b"garbage")
    before = blob_files(store)
    with pytest.raises(StoreCorrupt):
        collect(Store.open(store.url))
    assert blob_files(store) == before
    assert (Path(store.url) / "tmp" / "left").exists()


def test_blobs_from_beyond_the_end_of_the_log_are_not_touched(store: Store) -> None:
    commit(store, sample(1))
    for position in (0, 1):
        (Path(store.url) / "log" / f"{position:020d}.json").unlink()
    with pytest.raises(StoreCorrupt, match="the newest entries are missing"):
        collect(Store.open(store.url))
    assert list((Path(store.url) / "blobs").glob("*/*"))


def collecting_at(url: str, moment: int) -> Callable[[CommitStep, str], None]:
    """Return a hook that runs a whole collection in the middle of the writer's work, at its step number `moment`."""
    steps = iter(range(10**6))

    def hook(step: CommitStep, name: str) -> None:
        if next(steps) == moment:
            collect(Store.open(url))

    return hook


@pytest.mark.parametrize("moment", range(20))
def test_a_collection_at_any_step_of_a_writer_removes_nothing_it_needs(tmp_path: Path, moment: int) -> None:
    url = str(tmp_path / "store")
    first = commit(Store.create(url), sample(1))
    writer = Store.open(url, on_step=collecting_at(url, moment))
    child = begin(writer, 2, parent=first)
    append(writer, Remove(first, "while its child is open", 0))
    manifest = writer.write_snapshot(sample(2, balance=7))
    writer.commit(child, manifest, writer.state().next_position, at_us=0)
    assert Store.open(url).load(child) == sample(2, balance=7)
    collect(writer)
    assert blob_files(writer) == needed_by(writer, child)


def write_a_child(store: Store) -> str:
    """Take a snapshot whose parent is removed meanwhile, after aborting one with the same bytes."""
    aborted = begin(store, 8)
    store.write_snapshot(sample(8, balance=8))
    append(store, Abort(aborted, "no", 0))
    parent = store.resolve("latest")
    child = begin(store, 9, parent)
    append(store, Remove(parent, "while its child is open", 0))
    manifest = store.write_snapshot(sample(9, balance=8))
    store.commit(child, manifest, store.state().next_position, at_us=0)
    return child


def test_a_snapshot_taken_after_the_log_was_read_is_safe(store: Store) -> None:
    commit(store, sample(1))
    children: list[str] = []

    class Slow(Store):
        def state(self) -> LogState:
            state = super().state()
            children.append(write_a_child(Store.open(store.url)))
            return state

    collect(Slow.open(store.url))
    assert store.load(children[0]) == sample(9, balance=8)


def test_a_snapshot_taken_between_the_decision_and_the_removal_is_safe(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the blobs to remove hold the same bytes that the new snapshot writes."""
    removed = commit(store, sample(1, balance=8))
    commit(store, sample(2))
    append(store, Remove(removed, "retention", 0))
    children: list[str] = []
    decide = garbage_collection._unneeded

    def decide_slowly(listed: dict[int, list[str]], state: LogState) -> list[str]:
        removable = decide(listed, state)
        children.append(write_a_child(Store.open(store.url)))
        return removable

    monkeypatch.setattr(garbage_collection, "_unneeded", decide_slowly)
    assert len(collect(Store.open(store.url)).names) > 0
    assert store.load(children[0]) == sample(9, balance=8)


def test_an_empty_blob_directory_is_removed_when_its_snapshot_ends(store: Store) -> None:
    """S2: on a full disk a directory can be made, but no blob."""
    name = begin(store, 1)
    directory = Path(store.url) / f"blobs/{0:020d}"
    directory.mkdir()
    collect(store)
    assert directory.exists()
    append(store, Abort(name, "no room", 0))
    collect(store)
    assert not directory.exists()


@pytest.mark.parametrize(
    "stray", ["tmp/stray", f"blobs/{0:020d}/stray", f"blobs/{0:020d}/notes.txt/deep", "blobs/stray"]
)
def test_a_stray_directory_is_left_alone_and_all_else_is_removed(store: Store, stray: str) -> None:
    append(store, Remove(commit(store, sample(1)), "retention", 0))
    directory = Path(store.url) / stray
    directory.mkdir(parents=True)
    (Path(store.url) / "tmp" / "zz-left").write_bytes(b"123")
    planned, collected = collect(store, dry_run=True), collect(store)
    assert planned.names == collected.names
    assert len(collected.names) == 6
    assert not [path for path in Path(store.url).glob("blobs/*/*") if path.is_file()]
    assert not list(Path(store.url).glob("tmp/zz*"))
    assert directory.is_dir()


def test_a_stray_file_among_the_blobs_is_left_alone(store: Store) -> None:
    append(store, Remove(commit(store, sample(1)), "retention", 0))
    notes = Path(store.url) / f"blobs/{0:020d}/notes.txt"
    notes.write_bytes(b"mine")
    collect(store)
    assert blob_files(store) == {f"blobs/{0:020d}/notes.txt"}


@pytest.mark.parametrize("stubborn", [f"blobs/{0:020d}/{0:064x}", f"blobs/{0:020d}/{'f' * 64}"])
def test_a_file_that_cannot_be_removed_is_named_after_the_rest(store: Store, stubborn: str) -> None:
    append(store, Remove(commit(store, sample(1)), "retention", 0))
    (Path(store.url) / stubborn).mkdir()
    with pytest.raises(StoreError, match=f"cannot remove {stubborn}: Is a directory"):
        collect(store)
    assert blob_files(store) == {stubborn}


def test_an_unfinished_file_that_cannot_be_removed_is_named_last(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    append(store, Remove(commit(store, sample(1)), "retention", 0))
    for name in ("left", "others"):
        (Path(store.url) / "tmp" / name).write_bytes(b"123")
    remove_abandoned = store.backend.remove_abandoned

    def refuse(name: str, dry_run: bool) -> int | None:
        if name == "tmp/left":
            raise StoreError(store.url, f"cannot remove {name}: Permission denied")
        return remove_abandoned(name, dry_run)

    monkeypatch.setattr(store.backend, "remove_abandoned", refuse)
    with pytest.raises(StoreError, match="cannot remove tmp/left: Permission denied"):
        collect(store)
    assert [path.name for path in Path(store.url).glob("tmp/*")] == ["left"]
    assert blob_files(store) == set()


def test_E8_nothing_of_an_older_copy_in_the_place_of_the_store_is_removed(store: Store, tmp_path: Path) -> None:
    first = commit(store, sample(1))
    shutil.copytree(store.url, tmp_path / "copy")
    append(store, Remove(first, "retention", 0))
    collect(store)
    Path(store.url).rename(tmp_path / "newer")
    (tmp_path / "copy").rename(store.url)
    before = {path.relative_to(store.url) for path in Path(store.url).rglob("*")}
    with pytest.raises(StoreAway, match="holds an older copy of that store"):
        collect(store)
    assert {path.relative_to(store.url) for path in Path(store.url).rglob("*")} == before
    assert Store.open(store.url).load(first) == sample(1)
