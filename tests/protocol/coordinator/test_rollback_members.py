"""Which processes a rollback reaches (R1), if some are disconnected, join, have left, or are leaving."""

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


def test_a_disconnected_process_is_restored_when_it_returns() -> None:
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


def test_a_crash_after_the_restore_order_causes_another_rollback() -> None:
    host = with_one_complete()
    crash(host, "q")
    chosen(host)
    assert those(crash(host, "q"), ChooseSnapshot) == [ChooseSnapshot(None)]
    chosen(host)
    assert [entry.epoch for entry in host.epochs()] == [2, 3]
    assert host.lifecycle.view.number == 3


def test_a_crash_while_the_epoch_is_being_logged_causes_no_other() -> None:
    host = with_one_complete()
    crash(host, "q")
    host.slow = True
    chosen(host)
    crash(host, "r")
    host.slow = False
    assert [order.process for order in those(host.write(), RestoreState)] == ["p", "q", "r"]
    assert len(host.epochs()) == 1


def test_a_process_that_joined_later_is_reset_and_joins_again() -> None:
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


def test_a_disconnected_later_joiner_is_reset_when_it_returns() -> None:
    host = with_one_complete()
    host.handle(JOIN_S)
    host.drained(2, "p", "q", "r", "s")
    host.handle(ProcessFailed("s"))
    roll_back(host, "q")
    assert those(host.handle(ProcessWithoutState("s", epoch=1)), Reset) == [Reset("s")]


def test_a_joiner_that_loses_its_state_rolls_all_back() -> None:
    host = with_one_complete()
    host.handle(JOIN_S)
    assert those(crash(host, "s"), ChooseSnapshot) == [ChooseSnapshot(None)]


def test_a_rollback_resets_a_pending_joiner() -> None:
    host = with_one_complete()
    crash(host, "q")
    host.handle(JOIN_S)
    assert those(chosen(host), Reset) == [Reset("s")]
    host.drained(2, "p", "q", "r")
    assert host.views() == []


def test_an_undone_leave_is_repeated() -> None:
    host = with_one_complete()
    host.handle(LeaveWanted("r"))
    crash(host, "q")
    chosen(host)
    assert host.lifecycle.view == renumbered(RING, 3)
    host.drained(3, "p", "q", "r")
    assert host.views()[-1].processes == ("p", "q")


def roll_back_to_one_with_r(host: CoordinatorHost, *blank: str) -> None:
    """Request S1, which includes r, connect the `blank` processes without state, and complete the rollback."""
    host.handle(RestoreWanted(str(S1), "someone asks for it"))
    chosen(host)
    assert host.lifecycle.view == renumbered(RING, 3)
    host.handle(*map(ProcessWithoutState, blank))
    host.drained(3, "p", "q", "r")


def test_E2_R1_a_complete_leave_is_not_repeated_after_a_restart() -> None:
    """The log does not record dismissals. A request for a snapshot that includes the process wants it back."""
    host = with_one_complete()
    host.handle(LeaveWanted("r"))
    assert those(host.drained(2, "p", "q", "r"), Dismiss) == [Dismiss("r")]
    host.restart()
    roll_back_to_one_with_r(host, "p", "q", "r")
    assert host.lifecycle.settled
    assert host.views()[-1].number == 2


def test_an_undone_leave_is_repeated_if_the_leaver_reported_again() -> None:
    host = with_one_complete()
    host.handle(LeaveWanted("r"))
    host.restart()
    host.handle(ProcessReturned("r"))
    roll_back_to_one_with_r(host, "p", "q")
    assert host.views()[-1] == View(4, ("p", "q"), RING.channels[:1])


def test_a_leave_in_progress_is_repeated_after_an_automatic_rollback() -> None:
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


def test_a_dismissed_process_of_the_restored_snapshot_may_return() -> None:
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


def test_a_leaver_that_reports_twice_does_not_count_as_connected() -> None:
    """R1: otherwise it would get a restore order that nobody receives, and its return would roll all back again."""
    host = with_one_complete()
    host.handle(LeaveWanted("r"))
    host.drained(2, "p", "q", "r", "r")
    crash(host, "q")
    assert [order.process for order in those(chosen(host), RestoreState)] == ["p", "q"]
    effects = host.handle(ProcessWithoutState("r"))
    assert those(effects, ChooseSnapshot) == []
    assert [order.process for order in those(effects, RestoreState)] == ["r"]


def test_a_leaver_without_state_may_exit_if_its_messages_were_received() -> None:
    """E2: nobody needs its state any more. An earlier coordinator may have dismissed it; the log does not record
    that.
    """
    host = CoordinatorHost(RING)
    host.handle(LeaveWanted("r"))
    host.restart()
    host.drained(2, "p", "q")
    effects = host.handle(ProcessWithoutState("r"))
    assert those(effects, Dismiss) == [Dismiss("r")]
    assert those(effects, ChooseSnapshot) == []
    assert host.lifecycle.membership.everyone == ("p", "q")


def test_E2_E7_a_leave_before_a_begin_is_over_for_the_next_coordinator() -> None:
    """A snapshot begins only after all messages of a leaver were received, so it need not return to report this."""
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
    """Snapshots begin without it, so a begin does not mean that it has received everything that was sent to it."""
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


def test_a_leaver_outside_the_restored_view_is_dismissed() -> None:
    host = CoordinatorHost(RING)
    host.handle(LeaveWanted("r"))
    host.drained(2, "p", "q")  # r has not reported yet
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
