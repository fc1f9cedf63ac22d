"""Storms are prevented (E10), and what processes initiate by themselves (C1) is adopted or refused."""

import pytest
from tests.protocol.coordinator.small_systems import FUNNEL, RING, S1, S2, SECOND, begun, woken_at
from tests.protocol.desk import Desk, those
from tests.protocol.playbook import snapshot_id

from strobe.protocol import Policy, SnapshotId
from strobe.protocol.coordinator.messages import (
    AskToRecord,
    ProcessFailed,
    ProcessReturned,
    SnapshotStarted,
    SnapshotUnwanted,
    SnapshotWanted,
    TellOutcome,
    WakeAt,
)
from strobe.protocol.coordinator.outcomes import IDS_REMEMBERED
from strobe.protocol.values.log_entries import Begin, Commit

# Storms (E10)


def test_no_more_than_the_maximum_overlap() -> None:
    desk = Desk(RING, Policy(overlapping_max=2))
    desk.hears(*(SnapshotWanted() for _ in range(5)))
    assert len(desk.begun()) == 2
    desk.fragments(S2, "p", "q", "r")
    assert len(desk.begun()) == 3


def test_however_many_ask_while_none_can_begin_there_is_one() -> None:
    desk = begun()
    desk.hears(*(SnapshotWanted() for _ in range(200)))
    desk.fragments(S1, "p", "q", "r")
    desk.fragments(S2, "p", "q", "r")
    assert len(desk.begun()) == 2


def test_one_that_these_initiate_will_do_for_who_asks_for_fewer_of_them() -> None:
    desk = begun(Policy(overlapping_max=1))
    desk.hears(SnapshotWanted(("p", "q")), SnapshotWanted(("q",)), SnapshotWanted(), SnapshotWanted(("r",)))
    for counter in range(1, 5):
        desk.fragments(snapshot_id(counter), "p", "q", "r")
    assert [entry.initiators for entry in desk.log if isinstance(entry, Begin)] == [("p",), ("p", "q"), ("r",)]


def test_what_nobody_waits_for_any_more_does_not_begin() -> None:
    desk = begun()
    desk.hears(SnapshotWanted(("q",), awaited=True), SnapshotWanted(("r",), awaited=True))
    desk.hears(SnapshotUnwanted(waiting=(("r",),)))
    for counter in range(1, 4):
        desk.fragments(snapshot_id(counter), "p", "q", "r")
    assert [entry.initiators for entry in desk.log if isinstance(entry, Begin)] == [("p",), ("r",)]


@pytest.mark.parametrize("awaited_first", [False, True])
def test_what_someone_wants_without_waiting_begins_though_another_waits_no_more(awaited_first: bool) -> None:
    desk = begun()
    desk.hears(SnapshotWanted(awaited=awaited_first), SnapshotWanted(awaited=not awaited_first), SnapshotUnwanted())
    desk.fragments(S1, "p", "q", "r")
    assert len(desk.begun()) == 2


def test_a_scheduled_one_is_not_lost_with_the_request_that_came_before_it() -> None:
    desk = begun(Policy(interval_us=SECOND))
    desk.hears(SnapshotWanted(awaited=True))
    desk.at(SECOND)
    desk.hears(SnapshotUnwanted())
    desk.fragments(S1, "p", "q", "r")
    assert len(desk.begun()) == 2


def test_a_pause_is_kept_after_the_last_beginning_and_the_last_outcome() -> None:
    desk = Desk(RING, Policy(pause_us_min=1000))
    desk.hears(SnapshotWanted(), SnapshotWanted())
    desk.now_us = 400
    assert woken_at(desk.fragments(S1, "p", "q", "r")) == 1400
    desk.at(1399)
    assert len(desk.begun()) == 1
    desk.at(1400)
    assert len(desk.begun()) == 2


def test_overlapping_snapshots_keep_the_pause_between_their_beginnings() -> None:
    desk = Desk(RING, Policy(pause_us_min=1000, overlapping_max=3))
    assert woken_at(desk.hears(SnapshotWanted(), SnapshotWanted())) == 1000
    desk.at(999)
    assert len(desk.begun()) == 1
    desk.at(1000)
    assert len(desk.begun()) == 2


def test_a_schedule_begins_one_snapshot_per_interval() -> None:
    desk = Desk(RING, Policy(interval_us=1000))
    assert desk.at(0) == [WakeAt(1000)]
    for now in (1000, 2000, 3000):
        desk.at(now)
        desk.fragments(desk.last_begun(), "p", "q", "r")
    assert [entry.at_us for entry in desk.begun()] == [1000, 2000, 3000]


def test_a_schedule_that_fell_behind_is_not_caught_up_with_a_storm() -> None:
    desk = Desk(RING, Policy(interval_us=1000))
    desk.at(50_000)
    desk.fragments(desk.last_begun(), "p", "q", "r")
    desk.at(50_001)
    assert len(desk.begun()) == 1
    assert woken_at(desk.at(50_999)) == 51_000
    desk.at(51_000)
    assert len(desk.begun()) == 2


def test_a_schedule_does_not_pile_up_behind_a_slow_snapshot() -> None:
    desk = Desk(RING, Policy(interval_us=1000, timeout_us=SECOND))
    for now in range(0, 10_000, 500):
        desk.at(now)
    assert len(desk.begun()) == 1
    desk.fragments(desk.last_begun(), "p", "q", "r")
    assert len(desk.begun()) == 2
    desk.fragments(desk.last_begun(), "p", "q", "r")
    assert len(desk.begun()) == 2


# Snapshots that a process initiates (C1)


def started(process: str, counter: int = 1, view: int = 1) -> SnapshotStarted:
    return SnapshotStarted(SnapshotId(1, counter, process), process, view)


def test_what_a_process_initiates_is_adopted() -> None:
    desk = Desk(RING)
    own = SnapshotId(1, 7, "q")
    desk.hears(started("q", 7))
    assert desk.begun() == [Begin(str(own), 1, "chandy-lamport", ("q",), 0)]
    desk.fragments(own, "p", "q", "r")
    assert isinstance(desk.outcomes()[str(own)], Commit)
    desk.hears(SnapshotWanted())
    assert desk.last_begun() == snapshot_id(8)


def test_two_processes_that_initiate_the_same_snapshot_begin_one() -> None:
    desk = Desk(RING)
    own = SnapshotId(1, 1, "q")
    desk.hears(SnapshotStarted(own, "q", 1), SnapshotStarted(own, "p", 1))
    assert len(desk.begun()) == 1


def test_a_snapshot_that_has_its_outcome_is_not_adopted_again() -> None:
    desk = Desk(RING)
    desk.hears(started("q"))
    desk.fragments(SnapshotId(1, 1, "q"), "p", "q", "r")
    desk.hears(started("q"))
    assert len(desk.begun()) == 1


@pytest.mark.parametrize(("overlapping", "view"), [(1, 1), (0, 2), (0, 0)], ids=["too many", "newer", "older"])
def test_what_cannot_be_taken_on_is_refused_and_all_are_told(overlapping: int, view: int) -> None:
    desk = Desk(RING)
    desk.hears(*(SnapshotWanted() for _ in range(overlapping)))
    told = those(desk.hears(started("q", 9, view)), TellOutcome)
    assert [(order.process, order.snapshot, order.committed) for order in told] == [
        (name, SnapshotId(1, 9, "q"), False) for name in "pqr"
    ]
    assert len(desk.begun()) == overlapping


def test_what_was_refused_stays_refused() -> None:
    """All processes were told that it is over, and ignore it: it could only time out."""
    desk = begun()
    own = SnapshotId(1, 2, "q")
    desk.hears(SnapshotStarted(own, "q", 1))
    desk.fragments(S1, "p", "q", "r")
    desk.hears(SnapshotStarted(own, "p", 1))
    assert [entry.snapshot for entry in desk.begun()] == [str(S1)]


def test_however_many_are_refused_only_the_newest_are_told_to_who_returns() -> None:
    """While a process is away nothing can begin, and others may go on initiating for hours."""
    desk = Desk(RING)
    desk.hears(ProcessFailed("p"), SnapshotWanted())
    desk.hears(*(started("q", counter) for counter in range(2, 3000)))
    told = those(desk.hears(ProcessReturned("p")), TellOutcome)
    assert 0 < len(told) <= 4 * IDS_REMEMBERED
    assert told[-1].snapshot == SnapshotId(1, 2999, "q")


def test_a_process_that_does_not_reach_all_may_initiate_all_the_same() -> None:
    """C1, M1: any process may initiate, also a sink; the others are asked by the coordinator."""
    asked = those(Desk(FUNNEL).hears(started("r")), AskToRecord)
    assert {order.process for order in asked} >= {"p", "q"}


def test_a_fragment_that_overtakes_the_news_of_its_snapshot_is_not_lost() -> None:
    """q got the marker and was done before the initiator's word reached the coordinator, on another link."""
    desk = Desk(RING)
    own = SnapshotId(1, 1, "p")
    effects = desk.fragments(own, "q")
    effects += desk.hears(started("p"))
    asked = [order.process for order in those(effects, AskToRecord)]
    # Whoever is asked again sends its fragment again.
    desk.fragments(own, "p", "r", *asked)
    assert isinstance(desk.outcomes().get(str(own)), Commit)


@pytest.mark.parametrize(
    "events",
    [
        (SnapshotWanted(), started("q", 3), started("r", 3)),
        (started("q", 3), started("r", 3), SnapshotWanted()),
    ],
    ids=["the coordinator's own first", "a process's first"],
)
def test_a_beginning_on_its_way_to_the_log_counts_towards_the_maximum(events) -> None:
    """E10: never more than the maximum overlap, also while the log is being written."""
    desk = Desk(RING, Policy(overlapping_max=1), slow=True)
    desk.hears(*events)
    desk.write()
    assert len(desk.brain.open) == 1


def test_the_minimum_pause_holds_for_what_processes_initiate_too() -> None:
    """E10: a minimum pause between snapshots, whoever begins them."""
    desk = Desk(RING, Policy(pause_us_min=1000))
    for counter in range(1, 6):
        desk.now_us += 10
        desk.hears(started("q", counter))
        desk.fragments(SnapshotId(1, counter, "q"), "p", "q", "r")
    assert len(desk.begun()) == 1


def test_of_two_that_are_wanted_while_the_first_is_on_its_way_to_the_log_each_has_an_id_of_its_own() -> None:
    desk = Desk(RING, Policy(overlapping_max=2), slow=True)
    desk.hears(SnapshotWanted(), SnapshotWanted(("q",)))
    assert len(desk.waiting) == 1
    desk.write()
    desk.write()
    assert [entry.snapshot for entry in desk.begun()] == [str(S1), str(S2)]
