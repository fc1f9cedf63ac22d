"""Rollback (R1) across restarts of the coordinator, and processes that fail repeatedly."""

import pytest
from tests.protocol.coordinator_host import CoordinatorHost, those, to
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
    ChooseSnapshot,
    Drained,
    EntryLogged,
    Halt,
    InstallView,
    LeaveWanted,
    ProcessFailed,
    ProcessReturned,
    ProcessWithoutState,
    RecordingFailed,
    ReportOutcome,
    RequestRecording,
    RestoreState,
    RestoreWanted,
    SnapshotStarted,
    SnapshotWanted,
)
from strobe.protocol.values.log_entries import Abort, Begin, EpochStart, Pin, ViewChange


def test_reports_of_an_older_epoch_are_ignored() -> None:
    host = with_one_complete()
    roll_back(host, "q")
    before = len(host.log)
    host.fragments(S2, "p", "q", "r")
    assert those(host.handle(SnapshotStarted(SnapshotId(1, 7, "p"), "p", 1)), ReportOutcome) == []
    host.handle(Drained("p", 1), EntryLogged(EpochStart(2, 0)))
    assert len(host.log) == before
    assert host.lifecycle.epoch == 2


def test_a_restart_reads_the_view_and_the_epoch_from_the_log() -> None:
    host = with_one_complete()
    host.handle(JOIN_S)
    host.drained(2, "p", "q", "r", "s")
    roll_back(host, "q")
    host.restart()
    assert host.lifecycle.epoch == 2
    assert host.lifecycle.view == renumbered(RING, 3)
    assert host.lifecycle.rollback.newest == str(S1)


def test_after_a_restart_all_processes_count_as_started() -> None:
    host = with_one_complete()
    host.restart()
    assert those(host.handle(ProcessWithoutState("q")), ChooseSnapshot) == [ChooseSnapshot(None)]
    host.handle(ProcessReturned("p"))
    assert [order.process for order in those(chosen(host), RestoreState)] == ["p", "q"]
    assert those(host.handle(ProcessWithoutState("r", epoch=1)), RestoreState) != []
    assert len(host.epochs()) == 1


@pytest.mark.parametrize("ordered", [False, True])
def test_a_restart_during_a_rollback_makes_another_if_needed(ordered: bool) -> None:
    host = with_one_complete()
    crash(host, "q")
    if ordered:
        chosen(host)
    host.restart()
    effects = host.handle(ProcessWithoutState("p", epoch=1) if ordered else ProcessWithoutState("q"))
    assert those(effects, ChooseSnapshot) == [ChooseSnapshot(None)]
    host.handle(ProcessWithoutState("q"), ProcessWithoutState("r", epoch=1))
    assert [order.process for order in those(chosen(host), RestoreState)] == (
        ["p", "q", "r"] if ordered else ["q", "r"]
    )
    assert host.epochs()[-1].blamed is None


def test_after_a_rollback_snapshots_share_no_abandoned_blobs() -> None:
    host = with_one_complete()
    host.handle(SnapshotWanted())
    host.fragments(S2, "p", "q", "r")
    host.handle(RestoreWanted(str(S1), "because"))
    chosen(host, S1)
    host.drained(2, "p", "q", "r")
    host.handle(SnapshotWanted())
    assert host.begun()[-1].parent == str(S1)


def test_the_first_epoch_starts_each_process_when_it_connects() -> None:
    host = CoordinatorHost(RING, epoch=0)
    assert those(host.restart(), InstallView) == []
    assert host.log == [EpochStart(1, 0, None, RING, "the system starts")]
    assert those(host.handle(ProcessWithoutState("p")), RestoreState) == [RestoreState("p", 1, RING, None)]
    assert those(host.handle(ProcessWithoutState("q")), RestoreState) == [RestoreState("q", 1, RING, None)]
    host.handle(ProcessWithoutState("r"), SnapshotWanted())
    host.drained(1, "p", "q")
    assert host.begun() == []
    host.drained(1, "r")
    assert host.last_begun() == S1
    assert len(host.epochs()) == 1


def test_an_early_process_starts_once_the_first_epoch_is_logged() -> None:
    host = CoordinatorHost(RING, epoch=0, slow=True)
    host.restart()
    assert those(host.handle(ProcessWithoutState("p")), RestoreState) == []
    assert those(host.write(), RestoreState) == [RestoreState("p", 1, RING, None)]


@pytest.mark.parametrize("faster", [Pin(str(S1), True, 0), EpochStart(1, 0, None, RING, "another one")])
def test_the_first_epoch_begins_once_even_after_a_lost_race(faster: Pin | EpochStart) -> None:
    host = CoordinatorHost(RING, epoch=0, slow=True)
    host.restart()
    host.log.append(faster)
    host.slow = False
    host.write()
    assert len(host.epochs()) == 1
    assert host.lifecycle.epoch == 1


def test_a_start_from_the_beginning_has_the_view_of_the_first_epoch() -> None:
    """Even if the description of the system has changed since."""
    host = CoordinatorHost(RING, epoch=0)
    host.restart()
    host.first_view = view("p>q")
    host.restart()
    host.handle(ProcessWithoutState("p"))
    chosen(host, None)
    assert host.lifecycle.view == renumbered(RING, 2)


def test_a_process_that_causes_too_many_rollbacks_stops_the_system() -> None:
    host = with_one_complete(Policy(rollbacks_max=2, rollback_window_us=60 * SECOND))
    roll_back(host, "q")
    roll_back(host, "q")
    (halt,) = those(crash(host, "q"), Halt)
    assert "process q has crashed again" in halt.report
    assert len(host.epochs()) == 2


def test_with_rollbacks_max_0_a_process_without_crashes_may_join() -> None:
    host = with_one_complete(Policy(rollbacks_max=0))
    assert host.lifecycle.rollback.join_refusal("s", host.now_us) is None


def test_a_stopped_coordinator_only_reports_that_it_is_stopped() -> None:
    host = with_one_complete(Policy(rollbacks_max=0))
    (halt,) = those(crash(host, "q"), Halt)
    assert host.handle(ProcessWithoutState("r"), ProcessReturned("p")) == [halt, halt]
    host.handle(SnapshotWanted(), JOIN_S, RestoreWanted(None, "because"))
    host.at(10**12)
    assert len(host.begun()) == 1
    assert host.views() == host.epochs() == []


def test_blame_is_counted_per_process_and_within_a_time_window() -> None:
    host = with_one_complete(Policy(rollbacks_max=1, rollback_window_us=SECOND))
    roll_back(host, "q")
    roll_back(host, "r")
    host.now_us = SECOND
    roll_back(host, "q")
    assert [entry.blamed for entry in host.epochs()] == ["q", "r", "q"]
    host.now_us = 2 * SECOND - 1
    assert those(crash(host, "q"), Halt)


def test_blame_survives_a_restart_of_the_coordinator() -> None:
    host = with_one_complete(Policy(rollbacks_max=1))
    roll_back(host, "q")
    host.restart()
    host.handle(*(ProcessReturned(process) for process in "pqr"))
    assert those(crash(host, "q"), Halt)


def test_a_restart_of_the_whole_system_blames_nobody() -> None:
    host = with_one_complete(Policy(rollbacks_max=0))
    host.restart()
    effects = host.handle(ProcessWithoutState("p"), ProcessWithoutState("q"), ProcessWithoutState("r"))
    assert those(effects, Halt) == []
    assert those(effects, ChooseSnapshot) == [ChooseSnapshot(None)]


def test_repeated_requests_for_a_rollback_blame_nobody() -> None:
    host = with_one_complete(Policy(rollbacks_max=0))
    for _ in range(3):
        host.handle(RestoreWanted(str(S1), "because"))
        chosen(host)
    assert len(host.epochs()) == 3


def test_E3_a_failed_recording_aborts_its_snapshot_and_is_retried() -> None:
    host = CoordinatorHost(RING, Policy(backoff_us=10))
    host.handle(SnapshotWanted(), RecordingFailed(S1, "q", "4 MB of recorded frames are too many"))
    assert [entry.reason for entry in host.aborts()] == ["q: 4 MB of recorded frames are too many"]
    host.at(10)
    assert [type(entry) for entry in host.log] == [Begin, Abort, Begin]
    assert host.begun()[-1].retries == str(S1)


def test_a_failed_recording_of_an_ended_snapshot_changes_nothing() -> None:
    host = with_one_complete()
    host.handle(RecordingFailed(S1, "q", "the disk is full"))
    assert host.aborts() == []
    assert those(to(host.handle(ProcessReturned("q")), "q"), RequestRecording) == []
    assert [entry for entry in host.log if isinstance(entry, ViewChange)] == []


def test_R1_a_process_without_state_gets_no_view_before_a_rollback() -> None:
    """Otherwise it would begin from nothing, in an epoch that is about to end."""
    host = with_one_complete()
    host.slow = True
    host.handle(LeaveWanted("r"))  # the view without r is being logged
    crash(host, "p")
    assert [order.process for order in those(host.write(), InstallView)] == ["q", "r"]
    host.write()
    assert "p" in [order.process for order in those(chosen(host) + host.write(), RestoreState)]
    assert host.lifecycle.rollback.stateless == set()


def test_R1_a_process_in_a_snapshot_of_this_epoch_has_started_in_it() -> None:
    one = with_one_complete()
    other = CoordinatorHost(RING, log=one.log)
    other.catch_up()
    one.handle(ProcessFailed("q"))
    other.handle(ProcessReturned("q"))  # q has found the other coordinator
    crash(one, "p")
    chosen(one)
    other.catch_up()  # the other coordinator orders q to begin the epoch
    other.drained(2, "p", "q", "r")
    other.handle(SnapshotWanted())
    other.fragments(other.last_begun(), "p", "q", "r", view=2)
    one.catch_up()
    effects = one.handle(ProcessWithoutState("q"))
    assert those(effects, RestoreState) == []
    assert those(effects, ChooseSnapshot) == [ChooseSnapshot(None)]


def test_R1_an_overtaken_epoch_starts_no_process_without_state() -> None:
    host = with_one_complete()
    crash(host, "p")
    host.slow = True
    chosen(host)  # the epoch is being logged
    host.lifecycle.rollback.committed(str(S2), host.lifecycle.view)  # and a commit gets into the log before it
    host.write()
    assert host.lifecycle.rollback.stateless == {"p"}


def test_a_time_out_names_the_rollback_that_the_commit_waited_for() -> None:
    host = CoordinatorHost(RING)
    host.handle(SnapshotWanted())
    host.handle(RestoreWanted(None, "because"))  # the snapshot to restore is not chosen yet
    host.fragments(host.last_begun(), "p", "q", "r")
    host.at(host.now_us + host.lifecycle.policy.timeout_us)
    (reason,) = [entry.reason for entry in host.log if isinstance(entry, Abort)]
    assert reason.endswith("without the end of a rollback")
