"""Who is told of a rollback (R1): those who are away, join, have left, or are leaving."""

from tests.protocol.coordinator_host import CoordinatorHost, those
from tests.protocol.playbook import view
from tests.protocol.rolling_back import JOIN_S, RING, S1, chosen, crash, renumbered, roll_back, with_one_complete

from strobe.protocol.coordinator.messages import (
    ChooseSnapshot,
    Dismiss,
    Drained,
    JoinWanted,
    LeaveWanted,
    ProcessFailed,
    ProcessReturned,
    ProcessWithoutState,
    Reset,
    RestoreRefused,
    RestoreState,
    RestoreWanted,
    SnapshotWanted,
)
from strobe.protocol.values.view import View


def test_who_is_away_is_told_when_it_comes_back() -> None:
    host = with_one_complete()
    host.handle(ProcessFailed("q"), ProcessFailed("r"), ProcessWithoutState("q"))
    assert [order.process for order in those(chosen(host), RestoreState)] == ["p", "q"]
    assert those(host.handle(ProcessWithoutState("r", epoch=1)), RestoreState) == [
        RestoreState("r", 2, renumbered(RING, 2), str(S1))
    ]
    assert len(host.epochs()) == 1


def test_a_process_arriving_before_a_rollback_is_ordered_with_the_others() -> None:
    host = with_one_complete()
    host.handle(ProcessFailed("r"))
    crash(host, "q")
    assert those(crash(host, "r"), RestoreState) == []
    assert [order.process for order in those(chosen(host), RestoreState)] == ["p", "q", "r"]


def test_a_crash_after_being_told_causes_another_rollback() -> None:
    host = with_one_complete()
    crash(host, "q")
    chosen(host)
    assert those(crash(host, "q"), ChooseSnapshot) == [ChooseSnapshot(None)]
    chosen(host)
    assert [entry.epoch for entry in host.epochs()] == [2, 3]
    assert host.lifecycle.view.number == 3


def test_a_crash_while_the_epoch_is_on_its_way_causes_no_other() -> None:
    host = with_one_complete()
    crash(host, "q")
    host.slow = True
    chosen(host)
    crash(host, "r")
    host.slow = False
    assert [order.process for order in those(host.write(), RestoreState)] == ["p", "q", "r"]
    assert len(host.epochs()) == 1


def test_one_that_joined_later_is_told_to_forget_all_and_joins_again() -> None:
    host = with_one_complete()
    host.handle(JOIN_S)
    host.drained(2, "p", "q", "r", "s")
    crash(host, "q")
    effects = chosen(host)
    assert those(effects, Reset) == [Reset("s")]
    assert host.lifecycle.view == renumbered(RING, 3)
    host.drained(3, "p", "q", "r")
    host.handle(JOIN_S)
    joined = host.views()[-1]
    assert joined.number == 4
    assert {spec.incarnation for spec in joined.channels if "s" in (spec.source, spec.target)} == {4}


def test_one_that_joined_later_and_was_away_is_told_when_it_comes_back() -> None:
    host = with_one_complete()
    host.handle(JOIN_S)
    host.drained(2, "p", "q", "r", "s")
    host.handle(ProcessFailed("s"))
    roll_back(host, "q")
    assert those(host.handle(ProcessWithoutState("s", epoch=1)), Reset) == [Reset("s")]


def test_one_that_lost_its_state_while_it_joined_takes_everybody_back() -> None:
    host = with_one_complete()
    host.handle(JOIN_S)
    assert those(crash(host, "s"), ChooseSnapshot) == [ChooseSnapshot(None)]


def test_a_join_that_was_waiting_is_asked_for_again() -> None:
    host = with_one_complete()
    crash(host, "q")
    host.handle(JOIN_S)
    assert those(chosen(host), Reset) == [Reset("s")]
    host.drained(2, "p", "q", "r")
    assert host.views() == []


def test_a_leave_that_was_undone_is_made_again() -> None:
    host = with_one_complete()
    host.handle(LeaveWanted("r"))
    crash(host, "q")
    chosen(host)
    assert host.lifecycle.view == renumbered(RING, 3)
    host.drained(3, "p", "q", "r")
    assert host.views()[-1].processes == ("p", "q")


def back_to_one_with_r(host: CoordinatorHost, *blank: str) -> None:
    """Someone asks for S1, which r is in; those who are not there yet come then, and everybody goes back."""
    host.handle(RestoreWanted(str(S1), "someone asks for it"))
    chosen(host)
    assert host.lifecycle.view == renumbered(RING, 3)
    host.handle(*map(ProcessWithoutState, blank))
    host.drained(3, "p", "q", "r")


def test_E2_R1_a_complete_leave_is_not_repeated_after_a_restart() -> None:
    """That a process was let go is not in the log. Who asks for a snapshot that has it wants it back."""
    host = with_one_complete()
    host.handle(LeaveWanted("r"))
    assert those(host.drained(2, "p", "q", "r"), Dismiss) == [Dismiss("r")]
    host.restart()
    back_to_one_with_r(host, "p", "q", "r")
    assert host.lifecycle.settled
    assert host.views()[-1].number == 2


def test_an_undone_leave_is_repeated_if_the_leaver_reported_again() -> None:
    host = with_one_complete()
    host.handle(LeaveWanted("r"))
    host.restart()
    host.handle(ProcessReturned("r"))
    back_to_one_with_r(host, "p", "q")
    assert host.views()[-1] == View(4, ("p", "q"), RING.channels[:1])


def test_a_leave_under_way_is_repeated_after_an_automatic_rollback() -> None:
    host = with_one_complete()
    host.handle(LeaveWanted("r"))
    host.restart()
    crash(host, "q")
    chosen(host)
    host.drained(3, "p", "q", "r")
    assert host.views()[-1].processes == ("p", "q")


def test_a_process_arriving_before_a_refused_rollback_still_begins() -> None:
    host = CoordinatorHost(RING, epoch=0)
    host.restart()
    host.handle(ProcessWithoutState("p"), RestoreWanted(str(S1), "because"))
    assert those(host.handle(ProcessWithoutState("q")), RestoreState) == []
    assert those(host.handle(RestoreRefused("it is damaged")), RestoreState) == [RestoreState("q", 1, RING, None)]


def test_one_that_has_left_for_good_and_is_needed_again_just_has_to_come() -> None:
    host = with_one_complete()
    host.handle(LeaveWanted("r"))
    assert those(host.drained(2, "p", "q", "r"), Dismiss) == [Dismiss("r")]
    crash(host, "q")
    assert [order.process for order in those(chosen(host), RestoreState)] == ["p", "q"]
    host.drained(3, "p", "q")
    assert not host.lifecycle.settled
    assert those(host.handle(ProcessWithoutState("r")), RestoreState) == [
        RestoreState("r", 2, renumbered(RING, 3), str(S1))
    ]
    host.drained(3, "r")
    assert host.lifecycle.settled


def test_one_that_has_left_and_said_so_twice_is_not_taken_for_there() -> None:
    """R1: else it would be told to restore where nobody hears it, and its return would take everybody back again."""
    host = with_one_complete()
    host.handle(LeaveWanted("r"))
    host.drained(2, "p", "q", "r", "r")
    crash(host, "q")
    assert [order.process for order in those(chosen(host), RestoreState)] == ["p", "q"]
    effects = host.handle(ProcessWithoutState("r"))
    assert those(effects, ChooseSnapshot) == []
    assert [order.process for order in those(effects, RestoreState)] == ["r"]


def test_a_leaver_without_state_may_exit_if_its_messages_were_received() -> None:
    """E2: nobody needs its state any more; a former coordinator may have let it go, which is not in the log."""
    host = CoordinatorHost(RING)
    host.handle(LeaveWanted("r"))
    host.restart()
    host.drained(2, "p", "q")
    effects = host.handle(ProcessWithoutState("r"))
    assert those(effects, Dismiss) == [Dismiss("r")]
    assert those(effects, ChooseSnapshot) == []
    assert host.lifecycle.membership.everyone == ("p", "q")


def test_E2_E7_a_leave_before_a_begin_is_over_for_the_next_coordinator() -> None:
    """A snapshot begins when all that a leaver sent was received: nobody need come back to say so."""
    host = CoordinatorHost(RING)
    host.handle(LeaveWanted("r"))
    host.drained(2, "p", "q", "r")
    host.handle(SnapshotWanted())
    host.restart()
    assert host.lifecycle.membership.everyone == ("p", "q")
    host.handle(JoinWanted("r", RING.channels[1:]))
    host.drained(2, "p", "q")
    assert host.views()[-1].processes == ("p", "q", "r")


def test_E2_E7_a_leaver_without_channels_still_leaves_after_a_restart() -> None:
    """Snapshots begin without it: that one has begun does not say that it has received all that was sent to it."""
    host = CoordinatorHost(view("p>q", "q>p", "p>r"))
    host.handle(LeaveWanted("r"))
    host.drained(2, "p", "q")
    host.handle(SnapshotWanted())
    assert host.begun()[-1].view == 2
    host.restart()
    assert host.lifecycle.membership.everyone == ("p", "q", "r")


def test_R2_a_leaver_with_output_still_leaves_until_a_commit_covers_it() -> None:
    host = CoordinatorHost(RING, outputs=("r",))
    host.handle(LeaveWanted("r"))
    host.drained(2, "p", "q")
    host.handle(Drained("r", 2, {"out": 7}))
    assert host.begun()[-1].view == 2
    host.restart()
    assert host.lifecycle.membership.everyone == ("p", "q", "r")


def test_a_leaver_without_state_whose_messages_are_missing_rolls_all_back() -> None:
    host = CoordinatorHost(RING)
    host.handle(LeaveWanted("r"))
    host.restart()
    host.drained(2, "p")
    assert those(host.handle(ProcessWithoutState("r")), ChooseSnapshot) == [ChooseSnapshot(None)]


def test_one_that_was_leaving_and_is_in_no_restored_view_may_go() -> None:
    host = CoordinatorHost(RING)
    host.handle(LeaveWanted("r"))
    host.drained(2, "p", "q")  # r has not reported itself yet
    host.handle(SnapshotWanted())
    host.fragments(S1, "p", "q", view=2)
    crash(host, "q")
    effects = chosen(host, S1, host.lifecycle.view)
    assert those(effects, Dismiss) == [Dismiss("r")]
    assert {order.process for order in those(effects, RestoreState)} == {"p", "q"}


def test_a_leaver_that_loses_its_state_before_dismissal_rolls_all_back() -> None:
    host = with_one_complete()
    host.handle(LeaveWanted("r"))
    assert those(crash(host, "r"), ChooseSnapshot) == [ChooseSnapshot(None)]


def test_a_start_from_the_beginning_undoes_all_joins() -> None:
    host = CoordinatorHost(RING)
    host.handle(JOIN_S)
    host.drained(2, "p", "q", "r", "s")
    crash(host, "q")
    assert those(chosen(host, None), Reset) == [Reset("s")]
    assert host.lifecycle.view == renumbered(RING, 3)
