"""Blobs: shared with children only, verified when read, mapped when large."""

from pathlib import Path

import pytest
from tests.storage.samples import begin, commit, large_blob_removed_after_its_size_was_read, sample

from strobe.errors import SnapshotCorrupt, StoreCorrupt
from strobe.protocol.values.log_entries import Abort
from strobe.storage import CommitStep, Store, collect
from strobe.storage.content.blobs import blob_name
from strobe.storage.content.manifests import blobs_of
from strobe.storage.files import disk
from strobe.storage.files.backend import MAPPED_BYTES_MIN


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def blob_files(store: Store) -> set[str]:
    return {path.relative_to(store.url).as_posix() for path in Path(store.url).glob("blobs/*/*")}


def test_a_blob_is_read_back_unchanged(store: Store) -> None:
    name = begin(store, 1)
    for data in (b"", b"small", memoryview(b"a view")[2:], bytes(MAPPED_BYTES_MIN), b"x" * (3 * MAPPED_BYTES_MIN + 1)):
        assert store.read_blob(store.write_blob(name, data)) == data


def test_a_large_blob_is_mapped_read_only(store: Store) -> None:
    view = store.read_blob(store.write_blob(begin(store, 1), bytes(MAPPED_BYTES_MIN)))
    assert view.readonly
    assert type(view.obj).__name__ == "mmap"


def test_a_large_blob_removed_after_its_size_was_read_is_missing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = large_blob_removed_after_its_size_was_read(store, monkeypatch)
    with pytest.raises(StoreCorrupt, match=f"{ref.blake3}: is missing"):
        store.read_blob(ref)


def test_equal_bytes_in_one_snapshot_are_one_file(store: Store) -> None:
    name = begin(store, 1)
    assert store.write_blob(name, b"same") == store.write_blob(name, b"same")
    assert len(blob_files(store)) == 1


def test_a_child_shares_its_parents_blobs_in_place(store: Store) -> None:
    first = commit(store, sample(1))
    before = blob_files(store)
    commit(store, sample(2), parent=first)
    assert blob_files(store) == before
    third = commit(store, sample(3, balance=7), parent=str(sample(2).id))
    assert len(blob_files(store) - before) == 2
    manifest = store.state().committed[third].manifest
    assert {ref.begin for ref in blobs_of(manifest)} == {0, 4}
    assert store.load(third) == sample(3, balance=7)


def test_without_a_parent_nothing_is_shared(store: Store) -> None:
    commit(store, sample(1))
    before = blob_files(store)
    commit(store, sample(2))
    assert len(blob_files(store)) == 2 * len(before)


def test_a_blob_of_an_aborted_snapshot_is_never_shared(store: Store) -> None:
    aborted = begin(store, 1)
    store.write_blob(aborted, b"the same bytes")
    store.append(Abort(aborted, "no", 0), 1)
    ref = store.write_blob(begin(store, 2), b"the same bytes")
    assert ref.begin == 2
    assert len(blob_files(store)) == 2


def test_a_parents_missing_or_short_blob_is_written_again(store: Store) -> None:
    first = commit(store, sample(1))
    manifest = store.state().committed[first].manifest
    missing, short = manifest.processes["a"].state, manifest.processes["b"].state
    (Path(store.url) / blob_name(missing)).unlink()
    (Path(store.url) / blob_name(short)).write_bytes(b"")
    second = commit(store, sample(2), parent=first)
    assert store.load(second) == sample(2)


def test_a_second_try_of_the_same_snapshot_finds_its_own_blobs(store: Store) -> None:
    begin(store, 1)
    assert store.write_snapshot(sample(1)) == Store.open(store.url).write_snapshot(sample(1))


def test_a_blob_written_piece_by_piece_is_the_one_written_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "WRITTEN_BYTES", 1000)
    name = begin(store, 1)
    pieces = [bytes([number]) * 99 for number in range(50)]
    writer = store.blobs.open(0)
    for piece in pieces:
        writer.write(piece)
    written = writer.finish()
    store.blobs.sync(0)
    assert store.read_blob(written) == b"".join(pieces)
    assert store.write_blob(name, b"".join(pieces)) == written
    writer.abandon()
    again = store.blobs.open(0)
    again.write(memoryview(b"".join(pieces)))
    assert again.finish() == written
    assert list((Path(store.url) / "tmp").iterdir()) == []


def test_pieces_may_be_hashed_ahead_but_not_left_out(store: Store) -> None:
    begin(store, 1)
    pieces = [b"one", b"two", b"three"]
    writer, hasty = store.blobs.open(0), store.blobs.open(0)
    for piece in pieces:
        writer.hash(piece)
        hasty.hash(piece)
    for piece in pieces:
        writer.append(piece)
    assert store.read_blob(writer.finish()) == b"onetwothree"
    hasty.append(pieces[0])
    with pytest.raises(AssertionError, match="appended"):
        hasty.finish()
    hasty.abandon()


def test_an_abandoned_blob_leaves_no_file_and_an_open_one_is_kept(store: Store) -> None:
    writer = store.blobs.open(0)
    writer.write(b"some of it")
    assert collect(store).names == ()
    writer.abandon()
    writer.abandon()
    assert list((Path(store.url) / "tmp").iterdir()) == []
    assert blob_files(store) == set()


def test_a_blob_written_piece_by_piece_goes_through_the_steps_of_a_commit(store: Store) -> None:
    steps: list[tuple[CommitStep, str]] = []
    store.on_step = lambda step, name: steps.append((step, name.split("/")[0]))
    writer = store.blobs.open(0)
    writer.write(b"bytes")
    writer.finish()
    opened, *rest = list(CommitStep)[:4]
    assert steps == [(opened, "tmp"), *((step, "blobs") for step in rest)]


@pytest.mark.parametrize("size", [10, MAPPED_BYTES_MIN + 10])
def test_damage_is_named(store: Store, size: int) -> None:
    ref = store.write_blob(begin(store, 1), bytes(size))
    path = Path(store.url) / blob_name(ref)
    for data, problem in ((bytes(size - 1) + b"!", "do not match its name"), (b"", "has 0 bytes instead of")):
        path.write_bytes(data)
        with pytest.raises(StoreCorrupt, match=problem) as caught:
            store.read_blob(ref)
        assert caught.value.place == blob_name(ref)
    path.unlink()
    with pytest.raises(StoreCorrupt, match="is missing"):
        store.read_blob(ref)


def test_loading_a_snapshot_with_a_damaged_blob_names_both(store: Store) -> None:
    name = commit(store, sample(1))
    ref = store.state().committed[name].manifest.processes["c"].state
    (Path(store.url) / blob_name(ref)).write_bytes(b"?" * ref.bytes)
    with pytest.raises(SnapshotCorrupt, match=blob_name(ref)) as caught:
        store.load("latest")
    assert caught.value.snapshot_id == name
