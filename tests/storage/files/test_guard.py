"""A store that was opened and is no longer in its place: nothing is written there, and nothing is read from there."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.storage.samples import begin, commit, sample, sample_id

from strobe.errors import StoreFormatError, StoreMissing
from strobe.protocol.values.log_entries import EntryRef
from strobe.storage import Store, collect
from strobe.storage.store.retention import remove

AWAY = ("absent", "empty", "unused", "another", "file")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.create(tmp_path / "data" / "store")
    commit(made, sample(1))
    commit(made, sample(2, balance=7))
    begin(made, 3)
    return made


def take_away(store: Store, how: str) -> Path:
    """Move the store away, put what `how` says in its place, and return where the store is now."""
    place = Path(store.url)
    elsewhere = place.parent.parent / "elsewhere"
    shutil.move(place, elsewhere)
    if how == "absent":
        place.parent.rmdir()  # as with a mount point that disappears with its mount
    if how == "empty":
        place.mkdir()
    if how == "unused":
        (place / "log").mkdir(parents=True)
    if how == "another":
        another = Store.create(place)
        commit(another, sample(1, balance=55))
    if how == "file":
        place.write_text("?")
    return elsewhere


def bring_back(store: Store, elsewhere: Path) -> None:
    place = Path(store.url)
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(exist_ok=True)
    shutil.move(elsewhere, place)


def everything(directory: Path) -> dict[str, bytes | None]:
    """Return every name below `directory`, with the bytes of files."""
    found = directory.rglob("*")
    return {str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None for path in found}


def stream(store: Store) -> None:
    writer = store.blobs.open(4)
    try:
        writer.write(b"data")
        writer.finish()
    finally:
        writer.abandon()


WRITES: dict[str, Callable[[Store], object]] = {
    "append": lambda store: begin(store, 4),
    "write": lambda store: store.write_snapshot(sample(3, balance=9)),
    "blob": lambda store: store.blobs.write(4, [b"data"], {}),
    "stream": stream,
    "remove": lambda store: remove(store, str(sample_id(1)), "too old", 0),
    "collect": collect,
}
READS: dict[str, Callable[[Store], object]] = {
    "log": lambda store: store.state(),
    "snapshot": lambda store: store.load(str(sample_id(2))),
    "commit": lambda store: store.read_commit(EntryRef(1, "0" * 64)),
    "require": Store.require,
}


@pytest.mark.parametrize("how", AWAY)
@pytest.mark.parametrize("work", WRITES)
def test_nothing_is_written_while_the_store_is_not_in_its_place(store: Store, how: str, work: str) -> None:
    elsewhere = take_away(store, how)
    before = everything(elsewhere.parent)
    with pytest.raises(StoreMissing, match=store.header.store):
        WRITES[work](store)
    assert everything(elsewhere.parent) == before


@pytest.mark.parametrize("how", [how for how in AWAY if how not in ("another", "file")])
@pytest.mark.parametrize("work", READS)
def test_a_missing_store_is_not_reported_as_a_lost_file(store: Store, how: str, work: str) -> None:
    take_away(store, how)
    with pytest.raises(StoreMissing, match=store.header.store):
        READS[work](store)


def test_anything_else_at_the_path_of_the_store_is_named(store: Store) -> None:
    for how, message in (("absent", "does not exist"), ("empty", "is empty"), ("file", "is not a directory")):
        elsewhere = take_away(store, how)
        with pytest.raises(StoreMissing, match=f"{message}; the store with the identity {store.header.store} belongs"):
            store.require()
        bring_back(store, elsewhere)
    elsewhere = take_away(store, "another")
    other = Store.open(store.url).header.store
    with pytest.raises(StoreMissing, match=f"holds another store, with the identity {other}"):
        Store.open(store.url, identity=store.header.store)
    bring_back(store, elsewhere)
    assert Store.open(store.url, identity=store.header.store).header == store.header


@pytest.mark.parametrize("how", AWAY)
def test_work_continues_when_the_store_or_a_copy_is_back(store: Store, how: str) -> None:
    elsewhere = take_away(store, how)
    with pytest.raises(StoreMissing):
        begin(store, 4)
    if how == "another":  # from a backup: other files, but the same store
        shutil.copytree(elsewhere, elsewhere.with_name("copy"))
        elsewhere = elsewhere.with_name("copy")
    bring_back(store, elsewhere)
    commit(store, sample(4))
    assert Store.open(store.url).state().next_position == store.state().next_position == 7
    assert store.verify_bytes() == []


def test_a_store_that_is_back_at_the_next_check_is_not_missing(store: Store) -> None:
    """It is missing when a file is read, and back when the store itself is checked."""
    elsewhere = take_away(store, "absent")
    guard = store.backend.guard

    def come_back() -> None:
        if elsewhere.exists():
            bring_back(store, elsewhere)
        guard()

    store.backend.guard = come_back
    assert store.load(str(sample_id(2))).id == sample_id(2)


def test_opening_a_place_without_a_store_creates_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("absent/store", "empty"):
        with pytest.raises(StoreFormatError, match="make a store: `strobe up SYSTEM --create`"):
            Store.open(tmp_path / name)
    assert everything(tmp_path) == {"empty": None}
