"""Coordinators that crash and come back, and two that race for the log (E7)."""

import pytest
from tests.protocol.desk import Desk, those, to
from tests.protocol.playbook import snapshot_id, view

from strobe.protocol import Policy, SnapshotId, View
from strobe.protocol.coordinator.lifecycle import Lifecycle
from strobe.protocol.coordinator.messages import (
    AskToRecord,
    CommitSnapshot,
    Dismiss,
    JoinWanted,
    LeaveWanted,
    ProcessReturned,
    Recovered,
    SnapshotStarted,
    SnapshotWanted,
    TellOutcome,
    TellSettled,
    TellView,
)
from strobe.protocol.values.log_entries import Abort, Begin, Commit, EpochStart, Pin
from strobe.protocol.values.view import ChannelSpec

RING = view("p>q", "q>r", "r>p")
S1, S2, S3 = snapshot_id(1), snapshot_id(2), snapshot_id(3)
JOIN_S = JoinWanted("s", (ChannelSpec("ps", "p", "s"), ChannelSpec("sp", "s", "p")))


def back(desk: Desk) -> list:
    """Crash and come back, with every process answering that it has the view."""
    effects = desk.restart()
    number = desk.brain.view.number
    return effects + desk.drained(number, *desk.brain.view.processes)


# Coming back


def test_a_coordinator_that_comes_back_asks_everybody_for_what_is_open_and_finishes_it() -> None:
    desk = Desk(RING)
    desk.hears(SnapshotWanted())
    desk.fragments(S1, "p")
    effects = desk.restart()
    assert those(effects, AskToRecord) == [AskToRecord(name, S1, 1) for name in "pqr"]
    desk.fragments(S1, "q", "r")
    assert S1 in desk.brain.open
    desk.fragments(S1, "p")
    assert isinstance(desk.outcomes()[str(S1)], Commit)


def test_what_does_not_complete_after_the_restart_times_out_from_then_on() -> None:
    desk = Desk(RING, Policy(timeout_us=100, attempts_max=1))
    desk.hears(SnapshotWanted())
    desk.now_us = 5000
    desk.restart()
    desk.at(5099)
    assert desk.aborts() == []
    desk.at(5100)
    assert [entry.snapshot for entry in desk.aborts()] == [str(S1)]


def test_outcomes_are_not_forgotten_nor_changed_by_a_restart() -> None:
    desk = Desk(RING)
    desk.hears(SnapshotWanted())
    desk.fragments(S1, "p", "q", "r")
    log = list(desk.log)
    assert those(back(desk), AskToRecord) == []
    desk.fragments(S1, "p", "q", "r")
    desk.at(10**12)
    assert desk.log == log


def test_ids_go_on_where_they_were() -> None:
    desk = Desk(RING)
    desk.hears(SnapshotStarted(SnapshotId(1, 6, "q"), "q", 1))
    desk.fragments(SnapshotId(1, 6, "q"), "p", "q", "r")
    back(desk)
    desk.hears(SnapshotWanted())
    assert desk.last_begun() == snapshot_id(7)


def test_everybody_is_told_what_it_may_have_missed() -> None:
    desk = Desk(RING, Policy(overlapping_max=3))
    desk.hears(SnapshotWanted(), SnapshotWanted(), SnapshotWanted())
    desk.fragments(S2, "p", "q", "r")
    effects = desk.restart()
    for process in "pqr":
        told = to(effects, process)
        assert told[0] == TellSettled(process, 1)
        assert [order.snapshot for order in those(told, TellOutcome)] == [S2]
        assert those(told, TellView) == [TellView(process, RING)]


def test_nothing_begins_until_everybody_has_answered() -> None:
    desk = Desk(RING)
    desk.restart()
    desk.hears(SnapshotWanted())
    desk.drained(1, "p", "q")
    assert desk.begun() == []
    desk.drained(1, "r")
    assert len(desk.begun()) == 1


def test_the_view_comes_back_from_the_log_and_what_was_open_in_an_older_one_is_aborted() -> None:
    desk = Desk(RING)
    desk.hears(SnapshotWanted())
    desk.slow = True
    desk.hears(JOIN_S)
    desk.write()  # the view, but not yet the abort
    desk.slow = False
    effects = desk.restart()
    assert desk.brain.view.number == 2
    assert [entry.reason for entry in desk.aborts()] == ["the view changed"]
    assert those(effects, AskToRecord) == []
    assert {order.process for order in those(effects, TellView)} == {"p", "q", "r", "s"}


def test_a_leaver_is_let_go_by_the_coordinator_that_comes_back() -> None:
    desk = Desk(RING)
    desk.hears(LeaveWanted("r"))
    desk.drained(2, "p")
    effects = desk.restart()
    assert "r" in {order.process for order in those(effects, TellView)}
    assert those(desk.drained(2, "r", "p", "q"), Dismiss) == [Dismiss("r")]


def test_what_was_aborted_and_not_yet_retried_is_retried_after_the_restart() -> None:
    desk = Desk(RING, Policy(timeout_us=100, backoff_us=50))
    desk.hears(SnapshotWanted())
    desk.at(100)
    back(desk)
    desk.at(150)
    assert [(entry.snapshot, entry.retries, entry.attempt) for entry in desk.begun()[1:]] == [(str(S2), str(S1), 2)]


def test_what_was_retried_already_is_not_retried_once_more_after_a_restart() -> None:
    """E10: the log of a long life has many aborts, all long since retried; a restart must not begin them all again."""
    desk = Desk(RING, Policy(timeout_us=100, backoff_us=50))
    desk.hears(SnapshotWanted())
    desk.at(100)
    desk.at(150)
    desk.fragments(S2, "p", "q", "r")
    assert [entry.retries for entry in desk.begun()] == [None, str(S1)]
    back(desk)
    for now in range(200, 5000, 50):
        desk.at(now)
    assert len(desk.begun()) == 2


def test_a_schedule_begins_one_snapshot_after_a_long_absence() -> None:
    desk = Desk(RING, Policy(interval_us=1000))
    desk.now_us = 10**9
    back(desk)
    desk.fragments(desk.last_begun(), "p", "q", "r")
    desk.at(10**9 + 999)
    assert len(desk.begun()) == 1


def test_a_new_epoch_closes_what_was_open_and_counts_from_one() -> None:
    desk = Desk(RING)
    desk.hears(SnapshotWanted())
    desk.log.append(EpochStart(2, 0))
    back(desk)
    assert not desk.brain.open
    desk.hears(SnapshotWanted())
    assert desk.last_begun() == snapshot_id(1, epoch=2)


@pytest.mark.parametrize("entry", [Pin(str(S1), True, 0), EpochStart(1, 0)])
def test_entries_that_are_not_the_coordinators_are_read_over(entry) -> None:
    desk = Desk(RING, log=[entry])
    assert back(desk)
    desk.hears(SnapshotWanted())
    assert len(desk.begun()) == 1


# A process that was away


def test_a_process_that_returns_after_missing_an_abort_is_told_that_it_is_over() -> None:
    desk = Desk(RING, Policy(timeout_us=100, attempts_max=1))
    desk.hears(SnapshotWanted())
    desk.at(100)
    told = to(desk.hears(ProcessReturned("q")), "q")
    settled = those(told, TellSettled)
    over = {order.snapshot for order in those(told, TellOutcome)}
    assert S1 in over or any(S1.counter < order.counter for order in settled)
    assert TellView("q", RING) in told


def test_a_process_that_returns_after_missing_a_refusal_is_told_that_it_is_over() -> None:
    """E6: a marker of it may still come; nobody else would ever say that it will not complete."""
    desk = Desk(RING)
    desk.hears(SnapshotWanted())
    refused = SnapshotId(1, 2, "q")
    assert those(desk.hears(SnapshotStarted(refused, "q", 1)), TellOutcome)
    desk.fragments(S1, "p", "q", "r")
    told = to(desk.hears(ProcessReturned("r")), "r")
    settled = those(told, TellSettled)
    over = {order.snapshot for order in those(told, TellOutcome)}
    assert refused in over or any(refused.counter < order.counter for order in settled)


def test_a_process_that_returns_is_told_how_a_snapshot_ended_and_not_just_that_it_did() -> None:
    """Whoever holds something back until the commit must not take a commit that it missed for an abort."""
    desk = Desk(RING, Policy(overlapping_max=2))
    desk.hears(SnapshotWanted(), SnapshotWanted())
    desk.fragments(S2, "p", "q", "r")
    told = those(desk.hears(ProcessReturned("q")), TellOutcome)
    assert [(order.snapshot, order.committed) for order in told] == [(S2, True)]


# Two coordinators


def two(policy: Policy | None = None) -> tuple[Desk, Desk]:
    first = Desk(RING, policy)
    return first, Desk(RING, policy, log=first.log)


def test_of_two_coordinators_that_begin_at_once_one_is_first_and_the_other_takes_the_next_id() -> None:
    one, other = two(Policy(overlapping_max=2))
    other.now_us = 1
    one.hears(SnapshotWanted())
    other.hears(SnapshotWanted())
    one.catch_up()
    assert [entry.snapshot for entry in one.begun()] == [str(S1), str(S2)]
    assert set(one.brain.open) == set(other.brain.open) == {S1, S2}


def test_a_stale_coordinator_cannot_commit_what_was_aborted() -> None:
    one, other = two(Policy(timeout_us=100, attempts_max=1))
    one.hears(SnapshotWanted())
    other.catch_up()
    other.at(100)
    one.fragments(S1, "p", "q", "r")
    assert [type(entry) for entry in one.log] == [Begin, Abort]
    assert not one.brain.open


def test_a_stale_coordinator_cannot_abort_what_was_committed() -> None:
    one, other = two(Policy(timeout_us=100, attempts_max=1))
    one.hears(SnapshotWanted())
    other.catch_up()
    one.fragments(S1, "p", "q", "r")
    other.at(100)
    assert [type(entry) for entry in one.log] == [Begin, Commit]
    assert not other.brain.open


def test_R2_what_another_coordinator_has_committed_meanwhile_is_looked_at_before_a_commit_is_tried_again() -> None:
    """R2: it may have let out more output than this one covers; whoever orders the commit again compares them."""
    one, other = two(Policy(overlapping_max=2))
    one.hears(SnapshotWanted(), SnapshotWanted())
    other.catch_up()
    other.fragments(S2, "p", "q", "r")
    effects = one.fragments(S1, "p", "q", "r")
    assert those(effects, CommitSnapshot) == [CommitSnapshot(S1, {})] * 2
    assert [entry.snapshot for entry in one.log if isinstance(entry, Commit)] == [str(S2), str(S1)]


def test_a_second_outcome_in_the_log_changes_nothing() -> None:
    desk = Desk(RING)
    desk.hears(SnapshotWanted())
    desk.fragments(S1, "p", "q", "r")
    desk.log.append(Abort(str(S1), "too late", 0))
    assert those(desk.catch_up(), TellOutcome) == []
    assert not desk.brain.schedule.wants


def test_two_coordinators_retry_an_abort_once() -> None:
    one, other = two(Policy(timeout_us=100, backoff_us=50, overlapping_max=2))
    one.hears(SnapshotWanted())
    other.catch_up()
    for desk in (one, other, one, other, one, other):
        desk.catch_up()
        desk.at(100)
    for desk in (one, other, one, other):
        desk.catch_up()
        desk.at(150)
    assert [entry.retries for entry in one.begun()] == [None, str(S1)]


def test_two_coordinators_that_retry_at_the_same_moment_begin_one_retry() -> None:
    one, other = two(Policy(timeout_us=100, backoff_us=50, overlapping_max=2))
    one.hears(SnapshotWanted())
    one.at(100)
    other.now_us = 101
    other.catch_up()
    one.slow = other.slow = True
    one.at(151)
    other.at(152)
    for desk in (one, other, one, other):
        desk.write()
    assert [entry.retries for entry in one.begun()] == [None, str(S1)]


def test_a_view_of_another_coordinator_is_followed() -> None:
    one, other = two()
    one.hears(JOIN_S)
    told = those(other.catch_up(), TellView)
    assert {order.process for order in told} == {"p", "q", "r", "s"}
    assert other.brain.view == one.brain.view
    assert not other.brain.settled


def test_nothing_is_ordered_while_the_log_is_read_back() -> None:
    brain = Lifecycle(RING, Policy(interval_us=1), "chandy-lamport", recovering=True)
    desk = Desk(RING)
    desk.hears(SnapshotWanted())
    desk.hears(JOIN_S)
    desk.brain, desk.position = brain, 0
    assert desk.catch_up() == []
    assert {type(order) for order in desk.hears(Recovered())} >= {TellView}
    assert isinstance(brain.view, View)
