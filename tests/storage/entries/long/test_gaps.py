"""A file far beyond the end of a log: every reader names the gap without trying all missing positions (E14)."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.storage import stranger
from tests.storage.random_logs import checkpointed_store
from tests.storage.samples import commit, sample

from strobe.errors import StoreCorrupt, StoreError
from strobe.storage import Store
from strobe.storage.entries import gaps
from strobe.storage.entries.gaps import GAP_MAX, Gap, gap_at, near
from strobe.storage.entries.log_file import entry_name
from strobe.storage.log.follower import Follower
from strobe.storage.store.optimistic_append import begin_term
from strobe.storage.store.repair import examine, fence_off

FAR = (900_000_000_000, 10**20 - 1)
DEADLINE_S = 60


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """A reader that tries every missing position fails here, instead of running forever."""

    def late(*_: object) -> None:
        raise AssertionError(f"it goes on after {DEADLINE_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(DEADLINE_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    made = Store.create(tmp_path / "store")
    for counter in (1, 2, 3):
        commit(made, sample(counter))
    return Path(made.url)


@pytest.fixture
def checkpointed(tmp_path: Path) -> Path:
    return checkpointed_store(tmp_path / "checkpointed", 3, 40, 7)


def follow(store: Path) -> object:
    return Follower(store).advance()


def follow_all_entries(store: Path) -> object:
    return Follower(store, checkpoints=False).advance()


READERS: list[Callable[[Path], object]] = [
    lambda store: Store.open(store).list(),
    follow,
    follow_all_entries,
    lambda store: begin_term(Store.open(store), "here", 1),
    lambda store: stranger.complete_snapshots(store),
]


@pytest.mark.parametrize("far", FAR)
def test_E14_every_reader_names_a_gap_of_any_length(store: Path, far: int) -> None:
    (store / entry_name(far)).write_bytes(b"")
    before = sorted((store / "log").iterdir())
    for read in READERS:
        with pytest.raises((StoreError, stranger.Wrong), match=r"entries 6 to [0-9,]+(: | are )missing"):
            read(store)
    (problem,) = Store.open(store).verify_bytes()
    assert problem.place == entry_name(6)
    (finding,) = examine(Store.open(store).backend).open
    assert (finding.position, finding.last) == (6, far - 1)
    assert sorted((store / "log").iterdir()) == before


@pytest.mark.parametrize("far", FAR)
def test_E14_a_gap_above_a_checkpoint_is_named_too(checkpointed: Path, far: int) -> None:
    (checkpointed / entry_name(far)).write_bytes(b"")
    for read in READERS[2:]:
        with pytest.raises((StoreError, stranger.Wrong), match=r"entries 40 to [0-9,]+(: | are )missing"):
            read(checkpointed)
    (problem,) = Store.open(checkpointed).verify_bytes()
    assert problem.place == entry_name(40)
    (finding,) = examine(Store.open(checkpointed).backend).open
    assert (finding.position, finding.last) == (40, far - 1)
    # These do not list all names, and do not try all positions either.
    assert Store.open(checkpointed).state().next_position == 40
    assert Follower(checkpointed).advance() == 40


def test_a_fenced_off_gap_of_the_maximum_length_is_skipped(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries in the gap were lost; those after it count."""
    longest = 12
    monkeypatch.setattr(gaps, "GAP_MAX", longest)
    opened = Store.open(store)
    for number in range(longest + 2):
        begin_term(opened, f"here {number}", 1)
    end = opened.state().next_position
    for position in range(6, 6 + longest):
        (store / entry_name(position)).unlink()
    with pytest.raises(StoreCorrupt, match="entries 6 to 17 are missing, though later entries exist"):
        Store.open(store).list()
    assert len(Store.open(store).verify_bytes()) == 1
    follower = Follower(store)
    assert follower.advance() == end
    assert [one.position for one in follower.between(6, end)] == list(range(6, 6 + longest))
    finding = fence_off(opened.backend, 6, "lost", 1)
    assert (finding.position, finding.last) == (6, 5 + longest)
    assert len(Store.open(store).list()) == 3
    assert Store.open(store).verify_bytes() == []
    follower = Follower(store)
    follower.advance()
    assert len(follower.between(0, follower.end)) == 3
    assert len(stranger.complete_snapshots(store)) == 3


def test_a_gap_is_found_from_the_existing_names(store: Path) -> None:
    backend = Store.open(store).backend
    assert gap_at(backend, 6) is None
    assert gap_at(backend, 3) is None
    (store / entry_name(9)).write_bytes(b"")
    assert gap_at(backend, 6) == Gap(6, 9)
    assert near([0, 1, 2, 3 + GAP_MAX, 4 + 2 * GAP_MAX, 9 * GAP_MAX], 1) == [1, 2, 3 + GAP_MAX, 4 + 2 * GAP_MAX]
