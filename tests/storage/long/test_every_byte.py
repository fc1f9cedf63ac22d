"""S2: if any byte of a store is changed, lost or added, the file is named."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.storage.samples import begin, commit, files_of, sample

from strobe.errors import StrobeError
from strobe.protocol.values.log_entries import Abort, Pin, Remove
from strobe.storage import LogState, Store, collect
from strobe.storage.content.blobs import blob_directory, blob_name
from strobe.storage.store import integrity


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A small store with every kind of file, including a blob of an aborted snapshot, and an open snapshot."""
    store = Store.create(tmp_path_factory.mktemp("bytes") / "store")
    name = commit(store, sample(1))
    aborted = begin(store, 2)
    store.write_blob(aborted, b"nobody needs this")
    store.append(Abort(aborted, "timed out", 1), store.state().next_position)
    store.append(Pin(name, True, 2), store.state().next_position)
    begin(store, 3, parent=name)
    store = Store.open(store.url, checkpoint_every=6)
    store.state()
    assert store.write_checkpoint() is not None
    assert store.verify_bytes() == []
    return store


@contextmanager
def damaged(path: Path, offset: int, data: bytes) -> Iterator[None]:
    """Overwrite bytes of a file in place, which is much faster than writing all of it, and restore them."""
    with path.open("r+b", buffering=0) as file:
        original = file.read()[offset : offset + len(data)]
        file.seek(offset)
        file.write(data)
        yield
        file.seek(offset)
        file.write(original)
        if len(original) < len(data):
            file.truncate()


def assert_named(store: Store, name: str, what: str) -> None:
    assert {problem.place for problem in store.verify_bytes()} == {name}, what


def test_a_flipped_bit_in_any_byte_of_any_file_is_named(store: Store) -> None:
    root = Path(store.url)
    for name, original in files_of(root).items():
        for offset in range(len(original)):
            # A different bit in each byte, so that every bit is tried. Another test tries all bits of an entry.
            with damaged(root / name, offset, bytes([original[offset] ^ 1 << (offset % 8)])):
                assert_named(store, name, f"{name}, byte {offset}")
    assert store.verify_bytes() == []


def test_a_file_truncated_anywhere_or_extended_is_named(store: Store) -> None:
    root = Path(store.url)
    for name, original in files_of(root).items():
        for addition in (b"\0", b"\n", b"}\n"):
            with damaged(root / name, len(original), addition):
                assert_named(store, name, f"{name} with {addition!r} added")
        for size in reversed(range(len(original))):
            os.truncate(root / name, size)
            assert_named(store, name, f"{name} with {size} bytes")
        (root / name).write_bytes(original)
    assert store.verify_bytes() == []


def test_a_missing_file_is_named(store: Store) -> None:
    root = Path(store.url)
    files = files_of(root)
    last_entry = max(name for name in files if name.startswith("log/"))
    unneeded = [name for name in files if name.startswith("blobs/00000000000000000002/")]
    assert len(unneeded) == 1
    # A collector may remove entries that a checkpoint replaces, but not commits.
    unneeded += [f"log/{position:020d}.json" for position in (0, 2, 3, 4)]
    # While all entries are there, a checkpoint is not needed either.
    unneeded += [name for name in files if name.startswith("checkpoints/") and name.endswith(".json")]
    for name in files.keys() - {last_entry, *unneeded}:
        (root / name).rename(root / "tmp" / "elsewhere")
        assert_named(store, name, name)
        (root / "tmp" / "elsewhere").rename(root / name)


def test_entries_that_changed_places_are_named(store: Store) -> None:
    root = Path(store.url) / "log"
    one, two = root / "00000000000000000001.json", root / "00000000000000000002.json"
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    assert {problem.place for problem in store.verify_bytes()} == {f"log/{one.name}", f"log/{two.name}"}
    one.write_bytes(first)
    two.write_bytes(second)


def test_loading_names_damage_to_the_files_of_a_snapshot(store: Store) -> None:
    root = Path(store.url)
    unneeded = ("blobs/00000000000000000002/", "checkpoints/")  # without a checkpoint, the entries are read
    needed = [name for name in files_of(root) if not name.startswith(unneeded)]
    (root / "checkpoints").rename(root.with_name("checkpoints"))
    for name in needed:
        original = (root / name).read_bytes()
        changed = bytes([original[-1] ^ 4])
        with damaged(root / name, len(original) - 1, changed), pytest.raises(StrobeError, match=name):
            Store.open(root).load("latest")
    assert Store.open(root).load("latest") == sample(1)
    root.with_name("checkpoints").rename(root / "checkpoints")


def test_foreign_files_are_named_except_in_tmp(store: Store) -> None:
    root = Path(store.url)
    foreign = ["notes.txt", "log/notes.txt", "blobs/notes.txt", "blobs/00000000000000000000/notes.txt"]
    foreign.append("checkpoints/notes.txt")
    for name in (*foreign, "tmp/unfinished"):
        (root / name).write_bytes(b"?")
    assert {problem.place for problem in store.verify_bytes()} == set(foreign)
    for name in (*foreign, "tmp/unfinished"):
        (root / name).unlink()


def test_a_snapshot_taken_while_the_store_is_verified_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.create(tmp_path / "store")
    removed = commit(store, sample(1))
    check_log = integrity._check_log

    def check_log_slowly(*arguments: Any) -> LogState | None:
        state = check_log(*arguments)
        commit(store, sample(2))
        return state

    def collect_first(*arguments: Any) -> LogState | None:
        store.append(Remove(removed, "retention", 0), store.state().next_position)
        collect(store)
        return check_log(*arguments)

    for interruption in (check_log_slowly, collect_first):
        monkeypatch.setattr(integrity, "_check_log", interruption)
        assert Store.open(store.url).verify_bytes() == []


def test_E8_files_removed_during_verification_are_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.create(tmp_path / "store")
    removed, kept = commit(store, sample(1)), commit(store, sample(2, balance=5))
    lost = blob_name(store.state().committed[kept].manifest.processes["a"].state)
    (tmp_path / "store" / lost).unlink()
    check_log = integrity._check_log

    def remove_after(*arguments: Any) -> LogState | None:
        state = check_log(*arguments)
        if removed in store.state().committed:
            store.append(Remove(removed, "retention", 0), store.state().next_position)
            assert len(collect(store).names) == 5
        return state

    monkeypatch.setattr(integrity, "_check_log", remove_after)
    assert_named(Store.open(store.url), lost, "and nothing of what was removed")


def test_E8_a_directory_emptied_by_retention_is_not_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.create(tmp_path / "store")
    commit(store, sample(1))
    emptied = tmp_path / "store" / blob_directory(1)
    emptied.mkdir()
    checked: list[str] = []
    is_directory = store.backend.is_directory

    def check_late(name: str) -> bool:
        if name in checked and emptied.exists():  # not when blobs are listed, but when foreign files are searched
            emptied.rmdir()
        checked.append(name)
        return is_directory(name)

    monkeypatch.setattr(store.backend, "is_directory", check_late)
    assert store.verify_bytes() == []
    assert not emptied.exists()


def test_blobs_show_that_a_log_lost_its_newest_entries(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    name = commit(store, sample(1))
    commit(store, sample(2, balance=5), parent=name)
    for position in (2, 3):
        (tmp_path / "store" / "log" / f"{position:020d}.json").unlink()
    (problem,) = Store.open(store.url).verify_bytes()
    assert problem.place == "blobs/00000000000000000002"
    assert "newest entries are lost" in problem.problem
