"""How the coordinator decides on rollbacks (R1): which processes go back, when, and to which snapshot."""

import msgspec
import pytest
from tests.protocol.coordinator_host import CoordinatorHost, committing, those
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
    ReportOutcome,
    RestoreRefused,
    RestoreState,
    RestoreWanted,
    SnapshotStarted,
    SnapshotWanted,
)
from strobe.protocol.values.log_entries import Commit, EpochStart, Pin


def test_R1_a_lost_state_rolls_all_back_to_the_newest_snapshot() -> None:
    host = with_one_complete()
    assert those(crash(host, "q"), ChooseSnapshot) == [ChooseSnapshot(None)]
    host.now_us = 7
    effects = chosen(host)
    goal = renumbered(RING, 2)
    assert host.epochs() == [EpochStart(2, 7, str(S1), goal, "q is connected without state", "q")]
    assert those(effects, RestoreState) == [RestoreState(process, 2, goal, str(S1)) for process in "pqr"]
    assert host.lifecycle.epoch == 2
    assert host.lifecycle.view == goal


def test_without_a_complete_snapshot_everybody_starts_from_the_beginning() -> None:
    host = CoordinatorHost(RING)
    crash(host, "q")
    effects = chosen(host, None)
    goal = renumbered(RING, 2)
    assert those(effects, RestoreState) == [RestoreState(process, 2, goal, None) for process in "pqr"]


def test_a_process_that_returns_with_its_state_causes_no_rollback() -> None:
    host = with_one_complete()
    effects = host.handle(ProcessFailed("q"), ProcessReturned("q"))
    assert those(effects, ChooseSnapshot) == []
    assert host.epochs() == []


def test_a_requested_rollback_blames_no_process() -> None:
    host = with_one_complete()
    effects = host.handle(RestoreWanted(str(S1), "because"))
    assert those(effects, ChooseSnapshot) == [ChooseSnapshot(str(S1))]
    chosen(host)
    assert [(entry.reason, entry.blamed) for entry in host.epochs()] == [("because", None)]


def test_E9_a_refused_request_leaves_everything_as_it_was() -> None:
    host = with_one_complete()
    host.handle(RestoreWanted("000001-00000009-coordinator", "because"), SnapshotWanted())
    assert len(host.begun()) == 1
    host.handle(RestoreRefused("there is no such snapshot"))
    assert host.epochs() == []
    assert len(host.begun()) == 2


def test_a_refused_request_still_rolls_back_if_a_process_needs_it() -> None:
    host = with_one_complete()
    host.handle(RestoreWanted("000001-00000009-coordinator", "because"))
    crash(host, "q")
    assert those(host.handle(RestoreRefused("no such snapshot")), ChooseSnapshot) == [ChooseSnapshot(None)]
    chosen(host)
    assert [entry.restored for entry in host.epochs()] == [str(S1)]


def test_if_nothing_can_be_restored_a_lost_state_stops_the_system() -> None:
    host = with_one_complete()
    crash(host, "q")
    (halt,) = those(host.handle(RestoreRefused("every one is corrupt")), Halt)
    assert "every one is corrupt" in halt.report


def test_E9_a_process_that_cannot_be_restored_stops_the_system() -> None:
    host = with_one_complete()
    crash(host, "q")
    chosen(host)
    effects = host.handle(CannotRestore("q", 2, "its state does not fit"), ProcessFailed("q"), ProcessWithoutState("q"))
    report = "process q cannot be restored, and everything is stopped: its state does not fit"
    assert [order.report for order in those(effects, Halt)] == [report, report]
    assert those(effects, ChooseSnapshot) == []


def test_a_failed_restore_of_an_older_epoch_stops_nothing() -> None:
    host = with_one_complete()
    crash(host, "q")
    chosen(host)
    assert those(host.handle(CannotRestore("q", 1, "its state does not fit")), Halt) == []


def test_a_request_during_a_pending_rollback_chooses_its_snapshot() -> None:
    host = with_one_complete()
    crash(host, "q")
    host.handle(RestoreWanted("older", "because"))
    assert those(chosen(host), ChooseSnapshot) == [ChooseSnapshot("older")]
    chosen(host)
    assert [entry.blamed for entry in host.epochs()] == ["q"]


def test_several_processes_without_state_cause_one_rollback() -> None:
    host = with_one_complete()
    assert those(crash(host, "q", "r", "p"), ChooseSnapshot) == [ChooseSnapshot(None)]
    effects = chosen(host)
    assert len(host.epochs()) == 1
    assert [order.process for order in those(effects, RestoreState)] == ["p", "q", "r"]


def test_nothing_begins_while_a_rollback_is_pending() -> None:
    host = with_one_complete(Policy(interval_us=1000))
    crash(host, "q")
    host.handle(SnapshotWanted(), JOIN_S)
    own = SnapshotId(1, 2, "p")
    refused = host.handle(SnapshotStarted(own, "p", 1))
    host.at(10_000)
    assert len(host.begun()) == 1
    assert host.views() == []
    assert {order.process for order in those(refused, ReportOutcome)} == {"p", "q", "r"}


def test_no_snapshot_begins_before_all_processes_are_restored() -> None:
    host = with_one_complete()
    crash(host, "q")
    host.handle(SnapshotWanted())
    chosen(host)
    host.drained(2, "p", "q")
    host.drained(1, "r")
    assert len(host.begun()) == 1
    host.drained(2, "r")
    assert host.last_begun() == snapshot_id(1, epoch=2)
    assert host.begun()[-1].view == 2


def test_a_rollback_ends_an_open_snapshot_and_retries_it() -> None:
    host = with_one_complete(Policy(overlapping_max=2, backoff_us=10))
    host.handle(SnapshotWanted())
    host.handle(ProcessWithoutState("q"))
    chosen(host)
    assert not host.lifecycle.open
    host.fragments(S2, "p", "q", "r")
    assert str(S2) not in host.outcomes()
    host.drained(2, "p", "q", "r")
    host.at(10)
    assert host.begun()[-1].retries == str(S2)


def test_a_commit_in_progress_ends_before_a_snapshot_is_chosen() -> None:
    """Output of a committed snapshot may be released already, so no process may go back behind it."""
    host = with_one_complete()
    host.handle(SnapshotWanted())
    host.slow = True
    assert those(host.fragments(S2, "p", "q", "r"), CommitSnapshot)
    assert those(crash(host, "q"), ChooseSnapshot) == []
    assert those(host.write(), ChooseSnapshot) == [ChooseSnapshot(None)]
    assert isinstance(host.outcomes()[str(S2)], Commit)


def test_a_rollback_also_waits_for_a_failing_commit() -> None:
    host = with_one_complete()
    host.handle(SnapshotWanted())
    host.slow = True
    host.fragments(S2, "p", "q", "r")
    host.waiting.clear()
    assert those(crash(host, "q"), ChooseSnapshot) == []
    assert those(host.handle(CommitFailed(S2, "full")), ChooseSnapshot) == [ChooseSnapshot(None)]


def test_a_complete_snapshot_is_committed_only_if_the_rollback_is_refused() -> None:
    host = with_one_complete()
    host.handle(SnapshotWanted())
    host.handle(RestoreWanted(str(S1), "because"))
    assert those(host.fragments(S2, "p", "q", "r"), CommitSnapshot) == []
    assert committing(host.handle(RestoreRefused("no"))) == [S2]


@pytest.mark.parametrize("kind", ["begin", "view"])
def test_a_rollback_waits_for_pending_log_entries(kind: str) -> None:
    host = with_one_complete()
    host.slow = True
    host.handle(SnapshotWanted() if kind == "begin" else LeaveWanted("r"))
    assert those(crash(host, "q"), ChooseSnapshot) == []
    assert those(host.write(), ChooseSnapshot) == [ChooseSnapshot(None)]


def commit_by_another(host: CoordinatorHost) -> None:
    """Another coordinator commits S2, which is open."""
    manifest = msgspec.structs.replace(host.log[1].manifest)  # type: ignore[union-attr]
    host.log.append(Commit(str(S2), manifest, 0))
    host.catch_up()


def test_a_commit_while_a_snapshot_is_chosen_repeats_the_choice() -> None:
    host = with_one_complete()
    host.handle(SnapshotWanted())
    host.handle(ProcessWithoutState("q"))
    commit_by_another(host)
    assert those(chosen(host, S1), ChooseSnapshot) == [ChooseSnapshot(None)]
    chosen(host, S2)
    assert [entry.restored for entry in host.epochs()] == [str(S2)]


def test_an_epoch_that_loses_its_log_position_is_chosen_again() -> None:
    host = with_one_complete()
    host.handle(ProcessWithoutState("q"))
    host.slow = True
    chosen(host)
    host.log.append(Pin(str(S1), True, 0))
    host.slow = False
    assert those(host.write(), ChooseSnapshot) == [ChooseSnapshot(None)]
    chosen(host)
    assert len(host.epochs()) == 1


def test_a_commit_logged_before_an_epoch_replaces_that_epoch() -> None:
    host = with_one_complete()
    host.handle(SnapshotWanted())
    host.handle(ProcessWithoutState("q"))
    host.slow = True
    chosen(host)
    commit_by_another(host)
    effects = host.write()
    assert those(effects, RestoreState) == []
    assert those(effects, ChooseSnapshot) == [ChooseSnapshot(str(S2))]
    host.slow = False
    effects = chosen(host, S2)
    assert [(entry.epoch, entry.restored, entry.blamed) for entry in host.epochs()] == [
        (2, str(S1), "q"),
        (3, str(S2), None),
    ]
    assert {order.epoch for order in those(effects, RestoreState)} == {3}


def test_the_epoch_of_another_coordinator_is_adopted() -> None:
    host = with_one_complete()
    host.handle(ProcessWithoutState("q"))
    goal = renumbered(RING, 2)
    host.log.append(EpochStart(2, 0, str(S1), goal))
    orders = those(host.catch_up(), RestoreState)
    assert [order.process for order in orders] == ["p", "q", "r"]
    chosen(host)
    assert [entry.epoch for entry in host.epochs()] == [2]
    # This coordinator does not know which processes the other one restored. One without state may have been running.
    assert those(crash(host, "q"), ChooseSnapshot) == [ChooseSnapshot(None)]


def test_unexpected_answers_are_ignored() -> None:
    host = with_one_complete()
    chosen(host)
    host.handle(RestoreRefused("no"), AppendLost(EpochStart(2, 0)))
    assert host.epochs() == []
