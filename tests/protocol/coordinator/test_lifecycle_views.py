"""Joining and leaving, as the coordinator decides it (E2)."""

from contextlib import suppress

import pytest
from tests.protocol.coordinator.joining import (
    JOIN_S,
    RING,
    S1,
    TO_S,
)
from tests.protocol.desk import Desk, those, to
from tests.protocol.playbook import view

from strobe.errors import UsageError
from strobe.protocol import UNORDERED, ChannelSpec, Policy, View
from strobe.protocol.coordinator.messages import (
    ChooseSnapshot,
    Dismiss,
    JoinWanted,
    LeaveWanted,
    ProcessFailed,
    ProcessWithoutState,
    SnapshotChosen,
    SnapshotWanted,
    TellSettled,
    TellView,
)
from strobe.protocol.values.log_entries import Commit, Pin


def joined() -> Desk:
    """A desk with s in the view, and all settled."""
    desk = Desk(RING, Policy(backoff_us=10))
    desk.hears(JOIN_S)
    desk.drained(2, "p", "q", "r", "s")
    return desk


def test_a_join_makes_the_next_view_with_new_incarnations_of_its_channels() -> None:
    desk = Desk(RING)
    desk.hears(JOIN_S)
    (after,) = desk.views()
    assert after == View(
        2,
        ("p", "q", "r", "s"),
        (*RING.channels, ChannelSpec("ps", "p", "s", incarnation=2), ChannelSpec("sp", "s", "p", incarnation=2)),
    )


def test_the_joiner_is_told_what_is_settled_before_it_is_told_the_view() -> None:
    desk = Desk(RING)
    desk.hears(SnapshotWanted())
    desk.fragments(S1, "p", "q", "r")
    effects = desk.hears(JOIN_S)
    assert to(effects, "s") == [TellSettled("s", 2), TellView("s", desk.views()[0])]
    assert [order.process for order in those(effects, TellView)] == ["p", "q", "r", "s"]


def test_nothing_begins_until_every_process_has_installed_the_view_and_drained() -> None:
    desk = Desk(RING)
    desk.hears(JOIN_S, SnapshotWanted())
    for process in ("p", "q", "s"):
        desk.drained(2, process)
        assert desk.begun() == []
    desk.drained(1, "r")
    assert desk.begun() == []
    desk.drained(2, "r")
    assert [entry.view for entry in desk.begun()] == [2]


def test_a_join_of_one_who_is_in_and_a_leave_of_one_who_is_out_change_nothing() -> None:
    desk = Desk(RING)
    desk.hears(JoinWanted("p", ()), LeaveWanted("x"), SnapshotWanted())
    assert desk.views() == []
    assert len(desk.begun()) == 1


def test_changes_that_change_nothing_do_not_hold_up_what_is_wanted() -> None:
    desk = Desk(RING)
    desk.hears(JOIN_S, JoinWanted("p", ()), LeaveWanted("x"), SnapshotWanted())
    desk.drained(2, "p", "q", "r", "s")
    assert len(desk.begun()) == 1


def test_a_channel_that_is_known_already_goes_on_as_it_is() -> None:
    desk = Desk(RING)
    desk.hears(JoinWanted("s", (*TO_S, ChannelSpec("pq", "p", "q"))))
    assert [spec.incarnation for spec in desk.views()[0].channels] == [1, 1, 1, 2, 2]


@pytest.mark.parametrize(
    "channels",
    [(ChannelSpec("sx", "s", "x"),), (ChannelSpec("ps", "p", "s", UNORDERED),)],
    ids=["no such process", "unordered under chandy-lamport"],
)
def test_a_join_that_makes_no_sense_is_refused(channels: tuple[ChannelSpec, ...]) -> None:
    """M2: markers on a channel that may reorder would be overtaken, and the cut would be wrong."""
    desk = Desk(RING)
    with pytest.raises(UsageError):
        desk.hears(JoinWanted("s", channels))
    assert desk.views() == []


@pytest.mark.parametrize("protocol", ["aligned", "unaligned", "aligned-then-unaligned"])
def test_a_join_that_would_close_a_cycle_is_refused_by_name_where_barriers_run(protocol: str) -> None:
    """Also one that closes it together with a join that is on its way to the log."""
    desk = Desk(view("p>q", "q>r"), protocol=protocol, slow=True)
    with pytest.raises(
        UsageError, match=f"{protocol} needs channels without a cycle, and (. -> ){{4}}. is one"
    ) as error:
        desk.hears(JoinWanted("s", (ChannelSpec("rs", "r", "s"), ChannelSpec("sp", "s", "p"))))
    assert "r -> s" in str(error.value)
    assert "s -> p" in str(error.value)
    desk.hears(JoinWanted("s", (ChannelSpec("rs", "r", "s"),)))
    with pytest.raises(UsageError, match=f"{protocol} needs channels without a cycle"):
        desk.hears(JoinWanted("t", (ChannelSpec("st", "s", "t"), ChannelSpec("tp", "t", "p"))))
    desk.write()
    assert [one.processes for one in desk.views()] == [("p", "q", "r", "s")]


def test_a_join_that_makes_no_sense_is_refused_where_it_is_asked_for_and_harms_nobody_else() -> None:
    """It waits behind another change; when its turn comes, others are being served."""
    desk = Desk(RING)
    desk.hears(LeaveWanted("r"))
    with suppress(UsageError):  # refused at once: as good
        desk.hears(JoinWanted("s", (ChannelSpec("sx", "s", "x"),)))
    desk.drained(2, "r", "p")
    assert Dismiss("r") in desk.drained(2, "q")


def unsettled() -> Desk:
    """A desk where nobody has installed the view yet, so that changes wait."""
    desk = Desk(RING)
    desk.restart()
    return desk


def test_E2_a_joiner_that_is_gone_again_before_its_turn_does_not_join() -> None:
    """Nobody could complete a snapshot with it; when it comes back, it asks again."""
    desk = unsettled()
    desk.hears(JOIN_S, ProcessFailed("s"))
    desk.drained(1, "p", "q", "r")
    assert desk.views() == []
    desk.hears(JOIN_S)
    assert desk.views()[-1].processes == ("p", "q", "r", "s")


def test_E2_a_joiner_that_is_back_before_its_turn_joins() -> None:
    desk = unsettled()
    desk.hears(JOIN_S, ProcessFailed("s"), JOIN_S)
    desk.drained(1, "p", "q", "r")
    assert [after.processes for after in desk.views()] == [("p", "q", "r", "s")]


def test_E2_who_joins_after_one_that_is_gone_again_joins_without_the_channels_to_it() -> None:
    desk = unsettled()
    to_t = (ChannelSpec("pt", "p", "t"), ChannelSpec("st", "s", "t"))
    desk.hears(JOIN_S, JoinWanted("t", to_t), ProcessFailed("s"))
    desk.drained(1, "p", "q", "r")
    (after,) = desk.views()
    assert after.processes == ("p", "q", "r", "t")
    assert [channel.id for channel in after.channels] == [*(channel.id for channel in RING.channels), "pt"]


def test_E2_a_joiner_that_is_gone_when_its_join_loses_its_place_in_the_log_does_not_join() -> None:
    desk = Desk(RING, slow=True)
    desk.hears(JOIN_S, ProcessFailed("s"))
    desk.log.append(Pin("000001-00000001-p", True, 0))
    desk.write()
    desk.write()
    assert desk.views() == []


def test_E2_a_joiner_that_is_away_when_it_is_in_the_view_begins_when_it_comes_and_nobody_goes_back() -> None:
    """R1: it was never told to begin, so nobody has seen anything of it."""
    desk = Desk(RING, slow=True)
    desk.hears(JOIN_S, ProcessFailed("s"))
    assert to(desk.write(), "p") != []
    effects = desk.hears(ProcessWithoutState("s"))
    assert to(effects, "s") == [TellSettled("s", 1), TellView("s", desk.views()[-1])]
    assert those(effects, ChooseSnapshot) == []
    desk.drained(2, "p", "q", "r", "s")
    assert desk.brain.settled
    assert those(desk.hears(ProcessFailed("s"), ProcessWithoutState("s")), ChooseSnapshot) == [ChooseSnapshot(None)]


def test_R1_a_word_that_was_lost_with_its_connection_is_said_again_and_nobody_goes_back() -> None:
    """The same program has asked before, and still has no state: it has not begun, whatever it was told."""
    desk = joined()
    desk.hears(LeaveWanted("s"))
    desk.drained(3, "p", "q", "r", "s")
    desk.hears(JOIN_S)
    effects = desk.hears(ProcessFailed("s"), ProcessWithoutState("s", again=True))
    assert to(effects, "s") == [TellSettled("s", 1), TellView("s", desk.views()[-1])]
    assert those(effects, ChooseSnapshot) == []


@pytest.mark.parametrize("there", [True, False])
def test_R1_who_left_and_joins_again_begins_anew_also_where_the_word_was_lost(there: bool) -> None:
    """What the epoch has begun with is its former life."""
    desk = Desk(RING)
    desk.hears(LeaveWanted("r"))
    desk.drained(2, "p", "q", "r")
    desk.slow = True
    desk.hears(JoinWanted("r", (ChannelSpec("q>r", "q", "r"), ChannelSpec("r>p", "r", "p"))))
    desk.hears(*(() if there else (ProcessFailed("r"),)))
    desk.write()
    effects = desk.hears(ProcessFailed("r"), ProcessWithoutState("r", again=there))
    assert to(effects, "r") == [TellSettled("r", 1), TellView("r", desk.views()[-1])]
    assert those(effects, ChooseSnapshot) == []


def test_a_leave_takes_the_process_and_its_channels_out() -> None:
    desk = joined()
    desk.hears(LeaveWanted("s"))
    assert desk.views()[-1] == View(3, ("p", "q", "r"), RING.channels)


def test_a_leave_of_one_who_must_stay_is_refused_and_changes_nothing() -> None:
    desk = joined()
    desk.brain.membership.staying = {"s": "somebody counts on it"}
    with pytest.raises(UsageError, match="process s cannot leave: somebody counts on it"):
        desk.hears(LeaveWanted("s"))
    desk.hears(SnapshotWanted())
    assert desk.last_begun()
    assert len(desk.views()) == 1


def test_E2_the_last_process_may_not_leave_whether_the_others_have_left_or_are_to_leave_before_it() -> None:
    """Nobody would be left to take a snapshot of."""
    desk = Desk(RING, slow=True)
    desk.hears(LeaveWanted("p"), LeaveWanted("q"))  # one is on its way to the log, the other waits for it
    with pytest.raises(UsageError, match=r"process r cannot leave: .*stop the system instead"):
        desk.hears(LeaveWanted("r"))
    desk.slow = False
    desk.write()
    desk.drained(2, "p", "q", "r")
    desk.drained(3, "q", "r")
    with pytest.raises(UsageError, match=r"process r cannot leave: .*stop the system instead"):
        desk.hears(LeaveWanted("r"))
    assert [one.processes for one in desk.views()] == [("q", "r"), ("r",)]
    desk.hears(SnapshotWanted())
    desk.fragments(S1, "r", view=3)
    assert isinstance(desk.outcomes()[str(S1)], Commit)


def test_E2_the_last_process_stays_where_a_rollback_undoes_the_join_that_its_leave_counted_on() -> None:
    alone = View(1, ("p",), ())
    desk = Desk(alone)
    desk.hears(SnapshotWanted())
    desk.fragments(S1, "p")
    desk.hears(JOIN_S, LeaveWanted("p"))  # it leaves when s is in
    desk.hears(ProcessFailed("p"), ProcessWithoutState("p"), SnapshotChosen(str(S1), alone))
    desk.drained(3, "p")
    assert desk.brain.settled
    assert desk.brain.view.processes == ("p",)


def test_a_leaver_is_let_go_when_it_and_all_others_have_drained_and_not_before() -> None:
    desk = joined()
    effects = desk.hears(LeaveWanted("s"))
    assert [order.process for order in those(effects, TellView)] == ["p", "q", "r", "s"]
    assert those(desk.drained(3, "s", "p", "q"), Dismiss) == []
    assert those(desk.drained(3, "r"), Dismiss) == [Dismiss("s")]
    assert those(desk.drained(3, "r", "s"), Dismiss) == []


def test_a_leaver_whose_own_report_comes_last_is_let_go_then() -> None:
    desk = joined()
    desk.hears(LeaveWanted("s"))
    assert those(desk.drained(3, "p", "q", "r"), Dismiss) == []
    assert those(desk.drained(3, "s"), Dismiss) == [Dismiss("s")]


def test_a_leaver_whose_own_report_comes_last_is_let_go_although_the_next_change_has_begun() -> None:
    """E2: its last counts are acknowledged before it is out, also where another view follows at once."""
    desk = joined()
    desk.hears(LeaveWanted("s"), LeaveWanted("r"))
    effects = desk.drained(3, "p", "q", "r")
    effects += desk.drained(3, "s")
    effects += desk.drained(4, "p", "q", "r")
    effects += desk.drained(3, "s")
    assert {order.process for order in those(effects, Dismiss)} == {"s", "r"}


def test_a_late_report_of_an_earlier_view_does_not_let_a_leaver_go() -> None:
    """E2: a sink that leaves is out when it has received all that was sent to it, and only then."""
    desk = joined()
    desk.hears(LeaveWanted("s"))
    # It was asked twice whether it had installed view 2, as after a restart; this is the second answer.
    effects = desk.drained(2, "s")
    effects += desk.drained(3, "p", "q", "r")
    assert those(effects, Dismiss) == []
    assert those(desk.drained(3, "s"), Dismiss) == [Dismiss("s")]


def test_one_who_left_may_join_again_with_new_incarnations() -> None:
    desk = joined()
    desk.hears(LeaveWanted("s"))
    desk.drained(3, "p", "q", "r", "s")
    desk.hears(JOIN_S)
    assert [spec.incarnation for spec in desk.views()[-1].channels if "s" in spec.id] == [4, 4]
