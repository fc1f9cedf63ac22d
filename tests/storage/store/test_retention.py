"""Retention counts complete snapshots only, and never removes what must stay (E8)."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.samples import VIEW, begin, commit, files_of, sample, sample_id

from strobe.errors import UsageError
from strobe.protocol.values.log_entries import Abort, Begin, Commit, Entry, EpochStart, Manifest, Pin, Remove
from strobe.storage import LogState, Store, append_when, collect
from strobe.storage.store import retention
from strobe.storage.store.retention import DAY_US, HOUR_US, RetentionPlan, plan

BASE_US = 20_000 * DAY_US


def name(counter: int, epoch: int = 1) -> str:
    return str(sample_id(counter, epoch))


def complete(counter: int, at_us: int, epoch: int = 1) -> list[Entry]:
    snapshot = name(counter, epoch)
    manifest = Manifest("chandy-lamport", ("a",), VIEW, epoch, at_us, at_us + 5, {})
    return [Begin(snapshot, 1, "chandy-lamport", ("a",), at_us), Commit(snapshot, manifest, at_us + 6)]


def fold(*entries: Entry) -> LogState:
    return LogState().preview(entries)


def taken_at(*times_us: int) -> LogState:
    """A log of snapshots number 1, 2, ... taken at these times."""
    return fold(*(entry for counter, at_us in enumerate(times_us, 1) for entry in complete(counter, BASE_US + at_us)))


def counters(planned: RetentionPlan) -> list[int]:
    """Return the numbers of the snapshots that are kept."""
    return [int(kept.split("-")[1]) for kept in planned.kept]


def test_zeros_keep_everything() -> None:
    planned = plan(taken_at(0, 1, 2), 0, 0, 0, now_us=9)
    assert planned.removed == ()
    assert planned.kept[name(1)] == ("all",)
    assert planned.at_us == 9


def test_the_given_number_of_newest_snapshots_is_kept() -> None:
    planned = plan(taken_at(0, 1, 2, 3), 2, 0, 0, 0)
    assert counters(planned) == [3, 4]
    assert planned.removed == (name(1), name(2))


def test_an_hour_keeps_its_newest_and_empty_hours_do_not_count() -> None:
    state = taken_at(0, 1, HOUR_US, HOUR_US + 1, 50 * HOUR_US, 50 * HOUR_US + 1)
    assert counters(plan(state, 0, 2, 0, 0)) == [4, 6]
    assert counters(plan(state, 0, 9, 0, 0)) == [2, 4, 6]


def test_a_day_keeps_its_newest_in_addition_to_hours_and_the_last() -> None:
    state = taken_at(0, HOUR_US, DAY_US, DAY_US + 1, 2 * DAY_US, 2 * DAY_US + HOUR_US)
    assert counters(plan(state, 0, 0, 2, 0)) == [4, 6]
    planned = plan(state, 1, 2, 3, 0)
    assert counters(planned) == [2, 4, 5, 6]
    assert planned.kept[name(6)] == ("newest", "last", "hour", "day")


def test_a_clock_jump_neither_keeps_nor_removes_a_snapshot() -> None:
    state = taken_at(0, 900 * DAY_US, 1 * DAY_US, 2 * DAY_US)
    assert counters(plan(state, 0, 0, 2, 0)) == [3, 4]


def test_pinned_newest_and_restored_snapshots_stay() -> None:
    entries = [*complete(1, 0), *complete(2, 1), *complete(3, 2), *complete(4, 3), Pin(name(1), True, 0)]
    state = fold(*entries, EpochStart(2, 5, restored=name(3)))
    planned = plan(state, 1, 0, 0, 0)
    assert planned.kept == {name(1): ("pinned",), name(3): ("restored",), name(4): ("newest", "last")}
    after = fold(*entries, EpochStart(2, 5, restored=name(3)), *complete(5, 4, epoch=2))
    assert name(3) in plan(after, 1, 0, 0, 0).removed


def test_open_and_aborted_snapshots_are_not_counted() -> None:
    state = fold(*complete(1, 0), *complete(2, 1), begin_entry(3), begin_entry(4), Abort(name(4), "no", 0))
    assert counters(plan(state, 1, 0, 0, 0)) == [2]


def begin_entry(counter: int) -> Begin:
    return Begin(name(counter), 1, "chandy-lamport", ("a",), 0)


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(UsageError, match="0 or more"):
        plan(LogState(), -1, 0, 0, 0)


# Property: for any log, E8 holds for every plan.


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    """A log that several writers could have written: begins with parents, outcomes, pins, removals, epochs."""
    entries: list[Entry] = []
    epoch = 1
    for counter in range(1, draw(st.integers(1, 12))):
        parent = name(draw(st.integers(1, counter)), draw(st.integers(1, epoch)))
        snapshot = name(counter, epoch)
        at_us = BASE_US + draw(st.integers(0, 3 * DAY_US))
        entries.append(Begin(snapshot, 1, "chandy-lamport", ("a",), at_us, parent=parent))
        manifest = Manifest("chandy-lamport", ("a",), VIEW, epoch, at_us, at_us, {})
        outcome = draw(st.sampled_from(["commit", "commit", "commit", "abort", "open"]))
        if outcome == "commit":
            entries.append(Commit(snapshot, manifest, at_us))
        elif outcome == "abort":
            entries.append(Abort(snapshot, "no", at_us))
        other = name(draw(st.integers(1, counter)), draw(st.integers(1, epoch)))
        extra = draw(st.sampled_from(["pin", "unpin", "remove", "epoch", "nothing", "nothing"]))
        if extra == "epoch":
            epoch += 1
            entries.append(EpochStart(epoch, at_us, restored=draw(st.sampled_from([None, other]))))
        elif extra == "remove":
            entries.append(Remove(other, "by hand", at_us))
        elif extra != "nothing":
            entries.append(Pin(other, extra == "pin", at_us))
    return entries


numbers = st.integers(0, 4)


@given(logs(), numbers, numbers, numbers)
def test_E8_a_plan_covers_every_snapshot_and_keeps_the_required(
    entries: list[Entry], last: int, hourly: int, daily: int
) -> None:
    state = fold(*entries)
    planned = plan(state, last, hourly, daily, 0)
    assert {*planned.kept} | {*planned.removed} == {*state.committed}
    assert not {*planned.kept} & {*planned.removed}
    removed = {*planned.removed}
    assert not removed & state.pinned
    assert state.newest_complete not in removed
    assert state.restored not in removed
    assert not removed & {*state.open}
    if not last and not hourly and not daily:
        assert not removed
    assert {*list(state.committed)[len(state.committed) - last :]} <= {*planned.kept}
    free = [one for one, reasons in planned.kept.items() if {*reasons} <= {"hour", "day", "last"}]
    assert len(free) <= last + hourly + daily


@given(logs(), numbers, numbers, numbers)
def test_E8_applying_a_plan_again_removes_nothing_more(
    entries: list[Entry], last: int, hourly: int, daily: int
) -> None:
    state = fold(*entries)
    planned = plan(state, last, hourly, daily, 0)
    after = state.preview(Remove(one, "retention", 0) for one in planned.removed)
    assert {*after.committed} == {*planned.kept}
    assert after.newest_complete == state.newest_complete
    assert plan(after, last, hourly, daily, 0).removed == ()


# On a store.


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def append(store: Store, entry: Entry) -> None:
    store.append(entry, store.state().next_position)


def test_applying_a_plan_logs_the_removals_and_sweeps(store: Store) -> None:
    names = [commit(store, sample(counter, balance=counter)) for counter in (1, 2, 3)]
    planned = plan(store.state(), 1, 0, 0, now_us=7)
    applied = retention.apply(store, planned)
    assert applied.removed == tuple(names[:2])
    assert [entry for _, entry in store.read_log() if isinstance(entry, Remove)] == [
        Remove(one, "retention", 7) for one in names[:2]
    ]
    assert list(store.state().committed) == names[2:]
    assert store.load(names[2]) == sample(3, balance=3)
    assert collect(store).names == ()


def test_a_dry_run_reports_exactly_what_would_be_removed(store: Store) -> None:
    first = commit(store, sample(1))
    commit(store, sample(2, balance=7), parent=first)
    aborted = begin(store, 3)
    store.write_blob(aborted, b"partial")
    append(store, Abort(aborted, "no", 0))
    planned = plan(store.state(), 1, 0, 0, 0)
    before = files_of(Path(store.url))
    predicted = retention.apply(store, planned, dry_run=True)
    assert files_of(Path(store.url)) == before
    done = retention.apply(store, planned)
    assert (predicted.removed, predicted.collected.names) == (done.removed, done.collected.names) != ((), ())
    assert predicted.collected.bytes == done.collected.bytes
    after = files_of(Path(store.url))
    assert {file for file in before if file.startswith("blobs/")} - {*after} == {*done.collected.names}


def test_a_snapshot_pinned_after_the_plan_stays(store: Store) -> None:
    names = [commit(store, sample(counter, balance=counter)) for counter in (1, 2, 3)]
    planned = plan(store.state(), 1, 0, 0, 0)
    append(Store.open(store.url), Pin(names[0], True, 0))
    assert retention.apply(store, planned, dry_run=True).removed == (names[1],)
    assert retention.apply(store, planned).removed == (names[1],)
    assert store.load(names[0]) == sample(1, balance=1)


def test_an_open_snapshot_and_blobs_shared_with_its_removed_parent_stay(store: Store) -> None:
    parent = commit(store, sample(1))
    commit(store, sample(2, balance=2))
    child = begin(store, 3, parent=parent)
    kept = store.write_blob(child, b"own")
    applied = retention.apply(store, plan(store.state(), 1, 0, 0, 0))
    assert applied.removed == (parent,)
    assert applied.collected.names == ()
    assert store.read_blob(kept) == b"own"
    manifest = store.write_snapshot(sample(3))
    store.commit(child, manifest, store.state().next_position, at_us=0)
    assert store.load(child) == sample(3)


def test_an_entry_is_decided_again_after_a_conflict(store: Store) -> None:
    snapshot = commit(store, sample(1))
    other = Store.open(store.url)
    seen: list[int] = []

    def decide(state: LogState) -> Entry:
        seen.append(state.next_position)
        if len(seen) < 4:
            append(other, Pin(snapshot, len(seen) % 2 == 1, 0))
        return Pin(snapshot, True, at_us=len(seen))

    assert append_when(store, decide) == 5
    assert seen == [2, 3, 4, 5]
    assert [entry for _, entry in store.read_log(5)] == [Pin(snapshot, True, at_us=4)]


def test_nothing_is_appended_if_there_is_nothing_to_do(store: Store) -> None:
    assert append_when(store, lambda state: None) is None
    assert store.state().next_position == 0
