"""An unreadable entry stops every reader until it is fenced off; a valid one stays in effect forever."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.storage import stranger
from tests.storage.samples import commit, sample

from strobe.errors import StoreCorrupt, StoreFormatError, UsageError
from strobe.protocol.values.log_entries import Begin, Fence
from strobe.storage import Store
from strobe.storage.entries.log_file import entry_name
from strobe.storage.files.checksummed_json import UNSEALED, seal, stated_checksum
from strobe.storage.log.follower import Follower
from strobe.storage.store.repair import UNKNOWN, examine, fence_off

POISON = f"000001-{2**64 - 1}-a"
"""An id that an older version took from a lying node and wrote."""


def poison(store: Store) -> int:
    """Append a begin that stops every coordinator; return its position."""
    position = store.state().next_position
    before = Path(store.url, entry_name(position - 1)).read_bytes()
    begin = {
        "type": "begin",
        "snapshot": POISON,
        "view": 1,
        "protocol": "chandy-lamport",
        "initiators": ["a"],
        "at_us": 1,
    }
    document = {"blake3": UNSEALED, "position": position, "previous": stated_checksum(before), "entry": begin}
    raw, _ = seal(msgspec.json.encode(document) + b"\n")
    Path(store.url, entry_name(position)).write_bytes(raw)
    return position


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.create(tmp_path / "store")
    for counter in (1, 2, 3):
        commit(made, sample(counter))
    return made


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[100] ^= 1
    path.write_bytes(raw)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


DAMAGES: list[Callable[[Path], None]] = [flip, cut, Path.unlink]
BEGIN, COMMIT = 2, 3
"""The entries of the second snapshot."""


def names(store: Store) -> list[str]:
    return [name for _, name, _ in Store.open(store.url).list()]


def readers_agree(store: Store) -> list[str]:
    """Check that all readers find the same snapshots; return these."""
    found = names(store)
    follower = Follower(store.url)
    follower.advance()
    followed = follower.between(0, follower.end)
    assert [one.snapshot_id for one in followed] == found
    assert list(stranger.complete_snapshots(Path(store.url))) == found
    assert not [problem for problem in Store.open(store.url).verify_bytes() if problem.place.startswith("log/")]
    return found


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("position", [BEGIN, COMMIT])
def test_a_fence_makes_a_log_readable_again(store: Store, damage: Callable[[Path], None], position: int) -> None:
    before = names(store)
    damage(Path(store.url, entry_name(position)))
    with pytest.raises(StoreCorrupt, match="strobe store repair"):
        names(store)
    with pytest.raises(stranger.Wrong):
        stranger.complete_snapshots(Path(store.url))
    finding = fence_off(store.backend, position, "it is lost", 5)
    assert finding.lost == UNKNOWN or "snapshot" in finding.lost
    assert readers_agree(store) == [before[0], before[2]]
    assert examine(store.backend).open == ()
    later = Store.open(store.url)
    commit(later, sample(4))
    assert len(readers_agree(store)) == 3


def test_a_poisoned_begin_is_refused_and_can_be_fenced_off(store: Store) -> None:
    before = names(store)
    position = poison(store)
    with pytest.raises(StoreFormatError, match=r"beyond 9223372036854775807.*strobe store repair"):
        names(store)
    found = examine(store.backend).open
    assert [one.position for one in found] == [position]
    assert POISON in found[0].lost
    fence_off(store.backend, position, "a node has lied", 5)
    assert readers_agree(store) == before


def test_the_last_entry_can_be_fenced_off_and_the_log_continues(store: Store) -> None:
    last = store.state().next_position - 1
    cut(Path(store.url, entry_name(last)))
    fence_off(store.backend, last, "cut short", 5)
    commit(Store.open(store.url), sample(5))
    assert len(readers_agree(store)) == 3


def test_several_bad_entries_are_fenced_off_one_by_one(store: Store) -> None:
    for position in (BEGIN, COMMIT):
        flip(Path(store.url, entry_name(position)))
    fence_off(store.backend, BEGIN, "one", 5)
    assert [one.position for one in examine(store.backend).open] == [COMMIT]
    with pytest.raises(StoreCorrupt, match=entry_name(COMMIT)):
        names(store)
    fence_off(store.backend, COMMIT, "two", 6)
    assert len(readers_agree(store)) == 2


def test_a_valid_entry_cannot_be_fenced_off(store: Store) -> None:
    with pytest.raises(UsageError, match="is valid, and stays in effect"):
        fence_off(store.backend, COMMIT, "I do not like it", 5)
    with pytest.raises(UsageError, match="there is no entry 99"):
        fence_off(store.backend, 99, "it is not there", 5)
    # A fence for a valid entry has no effect, even if somebody writes one.
    before = readers_agree(store)
    store.append(Fence(COMMIT, "", "forged", 5), store.state().next_position)
    assert readers_agree(store) == before


def test_a_fence_is_for_the_bytes_that_were_there(store: Store) -> None:
    path = Path(store.url, entry_name(COMMIT))
    good = path.read_bytes()
    flip(path)
    fence_off(store.backend, COMMIT, "damaged", 5)
    assert len(names(store)) == 2
    cut(path)
    with pytest.raises(StoreCorrupt):
        names(store)
    path.write_bytes(good)
    assert len(names(store)) == 3, "the file was put back from a copy"


def test_the_examination_of_an_intact_store_finds_nothing(store: Store) -> None:
    assert examine(store.backend).findings == ()
    store.append(Begin("000001-00000009-a", 1, "chandy-lamport", ("a",), 1), store.state().next_position)
    assert examine(store.backend).entries == store.state().next_position
