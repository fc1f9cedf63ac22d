"""E7: the coordinator crashes after each log entry in turn. Every snapshot still gets exactly one correct outcome."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.cluster import Cluster
from tests.protocol.playbook import examples, view

from strobe.protocol import FIFO, UNORDERED
from strobe.protocol.values.log_entries import Abort, Begin, Commit

SHAPES = (("p>q", "q>p"), ("p>q", "q>r", "r>p", "p>r"), ("p>q", "p>q:second", "r>q"), ("p>q", "q>p", "r>s"))
STEPS = 300


def cluster_of(shape: tuple[str, ...], protocol: str, seed: int) -> Cluster:
    return Cluster(view(*shape, kind=FIFO if protocol == "chandy-lamport" else UNORDERED), protocol, seed)


def check(cluster: Cluster) -> None:
    """Check that each begun snapshot has one outcome, commits hold, nothing ended is still kept, and all is settled."""
    begun = {entry.snapshot for entry in cluster.log if isinstance(entry, Begin)}
    outcomes = Counter(entry.snapshot for entry in cluster.log if isinstance(entry, Commit | Abort))
    assert outcomes == Counter(dict.fromkeys(begun, 1))
    for entry in cluster.log:
        if isinstance(entry, Commit):
            assert cluster.verdicts[entry.snapshot].endswith("holds (self-consistent, signer unknown)")
    assert cluster.lifecycle.settled
    # A snapshot that never reached the coordinator has no outcome; its host frees it after a time.
    recording = {(name, snapshot) for name, machine in cluster.machines.items() for snapshot in machine.open}
    assert {held for held in recording | set(cluster.kept) if str(held[1]) in outcomes} == set()


@pytest.mark.parametrize("protocol", ["chandy-lamport", "lai-yang"])
@examples(0.05)
@given(st.sampled_from(SHAPES), st.integers(0, 2**32))
def test_a_crash_after_any_entry_leaves_each_snapshot_one_outcome(
    protocol: str, shape: tuple[str, ...], seed: int
) -> None:
    cluster = cluster_of(shape, protocol, seed)
    for _ in range(STEPS):
        cluster.step()
    cluster.calm_down()
    check(cluster)
    for moment in cluster.moments:
        written = list(moment.log)
        moment.lose_coordinator()
        moment.calm_down()
        assert moment.log[: len(written)] == written
        check(moment)


def with_losses(shape: tuple[str, ...], protocol: str, seed: int, every: int) -> Cluster:
    """A cluster whose coordinator crashes again and again, and which then comes to rest."""
    cluster = cluster_of(shape, protocol, seed)
    cluster.watched = False
    for count in range(STEPS):
        cluster.step()
        if count % every == 0:
            cluster.lose_coordinator()
    cluster.calm_down()
    return cluster


@pytest.mark.parametrize("protocol", ["chandy-lamport", "lai-yang"])
@examples(0.12)
@given(st.sampled_from(SHAPES), st.integers(0, 2**32), st.integers(5, 30))
def test_repeated_crashes_leave_each_snapshot_one_outcome(
    protocol: str, shape: tuple[str, ...], seed: int, every: int
) -> None:
    check(with_losses(shape, protocol, seed, every))


@examples(0.12)
@given(st.sampled_from(SHAPES), st.integers(0, 2**32), st.integers(30, 60))
def test_an_abort_is_retried_at_most_once_despite_crashes(shape: tuple[str, ...], seed: int, every: int) -> None:
    cluster = with_losses(shape, "lai-yang", seed, every)
    retried = Counter(entry.retries for entry in cluster.log if isinstance(entry, Begin) and entry.retries)
    assert max(retried.values(), default=1) == 1
