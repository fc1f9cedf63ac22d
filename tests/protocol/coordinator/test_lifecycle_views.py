"""How the coordinator decides on joins and leaves (E2)."""

from contextlib import suppress

import pytest
from tests.protocol.coordinator.joining import (
    JOIN_S,
    RING,
    S1,
    TO_S,
)
from tests.protocol.coordinator_host import CoordinatorHost, those, to
from tests.protocol.playbook import view

from strobe.errors import UsageError
from strobe.protocol import UNORDERED, ChannelSpec, Policy, View
from strobe.protocol.coordinator.messages import (
    ChooseSnapshot,
    Dismiss,
    InstallView,
    JoinWanted,
    LeaveWanted,
    ProcessFailed,
    ProcessWithoutState,
    ReportSettled,
    SnapshotChosen,
    SnapshotWanted,
)
from strobe.protocol.values.log_entries import Commit, Pin


def joined() -> CoordinatorHost:
    """A host with s in the view, which all have installed."""
    host = CoordinatorHost(RING, Policy(backoff_us=10))
    host.handle(JOIN_S)
    host.drained(2, "p", "q", "r", "s")
    return host


def test_a_join_makes_the_next_view_with_new_incarnations_of_its_channels() -> None:
    host = CoordinatorHost(RING)
    host.handle(JOIN_S)
    (after,) = host.views()
    assert after == View(
        2,
        ("p", "q", "r", "s"),
        (*RING.channels, ChannelSpec("ps", "p", "s", incarnation=2), ChannelSpec("sp", "s", "p", incarnation=2)),
    )


def test_a_joiner_receives_the_settled_counter_before_the_view() -> None:
    host = CoordinatorHost(RING)
    host.handle(SnapshotWanted())
    host.fragments(S1, "p", "q", "r")
    effects = host.handle(JOIN_S)
    assert to(effects, "s") == [ReportSettled("s", 2), InstallView("s", host.views()[0])]
    assert [order.process for order in those(effects, InstallView)] == ["p", "q", "r", "s"]


def test_no_snapshot_begins_until_all_have_installed_the_view() -> None:
    host = CoordinatorHost(RING)
    host.handle(JOIN_S, SnapshotWanted())
    for process in ("p", "q", "s"):
        host.drained(2, process)
        assert host.begun() == []
    host.drained(1, "r")
    assert host.begun() == []
    host.drained(2, "r")
    assert [entry.view for entry in host.begun()] == [2]


def test_a_join_of_a_member_and_a_leave_of_a_nonmember_change_nothing() -> None:
    host = CoordinatorHost(RING)
    host.handle(JoinWanted("p", ()), LeaveWanted("x"), SnapshotWanted())
    assert host.views() == []
    assert len(host.begun()) == 1


def test_pointless_changes_do_not_block_a_snapshot() -> None:
    host = CoordinatorHost(RING)
    host.handle(JOIN_S, JoinWanted("p", ()), LeaveWanted("x"), SnapshotWanted())
    host.drained(2, "p", "q", "r", "s")
    assert len(host.begun()) == 1


def test_a_join_does_not_change_a_known_channel() -> None:
    host = CoordinatorHost(RING)
    host.handle(JoinWanted("s", (*TO_S, ChannelSpec("pq", "p", "q"))))
    assert [spec.incarnation for spec in host.views()[0].channels] == [1, 1, 1, 2, 2]


@pytest.mark.parametrize(
    "channels",
    [(ChannelSpec("sx", "s", "x"),), (ChannelSpec("ps", "p", "s", UNORDERED),)],
    ids=["no such process", "unordered under chandy-lamport"],
)
def test_an_impossible_join_is_refused(channels: tuple[ChannelSpec, ...]) -> None:
    """M2: on a channel that may reorder, messages would overtake markers, and the cut would be wrong."""
    host = CoordinatorHost(RING)
    with pytest.raises(UsageError):
        host.handle(JoinWanted("s", channels))
    assert host.views() == []


@pytest.mark.parametrize("protocol", ["aligned", "unaligned", "aligned-then-unaligned"])
def test_a_join_that_closes_a_cycle_is_refused_with_barriers(protocol: str) -> None:
    """Even if it closes the cycle only together with a join that is not logged yet."""
    host = CoordinatorHost(view("p>q", "q>r"), protocol=protocol, slow=True)
    with pytest.raises(
        UsageError, match=f"{protocol} needs channels without a cycle, and (. -> ){{4}}. is one"
    ) as error:
        host.handle(JoinWanted("s", (ChannelSpec("rs", "r", "s"), ChannelSpec("sp", "s", "p"))))
    assert "r -> s" in str(error.value)
    assert "s -> p" in str(error.value)
    host.handle(JoinWanted("s", (ChannelSpec("rs", "r", "s"),)))
    with pytest.raises(UsageError, match=f"{protocol} needs channels without a cycle"):
        host.handle(JoinWanted("t", (ChannelSpec("st", "s", "t"), ChannelSpec("tp", "t", "p"))))
    host.write()
    assert [changed.processes for changed in host.views()] == [("p", "q", "r", "s")]


def test_an_invalid_join_is_refused_and_affects_nobody_else() -> None:
    """The join waits behind another change. When its turn comes, other requests are being served."""
    host = CoordinatorHost(RING)
    host.handle(LeaveWanted("r"))
    with suppress(UsageError):  # an immediate refusal is fine too
        host.handle(JoinWanted("s", (ChannelSpec("sx", "s", "x"),)))
    host.drained(2, "r", "p")
    assert Dismiss("r") in host.drained(2, "q")


def unsettled() -> CoordinatorHost:
    """A host where nobody has installed the view yet, so that changes wait."""
    host = CoordinatorHost(RING)
    host.restart()
    return host


def test_E2_a_joiner_that_fails_before_its_turn_does_not_join() -> None:
    """No snapshot could complete with it. When it comes back, it asks again."""
    host = unsettled()
    host.handle(JOIN_S, ProcessFailed("s"))
    host.drained(1, "p", "q", "r")
    assert host.views() == []
    host.handle(JOIN_S)
    assert host.views()[-1].processes == ("p", "q", "r", "s")


def test_E2_a_joiner_that_is_back_before_its_turn_joins() -> None:
    host = unsettled()
    host.handle(JOIN_S, ProcessFailed("s"), JOIN_S)
    host.drained(1, "p", "q", "r")
    assert [after.processes for after in host.views()] == [("p", "q", "r", "s")]


def test_E2_a_joiner_joins_without_channels_to_a_failed_joiner() -> None:
    host = unsettled()
    to_t = (ChannelSpec("pt", "p", "t"), ChannelSpec("st", "s", "t"))
    host.handle(JOIN_S, JoinWanted("t", to_t), ProcessFailed("s"))
    host.drained(1, "p", "q", "r")
    (after,) = host.views()
    assert after.processes == ("p", "q", "r", "t")
    assert [channel.id for channel in after.channels] == [*(channel.id for channel in RING.channels), "pt"]


def test_E2_a_failed_joiner_whose_join_lost_its_position_does_not_join() -> None:
    host = CoordinatorHost(RING, slow=True)
    host.handle(JOIN_S, ProcessFailed("s"))
    host.log.append(Pin("000001-00000001-p", True, 0))
    host.write()
    host.write()
    assert host.views() == []


def test_E2_an_absent_joiner_begins_when_it_comes_without_a_rollback() -> None:
    """R1: it was never ordered to begin, so nobody has received anything from it."""
    host = CoordinatorHost(RING, slow=True)
    host.handle(JOIN_S, ProcessFailed("s"))
    assert to(host.write(), "p") != []
    effects = host.handle(ProcessWithoutState("s"))
    assert to(effects, "s") == [ReportSettled("s", 1), InstallView("s", host.views()[-1])]
    assert those(effects, ChooseSnapshot) == []
    host.drained(2, "p", "q", "r", "s")
    assert host.lifecycle.settled
    assert those(host.handle(ProcessFailed("s"), ProcessWithoutState("s")), ChooseSnapshot) == [ChooseSnapshot(None)]


def test_R1_an_order_lost_with_its_connection_is_repeated() -> None:
    """The same program has asked before and still has no state: it has not begun, whatever orders were sent to it."""
    host = joined()
    host.handle(LeaveWanted("s"))
    host.drained(3, "p", "q", "r", "s")
    host.handle(JOIN_S)
    effects = host.handle(ProcessFailed("s"), ProcessWithoutState("s", again=True))
    assert to(effects, "s") == [ReportSettled("s", 1), InstallView("s", host.views()[-1])]
    assert those(effects, ChooseSnapshot) == []


@pytest.mark.parametrize("connected", [True, False])
def test_R1_a_rejoining_process_starts_over_even_if_its_order_was_lost(connected: bool) -> None:
    """The epoch began with the process as it was before it left."""
    host = CoordinatorHost(RING)
    host.handle(LeaveWanted("r"))
    host.drained(2, "p", "q", "r")
    host.slow = True
    host.handle(JoinWanted("r", (ChannelSpec("q>r", "q", "r"), ChannelSpec("r>p", "r", "p"))))
    host.handle(*(() if connected else (ProcessFailed("r"),)))
    host.write()
    effects = host.handle(ProcessFailed("r"), ProcessWithoutState("r", again=connected))
    assert to(effects, "r") == [ReportSettled("r", 1), InstallView("r", host.views()[-1])]
    assert those(effects, ChooseSnapshot) == []


def test_a_leave_removes_the_process_and_its_channels() -> None:
    host = joined()
    host.handle(LeaveWanted("s"))
    assert host.views()[-1] == View(3, ("p", "q", "r"), RING.channels)


def test_a_leave_of_a_process_that_must_stay_is_refused() -> None:
    host = joined()
    host.lifecycle.membership.staying = {"s": "somebody counts on it"}
    with pytest.raises(UsageError, match="process s cannot leave: somebody counts on it"):
        host.handle(LeaveWanted("s"))
    host.handle(SnapshotWanted())
    assert host.last_begun()
    assert len(host.views()) == 1


def test_E2_the_last_process_may_not_leave() -> None:
    """Otherwise no process would be left to take a snapshot of."""
    host = CoordinatorHost(RING, slow=True)
    host.handle(LeaveWanted("p"), LeaveWanted("q"))  # one is being logged, the other waits for it
    with pytest.raises(UsageError, match=r"process r cannot leave: .*stop the system instead"):
        host.handle(LeaveWanted("r"))
    host.slow = False
    host.write()
    host.drained(2, "p", "q", "r")
    host.drained(3, "q", "r")
    with pytest.raises(UsageError, match=r"process r cannot leave: .*stop the system instead"):
        host.handle(LeaveWanted("r"))
    assert [one.processes for one in host.views()] == [("q", "r"), ("r",)]
    host.handle(SnapshotWanted())
    host.fragments(S1, "r", view=3)
    assert isinstance(host.outcomes()[str(S1)], Commit)


def test_E2_the_last_process_stays_if_a_rollback_undoes_the_other_join() -> None:
    alone = View(1, ("p",), ())
    host = CoordinatorHost(alone)
    host.handle(SnapshotWanted())
    host.fragments(S1, "p")
    host.handle(JOIN_S, LeaveWanted("p"))  # p leaves once s is in the view
    host.handle(ProcessFailed("p"), ProcessWithoutState("p"), SnapshotChosen(str(S1), alone))
    host.drained(3, "p")
    assert host.lifecycle.settled
    assert host.lifecycle.view.processes == ("p",)


def test_a_leaver_is_dismissed_only_when_all_have_drained() -> None:
    host = joined()
    effects = host.handle(LeaveWanted("s"))
    assert [order.process for order in those(effects, InstallView)] == ["p", "q", "r", "s"]
    assert those(host.drained(3, "s", "p", "q"), Dismiss) == []
    assert those(host.drained(3, "r"), Dismiss) == [Dismiss("s")]
    assert those(host.drained(3, "r", "s"), Dismiss) == []


def test_a_leaver_whose_own_report_comes_last_is_dismissed_then() -> None:
    host = joined()
    host.handle(LeaveWanted("s"))
    assert those(host.drained(3, "p", "q", "r"), Dismiss) == []
    assert those(host.drained(3, "s"), Dismiss) == [Dismiss("s")]


def test_a_leaver_that_reports_last_is_dismissed_during_the_next_change() -> None:
    """E2: its last counts are acknowledged before it is dismissed, even if another view follows at once."""
    host = joined()
    host.handle(LeaveWanted("s"), LeaveWanted("r"))
    effects = host.drained(3, "p", "q", "r")
    effects += host.drained(3, "s")
    effects += host.drained(4, "p", "q", "r")
    effects += host.drained(3, "s")
    assert {order.process for order in those(effects, Dismiss)} == {"s", "r"}


def test_a_late_report_of_an_earlier_view_does_not_dismiss_a_leaver() -> None:
    """E2: a leaving sink is dismissed only after it has received everything that was sent to it."""
    host = joined()
    host.handle(LeaveWanted("s"))
    # s was asked twice whether it had installed view 2, as after a restart; this is the second answer.
    effects = host.drained(2, "s")
    effects += host.drained(3, "p", "q", "r")
    assert those(effects, Dismiss) == []
    assert those(host.drained(3, "s"), Dismiss) == [Dismiss("s")]


def test_a_process_that_left_may_rejoin_with_new_incarnations() -> None:
    host = joined()
    host.handle(LeaveWanted("s"))
    host.drained(3, "p", "q", "r", "s")
    host.handle(JOIN_S)
    assert [spec.incarnation for spec in host.views()[-1].channels if "s" in spec.id] == [4, 4]
