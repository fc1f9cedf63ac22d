"""Appending to the log and reading it: one writer per position, gaps and replacements found, incremental reading."""

from pathlib import Path

import pytest
from tests.storage.samples import sample_id

from strobe.errors import LogConflict, StoreCorrupt, StoreError
from strobe.protocol.values.log_entries import Abort, EpochStart
from strobe.storage import CommitStep, Store
from strobe.storage.entries.log_file import entry_name


def entry(number: int) -> Abort:
    return Abort(str(sample_id(number)), "entry", number)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


@pytest.fixture
def filled(store: Store) -> Store:
    for position in range(5):
        store.append(entry(position), position)
    return store


def path_of(store: Store, position: int) -> Path:
    return Path(store.url) / entry_name(position)


def test_appended_entries_are_read_from_any_start(filled: Store) -> None:
    everything = [(position, entry(position)) for position in range(5)]
    for reader in (filled, Store.open(filled.url)):
        for start in (3, 0, 5, 9):
            assert list(reader.read_log(start)) == everything[start:]


def test_a_taken_position_is_a_conflict_for_every_writer(filled: Store) -> None:
    behind = Store.open(filled.url)
    assert len(list(behind.read_log())) == 5
    filled.append(entry(5), 5)
    for writer, position in ((filled, 5), (behind, 5), (behind, 2), (Store.open(filled.url), 0)):
        with pytest.raises(LogConflict) as caught:
            writer.append(entry(9), position)
        assert caught.value.position == position
    behind.append(entry(6), 6)
    assert [number for number, _ in filled.read_log()] == list(range(7))


def test_a_position_beyond_the_end_is_refused(filled: Store) -> None:
    with pytest.raises(LogConflict, match="the log ends before entry 5"):
        filled.append(entry(9), 6)
    assert not path_of(filled, 6).exists()


def test_reading_further_finds_entries_of_other_writers(filled: Store) -> None:
    other = Store.open(filled.url)
    other.append(EpochStart(2, 0), 5)
    assert filled.state().epoch == 2
    assert list(filled.read_log(5)) == [(5, EpochStart(2, 0))]


def test_reading_on_opens_only_new_entries(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.state()
    opened: list[str] = []
    read = type(filled.backend).read
    monkeypatch.setattr(type(filled.backend), "read", lambda disk, name: opened.append(name) or read(disk, name))
    filled.state()
    assert opened == [entry_name(5)]


@pytest.mark.parametrize("missing", range(4))
def test_a_gap_is_named_and_not_taken_for_the_end(filled: Store, missing: int) -> None:
    path_of(filled, missing).unlink()
    for reader in (filled, Store.open(filled.url)):
        with pytest.raises(StoreCorrupt, match=f"{entry_name(missing)}: is missing"):
            list(reader.read_log())


def test_a_first_reader_finds_a_wide_gap(filled: Store) -> None:
    for missing in (2, 3):
        path_of(filled, missing).unlink()
    with pytest.raises(StoreCorrupt, match=entry_name(2)):
        Store.open(filled.url).state()


def test_entries_before_the_damage_are_still_read(filled: Store) -> None:
    path_of(filled, 3).write_bytes(b"garbage")
    seen = []
    with pytest.raises(StoreCorrupt, match=entry_name(3)):
        seen.extend(position for position, _ in Store.open(filled.url).read_log())
    reader = Store.open(filled.url).read_log()
    assert [next(reader)[0] for _ in range(3)] == [0, 1, 2]


def test_an_entry_replaced_after_it_was_read_is_named(filled: Store, tmp_path: Path) -> None:
    other = Store.create(tmp_path / "other", identity=filled.header.store)
    for position in range(5):
        other.append(entry(position + 100), position)
    path_of(filled, 4).write_bytes(path_of(other, 4).read_bytes())
    with pytest.raises(StoreCorrupt, match=entry_name(4)):
        filled.append(entry(5), 5)
    with pytest.raises(StoreCorrupt, match=entry_name(4)):
        list(filled.read_log())


def test_a_whole_log_replaced_by_that_of_another_store_is_found(filled: Store, tmp_path: Path) -> None:
    other = Store.create(tmp_path / "other")
    for position in range(5):
        other.append(entry(position), position)
        path_of(filled, position).write_bytes(path_of(other, position).read_bytes())
    with pytest.raises(StoreCorrupt, match=r"does not follow the header"):
        Store.open(filled.url).state()


def test_a_log_truncated_after_it_was_read_is_not_continued(filled: Store) -> None:
    path_of(filled, 4).unlink()
    with pytest.raises(StoreCorrupt, match=f"{entry_name(4)}: is missing"):
        filled.append(entry(5), 5)


def test_after_a_crash_between_link_and_sync_the_entry_counts(store: Store) -> None:
    class Crashed(Exception):
        pass

    def crash(step: CommitStep, name: str) -> None:
        if step is CommitStep.ENTRY_LINKED:
            raise Crashed

    crashing = Store.open(store.url, on_step=crash)
    with pytest.raises(Crashed):
        crashing.append(entry(0), 0)
    with pytest.raises(LogConflict):
        crashing.append(entry(0), 0)
    assert list(crashing.read_log()) == [(0, entry(0))]


def test_a_directory_in_the_place_of_an_entry_is_an_error_not_a_crash(filled: Store) -> None:
    path_of(filled, 5).mkdir()
    with pytest.raises(StoreError, match=entry_name(5)):
        filled.state()
