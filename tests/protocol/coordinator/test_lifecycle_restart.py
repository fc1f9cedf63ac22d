"""Coordinators that crash and restart, and two coordinators that race for the log (E7)."""

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
    """Restart the coordinator; every process reports that it has the view."""
    effects = host.restart()
    number = host.lifecycle.view.number
    return effects + host.drained(number, *host.lifecycle.view.processes)


# Restarting


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


def test_the_time_out_of_an_open_snapshot_starts_at_the_restart() -> None:
    host = CoordinatorHost(RING, Policy(timeout_us=100, attempts_max=1))
    host.handle(SnapshotWanted())
    host.now_us = 5000
    host.restart()
    host.at(5099)
    assert host.aborts() == []
    host.at(5100)
    assert [entry.snapshot for entry in host.aborts()] == [str(S1)]


def test_a_restart_neither_forgets_nor_changes_outcomes() -> None:
    host = CoordinatorHost(RING)
    host.handle(SnapshotWanted())
    host.fragments(S1, "p", "q", "r")
    log = list(host.log)
    assert those(back(host), RequestRecording) == []
    host.fragments(S1, "p", "q", "r")
    host.at(10**12)
    assert host.log == log


def test_ids_continue_after_a_restart() -> None:
    host = CoordinatorHost(RING)
    host.handle(SnapshotStarted(SnapshotId(1, 6, "q"), "q", 1))
    host.fragments(SnapshotId(1, 6, "q"), "p", "q", "r")
    back(host)
    host.handle(SnapshotWanted())
    assert host.last_begun() == snapshot_id(7)


def test_a_restart_sends_each_process_what_it_may_have_missed() -> None:
    host = CoordinatorHost(RING, Policy(overlapping_max=3))
    host.handle(SnapshotWanted(), SnapshotWanted(), SnapshotWanted())
    host.fragments(S2, "p", "q", "r")
    effects = host.restart()
    for process in "pqr":
        orders = to(effects, process)
        assert orders[0] == ReportSettled(process, 1)
        assert [order.snapshot for order in those(orders, ReportOutcome)] == [S2]
        assert those(orders, InstallView) == [InstallView(process, RING)]


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


def test_a_leaver_is_dismissed_by_the_restarted_coordinator() -> None:
    host = CoordinatorHost(RING)
    host.handle(LeaveWanted("r"))
    host.drained(2, "p")
    effects = host.restart()
    assert "r" in {order.process for order in those(effects, InstallView)}
    assert those(host.drained(2, "r", "p", "q"), Dismiss) == [Dismiss("r")]


def test_an_aborted_snapshot_is_retried_after_a_restart() -> None:
    host = CoordinatorHost(RING, Policy(timeout_us=100, backoff_us=50))
    host.handle(SnapshotWanted())
    host.at(100)
    back(host)
    host.at(150)
    assert [(entry.snapshot, entry.retries, entry.attempt) for entry in host.begun()[1:]] == [(str(S2), str(S1), 2)]


def test_a_retried_snapshot_is_not_retried_again_after_a_restart() -> None:
    """E10: an old log has many aborts, all retried long ago. A restart must not begin all of them again."""
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


def test_a_new_epoch_closes_open_snapshots_and_counts_from_one() -> None:
    host = CoordinatorHost(RING)
    host.handle(SnapshotWanted())
    host.log.append(EpochStart(2, 0))
    back(host)
    assert not host.lifecycle.open
    host.handle(SnapshotWanted())
    assert host.last_begun() == snapshot_id(1, epoch=2)


@pytest.mark.parametrize("entry", [Pin(str(S1), True, 0), EpochStart(1, 0)])
def test_log_entries_of_other_writers_are_skipped(entry) -> None:
    host = CoordinatorHost(RING, log=[entry])
    assert back(host)
    host.handle(SnapshotWanted())
    assert len(host.begun()) == 1


# A process that was disconnected


def test_a_returning_process_gets_the_abort_that_it_missed() -> None:
    host = CoordinatorHost(RING, Policy(timeout_us=100, attempts_max=1))
    host.handle(SnapshotWanted())
    host.at(100)
    orders = to(host.handle(ProcessReturned("q")), "q")
    settled = those(orders, ReportSettled)
    ended = {order.snapshot for order in those(orders, ReportOutcome)}
    assert S1 in ended or any(S1.counter < order.counter for order in settled)
    assert InstallView("q", RING) in orders


def test_a_returning_process_gets_the_refusal_that_it_missed() -> None:
    """E6: one of its markers may still arrive, and nobody else would report that the snapshot will not complete."""
    host = CoordinatorHost(RING)
    host.handle(SnapshotWanted())
    refused = SnapshotId(1, 2, "q")
    assert those(host.handle(SnapshotStarted(refused, "q", 1)), ReportOutcome)
    host.fragments(S1, "p", "q", "r")
    orders = to(host.handle(ProcessReturned("r")), "r")
    settled = those(orders, ReportSettled)
    ended = {order.snapshot for order in those(orders, ReportOutcome)}
    assert refused in ended or any(refused.counter < order.counter for order in settled)


def test_a_returning_process_gets_the_outcome_of_each_ended_snapshot() -> None:
    """A process that holds something back until the commit must not take a missed commit for an abort."""
    host = CoordinatorHost(RING, Policy(overlapping_max=2))
    host.handle(SnapshotWanted(), SnapshotWanted())
    host.fragments(S2, "p", "q", "r")
    outcomes = those(host.handle(ProcessReturned("q")), ReportOutcome)
    assert [(order.snapshot, order.committed) for order in outcomes] == [(S2, True)]


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
    """R2: that commit may release more output than this one covers, so the host compares them before it retries."""
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
    installs = those(other.catch_up(), InstallView)
    assert {order.process for order in installs} == {"p", "q", "r", "s"}
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
