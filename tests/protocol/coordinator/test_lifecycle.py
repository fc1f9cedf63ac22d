"""The life cycle of a snapshot at the coordinator: begun, recorded, committed or aborted, retried (E6, E10)."""

import pytest
from tests.protocol.coordinator.small_systems import FUNNEL, RING, S1, S2, SECOND, begun, woken_at
from tests.protocol.coordinator_host import MANIFEST, CoordinatorHost, committing, those, to
from tests.protocol.playbook import snapshot_id

from strobe.protocol import Lifecycle, Policy, SnapshotId
from strobe.protocol.coordinator.messages import (
    Append,
    CommitSnapshot,
    EntryLogged,
    FragmentArrived,
    ProcessFailed,
    ProcessReturned,
    RelaySentCount,
    ReportOutcome,
    ReportSettled,
    RequestRecording,
    SentCountsArrived,
    SnapshotStarted,
    SnapshotWanted,
    TimePassed,
    WakeAt,
)
from strobe.protocol.coordinator.outcomes import IDS_REMEMBERED
from strobe.protocol.values.log_entries import Abort, Begin, BlobRef, Commit, ProcessRecord

# From the request to the commit


def test_a_snapshot_is_wanted_begun_recorded_and_committed() -> None:
    lifecycle = Lifecycle(RING, Policy(timeout_us=SECOND), "chandy-lamport")
    begin = Begin(str(S1), 1, "chandy-lamport", ("p",), 5)
    assert lifecycle.handle(SnapshotWanted(), 5) == [Append(begin)]
    assert lifecycle.handle(EntryLogged(begin), 6) == [RequestRecording("p", S1, 1), WakeAt(6 + SECOND)]
    assert lifecycle.handle(FragmentArrived(S1, "p", 1), 7) == [WakeAt(6 + SECOND)]
    assert lifecycle.handle(FragmentArrived(S1, "q", 1), 8) == [WakeAt(6 + SECOND)]
    assert lifecycle.handle(FragmentArrived(S1, "r", 1), 9) == [CommitSnapshot(S1, begin, RING)]
    effects = lifecycle.handle(EntryLogged(Commit(str(S1), MANIFEST, 10)), 10)
    assert effects == [
        effect for process in "pqr" for effect in (ReportOutcome(process, S1, True), ReportSettled(process, 0))
    ]
    assert not lifecycle.open


def test_no_recording_is_requested_before_the_begin_is_logged() -> None:
    host = CoordinatorHost(RING, slow=True)
    assert those(host.handle(SnapshotWanted()), RequestRecording) == []
    assert those(host.write(), RequestRecording) == [RequestRecording("p", S1, 1)]


def test_a_fragment_that_comes_twice_counts_once() -> None:
    host = begun()
    assert those(host.fragments(S1, "p", "p", "q", "p"), CommitSnapshot) == []
    assert committing(host.fragments(S1, "r", "r")) == [S1]


def test_a_commit_gets_the_record_of_each_fragment() -> None:
    host = begun()
    records = {process: ProcessRecord(3, "msgpack", BlobRef("0" * 64, 5, 1), {}, {}, {}) for process in "pqr"}
    effects = host.handle(*(FragmentArrived(S1, process, 1, record) for process, record in records.items()))
    assert those(effects, CommitSnapshot)[0].records == records


def test_fragments_of_snapshots_that_are_not_open_are_ignored() -> None:
    host = begun()
    host.fragments(S1, "p", "q", "r")
    assert those(host.fragments(S1, "p", "q", "r"), Append) == []
    assert those(host.fragments(S2, "p", "q", "r"), Append) == []
    assert len(host.log) == 2


def test_a_fragment_recorded_in_another_view_aborts_the_snapshot() -> None:
    host = begun()
    host.fragments(S1, "p", "q")
    host.fragments(S1, "r", view=2)
    assert host.outcomes()[str(S1)].reason == "r recorded it in view 2"


def test_the_initiators_are_a_minimal_set_that_reaches_all() -> None:
    host = CoordinatorHost(FUNNEL)
    assert {order.process for order in those(host.handle(SnapshotWanted()), RequestRecording)} == {"p", "q"}
    assert set(host.begun()[0].initiators) == {"p", "q"}


def test_a_chosen_initiator_is_asked() -> None:
    host = CoordinatorHost(RING)
    assert RequestRecording("r", S1, 1) in host.handle(SnapshotWanted(("r",)))
    assert host.begun()[0].initiators == ("r",)


def test_an_initiator_that_is_not_in_the_view_is_replaced() -> None:
    assert those(CoordinatorHost(RING).handle(SnapshotWanted(("x",))), RequestRecording) == [
        RequestRecording("p", S1, 1)
    ]


@pytest.mark.parametrize("chosen", ["r", "p"])
def test_an_initiator_that_does_not_reach_all_is_not_the_only_one(chosen: str) -> None:
    """M1: if no single process reaches all the others, several initiate the snapshot."""
    asked = those(CoordinatorHost(FUNNEL).handle(SnapshotWanted((chosen,))), RequestRecording)
    assert {order.process for order in asked} >= {"p", "q"}


def test_a_snapshot_names_the_newest_complete_one_as_its_parent() -> None:
    host = CoordinatorHost(RING, Policy(timeout_us=10, attempts_max=1))
    for answers in (("p", "q", "r"), ("p",), ("p", "q", "r")):
        host.handle(SnapshotWanted())
        host.fragments(host.last_begun(), *answers)
        host.at(host.now_us + 10)
    host.handle(SnapshotStarted(SnapshotId(1, 9, "q"), "q", 1))
    assert [entry.parent for entry in host.begun()] == [None, str(S1), str(S1), str(snapshot_id(3))]


# Lai-Yang


def test_under_lai_yang_every_process_is_asked() -> None:
    host = CoordinatorHost(RING, protocol="lai-yang")
    assert those(host.handle(SnapshotWanted(("q",))), RequestRecording) == [
        RequestRecording(name, S1, 1) for name in "pqr"
    ]


def test_sent_counts_are_relayed_to_the_receivers_of_the_channels() -> None:
    host = begun(protocol="lai-yang")
    relayed = those(host.handle(SentCountsArrived(S1, "p", {"pq": 4})), RelaySentCount)
    assert relayed == [RelaySentCount("q", S1, "pq", 4)]
    again = those(host.handle(SentCountsArrived(S1, "p", {"pq": 4})), RelaySentCount)
    assert again == relayed


def test_unknown_sent_counts_are_not_relayed() -> None:
    host = begun(protocol="lai-yang")
    assert those(host.handle(SentCountsArrived(S2, "p", {"pq": 4})), RelaySentCount) == []
    assert those(host.handle(SentCountsArrived(S1, "p", {"px": 4})), RelaySentCount) == []


# Time-outs, crashes, retries


def test_a_time_out_aborts_and_names_the_missing_processes() -> None:
    host = begun(Policy(timeout_us=2 * SECOND, attempts_max=1))
    host.fragments(S1, "q")
    assert host.at(2 * SECOND - 1) == [WakeAt(2 * SECOND)]
    effects = host.at(2 * SECOND)
    reason = "timed out after 2 s without a fragment from p, r"
    assert host.aborts() == [Abort(str(S1), reason, 2 * SECOND)]
    assert those(effects, ReportOutcome) == [ReportOutcome(name, S1, False, reason) for name in "pqr"]
    assert those(host.fragments(S1, "p", "r"), CommitSnapshot) == []


def test_a_snapshot_that_is_being_committed_does_not_time_out() -> None:
    host = begun(Policy(timeout_us=10))
    host.slow = True
    host.fragments(S1, "p", "q", "r")
    host.at(1000)
    host.handle(ProcessFailed("p"))
    host.write()
    assert isinstance(host.outcomes()[str(S1)], Commit)
    assert host.aborts() == []


def test_no_commit_is_ordered_while_an_abort_is_being_logged() -> None:
    """E6: fragments of an aborted snapshot that come late are ignored."""
    host = begun(Policy(timeout_us=10))
    host.slow = True
    host.at(10)
    assert those(host.fragments(S1, "p", "q", "r"), CommitSnapshot) == []


def test_an_abort_is_ordered_once() -> None:
    host = begun(Policy(timeout_us=10))
    host.slow = True
    host.at(10)
    host.at(20)
    host.handle(ProcessFailed("p"))
    assert len(host.waiting) == 1


def test_a_retry_has_a_new_id_and_a_doubled_back_off() -> None:
    host = begun(Policy(timeout_us=100, backoff_us=1000, attempts_max=3))
    host.at(100)
    assert [entry.snapshot for entry in host.begun()] == [str(S1)]
    host.at(1099)
    assert len(host.begun()) == 1
    host.at(1100)
    retry = host.begun()[1]
    assert (retry.snapshot, retry.retries, retry.attempt) == (str(S2), str(S1), 2)
    host.at(1200)
    host.at(3199)
    assert len(host.begun()) == 2
    host.at(3200)
    assert (host.begun()[2].retries, host.begun()[2].attempt) == (str(S2), 3)


def test_attempts_end_at_their_maximum() -> None:
    host = begun(Policy(timeout_us=100, backoff_us=1, attempts_max=3))
    for now in range(0, 100_000, 50):
        host.at(now)
    assert [entry.attempt for entry in host.begun()] == [1, 2, 3]
    assert len(host.aborts()) == 3
    assert not host.lifecycle.schedule.queue


def test_the_lifecycle_asks_to_be_woken_for_the_next_thing_that_is_due() -> None:
    host = CoordinatorHost(RING, Policy(timeout_us=100, backoff_us=1000, interval_us=5000, attempts_max=2))
    assert woken_at(host.handle(SnapshotWanted())) == 100
    assert woken_at(host.at(100)) == 1100
    assert woken_at(host.at(1100)) == 1200
    assert woken_at(host.at(1200)) == 5000


def test_a_crash_before_the_fragment_arrived_aborts_and_retries() -> None:
    host = begun(Policy(backoff_us=50))
    host.fragments(S1, "p", "q")
    host.handle(ProcessFailed("r"))
    assert host.aborts() == [Abort(str(S1), "process r failed", 0)]
    host.at(50)
    assert host.begun()[1].retries == str(S1)


def test_a_crash_after_the_fragment_arrived_changes_nothing() -> None:
    host = begun()
    host.fragments(S1, "p")
    host.handle(ProcessFailed("p"))
    host.fragments(S1, "q", "r")
    assert isinstance(host.outcomes()[str(S1)], Commit)


def test_a_crash_of_an_uninvolved_process_changes_nothing() -> None:
    host = begun()
    host.handle(ProcessFailed("x"))
    assert host.aborts() == []


def test_a_crash_aborts_only_snapshots_that_still_need_the_process() -> None:
    host = CoordinatorHost(RING, Policy(overlapping_max=2))
    host.handle(SnapshotWanted(), SnapshotWanted())
    host.fragments(S1, "p")
    host.handle(ProcessFailed("p"))
    assert [entry.snapshot for entry in host.aborts()] == [str(S2)]


# Messages to processes


def test_processes_forget_only_ids_that_are_far_behind() -> None:
    host = CoordinatorHost(RING)
    for counter in range(1, IDS_REMEMBERED + 11):
        host.handle(SnapshotWanted())
        effects = host.fragments(snapshot_id(counter), "p", "q", "r")
    assert to(those(effects, ReportSettled), "p") == [ReportSettled("p", 10)]


def test_an_open_snapshot_is_never_reported_as_settled() -> None:
    host = CoordinatorHost(RING, Policy(overlapping_max=2, timeout_us=1000 * SECOND))
    host.handle(SnapshotWanted())
    for counter in range(2, 3 * IDS_REMEMBERED):
        host.handle(SnapshotWanted())
        effects = host.fragments(snapshot_id(counter), "p", "q", "r")
        assert all(order.counter <= 1 for order in those(effects, ReportSettled))
    effects = host.handle(ProcessReturned("p"))
    assert those(effects, ReportSettled) == [ReportSettled("p", 1)]


def test_the_coordinator_itself_remembers_a_bounded_number_of_outcomes() -> None:
    host = CoordinatorHost(RING)
    for counter in range(1, 10 * IDS_REMEMBERED):
        host.handle(SnapshotWanted())
        host.fragments(snapshot_id(counter), "p", "q", "r")
    assert len(host.lifecycle.outcomes.ended) <= 4 * IDS_REMEMBERED + 1
    assert len(host.begun()) == len(host.outcomes())


def test_R2_a_returning_process_gets_outcomes_before_it_forgets_them() -> None:
    """R2: the outcome lets it release what the snapshot covers, and the next snapshot may be a long time away."""
    host = CoordinatorHost(RING)
    host.handle(SnapshotWanted())
    host.fragments(S1, "p", "q", "r")
    effects = to(host.handle(ProcessReturned("q")), "q")
    assert effects[:2] == [ReportOutcome("q", S1, True, ""), ReportSettled("q", 2)]


def test_a_returning_process_receives_the_outcomes_it_may_have_missed() -> None:
    host = CoordinatorHost(RING, Policy(overlapping_max=2, timeout_us=1000))
    host.handle(SnapshotWanted())
    host.now_us = 500
    host.handle(SnapshotWanted())
    host.fragments(S2, "p", "q", "r")
    host.handle(SnapshotWanted())
    effects = to(host.handle(ProcessReturned("q")), "q")
    assert ReportSettled("q", 1) in effects
    assert [order.snapshot for order in those(effects, ReportOutcome)] == [S2]
    host.at(1000)
    effects = to(host.handle(ProcessReturned("q")), "q")
    assert ReportSettled("q", 3) in effects


def test_time_passing_with_nothing_to_do_does_nothing() -> None:
    assert CoordinatorHost(RING).handle(TimePassed()) == []
