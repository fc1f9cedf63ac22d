"""Rollback (R1) across restarts of the coordinator, and processes that fail again and again."""

import pytest
from tests.protocol.desk import Desk, those, to
from tests.protocol.playbook import view
from tests.protocol.rolling_back import (
    JOIN_S,
    RING,
    S1,
    S2,
    SECOND,
    chosen,
    crash,
    renumbered,
    roll_back,
    with_one_complete,
)

from strobe.protocol import Policy, SnapshotId
from strobe.protocol.coordinator.messages import (
    AskToRecord,
    ChooseSnapshot,
    Drained,
    EntryLogged,
    Halt,
    LeaveWanted,
    ProcessFailed,
    ProcessReturned,
    ProcessWithoutState,
    RecordingFailed,
    RestoreWanted,
    SnapshotStarted,
    SnapshotWanted,
    TellOutcome,
    TellRestore,
    TellView,
)
from strobe.protocol.values.log_entries import Abort, Begin, EpochStart, Pin, ViewChange


def test_news_of_an_older_epoch_is_ignored() -> None:
    desk = with_one_complete()
    roll_back(desk, "q")
    before = len(desk.log)
    desk.fragments(S2, "p", "q", "r")
    assert those(desk.hears(SnapshotStarted(SnapshotId(1, 7, "p"), "p", 1)), TellOutcome) == []
    desk.hears(Drained("p", 1), EntryLogged(EpochStart(2, 0)))
    assert len(desk.log) == before
    assert desk.brain.epoch == 2


def test_the_view_and_the_epoch_come_back_from_the_log() -> None:
    desk = with_one_complete()
    desk.hears(JOIN_S)
    desk.drained(2, "p", "q", "r", "s")
    roll_back(desk, "q")
    desk.restart()
    assert desk.brain.epoch == 2
    assert desk.brain.view == renumbered(RING, 3)
    assert desk.brain.newest_complete == str(S1)


def test_after_a_restart_everybody_is_taken_for_started() -> None:
    desk = with_one_complete()
    desk.restart()
    assert those(desk.hears(ProcessWithoutState("q")), ChooseSnapshot) == [ChooseSnapshot(None)]
    desk.hears(ProcessReturned("p"))
    assert [order.process for order in those(chosen(desk), TellRestore)] == ["p", "q"]
    assert those(desk.hears(ProcessWithoutState("r", epoch=1)), TellRestore) != []
    assert len(desk.epochs()) == 1


@pytest.mark.parametrize("told", [False, True])
def test_a_coordinator_lost_in_the_middle_of_a_rollback_makes_another_where_somebody_needs_it(told: bool) -> None:
    desk = with_one_complete()
    crash(desk, "q")
    if told:
        chosen(desk)
    desk.restart()
    effects = desk.hears(ProcessWithoutState("p", epoch=1) if told else ProcessWithoutState("q"))
    assert those(effects, ChooseSnapshot) == [ChooseSnapshot(None)]
    desk.hears(ProcessWithoutState("q"), ProcessWithoutState("r", epoch=1))
    assert [order.process for order in those(chosen(desk), TellRestore)] == (["p", "q", "r"] if told else ["q", "r"])
    assert desk.epochs()[-1].blamed is None


def test_after_somebody_went_back_further_the_next_snapshots_share_nothing_with_what_was_abandoned() -> None:
    desk = with_one_complete()
    desk.hears(SnapshotWanted())
    desk.fragments(S2, "p", "q", "r")
    desk.hears(RestoreWanted(str(S1), "because"))
    chosen(desk, S1)
    desk.drained(2, "p", "q", "r")
    desk.hears(SnapshotWanted())
    assert desk.begun()[-1].parent == str(S1)


def test_the_first_epoch_begins_an_empty_log_and_processes_start_as_they_come() -> None:
    desk = Desk(RING, epoch=0)
    assert those(desk.restart(), TellView) == []
    assert desk.log == [EpochStart(1, 0, None, RING, "the system starts")]
    assert those(desk.hears(ProcessWithoutState("p")), TellRestore) == [TellRestore("p", 1, RING, None)]
    assert those(desk.hears(ProcessWithoutState("q")), TellRestore) == [TellRestore("q", 1, RING, None)]
    desk.hears(ProcessWithoutState("r"), SnapshotWanted())
    desk.drained(1, "p", "q")
    assert desk.begun() == []
    desk.drained(1, "r")
    assert desk.last_begun() == S1
    assert len(desk.epochs()) == 1


def test_who_comes_before_the_first_epoch_is_in_the_log_is_told_when_it_is() -> None:
    desk = Desk(RING, epoch=0, slow=True)
    desk.restart()
    assert those(desk.hears(ProcessWithoutState("p")), TellRestore) == []
    assert those(desk.write(), TellRestore) == [TellRestore("p", 1, RING, None)]


@pytest.mark.parametrize("faster", [Pin(str(S1), True, 0), EpochStart(1, 0, None, RING, "another one")])
def test_the_first_epoch_is_begun_once_whoever_is_faster(faster: Pin | EpochStart) -> None:
    desk = Desk(RING, epoch=0, slow=True)
    desk.restart()
    desk.log.append(faster)
    desk.slow = False
    desk.write()
    assert len(desk.epochs()) == 1
    assert desk.brain.epoch == 1


def test_a_start_from_the_beginning_starts_with_the_view_of_the_first_epoch() -> None:
    """Whatever the description of the system says by now."""
    desk = Desk(RING, epoch=0)
    desk.restart()
    desk.first_view = view("p>q")
    desk.restart()
    desk.hears(ProcessWithoutState("p"))
    chosen(desk, None)
    assert desk.brain.view == renumbered(RING, 2)


def test_a_process_that_makes_everybody_go_back_again_and_again_stops_the_system_with_a_report() -> None:
    desk = with_one_complete(Policy(rollbacks_max=2, rollback_window_us=60 * SECOND))
    roll_back(desk, "q")
    roll_back(desk, "q")
    (halt,) = those(crash(desk, "q"), Halt)
    assert "process q has crashed again" in halt.report
    assert len(desk.epochs()) == 2


def test_where_all_is_stopped_at_the_first_crash_whoever_has_not_crashed_may_join() -> None:
    desk = with_one_complete(Policy(rollbacks_max=0))
    assert desk.brain.rollback.join_refusal("s", desk.now_us) is None


def test_all_that_a_stopped_coordinator_says_is_that_it_is_stopped() -> None:
    desk = with_one_complete(Policy(rollbacks_max=0))
    (halt,) = those(crash(desk, "q"), Halt)
    assert desk.hears(ProcessWithoutState("r"), ProcessReturned("p")) == [halt, halt]
    desk.hears(SnapshotWanted(), JOIN_S, RestoreWanted(None, "because"))
    desk.at(10**12)
    assert len(desk.begun()) == 1
    assert desk.views() == desk.epochs() == []


def test_blame_is_counted_for_each_process_by_itself_and_for_a_while_only() -> None:
    desk = with_one_complete(Policy(rollbacks_max=1, rollback_window_us=SECOND))
    roll_back(desk, "q")
    roll_back(desk, "r")
    desk.now_us = SECOND
    roll_back(desk, "q")
    assert [entry.blamed for entry in desk.epochs()] == ["q", "r", "q"]
    desk.now_us = 2 * SECOND - 1
    assert those(crash(desk, "q"), Halt)


def test_blame_survives_the_coordinator() -> None:
    desk = with_one_complete(Policy(rollbacks_max=1))
    roll_back(desk, "q")
    desk.restart()
    desk.hears(*(ProcessReturned(process) for process in "pqr"))
    assert those(crash(desk, "q"), Halt)


def test_a_system_that_was_started_anew_as_a_whole_blames_nobody() -> None:
    desk = with_one_complete(Policy(rollbacks_max=0))
    desk.restart()
    effects = desk.hears(ProcessWithoutState("p"), ProcessWithoutState("q"), ProcessWithoutState("r"))
    assert those(effects, Halt) == []
    assert those(effects, ChooseSnapshot) == [ChooseSnapshot(None)]


def test_somebody_who_asks_again_and_again_is_not_blamed() -> None:
    desk = with_one_complete(Policy(rollbacks_max=0))
    for _ in range(3):
        desk.hears(RestoreWanted(str(S1), "because"))
        chosen(desk)
    assert len(desk.epochs()) == 3


def test_E3_a_recording_that_fails_aborts_its_snapshot_with_that_reason_and_is_retried() -> None:
    desk = Desk(RING, Policy(backoff_us=10))
    desk.hears(SnapshotWanted(), RecordingFailed(S1, "q", "4 MB of recorded frames are too many"))
    assert [entry.reason for entry in desk.aborts()] == ["q: 4 MB of recorded frames are too many"]
    desk.at(10)
    assert [type(entry) for entry in desk.log] == [Begin, Abort, Begin]
    assert desk.begun()[-1].retries == str(S1)


def test_a_recording_that_fails_for_what_is_over_already_changes_nothing() -> None:
    desk = with_one_complete()
    desk.hears(RecordingFailed(S1, "q", "the disk is full"))
    assert desk.aborts() == []
    assert those(to(desk.hears(ProcessReturned("q")), "q"), AskToRecord) == []
    assert [entry for entry in desk.log if isinstance(entry, ViewChange)] == []


def test_R1_who_is_there_without_state_is_told_no_view_while_everybody_is_to_go_back() -> None:
    """It would begin from nothing, in an epoch that is about to end."""
    desk = with_one_complete()
    desk.slow = True
    desk.hears(LeaveWanted("r"))  # the view without it is on its way
    crash(desk, "p")
    assert [told.process for told in those(desk.write(), TellView)] == ["q", "r"]
    desk.write()
    assert "p" in [told.process for told in those(chosen(desk) + desk.write(), TellRestore)]
    assert desk.brain.rollback.blanks == set()


def test_R1_who_is_in_a_snapshot_of_this_epoch_has_run_in_it_whoever_told_it_to() -> None:
    one = with_one_complete()
    other = Desk(RING, log=one.log)
    other.catch_up()
    one.hears(ProcessFailed("q"))
    other.hears(ProcessReturned("q"))  # it has found the other coordinator
    crash(one, "p")
    chosen(one)
    other.catch_up()  # which tells it to begin the epoch
    other.drained(2, "p", "q", "r")
    other.hears(SnapshotWanted())
    other.fragments(other.last_begun(), "p", "q", "r", view=2)
    one.catch_up()
    effects = one.hears(ProcessWithoutState("q"))
    assert those(effects, TellRestore) == []
    assert those(effects, ChooseSnapshot) == [ChooseSnapshot(None)]


def test_R1_who_is_there_without_state_stays_so_in_an_epoch_that_nobody_is_told_of() -> None:
    desk = with_one_complete()
    crash(desk, "p")
    desk.slow = True
    chosen(desk)  # the epoch is on its way
    desk.brain.rollback.committed(str(S2), desk.brain.view)  # and is overtaken there
    desk.write()
    assert desk.brain.rollback.blanks == {"p"}


def test_a_whole_snapshot_that_times_out_before_a_rollback_says_that_it_waited_for_that() -> None:
    desk = Desk(RING)
    desk.hears(SnapshotWanted())
    desk.hears(RestoreWanted(None, "because"))  # whereto is not chosen yet
    desk.fragments(desk.last_begun(), "p", "q", "r")
    desk.at(desk.now_us + desk.brain.policy.timeout_us)
    (reason,) = [entry.reason for entry in desk.log if isinstance(entry, Abort)]
    assert reason.endswith("without the end of a rollback")
