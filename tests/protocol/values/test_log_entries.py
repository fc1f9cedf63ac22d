"""S1: one log decides everything, so the coordinator must read the same state from it as the store."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.coordinator_host import MANIFEST
from tests.protocol.playbook import view

from strobe.protocol import Lifecycle, Policy, SnapshotId
from strobe.protocol.coordinator.messages import EntryLogged
from strobe.protocol.values.log_entries import Abort, Begin, Commit, Entry, EpochStart, Pin, Remove, ViewChange
from strobe.storage.entries.log_state import LogState

RING = view("p>q", "q>r", "r>p")
VIEWS = [msgspec.structs.replace(RING, number=number) for number in (1, 2, 3)]

snapshots = st.builds(SnapshotId, st.integers(1, 2), st.integers(1, 3), st.sampled_from(["coordinator", "p"])).map(str)
begins = st.builds(Begin, snapshots, st.just(1), st.just("chandy-lamport"), st.just(("p",)), st.just(0))
commits = snapshots.map(
    lambda snapshot: Commit(snapshot, msgspec.structs.replace(MANIFEST, epoch=SnapshotId.parse(snapshot).epoch), 0)
)
aborts = st.builds(Abort, snapshots, st.just("because"), st.just(0))
asides = st.builds(Pin, snapshots, st.booleans(), st.just(0)) | st.builds(Remove, snapshots, st.just("old"), st.just(0))
views = st.builds(ViewChange, st.sampled_from(VIEWS), st.just(0))
epochs = st.builds(EpochStart, st.integers(1, 2), st.just(0))


rollbacks = st.builds(
    EpochStart, st.integers(1, 4), st.just(0), st.none() | snapshots, st.none() | st.sampled_from(VIEWS)
)


def read(log: list[Entry], epoch: int = 1) -> tuple[Lifecycle, LogState]:
    lifecycle, store = Lifecycle(RING, Policy(), "chandy-lamport", epoch=epoch, recovering=True), LogState()
    for position, entry in enumerate(log):
        assert lifecycle.handle(EntryLogged(entry), 0) == []
        store.apply(position, entry)
    return lifecycle, store


@given(st.lists(begins | commits | aborts | asides, max_size=12))
def test_coordinator_and_store_agree_on_what_is_open(log: list[Entry]) -> None:
    lifecycle, store = read(log)
    assert {str(snapshot) for snapshot in lifecycle.open} == set(store.open)


@given(st.lists(views, max_size=5))
def test_coordinator_and_store_agree_on_the_view(log: list[Entry]) -> None:
    lifecycle, store = read(log)
    assert lifecycle.view == (store.view or RING)


@given(st.lists(views | rollbacks, max_size=6))
def test_coordinator_and_store_agree_on_the_first_view_of_a_rollback(log: list[Entry]) -> None:
    lifecycle, store = read(log, epoch=0)
    assert lifecycle.epoch == store.epoch
    assert lifecycle.view == (store.view or RING)


@given(st.lists(begins | commits | aborts | epochs, max_size=12))
def test_coordinator_and_store_agree_on_the_epoch_and_its_fencing(log: list[Entry]) -> None:
    lifecycle, store = read(log)
    assert lifecycle.epoch == max(store.epoch, 1)
    assert {str(snapshot) for snapshot in lifecycle.open} == set(store.open)


@given(st.lists(begins | epochs, max_size=12))
def test_no_id_of_the_log_is_ever_used_again(log: list[Entry]) -> None:
    lifecycle, _ = read(log)
    following = SnapshotId(lifecycle.epoch, lifecycle.outcomes.counter + 1, "coordinator")
    assert str(following) not in {entry.snapshot for entry in log if isinstance(entry, Begin)}
