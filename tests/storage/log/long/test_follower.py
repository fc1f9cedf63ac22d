"""Following the log: commits as they take effect, damage that is named and skipped, a store that goes and returns."""

from pathlib import Path

import msgspec
import pytest
from tests.spark.generate import good_snapshots
from tests.spark.stores import begin, commit, damage, store_with

from strobe.errors import StoreError
from strobe.protocol.values.fragment import Snapshot
from strobe.protocol.values.log_entries import Abort, Commit, EpochStart, Remove
from strobe.storage import Store
from strobe.storage.content.manifests import blobs_of
from strobe.storage.entries.log_file import decode_entry, decode_outline, encode_entry, entry_name
from strobe.storage.files.checksummed_json import UNSEALED, seal
from strobe.storage.log import follower as following
from strobe.storage.log.commit_reader import CommitReader
from strobe.storage.log.follower import Followed, Follower


def ids(followed: list[Followed]) -> list[str | None]:
    return [entry.snapshot_id for entry in followed]


def commit_anyway(store: Store, snapshot: Snapshot) -> None:
    """Append a commit that has no effect, as a writer would that has not read the newest entries."""
    earlier = store.list()[0][2]
    store.append(Commit(str(snapshot.id), earlier, at_us=1), store.state().next_position)


def test_commits_are_followed_as_they_come(tmp_path: Path) -> None:
    first, second, third = good_snapshots(1, 3)
    store = store_with(tmp_path / "store", [first])
    follower = Follower(store.url)
    assert follower.advance() == 2
    assert ids(follower.between(0, 2)) == [str(first.id)]
    assert follower.advance() == 2
    commit(store, second)
    begin(store, third)
    assert follower.advance() == 5
    assert ids(follower.between(2, 5)) == [str(second.id)]
    assert ids(follower.between(2, 3)) == []


def test_only_commits_that_took_effect_are_returned(tmp_path: Path) -> None:
    kept, aborted, stale, never = good_snapshots(2, 4)
    store = store_with(tmp_path / "store", [kept])
    begin(store, aborted)
    store.append(Abort(str(aborted.id), "timeout", at_us=1), store.state().next_position)
    commit_anyway(store, aborted)
    begin(store, stale)
    store.append(EpochStart(2, at_us=1), store.state().next_position)
    commit_anyway(store, stale)
    commit_anyway(store, never)
    commit_anyway(store, kept)
    follower = Follower(store.url)
    assert ids(follower.between(0, follower.advance())) == [str(kept.id)]


def test_D1_the_size_of_a_commit_is_that_of_its_entry_and_its_blobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work is distributed by size. A long entry is a task of its own, and is not examined further."""
    store = store_with(tmp_path / "store", good_snapshots(1, 1))
    (_, name, manifest), *_ = store.list()
    entry_bytes = (tmp_path / "store" / entry_name(store.state().committed[name].position)).stat().st_size
    (followed,) = followed_in(store)
    assert followed.bytes == entry_bytes + sum(ref.bytes for ref in blobs_of(manifest))
    monkeypatch.setattr(following, "_WEIGHED_BYTES_MAX", entry_bytes - 1)
    assert [one.bytes for one in followed_in(store)] == [entry_bytes]


def followed_in(store: Store) -> list[Followed]:
    follower = Follower(store.url)
    return follower.between(0, follower.advance())


def test_a_removed_snapshot_is_known_to_be_removed(tmp_path: Path) -> None:
    (kept, removed) = good_snapshots(3, 2)
    store = store_with(tmp_path / "store", [kept, removed])
    store.append(Remove(str(removed.id), "old", at_us=1), store.state().next_position)
    follower = Follower(store.url)
    follower.advance()
    assert [follower.is_removed(str(snapshot.id)) for snapshot in (kept, removed)] == [False, True]


@pytest.mark.parametrize("position", range(6))
def test_a_damaged_entry_is_named_and_the_others_count(tmp_path: Path, position: int) -> None:
    snapshots = list(good_snapshots(4, 3))
    store = store_with(tmp_path / "store", snapshots)
    damage(tmp_path / "store" / entry_name(position))
    follower = Follower(store.url)
    found = follower.between(0, follower.advance())
    (problem,) = (entry for entry in found if entry.problem)
    assert (problem.position, problem.snapshot_id) == (position, None)
    assert problem.problem is not None
    assert problem.problem.startswith(entry_name(position))
    # A damaged begin does not undo the snapshot: its blobs show where it began.
    lost = {str(snapshots[position // 2].id)} if position % 2 else set()
    assert [entry for entry in ids(found) if entry] == [str(s.id) for s in snapshots if str(s.id) not in lost]


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"blake3":"'])
def test_a_file_that_is_no_entry_is_named(tmp_path: Path, raw: bytes) -> None:
    store = store_with(tmp_path / "store", good_snapshots(5, 2))
    (tmp_path / "store" / entry_name(1)).write_bytes(raw)
    follower = Follower(store.url)
    assert [entry.problem is None for entry in follower.between(0, follower.advance())] == [False, True]


def test_an_entry_of_a_newer_kind_is_named_and_the_others_count(tmp_path: Path) -> None:
    """Its checksum is valid: a newer Strobe has written it, and its meaning is unknown."""
    store = store_with(tmp_path / "store", good_snapshots(5, 2))
    path = tmp_path / "store" / entry_name(1)
    document = msgspec.json.decode(path.read_bytes())
    newer, _ = seal(msgspec.json.encode(document | {"blake3": UNSEALED, "entry": {"type": "merge"}}) + b"\n")
    path.write_bytes(newer)
    follower = Follower(store.url)
    found, last = follower.between(0, follower.advance())
    assert found.problem is not None
    assert "a newer Strobe may have written it" in found.problem
    assert last.snapshot_id is not None


def test_a_missing_entry_is_named_and_the_later_ones_count(tmp_path: Path) -> None:
    snapshots = list(good_snapshots(6, 2))
    store = store_with(tmp_path / "store", snapshots)
    (tmp_path / "store" / entry_name(1)).unlink()
    follower = Follower(store.url)
    hole, last = follower.between(0, follower.advance())
    assert hole.problem is not None
    assert "is missing, though later entries exist" in hole.problem
    assert last.snapshot_id == str(snapshots[1].id)


def test_a_store_that_disappears_and_returns_is_still_followed(tmp_path: Path) -> None:
    first, second = good_snapshots(7, 2)
    store = store_with(tmp_path / "store", [first])
    follower = Follower(store.url)
    follower.advance()
    (tmp_path / "store").rename(tmp_path / "away")
    with pytest.raises(StoreError, match="is missing; put it back"):
        follower.advance()
    (tmp_path / "away").rename(tmp_path / "store")
    commit(store, second)
    assert ids(follower.between(2, follower.advance())) == [str(second.id)]


def test_another_store_in_its_place_is_refused(tmp_path: Path) -> None:
    (snapshot,) = good_snapshots(8, 1)
    follower = Follower(store_with(tmp_path / "store", [snapshot]).url)
    follower.advance()
    (tmp_path / "store").rename(tmp_path / "away")
    store_with(tmp_path / "store", [snapshot])
    with pytest.raises(StoreError, match="is another store"):
        follower.advance()


def test_a_log_that_lost_entries_already_read_is_not_followed(tmp_path: Path) -> None:
    store = store_with(tmp_path / "store", good_snapshots(9, 2))
    follower = Follower(store.url)
    follower.advance()
    (tmp_path / "store" / entry_name(3)).unlink()
    with pytest.raises(StoreError, match="is missing after it had been read"):
        follower.advance()


def test_a_commit_is_read_by_its_position_alone(tmp_path: Path) -> None:
    first, second = good_snapshots(10, 2)
    store = store_with(tmp_path / "store", [first, second])
    reader = CommitReader(store.url)
    assert reader.read_commit(3).manifest == store.list()[1][2]
    for position, problem in ((2, "cannot be read"), (4, "is missing")):
        with pytest.raises(StoreError, match=problem):
            reader.read_commit(position)


@pytest.mark.parametrize("term", [0, 7])
def test_an_outline_agrees_with_the_decoded_entry(tmp_path: Path, term: int) -> None:
    """The fast path to a commit's id, view and epoch agrees with the slow one, for entries of another layout."""
    store = store_with(tmp_path / "store", good_snapshots(11, 3))
    for position, entry in store.read_log():
        raw, _ = encode_entry(entry, position, "ab" * 32, term)
        outline, *others = decode_outline(raw, store.url, position, None)
        assert others == [*decode_entry(raw, store.url, position, None)[1:]]
        if isinstance(entry, Commit):
            assert isinstance(outline, Commit)
            assert outline.snapshot == entry.snapshot
            assert outline.manifest.epoch == entry.manifest.epoch
            assert outline.manifest.view.number == entry.manifest.view.number
            document = msgspec.json.decode(raw)
            document["entry"]["manifest"] = dict(reversed(document["entry"]["manifest"].items()))
            other, _ = seal(msgspec.json.encode(document | {"blake3": UNSEALED}) + b"\n")
            assert decode_outline(other, store.url, position, None).entry == msgspec.structs.replace(
                outline, at_us=entry.at_us
            )
        else:
            assert outline == entry
