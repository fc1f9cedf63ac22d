"""Storms are prevented (E10), and snapshots that processes initiate (C1) are adopted or refused."""

import pytest
from tests.protocol.coordinator.small_systems import FUNNEL, RING, S1, S2, SECOND, begun, woken_at
from tests.protocol.coordinator_host import CoordinatorHost, those
from tests.protocol.playbook import snapshot_id

from strobe.protocol import Policy, SnapshotId
from strobe.protocol.coordinator.messages import (
    ProcessFailed,
    ProcessReturned,
    ReportOutcome,
    RequestRecording,
    SnapshotStarted,
    SnapshotUnwanted,
    SnapshotWanted,
    WakeAt,
)
from strobe.protocol.coordinator.outcomes import IDS_REMEMBERED
from strobe.protocol.values.log_entries import Begin, Commit

# Storms (E10)


def test_no_more_than_the_maximum_overlap() -> None:
    host = CoordinatorHost(RING, Policy(overlapping_max=2))
    host.handle(*(SnapshotWanted() for _ in range(5)))
    assert len(host.begun()) == 2
    host.fragments(S2, "p", "q", "r")
    assert len(host.begun()) == 3


def test_requests_while_none_can_begin_become_one_snapshot() -> None:
    host = begun()
    host.handle(*(SnapshotWanted() for _ in range(200)))
    host.fragments(S1, "p", "q", "r")
    host.fragments(S2, "p", "q", "r")
    assert len(host.begun()) == 2


def test_a_snapshot_also_serves_requests_for_fewer_of_its_initiators() -> None:
    host = begun(Policy(overlapping_max=1))
    host.handle(SnapshotWanted(("p", "q")), SnapshotWanted(("q",)), SnapshotWanted(), SnapshotWanted(("r",)))
    for counter in range(1, 5):
        host.fragments(snapshot_id(counter), "p", "q", "r")
    assert [entry.initiators for entry in host.log if isinstance(entry, Begin)] == [("p",), ("p", "q"), ("r",)]


def test_a_request_that_nobody_awaits_any_more_does_not_begin() -> None:
    host = begun()
    host.handle(SnapshotWanted(("q",), awaited=True), SnapshotWanted(("r",), awaited=True))
    host.handle(SnapshotUnwanted(waiting=(("r",),)))
    for counter in range(1, 4):
        host.fragments(snapshot_id(counter), "p", "q", "r")
    assert [entry.initiators for entry in host.log if isinstance(entry, Begin)] == [("p",), ("r",)]


@pytest.mark.parametrize("awaited_first", [False, True])
def test_a_request_without_waiting_survives_another_that_gave_up(awaited_first: bool) -> None:
    host = begun()
    host.handle(SnapshotWanted(awaited=awaited_first), SnapshotWanted(awaited=not awaited_first), SnapshotUnwanted())
    host.fragments(S1, "p", "q", "r")
    assert len(host.begun()) == 2


def test_a_scheduled_snapshot_survives_an_abandoned_request() -> None:
    host = begun(Policy(interval_us=SECOND))
    host.handle(SnapshotWanted(awaited=True))
    host.at(SECOND)
    host.handle(SnapshotUnwanted())
    host.fragments(S1, "p", "q", "r")
    assert len(host.begun()) == 2


def test_the_pause_follows_the_last_begin_and_the_last_outcome() -> None:
    host = CoordinatorHost(RING, Policy(pause_us_min=1000))
    host.handle(SnapshotWanted(), SnapshotWanted())
    host.now_us = 400
    assert woken_at(host.fragments(S1, "p", "q", "r")) == 1400
    host.at(1399)
    assert len(host.begun()) == 1
    host.at(1400)
    assert len(host.begun()) == 2


def test_overlapping_snapshots_keep_the_pause_between_their_beginnings() -> None:
    host = CoordinatorHost(RING, Policy(pause_us_min=1000, overlapping_max=3))
    assert woken_at(host.handle(SnapshotWanted(), SnapshotWanted())) == 1000
    host.at(999)
    assert len(host.begun()) == 1
    host.at(1000)
    assert len(host.begun()) == 2


def test_a_schedule_begins_one_snapshot_per_interval() -> None:
    host = CoordinatorHost(RING, Policy(interval_us=1000))
    assert host.at(0) == [WakeAt(1000)]
    for now in (1000, 2000, 3000):
        host.at(now)
        host.fragments(host.last_begun(), "p", "q", "r")
    assert [entry.at_us for entry in host.begun()] == [1000, 2000, 3000]


def test_a_schedule_that_fell_behind_is_not_caught_up_with_a_storm() -> None:
    host = CoordinatorHost(RING, Policy(interval_us=1000))
    host.at(50_000)
    host.fragments(host.last_begun(), "p", "q", "r")
    host.at(50_001)
    assert len(host.begun()) == 1
    assert woken_at(host.at(50_999)) == 51_000
    host.at(51_000)
    assert len(host.begun()) == 2


def test_a_schedule_does_not_pile_up_behind_a_slow_snapshot() -> None:
    host = CoordinatorHost(RING, Policy(interval_us=1000, timeout_us=SECOND))
    for now in range(0, 10_000, 500):
        host.at(now)
    assert len(host.begun()) == 1
    host.fragments(host.last_begun(), "p", "q", "r")
    assert len(host.begun()) == 2
    host.fragments(host.last_begun(), "p", "q", "r")
    assert len(host.begun()) == 2


# Snapshots that a process initiates (C1)


def started(process: str, counter: int = 1, view: int = 1) -> SnapshotStarted:
    return SnapshotStarted(SnapshotId(1, counter, process), process, view)


def test_a_snapshot_that_a_process_initiates_is_adopted() -> None:
    host = CoordinatorHost(RING)
    own = SnapshotId(1, 7, "q")
    host.handle(started("q", 7))
    assert host.begun() == [Begin(str(own), 1, "chandy-lamport", ("q",), 0)]
    host.fragments(own, "p", "q", "r")
    assert isinstance(host.outcomes()[str(own)], Commit)
    host.handle(SnapshotWanted())
    assert host.last_begun() == snapshot_id(8)


def test_two_processes_that_initiate_the_same_snapshot_begin_one() -> None:
    host = CoordinatorHost(RING)
    own = SnapshotId(1, 1, "q")
    host.handle(SnapshotStarted(own, "q", 1), SnapshotStarted(own, "p", 1))
    assert len(host.begun()) == 1


def test_a_snapshot_that_has_its_outcome_is_not_adopted_again() -> None:
    host = CoordinatorHost(RING)
    host.handle(started("q"))
    host.fragments(SnapshotId(1, 1, "q"), "p", "q", "r")
    host.handle(started("q"))
    assert len(host.begun()) == 1


@pytest.mark.parametrize(("overlapping", "view"), [(1, 1), (0, 2), (0, 0)], ids=["too many", "newer", "older"])
def test_a_refusal_is_reported_to_all_processes(overlapping: int, view: int) -> None:
    host = CoordinatorHost(RING)
    host.handle(*(SnapshotWanted() for _ in range(overlapping)))
    outcomes = those(host.handle(started("q", 9, view)), ReportOutcome)
    assert [(order.process, order.snapshot, order.committed) for order in outcomes] == [
        (name, SnapshotId(1, 9, "q"), False) for name in "pqr"
    ]
    assert len(host.begun()) == overlapping


def test_a_refused_snapshot_stays_refused() -> None:
    """All processes received the refusal and ignore the snapshot, so it could only time out."""
    host = begun()
    own = SnapshotId(1, 2, "q")
    host.handle(SnapshotStarted(own, "q", 1))
    host.fragments(S1, "p", "q", "r")
    host.handle(SnapshotStarted(own, "p", 1))
    assert [entry.snapshot for entry in host.begun()] == [str(S1)]


def test_a_returning_process_receives_only_the_newest_refusals() -> None:
    """While a process is disconnected no snapshot can begin, and others may go on initiating for hours."""
    host = CoordinatorHost(RING)
    host.handle(ProcessFailed("p"), SnapshotWanted())
    host.handle(*(started("q", counter) for counter in range(2, 3000)))
    outcomes = those(host.handle(ProcessReturned("p")), ReportOutcome)
    assert 0 < len(outcomes) <= 4 * IDS_REMEMBERED
    assert outcomes[-1].snapshot == SnapshotId(1, 2999, "q")


def test_a_process_that_does_not_reach_all_may_initiate() -> None:
    """C1, M1: any process may initiate, even a sink. The coordinator asks the others."""
    asked = those(CoordinatorHost(FUNNEL).handle(started("r")), RequestRecording)
    assert {order.process for order in asked} >= {"p", "q"}


def test_a_fragment_before_the_report_of_its_snapshot_is_not_lost() -> None:
    """q got the marker and finished before the initiator's report reached the coordinator on another link."""
    host = CoordinatorHost(RING)
    own = SnapshotId(1, 1, "p")
    effects = host.fragments(own, "q")
    effects += host.handle(started("p"))
    asked = [order.process for order in those(effects, RequestRecording)]
    # A process that is asked again sends its fragment again.
    host.fragments(own, "p", "r", *asked)
    assert isinstance(host.outcomes().get(str(own)), Commit)


@pytest.mark.parametrize(
    "events",
    [
        (SnapshotWanted(), started("q", 3), started("r", 3)),
        (started("q", 3), started("r", 3), SnapshotWanted()),
    ],
    ids=["the coordinator's own first", "a process's first"],
)
def test_a_begin_not_yet_logged_counts_towards_the_maximum(events) -> None:
    """E10: snapshots never overlap more than the maximum, not even while the log is being written."""
    host = CoordinatorHost(RING, Policy(overlapping_max=1), slow=True)
    host.handle(*events)
    host.write()
    assert len(host.lifecycle.open) == 1


def test_the_minimum_pause_also_holds_if_processes_initiate() -> None:
    """E10: the minimum pause between snapshots does not depend on who begins them."""
    host = CoordinatorHost(RING, Policy(pause_us_min=1000))
    for counter in range(1, 6):
        host.now_us += 10
        host.handle(started("q", counter))
        host.fragments(SnapshotId(1, counter, "q"), "p", "q", "r")
    assert len(host.begun()) == 1


def test_two_requests_while_one_is_being_logged_get_two_ids() -> None:
    host = CoordinatorHost(RING, Policy(overlapping_max=2), slow=True)
    host.handle(SnapshotWanted(), SnapshotWanted(("q",)))
    assert len(host.waiting) == 1
    host.write()
    host.write()
    assert [entry.snapshot for entry in host.begun()] == [str(S1), str(S2)]
