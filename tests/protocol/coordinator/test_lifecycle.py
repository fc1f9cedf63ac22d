"""The life of a snapshot at the coordinator: begun, recorded, committed or aborted, retried (E6, E10)."""

import pytest
from tests.protocol.coordinator.small_systems import FUNNEL, RING, S1, S2, SECOND, begun, woken_at
from tests.protocol.desk import MANIFEST, Desk, those, to
from tests.protocol.playbook import snapshot_id

from strobe.protocol import Lifecycle, Policy, SnapshotId
from strobe.protocol.coordinator.messages import (
    Append,
    AskToRecord,
    CommitSnapshot,
    EntryLogged,
    FragmentArrived,
    ProcessFailed,
    ProcessReturned,
    RelaySentCount,
    SentCountsArrived,
    SnapshotStarted,
    SnapshotWanted,
    TellOutcome,
    TellSettled,
    TimePassed,
    WakeAt,
)
from strobe.protocol.coordinator.outcomes import IDS_REMEMBERED
from strobe.protocol.values.log_entries import Abort, Begin, Commit

# From the request to the commit


def test_a_snapshot_is_wanted_begun_recorded_and_committed() -> None:
    brain = Lifecycle(RING, Policy(timeout_us=SECOND), "chandy-lamport")
    begin = Begin(str(S1), 1, "chandy-lamport", ("p",), 5)
    assert brain.handle(SnapshotWanted(), 5) == [Append(begin)]
    assert brain.handle(EntryLogged(begin), 6) == [AskToRecord("p", S1, 1), WakeAt(6 + SECOND)]
    assert brain.handle(FragmentArrived(S1, "p", 1), 7) == [WakeAt(6 + SECOND)]
    assert brain.handle(FragmentArrived(S1, "q", 1), 8) == [WakeAt(6 + SECOND)]
    assert brain.handle(FragmentArrived(S1, "r", 1), 9) == [CommitSnapshot(S1)]
    told = brain.handle(EntryLogged(Commit(str(S1), MANIFEST, 10)), 10)
    assert told == [effect for process in "pqr" for effect in (TellOutcome(process, S1, True), TellSettled(process, 0))]
    assert not brain.open


def test_nothing_is_asked_of_anyone_before_the_beginning_is_in_the_log() -> None:
    desk = Desk(RING, slow=True)
    assert those(desk.hears(SnapshotWanted()), AskToRecord) == []
    assert those(desk.write(), AskToRecord) == [AskToRecord("p", S1, 1)]


def test_a_fragment_that_comes_twice_counts_once() -> None:
    desk = begun()
    assert those(desk.fragments(S1, "p", "p", "q", "p"), CommitSnapshot) == []
    assert those(desk.fragments(S1, "r", "r"), CommitSnapshot) == [CommitSnapshot(S1)]


def test_fragments_of_snapshots_that_are_not_open_are_ignored() -> None:
    desk = begun()
    desk.fragments(S1, "p", "q", "r")
    assert those(desk.fragments(S1, "p", "q", "r"), Append) == []
    assert those(desk.fragments(S2, "p", "q", "r"), Append) == []
    assert len(desk.log) == 2


def test_a_fragment_recorded_in_another_view_aborts_the_snapshot() -> None:
    desk = begun()
    desk.fragments(S1, "p", "q")
    desk.fragments(S1, "r", view=2)
    assert desk.outcomes()[str(S1)].reason == "r recorded it in view 2"


def test_as_few_processes_are_asked_as_it_takes_to_reach_all() -> None:
    desk = Desk(FUNNEL)
    assert {order.process for order in those(desk.hears(SnapshotWanted()), AskToRecord)} == {"p", "q"}
    assert set(desk.begun()[0].initiators) == {"p", "q"}


def test_a_chosen_initiator_is_asked() -> None:
    desk = Desk(RING)
    assert AskToRecord("r", S1, 1) in desk.hears(SnapshotWanted(("r",)))
    assert desk.begun()[0].initiators == ("r",)


def test_an_initiator_that_is_not_in_the_view_is_replaced() -> None:
    assert those(Desk(RING).hears(SnapshotWanted(("x",))), AskToRecord) == [AskToRecord("p", S1, 1)]


@pytest.mark.parametrize("chosen", ["r", "p"])
def test_a_chosen_initiator_that_does_not_reach_all_does_not_initiate_alone(chosen: str) -> None:
    """M1: where no one process reaches all the others, the snapshot is initiated at as many as it takes."""
    asked = those(Desk(FUNNEL).hears(SnapshotWanted((chosen,))), AskToRecord)
    assert {order.process for order in asked} >= {"p", "q"}


def test_a_snapshot_names_the_newest_complete_one_as_its_parent() -> None:
    desk = Desk(RING, Policy(timeout_us=10, attempts_max=1))
    for answers in (("p", "q", "r"), ("p",), ("p", "q", "r")):
        desk.hears(SnapshotWanted())
        desk.fragments(desk.last_begun(), *answers)
        desk.at(desk.now_us + 10)
    desk.hears(SnapshotStarted(SnapshotId(1, 9, "q"), "q", 1))
    assert [entry.parent for entry in desk.begun()] == [None, str(S1), str(S1), str(snapshot_id(3))]


# Lai-Yang


def test_under_lai_yang_every_process_is_asked() -> None:
    desk = Desk(RING, protocol="lai-yang")
    assert those(desk.hears(SnapshotWanted(("q",))), AskToRecord) == [AskToRecord(name, S1, 1) for name in "pqr"]


def test_sent_counts_are_relayed_to_the_receivers_of_the_channels() -> None:
    desk = begun(protocol="lai-yang")
    relayed = those(desk.hears(SentCountsArrived(S1, "p", {"pq": 4})), RelaySentCount)
    assert relayed == [RelaySentCount("q", S1, "pq", 4)]
    again = those(desk.hears(SentCountsArrived(S1, "p", {"pq": 4})), RelaySentCount)
    assert again == relayed


def test_sent_counts_of_snapshots_that_are_over_or_of_unknown_channels_are_not_relayed() -> None:
    desk = begun(protocol="lai-yang")
    assert those(desk.hears(SentCountsArrived(S2, "p", {"pq": 4})), RelaySentCount) == []
    assert those(desk.hears(SentCountsArrived(S1, "p", {"px": 4})), RelaySentCount) == []


# Time-outs, crashes, retries


def test_a_snapshot_that_times_out_is_aborted_naming_who_is_missing_and_all_are_told() -> None:
    desk = begun(Policy(timeout_us=2 * SECOND, attempts_max=1))
    desk.fragments(S1, "q")
    assert desk.at(2 * SECOND - 1) == [WakeAt(2 * SECOND)]
    effects = desk.at(2 * SECOND)
    reason = "timed out after 2 s without a fragment from p, r"
    assert desk.aborts() == [Abort(str(S1), reason, 2 * SECOND)]
    assert those(effects, TellOutcome) == [TellOutcome(name, S1, False, reason) for name in "pqr"]
    assert those(desk.fragments(S1, "p", "r"), CommitSnapshot) == []


def test_a_snapshot_that_is_being_committed_does_not_time_out() -> None:
    desk = begun(Policy(timeout_us=10))
    desk.slow = True
    desk.fragments(S1, "p", "q", "r")
    desk.at(1000)
    desk.hears(ProcessFailed("p"))
    desk.write()
    assert isinstance(desk.outcomes()[str(S1)], Commit)
    assert desk.aborts() == []


def test_no_commit_is_ordered_once_an_abort_is_on_its_way_to_the_log() -> None:
    """E6: fragments of an aborted snapshot that come late are ignored."""
    desk = begun(Policy(timeout_us=10))
    desk.slow = True
    desk.at(10)
    assert those(desk.fragments(S1, "p", "q", "r"), CommitSnapshot) == []


def test_an_abort_is_ordered_once() -> None:
    desk = begun(Policy(timeout_us=10))
    desk.slow = True
    desk.at(10)
    desk.at(20)
    desk.hears(ProcessFailed("p"))
    assert len(desk.waiting) == 1


def test_a_retry_has_a_new_id_that_names_the_one_it_retries_after_a_back_off_that_doubles() -> None:
    desk = begun(Policy(timeout_us=100, backoff_us=1000, attempts_max=3))
    desk.at(100)
    assert [entry.snapshot for entry in desk.begun()] == [str(S1)]
    desk.at(1099)
    assert len(desk.begun()) == 1
    desk.at(1100)
    retry = desk.begun()[1]
    assert (retry.snapshot, retry.retries, retry.attempt) == (str(S2), str(S1), 2)
    desk.at(1200)
    desk.at(3199)
    assert len(desk.begun()) == 2
    desk.at(3200)
    assert (desk.begun()[2].retries, desk.begun()[2].attempt) == (str(S2), 3)


def test_attempts_end_at_their_maximum() -> None:
    desk = begun(Policy(timeout_us=100, backoff_us=1, attempts_max=3))
    for now in range(0, 100_000, 50):
        desk.at(now)
    assert [entry.attempt for entry in desk.begun()] == [1, 2, 3]
    assert len(desk.aborts()) == 3
    assert not desk.brain.schedule.wants


def test_the_brain_asks_to_be_woken_for_the_next_thing_that_is_due() -> None:
    desk = Desk(RING, Policy(timeout_us=100, backoff_us=1000, interval_us=5000, attempts_max=2))
    assert woken_at(desk.hears(SnapshotWanted())) == 100
    assert woken_at(desk.at(100)) == 1100
    assert woken_at(desk.at(1100)) == 1200
    assert woken_at(desk.at(1200)) == 5000


def test_a_crash_before_the_fragment_arrived_aborts_and_retries() -> None:
    desk = begun(Policy(backoff_us=50))
    desk.fragments(S1, "p", "q")
    desk.hears(ProcessFailed("r"))
    assert desk.aborts() == [Abort(str(S1), "process r failed", 0)]
    desk.at(50)
    assert desk.begun()[1].retries == str(S1)


def test_a_crash_after_the_fragment_arrived_changes_nothing() -> None:
    desk = begun()
    desk.fragments(S1, "p")
    desk.hears(ProcessFailed("p"))
    desk.fragments(S1, "q", "r")
    assert isinstance(desk.outcomes()[str(S1)], Commit)


def test_a_crash_of_a_process_that_has_no_part_in_the_snapshot_changes_nothing() -> None:
    desk = begun()
    desk.hears(ProcessFailed("x"))
    assert desk.aborts() == []


def test_a_crash_aborts_exactly_the_overlapping_snapshots_that_still_need_the_process() -> None:
    desk = Desk(RING, Policy(overlapping_max=2))
    desk.hears(SnapshotWanted(), SnapshotWanted())
    desk.fragments(S1, "p")
    desk.hears(ProcessFailed("p"))
    assert [entry.snapshot for entry in desk.aborts()] == [str(S2)]


# What processes are told


def test_processes_are_told_to_forget_ids_that_are_far_behind_and_only_those() -> None:
    desk = Desk(RING)
    for counter in range(1, IDS_REMEMBERED + 11):
        desk.hears(SnapshotWanted())
        effects = desk.fragments(snapshot_id(counter), "p", "q", "r")
    assert to(those(effects, TellSettled), "p") == [TellSettled("p", 10)]


def test_nothing_open_is_ever_called_settled() -> None:
    desk = Desk(RING, Policy(overlapping_max=2, timeout_us=1000 * SECOND))
    desk.hears(SnapshotWanted())
    for counter in range(2, 3 * IDS_REMEMBERED):
        desk.hears(SnapshotWanted())
        effects = desk.fragments(snapshot_id(counter), "p", "q", "r")
        assert all(order.counter <= 1 for order in those(effects, TellSettled))
    effects = desk.hears(ProcessReturned("p"))
    assert those(effects, TellSettled) == [TellSettled("p", 1)]


def test_the_coordinator_itself_remembers_a_bounded_number_of_outcomes() -> None:
    desk = Desk(RING)
    for counter in range(1, 10 * IDS_REMEMBERED):
        desk.hears(SnapshotWanted())
        desk.fragments(snapshot_id(counter), "p", "q", "r")
    assert len(desk.brain.outcomes.ended) <= 4 * IDS_REMEMBERED + 1
    assert len(desk.begun()) == len(desk.outcomes())


def test_R2_a_process_that_returns_is_told_what_is_complete_before_it_is_told_to_forget_it() -> None:
    """R2: it releases by that what the snapshot covers, which may be the last one for long."""
    desk = Desk(RING)
    desk.hears(SnapshotWanted())
    desk.fragments(S1, "p", "q", "r")
    effects = to(desk.hears(ProcessReturned("q")), "q")
    assert effects[:2] == [TellOutcome("q", S1, True, ""), TellSettled("q", 2)]


def test_a_process_that_returns_is_told_the_outcomes_it_may_have_missed() -> None:
    desk = Desk(RING, Policy(overlapping_max=2, timeout_us=1000))
    desk.hears(SnapshotWanted())
    desk.now_us = 500
    desk.hears(SnapshotWanted())
    desk.fragments(S2, "p", "q", "r")
    desk.hears(SnapshotWanted())
    effects = to(desk.hears(ProcessReturned("q")), "q")
    assert TellSettled("q", 1) in effects
    assert [order.snapshot for order in those(effects, TellOutcome)] == [S2]
    desk.at(1000)
    effects = to(desk.hears(ProcessReturned("q")), "q")
    assert TellSettled("q", 3) in effects


def test_time_passing_with_nothing_to_do_does_nothing() -> None:
    assert Desk(RING).hears(TimePassed()) == []
