"""Coordinators that crash and come back, and two that race for the log (E7)."""

import pytest
from tests.protocol.coordinator_host import CoordinatorHost, committing, those, to
from tests.protocol.playbook import snapshot_id, view

from strobe.protocol import Policy, SnapshotId, View
from strobe.protocol.coordinator.lifecycle import Lifecycle
from strobe.protocol.coordinator.messages import (
    Dismiss,
    InstallView,
    JoinWanted,
    LeaveWanted,
    ProcessReturned,
    Recovered,
    ReportOutcome,
    ReportSettled,
    RequestRecording,
    SnapshotStarted,
    SnapshotWanted,
)
from strobe.protocol.values.log_entries import Abort, Begin, Commit, EpochStart, Pin
from strobe.protocol.values.view import ChannelSpec

RING = view("p>q", "q>r", "r>p")
S1, S2, S3 = snapshot_id(1), snapshot_id(2), snapshot_id(3)
JOIN_S = JoinWanted("s", (ChannelSpec("ps", "p", "s"), ChannelSpec("sp", "s", "p")))


def back(host: CoordinatorHost) -> list:
    """Crash and come back, with every process answering that it has the view."""
    effects = host.restart()
    number = host.lifecycle.view.number
    return effects + host.drained(number, *host.lifecycle.view.processes)


# Coming back


def test_a_restarted_coordinator_finishes_open_snapshots() -> None:
    host = CoordinatorHost(RING)
    host.handle(SnapshotWanted())
    host.fragments(S1, "p")
    effects = host.restart()
    assert those(effects, RequestRecording) == [RequestRecording(name, S1, 1) for name in "pqr"]
    host.fragments(S1, "q", "r")
    assert S1 in host.lifecycle.open
    host.fragments(S1, "p")
    assert isinstance(host.outcomes()[str(S1)], Commit)


def test_what_does_not_complete_after_the_restart_times_out_from_then_on() -> None:
    host = CoordinatorHost(RING, Policy(timeout_us=100, attempts_max=1))
    host.handle(SnapshotWanted())
    host.now_us = 5000
    host.restart()
    host.at(5099)
    assert host.aborts() == []
    host.at(5100)
    assert [entry.snapshot for entry in host.aborts()] == [str(S1)]


def test_outcomes_are_not_forgotten_nor_changed_by_a_restart() -> None:
    host = CoordinatorHost(RING)
    host.handle(SnapshotWanted())
    host.fragments(S1, "p", "q", "r")
    log = list(host.log)
    assert those(back(host), RequestRecording) == []
    host.fragments(S1, "p", "q", "r")
    host.at(10**12)
    assert host.log == log


def test_ids_go_on_where_they_were() -> None:
    host = CoordinatorHost(RING)
    host.handle(SnapshotStarted(SnapshotId(1, 6, "q"), "q", 1))
    host.fragments(SnapshotId(1, 6, "q"), "p", "q", "r")
    back(host)
    host.handle(SnapshotWanted())
    assert host.last_begun() == snapshot_id(7)


def test_everybody_is_told_what_it_may_have_missed() -> None:
    host = CoordinatorHost(RING, Policy(overlapping_max=3))
    host.handle(SnapshotWanted(), SnapshotWanted(), SnapshotWanted())
    host.fragments(S2, "p", "q", "r")
    effects = host.restart()
    for process in "pqr":
        told = to(effects, process)
        assert told[0] == ReportSettled(process, 1)
        assert [order.snapshot for order in those(told, ReportOutcome)] == [S2]
        assert those(told, InstallView) == [InstallView(process, RING)]


def test_nothing_begins_until_everybody_has_answered() -> None:
    host = CoordinatorHost(RING)
    host.restart()
    host.handle(SnapshotWanted())
    host.drained(1, "p", "q")
    assert host.begun() == []
    host.drained(1, "r")
    assert len(host.begun()) == 1


def test_a_restart_reads_the_view_and_aborts_snapshots_of_older_ones() -> None:
    host = CoordinatorHost(RING)
    host.handle(SnapshotWanted())
    host.slow = True
    host.handle(JOIN_S)
    host.write()  # the view, but not yet the abort
    host.slow = False
    effects = host.restart()
    assert host.lifecycle.view.number == 2
    assert [entry.reason for entry in host.aborts()] == ["the view changed"]
    assert those(effects, RequestRecording) == []
    assert {order.process for order in those(effects, InstallView)} == {"p", "q", "r", "s"}


def test_a_leaver_is_let_go_by_the_coordinator_that_comes_back() -> None:
    host = CoordinatorHost(RING)
    host.handle(LeaveWanted("r"))
    host.drained(2, "p")
    effects = host.restart()
    assert "r" in {order.process for order in those(effects, InstallView)}
    assert those(host.drained(2, "r", "p", "q"), Dismiss) == [Dismiss("r")]


def test_what_was_aborted_and_not_yet_retried_is_retried_after_the_restart() -> None:
    host = CoordinatorHost(RING, Policy(timeout_us=100, backoff_us=50))
    host.handle(SnapshotWanted())
    host.at(100)
    back(host)
    host.at(150)
    assert [(entry.snapshot, entry.retries, entry.attempt) for entry in host.begun()[1:]] == [(str(S2), str(S1), 2)]


def test_what_was_retried_already_is_not_retried_once_more_after_a_restart() -> None:
    """E10: the log of a long life has many aborts, all long since retried; a restart must not begin them all again."""
    host = CoordinatorHost(RING, Policy(timeout_us=100, backoff_us=50))
    host.handle(SnapshotWanted())
    host.at(100)
    host.at(150)
    host.fragments(S2, "p", "q", "r")
    assert [entry.retries for entry in host.begun()] == [None, str(S1)]
    back(host)
    for now in range(200, 5000, 50):
        host.at(now)
    assert len(host.begun()) == 2


def test_a_schedule_begins_one_snapshot_after_a_long_absence() -> None:
    host = CoordinatorHost(RING, Policy(interval_us=1000))
    host.now_us = 10**9
    back(host)
    host.fragments(host.last_begun(), "p", "q", "r")
    host.at(10**9 + 999)
    assert len(host.begun()) == 1


def test_a_new_epoch_closes_what_was_open_and_counts_from_one() -> None:
    host = CoordinatorHost(RING)
    host.handle(SnapshotWanted())
    host.log.append(EpochStart(2, 0))
    back(host)
    assert not host.lifecycle.open
    host.handle(SnapshotWanted())
    assert host.last_begun() == snapshot_id(1, epoch=2)


@pytest.mark.parametrize("entry", [Pin(str(S1), True, 0), EpochStart(1, 0)])
def test_entries_that_are_not_the_coordinators_are_read_over(entry) -> None:
    host = CoordinatorHost(RING, log=[entry])
    assert back(host)
    host.handle(SnapshotWanted())
    assert len(host.begun()) == 1


# A process that was away


def test_a_returning_process_gets_the_abort_that_it_missed() -> None:
    host = CoordinatorHost(RING, Policy(timeout_us=100, attempts_max=1))
    host.handle(SnapshotWanted())
    host.at(100)
    told = to(host.handle(ProcessReturned("q")), "q")
    settled = those(told, ReportSettled)
    over = {order.snapshot for order in those(told, ReportOutcome)}
    assert S1 in over or any(S1.counter < order.counter for order in settled)
    assert InstallView("q", RING) in told


def test_a_returning_process_gets_the_refusal_that_it_missed() -> None:
    """E6: a marker of it may still come; nobody else would ever say that it will not complete."""
    host = CoordinatorHost(RING)
    host.handle(SnapshotWanted())
    refused = SnapshotId(1, 2, "q")
    assert those(host.handle(SnapshotStarted(refused, "q", 1)), ReportOutcome)
    host.fragments(S1, "p", "q", "r")
    told = to(host.handle(ProcessReturned("r")), "r")
    settled = those(told, ReportSettled)
    over = {order.snapshot for order in those(told, ReportOutcome)}
    assert refused in over or any(refused.counter < order.counter for order in settled)


def test_a_returning_process_gets_the_outcome_of_each_ended_snapshot() -> None:
    """Whoever holds something back until the commit must not take a commit that it missed for an abort."""
    host = CoordinatorHost(RING, Policy(overlapping_max=2))
    host.handle(SnapshotWanted(), SnapshotWanted())
    host.fragments(S2, "p", "q", "r")
    told = those(host.handle(ProcessReturned("q")), ReportOutcome)
    assert [(order.snapshot, order.committed) for order in told] == [(S2, True)]


# Two coordinators


def two(policy: Policy | None = None) -> tuple[CoordinatorHost, CoordinatorHost]:
    first = CoordinatorHost(RING, policy)
    return first, CoordinatorHost(RING, policy, log=first.log)


def test_two_coordinators_beginning_at_once_take_different_ids() -> None:
    one, other = two(Policy(overlapping_max=2))
    other.now_us = 1
    one.handle(SnapshotWanted())
    other.handle(SnapshotWanted())
    one.catch_up()
    assert [entry.snapshot for entry in one.begun()] == [str(S1), str(S2)]
    assert set(one.lifecycle.open) == set(other.lifecycle.open) == {S1, S2}


def test_a_stale_coordinator_cannot_commit_what_was_aborted() -> None:
    one, other = two(Policy(timeout_us=100, attempts_max=1))
    one.handle(SnapshotWanted())
    other.catch_up()
    other.at(100)
    one.fragments(S1, "p", "q", "r")
    assert [type(entry) for entry in one.log] == [Begin, Abort]
    assert not one.lifecycle.open


def test_a_stale_coordinator_cannot_abort_what_was_committed() -> None:
    one, other = two(Policy(timeout_us=100, attempts_max=1))
    one.handle(SnapshotWanted())
    other.catch_up()
    one.fragments(S1, "p", "q", "r")
    other.at(100)
    assert [type(entry) for entry in one.log] == [Begin, Commit]
    assert not other.lifecycle.open


def test_R2_a_lost_commit_is_ordered_again_after_the_commit_that_was_first() -> None:
    """R2: it may have let out more output than this one covers; whoever orders the commit again compares them."""
    one, other = two(Policy(overlapping_max=2))
    one.handle(SnapshotWanted(), SnapshotWanted())
    other.catch_up()
    other.fragments(S2, "p", "q", "r")
    effects = one.fragments(S1, "p", "q", "r")
    assert committing(effects) == [S1] * 2
    assert [entry.snapshot for entry in one.log if isinstance(entry, Commit)] == [str(S2), str(S1)]


def test_a_second_outcome_in_the_log_changes_nothing() -> None:
    host = CoordinatorHost(RING)
    host.handle(SnapshotWanted())
    host.fragments(S1, "p", "q", "r")
    host.log.append(Abort(str(S1), "too late", 0))
    assert those(host.catch_up(), ReportOutcome) == []
    assert not host.lifecycle.schedule.queue


def test_two_coordinators_retry_an_abort_once() -> None:
    one, other = two(Policy(timeout_us=100, backoff_us=50, overlapping_max=2))
    one.handle(SnapshotWanted())
    other.catch_up()
    for host in (one, other, one, other, one, other):
        host.catch_up()
        host.at(100)
    for host in (one, other, one, other):
        host.catch_up()
        host.at(150)
    assert [entry.retries for entry in one.begun()] == [None, str(S1)]


def test_two_coordinators_that_retry_at_the_same_moment_begin_one_retry() -> None:
    one, other = two(Policy(timeout_us=100, backoff_us=50, overlapping_max=2))
    one.handle(SnapshotWanted())
    one.at(100)
    other.now_us = 101
    other.catch_up()
    one.slow = other.slow = True
    one.at(151)
    other.at(152)
    for host in (one, other, one, other):
        host.write()
    assert [entry.retries for entry in one.begun()] == [None, str(S1)]


def test_a_view_of_another_coordinator_is_followed() -> None:
    one, other = two()
    one.handle(JOIN_S)
    told = those(other.catch_up(), InstallView)
    assert {order.process for order in told} == {"p", "q", "r", "s"}
    assert other.lifecycle.view == one.lifecycle.view
    assert not other.lifecycle.settled


def test_nothing_is_ordered_while_the_log_is_read_back() -> None:
    lifecycle = Lifecycle(RING, Policy(interval_us=1), "chandy-lamport", recovering=True)
    host = CoordinatorHost(RING)
    host.handle(SnapshotWanted())
    host.handle(JOIN_S)
    host.lifecycle, host.position = lifecycle, 0
    assert host.catch_up() == []
    assert {type(order) for order in host.handle(Recovered())} >= {InstallView}
    assert isinstance(lifecycle.view, View)
