"""Whereto everybody goes back, and whether as a fork, when requests and crashes meet (R1, R2).

A fork belongs to the snapshot that it was asked for with: output that was released since does not stand against that
one, and against no other.
"""

import pytest
from tests.protocol.desk import Desk, those
from tests.protocol.rolling_back import S1, S2, chosen, crash, with_one_complete

from strobe.protocol.coordinator.messages import ChooseSnapshot, RestoreRefused, RestoreWanted, TellRestore

X, Y = "000001-00000007-coordinator", "000001-00000008-coordinator"


def epoch_on_its_way(desk: Desk) -> None:
    """A snapshot is chosen, and the epoch that starts with it waits to be written."""
    desk.slow = True
    chosen(desk)


@pytest.mark.parametrize("fork", [False, True])
def test_R2_what_is_asked_for_while_an_automatic_rollback_is_on_its_way_is_a_fork_only_if_asked_for_as_one(
    fork: bool,
) -> None:
    desk = with_one_complete()
    crash(desk, "q")
    epoch_on_its_way(desk)
    desk.hears(RestoreWanted(X, "because", fork))
    effects = desk.write()
    assert those(effects, ChooseSnapshot) == [ChooseSnapshot(X, fork)]
    assert those(effects, TellRestore) == []


@pytest.mark.parametrize("fork", [False, True])
def test_R2_a_later_request_is_a_fork_only_if_it_says_so_whatever_the_one_before_it_said(fork: bool) -> None:
    desk = with_one_complete()
    desk.hears(RestoreWanted(X, "to fork" if not fork else "to go back", not fork))
    epoch_on_its_way(desk)
    desk.hears(RestoreWanted(Y, "the later one", fork))
    assert those(desk.write(), ChooseSnapshot) == [ChooseSnapshot(Y, fork)]
    desk.slow = False
    chosen(desk, S2)
    assert [(entry.fork, entry.reason) for entry in desk.epochs()][-1] == (fork, "the later one")


def test_R2_after_a_fork_was_refused_the_newest_is_no_fork() -> None:
    desk = with_one_complete()
    desk.hears(RestoreWanted(X, "because", fork=True))
    crash(desk, "q")
    assert those(desk.hears(RestoreRefused("it is corrupt")), ChooseSnapshot) == [ChooseSnapshot(None, fork=False)]
    chosen(desk)
    assert [entry.fork for entry in desk.epochs()] == [False]


def test_a_fork_from_the_newest_is_one_also_where_an_automatic_rollback_is_to_come() -> None:
    desk = with_one_complete()
    crash(desk, "q")
    desk.hears(RestoreWanted(None, "because", fork=True))
    assert those(chosen(desk), ChooseSnapshot) == [ChooseSnapshot(None, fork=True)]


def test_whoever_asks_for_whatever_can_be_restored_changes_nothing_of_what_is_to_come() -> None:
    desk = with_one_complete()
    desk.hears(RestoreWanted(X, "because", fork=True), RestoreWanted(None, "any will do"))
    chosen(desk)
    assert [(entry.fork, entry.reason) for entry in desk.epochs()] == [(True, "because")]


def test_what_overtakes_a_further_start_of_a_fork_is_restored_as_a_fork_too() -> None:
    """It was committed in the fork, whose output goes on in a file of its own."""
    desk = with_one_complete()
    desk.hears(RestoreWanted(str(S1), "because", fork=True))
    chosen(desk)
    desk.drained(2, "p", "q", "r")
    crash(desk, "q")
    epoch_on_its_way(desk)
    desk.brain.rollback.committed(str(S2), desk.brain.view)
    assert those(desk.write(), ChooseSnapshot) == [ChooseSnapshot(str(S2), fork=True)]
    assert [entry.fork for entry in desk.epochs()] == [True, True]
