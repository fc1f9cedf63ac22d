"""A log that has lost its newest entries is recognised by later blobs and checkpoints, and not continued (S1)."""

import shutil
from pathlib import Path

import pytest
from tests.storage.samples import begin, commit, sample

from strobe.errors import LogReplaced, StoreAway, StoreCorrupt, StoreError
from strobe.protocol.values.log_entries import Abort, Pin, Remove
from strobe.storage import CommitStep, Store, collect
from strobe.storage.checkpoints.checkpoint_files import newest_first
from strobe.storage.entries.log_file import entry_name
from strobe.storage.files.commit_steps import ENTRY_STEPS
from strobe.storage.log.log_end import leftovers, require_entry
from strobe.storage.store.optimistic_append import begin_term
from strobe.storage.store.repair import examine

SNAPSHOTS = 4


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.create(tmp_path / "store")
    for counter in range(1, SNAPSHOTS + 1):
        commit(made, sample(counter, balance=counter))
    return made


def cut(store: Store, end: int) -> None:
    """Remove the entries from `end` on."""
    for path in sorted((Path(store.url) / "log").iterdir())[end:]:
        path.unlink()


def pin(store: Store) -> None:
    store.append(Pin("000001-00000001-coordinator", True, 0), store.state().next_position)


@pytest.mark.parametrize("end", range(0, 2 * SNAPSHOTS, 2))
def test_S1_a_log_without_its_newest_entries_is_not_continued(store: Store, end: int) -> None:
    cut(store, end)
    for write in (pin, lambda opened: begin_term(opened, "here", 0), lambda opened: begin(opened, 9)):
        with pytest.raises(StoreCorrupt, match=f"the log ends before entry {end}, .* the newest entries are missing"):
            write(Store.open(store.url))
    assert len(list((Path(store.url) / "log").iterdir())) == end
    assert examine(store.backend).missing
    found = [problem.place for problem in store.verify_bytes()]
    assert found == [f"blobs/{position:020d}" for position in range(end, 2 * SNAPSHOTS, 2)]


@pytest.mark.parametrize("empty", [False, True])
def test_S1_a_store_that_lost_its_log_does_not_begin_from_nothing(store: Store, empty: bool) -> None:
    log = Path(store.url) / "log"
    shutil.rmtree(log)
    if empty:
        log.mkdir()
    for opened in (Store.open(store.url), Store.open_or_create(store.url)):
        with pytest.raises(StoreCorrupt, match="the log ends before entry 0"):
            begin_term(opened, "here", 0)
    with pytest.raises(StoreCorrupt, match="is missing"):  # neither does a writer that has read it before
        store.append(Abort("000001-00000009-coordinator", "", 0), 2 * SNAPSHOTS)
    assert not list(log.glob("*"))


@pytest.mark.parametrize("step", [CommitStep.ENTRY_OPENED, CommitStep.ENTRY_SYNCED])
def test_S1_a_log_replaced_during_an_append_gets_no_entry(store: Store, tmp_path: Path, step: CommitStep) -> None:
    """S1: an entry alone in a new directory would be continued there, and be lost when the real one is back."""
    log, away = Path(store.url) / "log", tmp_path / "away"

    def replace(taken: CommitStep, name: str) -> None:
        if taken is step:
            log.rename(away)
            log.mkdir()

    list(store.read_log())
    store.on_step = replace
    with pytest.raises(StoreCorrupt, match="is missing after it had been read"):
        pin(store)
    assert not list(log.iterdir())
    store.on_step = None
    log.rmdir()
    away.rename(log)
    pin(store)
    assert len(list(log.iterdir())) == 2 * SNAPSHOTS + 1


def test_S1_a_log_replaced_after_the_check_of_its_end_gets_no_entry(store: Store, tmp_path: Path) -> None:
    """S1: the entry is created in the directory whose end was checked, or not at all."""
    log, away = Path(store.url) / "log", tmp_path / "away"
    disk = store.backend

    def check() -> None:
        assert disk.size(entry_name(2 * SNAPSHOTS - 1))
        log.rename(away)
        log.mkdir()

    with pytest.raises(StoreError, match="the directory log was replaced just now"):
        disk.create(entry_name(2 * SNAPSHOTS), [b"x"], ENTRY_STEPS, check)
    assert not list(log.iterdir())
    assert len(list(away.iterdir())) == 2 * SNAPSHOTS


def test_a_checkpoint_shows_that_newest_entries_are_missing(tmp_path: Path) -> None:
    store = Store(Store.create(tmp_path / "store").backend, checkpoint_every=4)
    for term in range(8):
        begin_term(store, f"here {term}", 0)
        store.write_checkpoint()
    newest = newest_first(store.backend)[0]
    cut(store, 6)
    with pytest.raises(StoreCorrupt, match=rf"the log ends before entry 6, but {newest} .* after entry 7"):
        begin_term(Store.open(store.url), "here", 0)
    (tmp_path / "store" / newest).unlink()
    assert begin_term(Store.open(store.url), "here", 0) == 7


def test_a_copy_works_once_the_files_named_by_the_error_are_removed(store: Store) -> None:
    cut(store, 4)
    with pytest.raises(StoreCorrupt) as refused:
        begin_term(Store.open(store.url), "here", 0)
    for position in (4, 6):
        assert str(refused.value).count(f"blobs/{position:020d}") == 2
        shutil.rmtree(Path(store.url) / f"blobs/{position:020d}")
    again = Store.open(store.url)
    assert begin_term(again, "here", 0) == 1
    assert again.verify_bytes() == []


def test_entries_of_another_writer_are_no_loss(store: Store) -> None:
    follower = Store.open(store.url)
    end = follower.state().next_position
    commit(Store.open(store.url), sample(7))
    assert leftovers(follower.backend, end) == []
    begin_term(follower, "here", 0)


def test_no_step_of_a_writer_looks_like_a_loss(store: Store) -> None:
    ends = list(range(2 * SNAPSHOTS + 1))
    steps: list[CommitStep] = []

    def check(step: CommitStep, name: str) -> None:
        steps.append(step)
        assert [leftovers(store.backend, end) for end in ends] == [[]] * len(ends)

    writer = Store(Store.open(store.url, on_step=check).backend, checkpoint_every=2)
    commit(writer, sample(8))
    writer.write_checkpoint()
    assert CommitStep.CHECKPOINT_DURABLE in steps


def test_collected_files_are_no_loss(store: Store) -> None:
    for complete in list(store.state().committed):
        store.append(Remove(complete, "retention", 0), store.state().next_position)
    collect(store)
    assert examine(store.backend).missing == ""
    begin_term(Store.open(store.url), "here", 0)


def test_of_many_leftovers_the_first_few_are_named(store: Store) -> None:
    cut(store, 0)
    with pytest.raises(StoreCorrupt, match=r"blobs/0{19}0, blobs/0{19}2, blobs/0{19}4 and 1 more can only"):
        begin_term(Store.open(store.url), "here", 0)


def diverged(store: Store, more: int) -> tuple[Store, Path]:
    """Return the store of a coordinator that led on a copy of `store`, and the real one with `more` entries beyond
    it.
    """
    root = Path(store.url)
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    begin_term(store, "the real one", 0)
    for _ in range(more):
        pin(store)
    root.rename(root.with_name("real"))
    copy.rename(root)
    led = Store.open(root)
    begin_term(led, "on a copy", 0)
    shutil.rmtree(root)
    root.with_name("real").rename(root)
    return led, root


def test_S1_a_coordinator_that_finds_another_longer_log_ends(store: Store) -> None:
    led, root = diverged(store, 3)
    with pytest.raises(LogReplaced, match="differs from the one that this coordinator read"):
        list(led.read_log(led.known.next_position))
    assert begin_term(Store.open(root), "again", 0) == 2


def test_S1_a_coordinator_waits_if_the_other_log_is_not_longer(store: Store) -> None:
    led, root = diverged(store, 0)
    assert list(led.read_log(led.known.next_position)) == []
    with pytest.raises(StoreCorrupt, match="as in an older copy of the store"):
        pin(led)
    assert begin_term(Store.open(root), "again", 0) == 2


def test_S1_a_damaged_entry_is_not_taken_for_another_log(store: Store) -> None:
    begin_term(store, "here", 0)
    end = store.state().next_position
    pin(Store.open(store.url))
    path = Path(store.url) / entry_name(end)
    path.write_bytes(path.read_bytes().replace(b'"pinned":true', b'"pinned":null'))
    with pytest.raises(StoreCorrupt, match="do not match"):
        list(store.read_log(end))


def test_S1_a_store_without_an_entry_that_was_known_is_an_older_copy(store: Store) -> None:
    identity = store.header.store
    known = store.entry_ref(store.state().next_position - 1)
    require_entry(store.backend, identity, known)
    cut(store, known.position)
    with pytest.raises(StoreAway, match="holds an older copy of that store"):
        require_entry(store.backend, identity, known)
    shutil.rmtree(Path(store.url) / "blobs")
    pin(Store.open(store.url))
    with pytest.raises(
        StoreAway, match=r"is another entry \(put the newer one back; or, to continue from what is there"
    ):
        require_entry(store.backend, identity, known)
    pin(Store.open(store.url))
    with pytest.raises(LogReplaced):  # a longer log: the known entry may have been that of a copy
        require_entry(store.backend, identity, known)
