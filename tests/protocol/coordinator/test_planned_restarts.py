"""Planned restarts as the coordinator orders them (E11)."""

import pytest
from tests.protocol.coordinator_host import CoordinatorHost, those
from tests.protocol.playbook import view

from strobe.protocol import Policy
from strobe.protocol.coordinator.messages import (
    Append,
    ChooseSnapshot,
    CommitSnapshot,
    CoordinatorEvent,
    Drained,
    LeaveWanted,
    ProcessFailed,
    ProcessReturned,
    ProcessWithoutState,
    RequestRecording,
    RestoreRefused,
    RestoreState,
    RestoreWanted,
    SnapshotChosen,
    SnapshotWanted,
)
from strobe.protocol.coordinator.restart_messages import (
    CannotHandOver,
    CannotResume,
    HandedOver,
    HandOver,
    HandOverRef,
    Relieve,
    RestartWanted,
    Resume,
)
from strobe.protocol.values.log_entries import ViewChange

RING = view("p>q", "q>r", "r>p")
REF = HandOverRef(f"{0:016x}-000001-{7:016x}", "0" * 64, 5)
RESTART_US = 10_000_000


def ring() -> CoordinatorHost:
    return CoordinatorHost(RING, Policy(restart_timeout_us=RESTART_US, timeout_us=RESTART_US * 10))


def handed_over() -> CoordinatorHost:
    """Return a host on which q has handed over and ended."""
    host = ring()
    host.handle(RestartWanted("q"), HandedOver("q", 1, REF), ProcessFailed("q"))
    return host


def ordered(host: CoordinatorHost, *events: CoordinatorEvent) -> list[object]:
    """Return the orders about restarts and rollbacks that follow from `events`."""
    return [one for one in host.handle(*events) if isinstance(one, HandOver | Relieve | Resume | ChooseSnapshot)]


def test_E11_a_successor_resumes_and_nothing_rolls_back() -> None:
    host = ring()
    assert ordered(host, RestartWanted("q")) == [HandOver("q")]
    assert ordered(host, HandedOver("q", 1, REF)) == [Relieve("q", REF.name)]
    assert ordered(host, ProcessFailed("q")) == []
    assert ordered(host, ProcessWithoutState("q")) == [Resume("q", 1, REF)]
    assert ordered(host, Drained("q", 1)) == []
    assert host.lifecycle.settled
    assert ordered(host, RestartWanted("q")) == [HandOver("q")]


def test_E11_a_successor_that_has_run_and_crashed_rolls_back() -> None:
    host = handed_over()
    host.handle(ProcessWithoutState("q"), Drained("q", 1), ProcessFailed("q"))
    assert ordered(host, ProcessWithoutState("q")) == [ChooseSnapshot(None)]


def test_E11_a_hand_over_that_nobody_has_used_serves_the_next_successor() -> None:
    host = handed_over()
    host.handle(ProcessWithoutState("q"), ProcessFailed("q"))
    assert ordered(host, ProcessWithoutState("q")) == [Resume("q", 1, REF)]
    other = f"{0:016x}-000001-{8:016x}"
    assert ordered(host, CannotResume("q", other, "of another")) == []
    assert ordered(host, CannotResume("q", REF.name, "it was used")) == [ChooseSnapshot(None)]


def test_E11_a_crash_before_the_hand_over_rolls_back() -> None:
    host = ring()
    host.handle(RestartWanted("q"), ProcessFailed("q"))
    assert ordered(host, ProcessWithoutState("q")) == [ChooseSnapshot(None)]


def test_E11_orders_that_a_broken_connection_has_lost_are_repeated() -> None:
    host = ring()
    host.handle(RestartWanted("q"), ProcessFailed("q"))
    assert ordered(host, ProcessReturned("q")) == [HandOver("q")]
    host.handle(HandedOver("q", 1, REF), ProcessFailed("q"))
    assert ordered(host, ProcessReturned("q")) == [Relieve("q", REF.name)]
    host.handle(ProcessFailed("q"), ProcessWithoutState("q"), ProcessFailed("q"))
    assert ordered(host, ProcessReturned("q")) == []  # its successor


def test_E11_a_rollback_ends_all_restarts() -> None:
    host = handed_over()
    host.handle(RestoreWanted(None, "a user requested it"), SnapshotChosen(None, None))
    assert those(host.handle(ProcessWithoutState("q")), RestoreState)[0].epoch == 2
    assert ordered(host, HandedOver("q", 1, REF)) == []


def test_E11_a_successor_that_comes_during_a_rollback_joins_it_without_blame() -> None:
    host = handed_over()
    host.handle(RestoreWanted(None, "a user requested it"))
    host.handle(ProcessWithoutState("q"), SnapshotChosen(None, None))
    assert [entry.blamed for entry in host.epochs()] == [None]


def test_E11_a_process_that_does_not_hand_over_in_time_is_rolled_back() -> None:
    host = ring()
    host.handle(RestartWanted("q"))
    assert those(host.at(RESTART_US - 1), ChooseSnapshot) == []
    assert those(host.at(RESTART_US), ChooseSnapshot) == [ChooseSnapshot(None)]


def test_E11_a_successor_that_comes_too_late_rolls_back_without_blame() -> None:
    host = handed_over()
    assert those(host.at(RESTART_US), ChooseSnapshot) == []
    assert ordered(host, ProcessWithoutState("q")) == [ChooseSnapshot(None)]
    host.handle(SnapshotChosen(None, None))
    assert [entry.blamed for entry in host.epochs()] == [None]


def test_E11_a_refusal_lets_the_process_run_on() -> None:
    host = ring()
    host.handle(RestartWanted("q"))
    assert ordered(host, CannotHandOver("q", "its sink has no resume"), Drained("q", 1)) == []
    assert host.lifecycle.settled
    host.handle(ProcessFailed("q"))
    assert ordered(host, ProcessWithoutState("q")) == [ChooseSnapshot(None)]


def test_E11_an_open_snapshot_is_aborted_and_retried_after_the_restart() -> None:
    host = ring()
    host.handle(SnapshotWanted())
    (snapshot,) = host.lifecycle.open
    host.fragments(snapshot, "p")
    host.handle(RestartWanted("q"), HandedOver("q", 1, REF))
    assert not host.lifecycle.open
    assert "q restarts" in str(host.log[-1])
    assert those(host.at(1_000_000), RequestRecording) == []
    host.handle(ProcessFailed("q"), ProcessWithoutState("q"))
    assert those(host.drained(1, "q"), RequestRecording)


def test_E11_a_fragment_that_was_stored_before_the_restart_counts() -> None:
    host = ring()
    host.handle(SnapshotWanted())
    (snapshot,) = host.lifecycle.open
    host.fragments(snapshot, "q")
    host.handle(RestartWanted("q"), HandedOver("q", 1, REF), ProcessFailed("q"))
    assert those(host.fragments(snapshot, "p", "r"), CommitSnapshot)


def test_E11_a_view_changes_before_a_restart_or_after_it() -> None:
    host = ring()
    host.slow = True
    host.handle(LeaveWanted("r"))
    assert ordered(host, RestartWanted("q")) == []  # its view is about to change
    host.slow = False
    assert [one for one in host.write() if isinstance(one, HandOver)] == []
    assert [one for one in host.drained(2, "p", "q", "r") if isinstance(one, HandOver)] == [HandOver("q")]
    assert not any(
        isinstance(one, Append) and isinstance(one.entry, ViewChange) for one in host.handle(LeaveWanted("p"))
    )


@pytest.mark.parametrize("first", ["p", "q"])
def test_E11_several_processes_restart_at_once(first: str) -> None:
    host = ring()
    assert ordered(host, RestartWanted("p"), RestartWanted("q")) == [HandOver("p"), HandOver("q")]
    second = {"p": "q", "q": "p"}[first]
    for process in (first, second):
        host.handle(HandedOver(process, 1, REF), ProcessFailed(process))
        assert ordered(host, ProcessWithoutState(process)) == [Resume(process, 1, REF)]
    host.drained(1, second, first)
    assert host.lifecycle.settled


def test_E11_a_restart_wanted_while_the_successor_begins_follows() -> None:
    host = handed_over()
    host.handle(ProcessWithoutState("q"))
    assert ordered(host, RestartWanted("q")) == []
    assert ordered(host, Drained("q", 1)) == [HandOver("q")]


def test_E11_a_frozen_process_is_relieved_by_the_next_coordinator() -> None:
    """It has stopped on the order of a former one, and reports that to each."""
    host = ring()
    assert ordered(host, ProcessReturned("q"), HandedOver("q", 1, REF)) == [Relieve("q", REF.name)]
    host.handle(ProcessFailed("q"))
    assert ordered(host, ProcessWithoutState("q")) == [Resume("q", 1, REF)]


def test_E11_a_snapshot_whose_begin_is_logged_after_the_hand_over_is_aborted_at_once() -> None:
    """Nobody would tell the successor of it, so it could only time out."""
    host = ring()
    host.slow = True
    host.handle(SnapshotWanted(), RestartWanted("q"), HandedOver("q", 1, REF), ProcessFailed("q"))
    host.slow = False
    assert those(host.write(), RequestRecording) == []
    assert not host.lifecycle.open
    assert "q restarts" in str(host.log[-1])


def test_E11_a_hand_over_reported_during_a_rollback_that_is_refused_counts() -> None:
    host = ring()
    host.handle(RestartWanted("q"), RestoreWanted("1.7", "a user requested it"))
    assert ordered(host, HandedOver("q", 1, REF)) == []
    assert ordered(host, RestoreRefused("it is damaged")) == [HandOver("q")]  # so it reports again
    assert ordered(host, HandedOver("q", 1, REF)) == [Relieve("q", REF.name)]
