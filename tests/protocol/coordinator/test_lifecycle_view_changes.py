"""Snapshots and log entries around a view change (E2)."""

import pytest
from tests.protocol.coordinator.joining import (
    JOIN_S,
    RING,
    S1,
    S2,
)
from tests.protocol.coordinator_host import CoordinatorHost, those
from tests.protocol.playbook import view

from strobe.protocol import ChannelSpec, Policy, SnapshotId, View
from strobe.protocol.coordinator.messages import (
    Append,
    CommitSnapshot,
    JoinWanted,
    LeaveWanted,
    ReportOutcome,
    RequestRecording,
    SnapshotStarted,
    SnapshotWanted,
)
from strobe.protocol.values.log_entries import Abort, Begin, Commit, Pin, ViewChange


def test_a_view_change_aborts_open_snapshots_and_retries_them() -> None:
    host = CoordinatorHost(RING, Policy(backoff_us=10))
    host.handle(SnapshotWanted())
    effects = host.handle(JOIN_S)
    assert host.aborts() == [Abort(str(S1), "the view changed from 1 to 2", 0)]
    assert {order.process for order in those(effects, ReportOutcome)} >= {"p", "q", "r"}
    host.drained(2, "p", "q", "r", "s")
    host.at(10)
    retry = host.begun()[1]
    assert (retry.snapshot, retry.view, retry.retries) == (str(S2), 2, str(S1))
    host.fragments(S2, "p", "q", "r", "s", view=2)
    assert isinstance(host.outcomes()[str(S2)], Commit)


def test_a_retry_has_the_initiators_that_the_new_view_needs() -> None:
    """M1, E2: one process reached all the others in the old view, but not in the new one."""
    host = CoordinatorHost(view("p>q"), Policy(backoff_us=10))
    host.handle(SnapshotWanted())
    assert host.begun()[0].initiators == ("p",)
    host.handle(JoinWanted("s", (ChannelSpec("sq", "s", "q"),)))
    host.drained(2, "p", "q", "s")
    asked = those(host.at(10), RequestRecording)
    assert {order.process for order in asked} >= {"p", "s"}


def test_a_retry_whose_initiator_has_left_is_initiated_elsewhere() -> None:
    host = CoordinatorHost(view("p>q", "q>p", "r>p", "r>q"), Policy(backoff_us=10))
    host.handle(SnapshotWanted())
    assert host.begun()[0].initiators == ("r",)
    host.handle(LeaveWanted("r"))
    host.drained(2, "p", "q", "r")
    asked = those(host.at(10), RequestRecording)
    assert asked
    assert {order.process for order in asked} <= {"p", "q"}


def test_fragments_of_remaining_processes_do_not_complete_an_old_view() -> None:
    """E2: a snapshot never mixes views. Its abort is not logged yet, and only the leaver's fragment is missing."""
    host = CoordinatorHost(RING)
    host.handle(SnapshotWanted())
    host.slow = True
    host.handle(LeaveWanted("r"))
    host.write()
    assert those(host.fragments(S1, "p", "q"), CommitSnapshot) == []


def test_a_snapshot_being_committed_when_the_view_changes_is_committed() -> None:
    host = CoordinatorHost(RING)
    host.handle(SnapshotWanted())
    host.slow = True
    host.fragments(S1, "p", "q", "r")
    host.handle(LeaveWanted("r"))
    host.write()
    assert isinstance(host.outcomes()[str(S1)], Commit)
    assert host.aborts() == []


def test_a_view_does_not_change_while_a_begin_is_being_logged() -> None:
    host = CoordinatorHost(RING, slow=True)
    host.handle(SnapshotWanted(), JOIN_S)
    assert [type(entry) for entry in host.waiting] == [Begin]
    host.write()
    assert [type(entry) for entry in host.waiting] == [ViewChange]


def test_nothing_begins_while_a_change_is_wanted() -> None:
    host = CoordinatorHost(RING, slow=True)
    host.handle(JOIN_S, SnapshotWanted())
    assert [type(entry) for entry in host.waiting] == [ViewChange]


def test_changes_are_made_one_after_another() -> None:
    host = CoordinatorHost(RING)
    host.handle(JOIN_S, LeaveWanted("r"))
    assert [after.number for after in host.views()] == [2]
    host.drained(2, "p", "q", "r", "s")
    assert [after.processes for after in host.views()] == [("p", "q", "r", "s"), ("p", "q", "s")]


def test_a_snapshot_initiated_during_a_view_change_is_refused() -> None:
    host = CoordinatorHost(RING)
    host.handle(JOIN_S)
    outcomes = those(host.handle(SnapshotStarted(SnapshotId(1, 1, "p"), "p", 2)), ReportOutcome)
    assert {order.process for order in outcomes} == {"p", "q", "r", "s"}
    assert host.begun() == []


def test_a_snapshot_of_a_leaver_is_refused_once_the_others_have_settled() -> None:
    host = CoordinatorHost(RING)
    host.handle(LeaveWanted("r"))
    host.drained(2, "p", "q")
    assert host.lifecycle.settled
    outcomes = those(host.handle(SnapshotStarted(SnapshotId(1, 1, "r"), "r", 2)), ReportOutcome)
    assert [(order.process, order.committed) for order in outcomes] == [("p", False), ("q", False), ("r", False)]
    assert host.begun() == []


def test_leaving_processes_also_receive_outcomes() -> None:
    host = CoordinatorHost(RING, slow=True)
    host.handle(SnapshotWanted())
    host.write()
    host.handle(LeaveWanted("r"))
    host.write()
    outcomes = those(host.write(), ReportOutcome)
    assert [order.process for order in outcomes] == ["p", "q", "r"]


@pytest.mark.parametrize("change", [JOIN_S, LeaveWanted("r")])
def test_a_view_change_that_lost_its_log_position_is_made_again(change) -> None:
    """Other writers append pins and removals at any time."""
    host = CoordinatorHost(RING, slow=True)
    host.handle(change)
    host.log.append(Pin(str(S1), True, 0))
    host.write()
    host.write()
    assert len(host.views()) == 1


def test_a_view_change_that_lost_to_another_is_made_on_top_of_it() -> None:
    host = CoordinatorHost(RING, slow=True)
    host.handle(JOIN_S)
    host.log.append(ViewChange(View(2, ("p", "q"), RING.channels[:1]), 0))
    host.write()
    host.drained(2, "p", "q")
    host.write()
    assert [after.processes for after in host.views()] == [("p", "q"), ("p", "q", "s")]


def test_a_change_made_pointless_by_another_coordinator_is_skipped() -> None:
    """s wants a channel to r, but another coordinator removes r meanwhile."""
    host = CoordinatorHost(RING, slow=True)
    host.handle(JoinWanted("s", (ChannelSpec("sr", "s", "r"),)))
    host.log.append(ViewChange(View(2, ("p", "q"), RING.channels[:1]), 0))
    host.write()
    host.handle(SnapshotWanted())
    host.drained(2, "p", "q")
    host.write()
    assert [entry.view for entry in host.begun()] == [2]


def test_a_pointless_change_does_not_affect_the_next_one() -> None:
    """s wants a channel to r, which another coordinator has removed. The request of t is unrelated."""
    host = CoordinatorHost(RING, slow=True)
    host.handle(LeaveWanted("q"), JoinWanted("s", (ChannelSpec("sr", "s", "r"),)))
    host.log.append(ViewChange(View(2, ("p", "q"), RING.channels[:1]), 0))
    host.write()
    host.handle(JoinWanted("t", (ChannelSpec("tp", "t", "p"),)))
    host.drained(2, "p", "q")
    host.write()
    host.drained(3, "p")
    host.write()
    assert [after.processes for after in host.views()] == [("p", "q"), ("p",), ("p", "t")]


def test_an_adopted_snapshot_that_lost_to_a_view_change_does_not_begin() -> None:
    """E2: each snapshot belongs to one view, and none begins in a view that is over."""
    host = CoordinatorHost(RING, slow=True)
    host.handle(SnapshotStarted(SnapshotId(1, 1, "p"), "p", 1))
    after = View(2, ("p", "q"), RING.channels[:1])
    host.log.append(ViewChange(after, 0))
    host.write()
    host.write()
    assert [entry for entry in host.log if isinstance(entry, Begin) and entry.view != 2] == []


def test_a_begin_that_lost_to_a_view_change_begins_in_the_new_view() -> None:
    host = CoordinatorHost(RING, slow=True)
    host.handle(SnapshotWanted())
    after = View(2, ("p", "q"), RING.channels[:1])
    host.log.append(ViewChange(after, 0))
    host.write()
    assert host.waiting == []
    host.drained(2, "p", "q")
    assert [(entry.view, entry.initiators) for entry in host.waiting] == [(2, ("p",))]


def test_a_lost_append_is_repeated_only_if_still_needed() -> None:
    host = CoordinatorHost(RING, Policy(timeout_us=10, attempts_max=1))
    host.handle(SnapshotWanted())
    host.slow = True
    host.at(10)
    host.log.append(Pin(str(S1), True, 0))
    effects = host.write()
    assert [type(order.entry) for order in those(effects, Append)] == [Abort]
    host.log.append(Abort(str(S1), "another coordinator said so", 0))
    host.write()
    assert host.waiting == []
    assert [entry.reason for entry in host.aborts()] == ["another coordinator said so"]
