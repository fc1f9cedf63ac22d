"""Rollback as the coordinator decides it (R1): who goes back, when, and to what."""

import msgspec
import pytest
from tests.protocol.desk import Desk, those
from tests.protocol.playbook import snapshot_id
from tests.protocol.rolling_back import (
    JOIN_S,
    RING,
    S1,
    S2,
    chosen,
    crash,
    renumbered,
    with_one_complete,
)

from strobe.protocol import Policy, SnapshotId
from strobe.protocol.coordinator.messages import (
    AppendLost,
    CannotRestore,
    ChooseSnapshot,
    CommitFailed,
    CommitSnapshot,
    Halt,
    LeaveWanted,
    ProcessFailed,
    ProcessReturned,
    ProcessWithoutState,
    RestoreRefused,
    RestoreWanted,
    SnapshotStarted,
    SnapshotWanted,
    TellOutcome,
    TellRestore,
)
from strobe.protocol.values.log_entries import Commit, EpochStart, Pin


def test_R1_a_process_that_lost_its_state_takes_everybody_back_to_the_newest_complete_snapshot() -> None:
    desk = with_one_complete()
    assert those(crash(desk, "q"), ChooseSnapshot) == [ChooseSnapshot(None)]
    desk.now_us = 7
    effects = chosen(desk)
    goal = renumbered(RING, 2)
    assert desk.epochs() == [EpochStart(2, 7, str(S1), goal, "q is there without state", "q")]
    assert those(effects, TellRestore) == [TellRestore(process, 2, goal, str(S1)) for process in "pqr"]
    assert desk.brain.epoch == 2
    assert desk.brain.view == goal


def test_without_a_complete_snapshot_everybody_starts_from_the_beginning() -> None:
    desk = Desk(RING)
    crash(desk, "q")
    effects = chosen(desk, None)
    goal = renumbered(RING, 2)
    assert those(effects, TellRestore) == [TellRestore(process, 2, goal, None) for process in "pqr"]


def test_a_process_that_comes_back_with_its_state_takes_nobody_back() -> None:
    desk = with_one_complete()
    effects = desk.hears(ProcessFailed("q"), ProcessReturned("q"))
    assert those(effects, ChooseSnapshot) == []
    assert desk.epochs() == []


def test_somebody_who_asks_takes_everybody_back_and_nobody_is_blamed() -> None:
    desk = with_one_complete()
    effects = desk.hears(RestoreWanted(str(S1), "because"))
    assert those(effects, ChooseSnapshot) == [ChooseSnapshot(str(S1))]
    chosen(desk)
    assert [(entry.reason, entry.blamed) for entry in desk.epochs()] == [("because", None)]


def test_E9_a_refused_request_leaves_everything_as_it_was() -> None:
    desk = with_one_complete()
    desk.hears(RestoreWanted("000001-00000009-coordinator", "because"), SnapshotWanted())
    assert len(desk.begun()) == 1
    desk.hears(RestoreRefused("there is no such snapshot"))
    assert desk.epochs() == []
    assert len(desk.begun()) == 2


def test_a_refused_request_still_takes_everybody_back_where_a_process_has_no_state() -> None:
    desk = with_one_complete()
    desk.hears(RestoreWanted("000001-00000009-coordinator", "because"))
    crash(desk, "q")
    assert those(desk.hears(RestoreRefused("no such snapshot")), ChooseSnapshot) == [ChooseSnapshot(None)]
    chosen(desk)
    assert [entry.restored for entry in desk.epochs()] == [str(S1)]


def test_where_nothing_can_be_restored_and_a_process_has_no_state_all_is_stopped_with_the_reason() -> None:
    desk = with_one_complete()
    crash(desk, "q")
    (halt,) = those(desk.hears(RestoreRefused("every one is corrupt")), Halt)
    assert "every one is corrupt" in halt.report


def test_E9_a_process_that_cannot_be_restored_stops_all_at_once_with_the_reason() -> None:
    desk = with_one_complete()
    crash(desk, "q")
    chosen(desk)
    effects = desk.hears(CannotRestore("q", 2, "its state does not fit"), ProcessFailed("q"), ProcessWithoutState("q"))
    report = "process q cannot be restored, and all is stopped: its state does not fit"
    assert [order.report for order in those(effects, Halt)] == [report, report]
    assert those(effects, ChooseSnapshot) == []


def test_one_that_could_not_be_restored_in_an_epoch_that_is_over_stops_nothing() -> None:
    desk = with_one_complete()
    crash(desk, "q")
    chosen(desk)
    assert those(desk.hears(CannotRestore("q", 1, "its state does not fit")), Halt) == []


def test_a_request_while_a_rollback_is_to_come_says_where_it_goes() -> None:
    desk = with_one_complete()
    crash(desk, "q")
    desk.hears(RestoreWanted("older", "because"))
    assert those(chosen(desk), ChooseSnapshot) == [ChooseSnapshot("older")]
    chosen(desk)
    assert [entry.blamed for entry in desk.epochs()] == ["q"]


def test_several_processes_without_state_cause_one_rollback() -> None:
    desk = with_one_complete()
    assert those(crash(desk, "q", "r", "p"), ChooseSnapshot) == [ChooseSnapshot(None)]
    effects = chosen(desk)
    assert len(desk.epochs()) == 1
    assert [order.process for order in those(effects, TellRestore)] == ["p", "q", "r"]


def test_nothing_begins_while_a_rollback_is_to_come() -> None:
    desk = with_one_complete(Policy(interval_us=1000))
    crash(desk, "q")
    desk.hears(SnapshotWanted(), JOIN_S)
    own = SnapshotId(1, 2, "p")
    refused = desk.hears(SnapshotStarted(own, "p", 1))
    desk.at(10_000)
    assert len(desk.begun()) == 1
    assert desk.views() == []
    assert {order.process for order in those(refused, TellOutcome)} == {"p", "q", "r"}


def test_nothing_begins_in_the_new_epoch_before_everybody_has_been_restored() -> None:
    desk = with_one_complete()
    crash(desk, "q")
    desk.hears(SnapshotWanted())
    chosen(desk)
    desk.drained(2, "p", "q")
    desk.drained(1, "r")
    assert len(desk.begun()) == 1
    desk.drained(2, "r")
    assert desk.last_begun() == snapshot_id(1, epoch=2)
    assert desk.begun()[-1].view == 2


def test_what_was_open_is_over_with_the_old_epoch_and_is_wanted_again() -> None:
    desk = with_one_complete(Policy(overlapping_max=2, backoff_us=10))
    desk.hears(SnapshotWanted())
    desk.hears(ProcessWithoutState("q"))
    chosen(desk)
    assert not desk.brain.open
    desk.fragments(S2, "p", "q", "r")
    assert str(S2) not in desk.outcomes()
    desk.drained(2, "p", "q", "r")
    desk.at(10)
    assert desk.begun()[-1].retries == str(S2)


def test_a_snapshot_that_is_being_committed_gets_its_outcome_before_one_is_chosen() -> None:
    """Output of a committed snapshot may be released: nobody may go back behind it."""
    desk = with_one_complete()
    desk.hears(SnapshotWanted())
    desk.slow = True
    assert those(desk.fragments(S2, "p", "q", "r"), CommitSnapshot)
    assert those(crash(desk, "q"), ChooseSnapshot) == []
    assert those(desk.write(), ChooseSnapshot) == [ChooseSnapshot(None)]
    assert isinstance(desk.outcomes()[str(S2)], Commit)


def test_a_commit_that_fails_is_waited_for_too() -> None:
    desk = with_one_complete()
    desk.hears(SnapshotWanted())
    desk.slow = True
    desk.fragments(S2, "p", "q", "r")
    desk.waiting.clear()
    assert those(crash(desk, "q"), ChooseSnapshot) == []
    assert those(desk.hears(CommitFailed(S2, "full")), ChooseSnapshot) == [ChooseSnapshot(None)]


def test_what_becomes_whole_while_a_rollback_is_to_come_is_committed_only_if_that_is_refused() -> None:
    desk = with_one_complete()
    desk.hears(SnapshotWanted())
    desk.hears(RestoreWanted(str(S1), "because"))
    assert those(desk.fragments(S2, "p", "q", "r"), CommitSnapshot) == []
    assert those(desk.hears(RestoreRefused("no")), CommitSnapshot) == [CommitSnapshot(S2)]


@pytest.mark.parametrize("kind", ["begin", "view"])
def test_what_is_on_its_way_to_the_log_is_waited_for(kind: str) -> None:
    desk = with_one_complete()
    desk.slow = True
    desk.hears(SnapshotWanted() if kind == "begin" else LeaveWanted("r"))
    assert those(crash(desk, "q"), ChooseSnapshot) == []
    assert those(desk.write(), ChooseSnapshot) == [ChooseSnapshot(None)]


def commit_by_another(desk: Desk) -> None:
    """Another coordinator commits S2, which is open."""
    manifest = msgspec.structs.replace(desk.log[1].manifest)  # type: ignore[union-attr]
    desk.log.append(Commit(str(S2), manifest, 0))
    desk.catch_up()


def test_a_commit_between_the_choice_and_its_answer_makes_it_choose_again() -> None:
    desk = with_one_complete()
    desk.hears(SnapshotWanted())
    desk.hears(ProcessWithoutState("q"))
    commit_by_another(desk)
    assert those(chosen(desk, S1), ChooseSnapshot) == [ChooseSnapshot(None)]
    chosen(desk, S2)
    assert [entry.restored for entry in desk.epochs()] == [str(S2)]


def test_an_epoch_that_loses_its_place_is_chosen_again() -> None:
    desk = with_one_complete()
    desk.hears(ProcessWithoutState("q"))
    desk.slow = True
    chosen(desk)
    desk.log.append(Pin(str(S1), True, 0))
    desk.slow = False
    assert those(desk.write(), ChooseSnapshot) == [ChooseSnapshot(None)]
    chosen(desk)
    assert len(desk.epochs()) == 1


def test_a_commit_read_while_the_epoch_is_on_its_way_makes_another_epoch_and_nobody_hears_of_the_first() -> None:
    desk = with_one_complete()
    desk.hears(SnapshotWanted())
    desk.hears(ProcessWithoutState("q"))
    desk.slow = True
    chosen(desk)
    commit_by_another(desk)
    effects = desk.write()
    assert those(effects, TellRestore) == []
    assert those(effects, ChooseSnapshot) == [ChooseSnapshot(str(S2))]
    desk.slow = False
    effects = chosen(desk, S2)
    assert [(entry.epoch, entry.restored, entry.blamed) for entry in desk.epochs()] == [
        (2, str(S1), "q"),
        (3, str(S2), None),
    ]
    assert {order.epoch for order in those(effects, TellRestore)} == {3}


def test_the_epoch_of_another_coordinator_is_followed_and_is_enough() -> None:
    desk = with_one_complete()
    desk.hears(ProcessWithoutState("q"))
    goal = renumbered(RING, 2)
    desk.log.append(EpochStart(2, 0, str(S1), goal))
    told = those(desk.catch_up(), TellRestore)
    assert [order.process for order in told] == ["p", "q", "r"]
    chosen(desk)
    assert [entry.epoch for entry in desk.epochs()] == [2]
    # Who was told by that other one is not known here: one without state has been running, for all one knows.
    assert those(crash(desk, "q"), ChooseSnapshot) == [ChooseSnapshot(None)]


def test_an_answer_to_nothing_is_ignored() -> None:
    desk = with_one_complete()
    chosen(desk)
    desk.hears(RestoreRefused("no"), AppendLost(EpochStart(2, 0)))
    assert desk.epochs() == []
