"""Snapshots and log entries around a change of view (E2)."""

import pytest
from tests.protocol.coordinator.joining import (
    JOIN_S,
    RING,
    S1,
    S2,
)
from tests.protocol.desk import Desk, those
from tests.protocol.playbook import view

from strobe.protocol import ChannelSpec, Policy, SnapshotId, View
from strobe.protocol.coordinator.messages import (
    Append,
    AskToRecord,
    CommitSnapshot,
    JoinWanted,
    LeaveWanted,
    SnapshotStarted,
    SnapshotWanted,
    TellOutcome,
)
from strobe.protocol.values.log_entries import Abort, Begin, Commit, Pin, ViewChange


def test_a_change_of_view_aborts_what_is_open_with_that_reason_and_retries_it_on_the_new_view() -> None:
    desk = Desk(RING, Policy(backoff_us=10))
    desk.hears(SnapshotWanted())
    effects = desk.hears(JOIN_S)
    assert desk.aborts() == [Abort(str(S1), "the view changed from 1 to 2", 0)]
    assert {order.process for order in those(effects, TellOutcome)} >= {"p", "q", "r"}
    desk.drained(2, "p", "q", "r", "s")
    desk.at(10)
    retry = desk.begun()[1]
    assert (retry.snapshot, retry.view, retry.retries) == (str(S2), 2, str(S1))
    desk.fragments(S2, "p", "q", "r", "s", view=2)
    assert isinstance(desk.outcomes()[str(S2)], Commit)


def test_a_retry_on_a_new_view_is_initiated_at_as_many_as_that_view_takes() -> None:
    """M1, E2: in the old view one process reached all the others, in the new one it does not."""
    desk = Desk(view("p>q"), Policy(backoff_us=10))
    desk.hears(SnapshotWanted())
    assert desk.begun()[0].initiators == ("p",)
    desk.hears(JoinWanted("s", (ChannelSpec("sq", "s", "q"),)))
    desk.drained(2, "p", "q", "s")
    asked = those(desk.at(10), AskToRecord)
    assert {order.process for order in asked} >= {"p", "s"}


def test_a_retry_whose_initiator_has_left_is_initiated_elsewhere() -> None:
    desk = Desk(view("p>q", "q>p", "r>p", "r>q"), Policy(backoff_us=10))
    desk.hears(SnapshotWanted())
    assert desk.begun()[0].initiators == ("r",)
    desk.hears(LeaveWanted("r"))
    desk.drained(2, "p", "q", "r")
    asked = those(desk.at(10), AskToRecord)
    assert asked
    assert {order.process for order in asked} <= {"p", "q"}


def test_fragments_of_those_who_stay_do_not_make_a_whole_of_a_snapshot_of_the_old_view() -> None:
    """E2: it never mixes views. The abort is not in the log yet, and only the leaver's fragment is missing."""
    desk = Desk(RING)
    desk.hears(SnapshotWanted())
    desk.slow = True
    desk.hears(LeaveWanted("r"))
    desk.write()
    assert those(desk.fragments(S1, "p", "q"), CommitSnapshot) == []


def test_a_snapshot_being_committed_when_the_view_changes_is_committed() -> None:
    desk = Desk(RING)
    desk.hears(SnapshotWanted())
    desk.slow = True
    desk.fragments(S1, "p", "q", "r")
    desk.hears(LeaveWanted("r"))
    desk.write()
    assert isinstance(desk.outcomes()[str(S1)], Commit)
    assert desk.aborts() == []


def test_a_view_does_not_change_while_a_beginning_is_on_its_way_to_the_log() -> None:
    desk = Desk(RING, slow=True)
    desk.hears(SnapshotWanted(), JOIN_S)
    assert [type(entry) for entry in desk.waiting] == [Begin]
    desk.write()
    assert [type(entry) for entry in desk.waiting] == [ViewChange]


def test_nothing_begins_while_a_change_is_wanted() -> None:
    desk = Desk(RING, slow=True)
    desk.hears(JOIN_S, SnapshotWanted())
    assert [type(entry) for entry in desk.waiting] == [ViewChange]


def test_changes_are_made_one_after_another() -> None:
    desk = Desk(RING)
    desk.hears(JOIN_S, LeaveWanted("r"))
    assert [after.number for after in desk.views()] == [2]
    desk.drained(2, "p", "q", "r", "s")
    assert [after.processes for after in desk.views()] == [("p", "q", "r", "s"), ("p", "q", "s")]


def test_what_a_process_initiates_while_the_view_changes_is_refused() -> None:
    desk = Desk(RING)
    desk.hears(JOIN_S)
    told = those(desk.hears(SnapshotStarted(SnapshotId(1, 1, "p"), "p", 2)), TellOutcome)
    assert {order.process for order in told} == {"p", "q", "r", "s"}
    assert desk.begun() == []


def test_what_a_leaver_initiates_when_those_who_stay_have_settled_without_it_is_refused() -> None:
    desk = Desk(RING)
    desk.hears(LeaveWanted("r"))
    desk.drained(2, "p", "q")
    assert desk.brain.settled
    told = those(desk.hears(SnapshotStarted(SnapshotId(1, 1, "r"), "r", 2)), TellOutcome)
    assert [(order.process, order.committed) for order in told] == [("p", False), ("q", False), ("r", False)]
    assert desk.begun() == []


def test_outcomes_are_told_to_those_who_are_leaving_too() -> None:
    desk = Desk(RING, slow=True)
    desk.hears(SnapshotWanted())
    desk.write()
    desk.hears(LeaveWanted("r"))
    desk.write()
    told = those(desk.write(), TellOutcome)
    assert [order.process for order in told] == ["p", "q", "r"]


@pytest.mark.parametrize("change", [JOIN_S, LeaveWanted("r")])
def test_a_change_of_view_that_lost_its_place_in_the_log_is_made_all_the_same(change) -> None:
    """Pins and removals are written by others all the time."""
    desk = Desk(RING, slow=True)
    desk.hears(change)
    desk.log.append(Pin(str(S1), True, 0))
    desk.write()
    desk.write()
    assert len(desk.views()) == 1


def test_a_change_of_view_that_lost_its_place_to_another_change_is_made_on_top_of_it() -> None:
    desk = Desk(RING, slow=True)
    desk.hears(JOIN_S)
    desk.log.append(ViewChange(View(2, ("p", "q"), RING.channels[:1]), 0))
    desk.write()
    desk.drained(2, "p", "q")
    desk.write()
    assert [after.processes for after in desk.views()] == [("p", "q"), ("p", "q", "s")]


def test_a_change_that_another_coordinators_change_has_made_senseless_harms_nobody() -> None:
    """s wants to join r, which another coordinator lets leave meanwhile."""
    desk = Desk(RING, slow=True)
    desk.hears(JoinWanted("s", (ChannelSpec("sr", "s", "r"),)))
    desk.log.append(ViewChange(View(2, ("p", "q"), RING.channels[:1]), 0))
    desk.write()
    desk.hears(SnapshotWanted())
    desk.drained(2, "p", "q")
    desk.write()
    assert [entry.view for entry in desk.begun()] == [2]


def test_a_change_that_has_become_senseless_is_not_held_against_the_next_one() -> None:
    """s wanted to join r, which has left by another coordinator's word; t asks for something else entirely."""
    desk = Desk(RING, slow=True)
    desk.hears(LeaveWanted("q"), JoinWanted("s", (ChannelSpec("sr", "s", "r"),)))
    desk.log.append(ViewChange(View(2, ("p", "q"), RING.channels[:1]), 0))
    desk.write()
    desk.hears(JoinWanted("t", (ChannelSpec("tp", "t", "p"),)))
    desk.drained(2, "p", "q")
    desk.write()
    desk.drained(3, "p")
    desk.write()
    assert [after.processes for after in desk.views()] == [("p", "q"), ("p",), ("p", "t")]


def test_a_snapshot_of_a_process_that_lost_its_place_to_a_view_change_is_not_begun_in_the_old_view() -> None:
    """E2: each snapshot belongs to one view; none begins in a view that is over."""
    desk = Desk(RING, slow=True)
    desk.hears(SnapshotStarted(SnapshotId(1, 1, "p"), "p", 1))
    after = View(2, ("p", "q"), RING.channels[:1])
    desk.log.append(ViewChange(after, 0))
    desk.write()
    desk.write()
    assert [entry for entry in desk.log if isinstance(entry, Begin) and entry.view != 2] == []


def test_a_beginning_that_lost_its_place_to_a_view_change_begins_in_the_new_view() -> None:
    desk = Desk(RING, slow=True)
    desk.hears(SnapshotWanted())
    after = View(2, ("p", "q"), RING.channels[:1])
    desk.log.append(ViewChange(after, 0))
    desk.write()
    assert desk.waiting == []
    desk.drained(2, "p", "q")
    assert [(entry.view, entry.initiators) for entry in desk.waiting] == [(2, ("p",))]


def test_an_append_that_is_still_wanted_is_tried_again_and_one_that_is_not_is_dropped() -> None:
    desk = Desk(RING, Policy(timeout_us=10, attempts_max=1))
    desk.hears(SnapshotWanted())
    desk.slow = True
    desk.at(10)
    desk.log.append(Pin(str(S1), True, 0))
    effects = desk.write()
    assert [type(order.entry) for order in those(effects, Append)] == [Abort]
    desk.log.append(Abort(str(S1), "another coordinator said so", 0))
    desk.write()
    assert desk.waiting == []
    assert [entry.reason for entry in desk.aborts()] == ["another coordinator said so"]
