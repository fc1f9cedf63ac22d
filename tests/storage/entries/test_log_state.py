"""The fold of the log: which entries count, and which have no effect (S1)."""

import pytest
from tests.storage.samples import VIEW, sample_id

from strobe.errors import SnapshotError, SnapshotIncomplete, SnapshotNotFound
from strobe.protocol.values.log_entries import (
    Abort,
    Begin,
    Commit,
    Entry,
    EpochStart,
    Manifest,
    Pin,
    Remove,
    ViewChange,
)
from strobe.protocol.values.view import View
from strobe.storage import LogState

A, B, C = (str(sample_id(counter)) for counter in (1, 2, 3))


def begin(snapshot: str, parent: str | None = None) -> Begin:
    return Begin(snapshot, 1, "chandy-lamport", ("a",), at_us=0, parent=parent)


def commit(snapshot: str, epoch: int = 1) -> Commit:
    return Commit(snapshot, Manifest("chandy-lamport", ("a",), VIEW, epoch, 0, 0, {}), at_us=0)


def fold(*entries: Entry) -> LogState:
    state = LogState()
    for position, entry in enumerate(entries):
        state.apply(position, entry)
    return state


def test_a_snapshot_is_open_from_its_begin_to_its_outcome() -> None:
    assert list(fold(begin(A)).open) == [A]
    committed = fold(begin(A), commit(A))
    assert not committed.open
    assert committed.committed[A].position == 1
    aborted = fold(begin(A), Abort(A, "timed out", 0))
    assert not aborted.open
    assert aborted.aborted == {A: "timed out"}


def test_the_first_outcome_wins() -> None:
    assert list(fold(begin(A), commit(A), Abort(A, "late", 0)).committed) == [A]
    assert fold(begin(A), commit(A), Abort(A, "late", 0)).aborted == {}
    assert fold(begin(A), Abort(A, "first", 0), commit(A)).committed == {}
    assert fold(begin(A), Abort(A, "first", 0), Abort(A, "second", 0)).aborted == {A: "first"}
    assert fold(begin(A), commit(A), commit(A)).committed[A].position == 1


def test_an_outcome_without_a_begin_has_no_effect() -> None:
    state = fold(commit(A), Abort(B, "what?", 0))
    assert (state.committed, state.aborted) == ({}, {})
    assert list(fold(commit(A), begin(A)).open) == [A]


def test_a_second_begin_has_no_effect() -> None:
    assert fold(begin(A), begin(A)).open[A].position == 0
    assert fold(begin(A), Abort(A, "over", 0), begin(A)).open == {}
    assert fold(begin(A), commit(A), Remove(A, "old", 0), begin(A)).open == {}


def test_a_new_epoch_aborts_open_and_late_snapshots() -> None:
    state = fold(begin(A), EpochStart(2, 0), commit(A), begin(B), commit(B))
    assert state.epoch == 2
    assert state.committed == {}
    assert "epoch 2" in state.aborted[A]
    assert "older epoch than 2" in state.aborted[B]


def test_a_commit_under_the_name_of_another_epoch_has_no_effect() -> None:
    assert list(fold(begin(A), commit(A, epoch=2)).open) == [A]


def test_complete_snapshots_stay_complete_in_a_new_epoch() -> None:
    state = fold(begin(A), commit(A), EpochStart(2, 0, restored=A))
    assert list(state.committed) == [A]


def test_epochs_and_views_only_go_up() -> None:
    newer = View(2, ("a",), ())
    state = fold(EpochStart(3, 0), EpochStart(2, 0), ViewChange(newer, 0), ViewChange(VIEW, 0))
    assert (state.epoch, state.view) == (3, newer)
    assert fold(ViewChange(VIEW, 0)).view == VIEW


def test_the_newest_complete_is_the_last_to_commit_and_not_removed() -> None:
    entries = [begin(A), begin(B), commit(B), commit(A)]
    assert fold().newest_complete is None
    assert fold(*entries).newest_complete == A
    assert fold(*entries, Remove(A, "wrong one", 0)).newest_complete == B


def test_only_complete_unpinned_snapshots_are_removed() -> None:
    assert fold(begin(A), Remove(A, "too early", 0)).removed == {}
    pinned = [begin(A), commit(A), Pin(A, True, 0), Remove(A, "retention", 0)]
    assert list(fold(*pinned).committed) == [A]
    unpinned = fold(*pinned, Pin(A, False, 0), Remove(A, "retention", 0))
    assert (unpinned.committed, unpinned.removed, unpinned.pinned) == ({}, {A: "retention"}, set())


def test_an_open_snapshot_can_be_pinned_and_an_unknown_one_cannot() -> None:
    assert fold(begin(A), Pin(A, True, 0)).pinned == {A}
    assert fold(Pin(A, True, 0)).pinned == set()


def test_a_parent_counts_only_if_it_is_complete_when_the_child_begins() -> None:
    assert fold(begin(A), commit(A), begin(B, A)).open[B].parent == A
    assert fold(begin(A), begin(B, A), commit(A)).open[B].parent is None
    assert fold(begin(A), commit(A), Remove(A, "old", 0), begin(B, A)).open[B].parent is None


def test_a_removed_parent_is_kept_until_its_last_child_has_an_outcome() -> None:
    entries = [begin(A), commit(A), begin(B, A), begin(C, A), Remove(A, "old", 0)]
    state = fold(*entries)
    assert len(list(state.roots())) == 1
    assert state.parent_of(state.open[B]) is not None
    assert len(list(fold(*entries, Abort(B, "no", 0)).roots())) == 1
    assert list(fold(*entries, Abort(B, "no", 0), EpochStart(2, 0)).roots()) == []


def test_entries_are_applied_in_order_without_a_gap() -> None:
    state = fold(begin(A))
    with pytest.raises(AssertionError):
        state.apply(2, commit(A))


def test_an_outcome_without_an_open_snapshot_is_refused() -> None:
    with pytest.raises(SnapshotNotFound, match="has not begun"):
        fold().opened(A)
    with pytest.raises(SnapshotIncomplete, match="aborted: timed out"):
        fold(begin(A), Abort(A, "timed out", 0)).opened(A)
    with pytest.raises(SnapshotError, match="committed already, by log entry 1"):
        fold(begin(A), commit(A)).opened(A)
    with pytest.raises(SnapshotNotFound, match="removed: old"):
        fold(begin(A), commit(A), Remove(A, "old", 0)).opened(A)


def test_a_limited_number_of_manifests_is_kept_and_others_are_read() -> None:
    reads: list[int] = []

    def read(position: int) -> Manifest:
        reads.append(position)
        return commit(A).manifest

    state = LogState(read, manifests_kept=1)
    for position, entry in enumerate([begin(A), commit(A), begin(B), commit(B)]):
        state.apply(position, entry)
    assert state.committed[B].manifest.epoch == 1
    assert reads == []
    assert state.committed[A].manifest.epoch == 1
    assert reads == [1]
