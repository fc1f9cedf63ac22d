"""Terms: the last coordinator to start leads, and later entries of an earlier one have no effect (S1)."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.storage import stranger
from tests.storage.samples import begin, commit, sample, sample_id

from strobe.errors import LogConflict, TakenOver
from strobe.protocol.values.log_entries import Abort, Begin, Commit, Entry, Manifest, Pin, Remove, Term, Void
from strobe.protocol.values.view import View
from strobe.storage import Store, collect
from strobe.storage.entries.log_file import DecodedEntry, encode_entry, entry_name
from strobe.storage.log.follower import Follower
from strobe.storage.log.terms import Terms
from strobe.storage.store.integrity import verify_bytes
from strobe.storage.store.optimistic_append import append_when, begin_term
from strobe.storage.store.retention import apply, plan

A, B = (str(sample_id(counter)) for counter in (1, 2))
BEGIN_B = Begin(B, 1, "chandy-lamport", ("a",), at_us=1)
COMMIT_B = Commit(B, Manifest("chandy-lamport", ("a",), View(1, (), ()), 1, 0, 0, {}), at_us=2)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def entry_path(store: Store, position: int) -> Path:
    return Path(store.url) / entry_name(position)


def forge(store: Store, entry: Entry, term: int) -> None:
    """Append as a coordinator would that has not read that its term is over."""
    reader = Store.open(store.url)
    position = reader.state().next_position
    raw, _ = encode_entry(entry, position, reader.entry_ref(position - 1).blake3, term)
    entry_path(store, position).write_bytes(raw)


def term_of(store: Store, position: int) -> int | None:
    found: int | None = json.loads(entry_path(store, position).read_bytes()).get("term")
    return found


def test_every_document_carries_the_highest_term_read_before_it(store: Store) -> None:
    store.append(BEGIN_B, 0)
    assert begin_term(store, "alpha pid 1", 5) == 1
    other = Store.open(store.url)
    append_when(other, lambda _: Pin(B, True, 6))
    assert begin_term(other, "beta pid 2", 7) == 2
    append_when(other, lambda _: Abort(B, "timed out", 8))
    assert [term_of(store, position) for position in range(5)] == [None, None, 1, 1, 2]
    state = Store.open(store.url).state()
    assert state.term == Term(2, "beta pid 2", 7)


def test_a_term_that_meets_another_writer_takes_the_next_number(store: Store) -> None:
    other = Store.open(store.url)
    assert store.state().next_position == other.state().next_position == 0
    assert begin_term(other, "beta", 1) == 1
    assert begin_term(store, "alpha", 2) == 2
    with pytest.raises(TakenOver, match="alpha, term 2"):
        other.state()


def test_a_replaced_coordinator_can_neither_read_nor_append(store: Store) -> None:
    begin_term(store, "alpha", 1)
    end = store.state().next_position
    begin_term(Store.open(store.url), "beta pid 2", 2)
    with pytest.raises(LogConflict):
        store.append(BEGIN_B, end)
    works: list[Callable[[], object]] = [
        lambda: list(store.read_log(end)),
        lambda: list(store.read_log()),
        lambda: store.append(BEGIN_B, end + 1),
        lambda: append_when(store, lambda _: Pin(B, True, 3)),
        lambda: collect(store),
        lambda: apply(store, plan(store.known, 1, 0, 0, 0)),
        lambda: begin_term(store, "alpha", 4),
    ]
    for work in works:
        with pytest.raises(TakenOver, match=r"beta pid 2, term 2.*of\s+term 1"):
            work()
    assert [type(entry) for _, entry in Store.open(store.url).read_log()] == [Term, Term]


def test_a_leader_keeps_its_term_while_others_pin(store: Store) -> None:
    begin_term(store, "alpha", 1)
    begin(store, 1)
    append_when(Store.open(store.url), lambda _: Pin(A, True, 3))
    append_when(store, lambda _: Abort(A, "timed out", 4))
    assert [term_of(store, position) for position in range(4)] == [None, 1, 1, 1]


def readers(store: Store) -> dict[str, set[str]]:
    """Return the snapshots that each kind of reader takes for complete."""
    follower = Follower(store.url)
    follower.advance()
    assert verify_bytes(store.backend) == []
    return {
        "store": set(Store.open(store.url).state().committed),
        "follower": {one.snapshot_id or "" for one in follower.between(0, follower.end)},
        "stranger": set(stranger.complete_snapshots(Path(store.url))),
    }


def test_no_reader_counts_a_commit_of_an_old_term(store: Store) -> None:
    begin_term(store, "alpha", 1)
    commit(store, sample(1))
    store.append(BEGIN_B, store.state().next_position)
    begin_term(Store.open(store.url), "beta", 2)
    forge(store, COMMIT_B, term=1)
    assert readers(store) == {"store": {A}, "follower": {A}, "stranger": {A}}
    assert B in Store.open(store.url).state().open


def test_a_removal_of_an_old_term_removes_no_blob(store: Store) -> None:
    begin_term(store, "alpha", 1)
    commit(store, sample(1))
    begin_term(Store.open(store.url), "beta", 2)
    forge(store, Remove(A, "retention", 3), term=1)
    assert collect(Store.open(store.url)).names == ()
    assert readers(store) == {"store": {A}, "follower": {A}, "stranger": {A}}


def test_an_entry_of_an_old_term_is_also_void_when_it_is_read_again(store: Store) -> None:
    begin_term(store, "alpha", 1)
    begin_term(Store.open(store.url), "beta", 2)
    forge(store, BEGIN_B, term=1)
    forge(store, Pin(B, True, 4), term=2)
    reader = Store.open(store.url)
    for _ in range(2):
        kinds = [type(entry) for _, entry in reader.read_log()]
        assert kinds == [Term, Term, Void, Pin]
    assert [type(entry) for _, entry in reader.read_log(2)] == [Void, Pin]


def test_a_lost_term_entry_does_not_void_the_entries_of_its_term() -> None:
    terms = Terms()
    first, pin = Term(1, "alpha", 0), Pin(A, True, 1)
    assert terms.take(0, DecodedEntry(first, "", 0)) == first
    # Entry 1 began term 2 and is unreadable; entry 2 was written in term 2.
    assert terms.take(2, DecodedEntry(pin, "", 2)) == pin
    assert terms.current == 2
    assert isinstance(terms.take(3, DecodedEntry(pin, "", 1)), Void)
