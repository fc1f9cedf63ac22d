"""Who is told of a rollback (R1): those who are away, join, have left, or are leaving."""

from tests.protocol.desk import Desk, those
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
    RestoreWanted,
    SnapshotWanted,
    TellRestore,
)
from strobe.protocol.values.view import View


def test_who_is_away_is_told_when_it_comes_back() -> None:
    desk = with_one_complete()
    desk.hears(ProcessFailed("q"), ProcessFailed("r"), ProcessWithoutState("q"))
    assert [order.process for order in those(chosen(desk), TellRestore)] == ["p", "q"]
    assert those(desk.hears(ProcessWithoutState("r", epoch=1)), TellRestore) == [
        TellRestore("r", 2, renumbered(RING, 2), str(S1))
    ]
    assert len(desk.epochs()) == 1


def test_one_that_comes_while_a_rollback_is_to_come_is_told_with_the_others() -> None:
    desk = with_one_complete()
    desk.hears(ProcessFailed("r"))
    crash(desk, "q")
    assert those(crash(desk, "r"), TellRestore) == []
    assert [order.process for order in those(chosen(desk), TellRestore)] == ["p", "q", "r"]


def test_a_crash_after_being_told_causes_another_rollback() -> None:
    desk = with_one_complete()
    crash(desk, "q")
    chosen(desk)
    assert those(crash(desk, "q"), ChooseSnapshot) == [ChooseSnapshot(None)]
    chosen(desk)
    assert [entry.epoch for entry in desk.epochs()] == [2, 3]
    assert desk.brain.view.number == 3


def test_a_crash_while_the_epoch_is_on_its_way_causes_no_other() -> None:
    desk = with_one_complete()
    crash(desk, "q")
    desk.slow = True
    chosen(desk)
    crash(desk, "r")
    desk.slow = False
    assert [order.process for order in those(desk.write(), TellRestore)] == ["p", "q", "r"]
    assert len(desk.epochs()) == 1


def test_one_that_joined_later_is_told_to_forget_all_and_joins_again() -> None:
    desk = with_one_complete()
    desk.hears(JOIN_S)
    desk.drained(2, "p", "q", "r", "s")
    crash(desk, "q")
    effects = chosen(desk)
    assert those(effects, Reset) == [Reset("s")]
    assert desk.brain.view == renumbered(RING, 3)
    desk.drained(3, "p", "q", "r")
    desk.hears(JOIN_S)
    joined = desk.views()[-1]
    assert joined.number == 4
    assert {spec.incarnation for spec in joined.channels if "s" in (spec.source, spec.target)} == {4}


def test_one_that_joined_later_and_was_away_is_told_when_it_comes_back() -> None:
    desk = with_one_complete()
    desk.hears(JOIN_S)
    desk.drained(2, "p", "q", "r", "s")
    desk.hears(ProcessFailed("s"))
    roll_back(desk, "q")
    assert those(desk.hears(ProcessWithoutState("s", epoch=1)), Reset) == [Reset("s")]


def test_one_that_lost_its_state_while_it_joined_takes_everybody_back() -> None:
    desk = with_one_complete()
    desk.hears(JOIN_S)
    assert those(crash(desk, "s"), ChooseSnapshot) == [ChooseSnapshot(None)]


def test_a_join_that_was_waiting_is_asked_for_again() -> None:
    desk = with_one_complete()
    crash(desk, "q")
    desk.hears(JOIN_S)
    assert those(chosen(desk), Reset) == [Reset("s")]
    desk.drained(2, "p", "q", "r")
    assert desk.views() == []


def test_a_leave_that_was_undone_is_made_again() -> None:
    desk = with_one_complete()
    desk.hears(LeaveWanted("r"))
    crash(desk, "q")
    chosen(desk)
    assert desk.brain.view == renumbered(RING, 3)
    desk.drained(3, "p", "q", "r")
    assert desk.views()[-1].processes == ("p", "q")


def back_to_one_with_r(desk: Desk, *blank: str) -> None:
    """Someone asks for S1, which r is in; those who are not there yet come then, and everybody goes back."""
    desk.hears(RestoreWanted(str(S1), "someone asks for it"))
    chosen(desk)
    assert desk.brain.view == renumbered(RING, 3)
    desk.hears(*map(ProcessWithoutState, blank))
    desk.drained(3, "p", "q", "r")


def test_E2_R1_a_leave_that_was_complete_is_not_made_again_by_a_coordinator_that_has_only_read_of_it() -> None:
    """That a process was let go is not in the log. Who asks for a snapshot that has it wants it back."""
    desk = with_one_complete()
    desk.hears(LeaveWanted("r"))
    assert those(desk.drained(2, "p", "q", "r"), Dismiss) == [Dismiss("r")]
    desk.restart()
    back_to_one_with_r(desk, "p", "q", "r")
    assert desk.brain.settled
    assert desk.views()[-1].number == 2


def test_a_leave_that_was_undone_is_made_again_where_a_new_coordinator_has_heard_of_the_leaver() -> None:
    desk = with_one_complete()
    desk.hears(LeaveWanted("r"))
    desk.restart()
    desk.hears(ProcessReturned("r"))
    back_to_one_with_r(desk, "p", "q")
    assert desk.views()[-1] == View(4, ("p", "q"), RING.channels[:1])


def test_a_leave_that_may_have_been_under_way_is_made_again_after_a_rollback_that_nobody_asked_for() -> None:
    desk = with_one_complete()
    desk.hears(LeaveWanted("r"))
    desk.restart()
    crash(desk, "q")
    chosen(desk)
    desk.drained(3, "p", "q", "r")
    assert desk.views()[-1].processes == ("p", "q")


def test_who_comes_while_a_rollback_is_to_come_that_is_then_refused_begins_all_the_same() -> None:
    desk = Desk(RING, epoch=0)
    desk.restart()
    desk.hears(ProcessWithoutState("p"), RestoreWanted(str(S1), "because"))
    assert those(desk.hears(ProcessWithoutState("q")), TellRestore) == []
    assert those(desk.hears(RestoreRefused("it is damaged")), TellRestore) == [TellRestore("q", 1, RING, None)]


def test_one_that_has_left_for_good_and_is_needed_again_just_has_to_come() -> None:
    desk = with_one_complete()
    desk.hears(LeaveWanted("r"))
    assert those(desk.drained(2, "p", "q", "r"), Dismiss) == [Dismiss("r")]
    crash(desk, "q")
    assert [order.process for order in those(chosen(desk), TellRestore)] == ["p", "q"]
    desk.drained(3, "p", "q")
    assert not desk.brain.settled
    assert those(desk.hears(ProcessWithoutState("r")), TellRestore) == [
        TellRestore("r", 2, renumbered(RING, 3), str(S1))
    ]
    desk.drained(3, "r")
    assert desk.brain.settled


def test_one_that_has_left_and_said_so_twice_is_not_taken_for_there() -> None:
    """R1: else it would be told to restore where nobody hears it, and its return would take everybody back again."""
    desk = with_one_complete()
    desk.hears(LeaveWanted("r"))
    desk.drained(2, "p", "q", "r", "r")
    crash(desk, "q")
    assert [order.process for order in those(chosen(desk), TellRestore)] == ["p", "q"]
    effects = desk.hears(ProcessWithoutState("r"))
    assert those(effects, ChooseSnapshot) == []
    assert [order.process for order in those(effects, TellRestore)] == ["r"]


def test_one_that_was_leaving_and_comes_back_blank_may_go_if_all_it_sent_was_received() -> None:
    """E2: nobody needs its state any more; a former coordinator may have let it go, which is not in the log."""
    desk = Desk(RING)
    desk.hears(LeaveWanted("r"))
    desk.restart()
    desk.drained(2, "p", "q")
    effects = desk.hears(ProcessWithoutState("r"))
    assert those(effects, Dismiss) == [Dismiss("r")]
    assert those(effects, ChooseSnapshot) == []
    assert desk.brain.membership.everyone == ("p", "q")


def test_E2_E7_one_that_had_left_before_a_snapshot_began_is_no_leaver_to_the_next_coordinator_and_may_join() -> None:
    """A snapshot begins when all that a leaver sent was received: nobody need come back to say so."""
    desk = Desk(RING)
    desk.hears(LeaveWanted("r"))
    desk.drained(2, "p", "q", "r")
    desk.hears(SnapshotWanted())
    desk.restart()
    assert desk.brain.membership.everyone == ("p", "q")
    desk.hears(JoinWanted("r", RING.channels[1:]))
    desk.drained(2, "p", "q")
    assert desk.views()[-1].processes == ("p", "q", "r")


def test_E2_E7_one_that_sends_to_nobody_is_still_a_leaver_to_the_next_coordinator() -> None:
    """Snapshots begin without it: that one has begun does not say that it has received all that was sent to it."""
    desk = Desk(view("p>q", "q>p", "p>r"))
    desk.hears(LeaveWanted("r"))
    desk.drained(2, "p", "q")
    desk.hears(SnapshotWanted())
    assert desk.begun()[-1].view == 2
    desk.restart()
    assert desk.brain.membership.everyone == ("p", "q", "r")


def test_R2_one_that_left_with_output_is_a_leaver_to_the_next_coordinator_until_a_snapshot_is_complete() -> None:
    desk = Desk(RING, outputs=("r",))
    desk.hears(LeaveWanted("r"))
    desk.drained(2, "p", "q")
    desk.hears(Drained("r", 2, {"out": 7}))
    assert desk.begun()[-1].view == 2
    desk.restart()
    assert desk.brain.membership.everyone == ("p", "q", "r")


def test_one_that_was_leaving_and_comes_back_blank_before_that_takes_everybody_back() -> None:
    desk = Desk(RING)
    desk.hears(LeaveWanted("r"))
    desk.restart()
    desk.drained(2, "p")
    assert those(desk.hears(ProcessWithoutState("r")), ChooseSnapshot) == [ChooseSnapshot(None)]


def test_one_that_was_leaving_and_is_in_no_restored_view_may_go() -> None:
    desk = Desk(RING)
    desk.hears(LeaveWanted("r"))
    desk.drained(2, "p", "q")  # r has not reported itself yet
    desk.hears(SnapshotWanted())
    desk.fragments(S1, "p", "q", view=2)
    crash(desk, "q")
    effects = chosen(desk, S1, desk.brain.view)
    assert those(effects, Dismiss) == [Dismiss("r")]
    assert {order.process for order in those(effects, TellRestore)} == {"p", "q"}


def test_a_leaver_that_loses_its_state_before_it_is_let_go_takes_everybody_back() -> None:
    desk = with_one_complete()
    desk.hears(LeaveWanted("r"))
    assert those(crash(desk, "r"), ChooseSnapshot) == [ChooseSnapshot(None)]


def test_the_joins_after_the_first_view_are_undone_by_a_start_from_the_beginning() -> None:
    desk = Desk(RING)
    desk.hears(JOIN_S)
    desk.drained(2, "p", "q", "r", "s")
    crash(desk, "q")
    assert those(chosen(desk, None), Reset) == [Reset("s")]
    assert desk.brain.view == renumbered(RING, 3)
