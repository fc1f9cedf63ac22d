"""Who leaves with output is let go when a snapshot covers it, and lets it out first (R2, E2)."""

import msgspec
import pytest
from tests.protocol.desk import Desk, those, to
from tests.protocol.playbook import snapshot_id, view

from strobe.protocol import SnapshotId
from strobe.protocol.coordinator.messages import (
    Append,
    AppendLost,
    ChooseSnapshot,
    CoordinatorEffect,
    Dismiss,
    Drained,
    EntryLogged,
    JoinWanted,
    LeaveWanted,
    ProcessFailed,
    ProcessReturned,
    ProcessWithoutState,
    Released,
    Reset,
    RestoreWanted,
    SnapshotChosen,
    SnapshotWanted,
    TellRestore,
)
from strobe.protocol.values.log_entries import Abort, Commit, Departure, EpochStart, Release

RING = view("p>q", "q>r", "r>p")
S1 = snapshot_id(1)
OUT = {"audit": 70}


def leaving() -> Desk:
    """A desk where r, which has output, was asked to leave, and the others have installed the view without it."""
    desk = Desk(RING, outputs=("r",))
    desk.hears(LeaveWanted("r"))
    desk.drained(2, "p", "q")
    return desk


def leaving_after_a_snapshot_with_it() -> Desk:
    """A desk where r was in a snapshot, leaves, and has made its output durable."""
    desk = Desk(RING, outputs=("r",))
    desk.hears(SnapshotWanted())
    desk.fragments(S1, "p", "q", "r")
    desk.hears(LeaveWanted("r"))
    desk.drained(2, "p", "q")
    staged(desk)
    return desk


def departed(desk: Desk) -> dict[str, Departure]:
    """Return whom the newest complete snapshot says to have left."""
    return [entry for entry in desk.log if isinstance(entry, Commit)][-1].manifest.departed


def staged(desk: Desk) -> None:
    desk.hears(Drained("r", 2, OUT))


def complete(desk: Desk) -> list[Dismiss]:
    """Complete the snapshot under way; return who may go."""
    return those(desk.fragments(desk.last_begun(), "p", "q", view=desk.brain.view.number), Dismiss)


def gone_and_one_begun_on_a_slow_log() -> Desk:
    """A desk where r has left, and a snapshot without it has begun; what is written from here on waits."""
    desk = leaving()
    staged(desk)
    complete(desk)
    desk.slow = True
    desk.hears(SnapshotWanted())
    desk.write()
    return desk


def test_R2_nothing_begins_before_the_output_of_a_leaver_is_durable() -> None:
    desk = leaving()
    desk.hears(SnapshotWanted())
    assert desk.begun() == []
    staged(desk)
    assert len(desk.begun()) == 1


def test_R2_a_leaver_is_let_go_with_its_output_when_a_snapshot_without_it_is_complete() -> None:
    desk = leaving()
    assert those(desk.hears(Drained("r", 2, OUT)), Dismiss) == []
    assert len(desk.begun()) == 1, "the snapshot that it waits for is taken without anybody asking"
    assert complete(desk) == [Dismiss("r", OUT, 2)]
    assert departed(desk) == {"r": Departure(OUT, view=2)}
    assert desk.brain.membership.everyone == ("p", "q")


def test_snapshots_go_on_saying_who_has_left_and_whether_its_output_is_out() -> None:
    desk = leaving()
    staged(desk)
    complete(desk)
    for events, released in (((), False), ((Released("r", 2),), True)):
        desk.hears(*events, SnapshotWanted())
        assert complete(desk) == []
        assert departed(desk) == {"r": Departure(OUT, released, 2)}


def test_output_that_is_out_stays_out_where_a_snapshot_is_logged_that_was_ordered_before() -> None:
    desk = gone_and_one_begun_on_a_slow_log()
    complete(desk)  # its commit is on its way
    desk.hears(Released("r", 2))
    desk.write()
    assert departed(desk) == {"r": Departure(OUT, view=2)}
    assert desk.brain.membership.unreleased("r") == {}
    desk.slow = False
    desk.hears(SnapshotWanted())
    complete(desk)
    assert departed(desk) == {"r": Departure(OUT, True, 2)}


def test_a_leaver_that_is_lost_with_durable_output_takes_nobody_back_and_lets_it_out_when_it_returns() -> None:
    desk = leaving()
    staged(desk)
    effects = desk.hears(ProcessFailed("r"), ProcessWithoutState("r"))
    assert those(effects, ChooseSnapshot) == []
    assert complete(desk) == [Dismiss("r", OUT, 2)]
    assert desk.brain.membership.unreleased("r") == OUT


def test_a_leaver_that_is_lost_before_its_output_is_durable_takes_everybody_back() -> None:
    desk = leaving()
    effects = desk.hears(ProcessFailed("r"), ProcessWithoutState("r"))
    assert those(effects, ChooseSnapshot) == [ChooseSnapshot(None)]


@pytest.mark.parametrize("lost", [False, True])
def test_after_a_rollback_to_before_it_left_it_is_there_again_and_leaves_again(lost: bool) -> None:
    desk = leaving_after_a_snapshot_with_it()
    if lost:
        desk.hears(ProcessFailed("r"), ProcessWithoutState("r"))
    desk.hears(RestoreWanted(str(S1), "because"))
    effects = desk.hears(SnapshotChosen(str(S1), RING))
    assert [order.process for order in those(effects, TellRestore)] == ["p", "q", "r"]
    assert desk.brain.membership.staged == {}
    desk.drained(3, "p", "q", "r")
    assert desk.views()[-1].processes == ("p", "q")


def test_E7_the_next_coordinator_waits_for_the_leaver_to_say_again_how_far_its_output_goes() -> None:
    desk = leaving()
    staged(desk)
    desk.restart()
    desk.drained(2, "p", "q")
    assert not desk.brain.settled
    desk.hears(ProcessReturned("r"), Drained("r", 2, OUT))
    assert complete(desk) == [Dismiss("r", OUT, 2)]


def test_E7_the_next_coordinator_remembers_a_leaver_of_an_earlier_view_that_nothing_covers() -> None:
    desk = leaving()
    staged(desk)
    desk.hears(LeaveWanted("q"))
    assert desk.views()[-1].processes == ("p",)
    desk.restart()
    assert set(desk.brain.membership.leaving) == {"q", "r"}


def test_E7_the_next_coordinator_knows_from_the_log_what_is_still_to_be_let_out() -> None:
    desk = leaving()
    staged(desk)
    complete(desk)
    desk.restart()
    assert desk.brain.membership.unreleased("r") == OUT
    assert desk.brain.membership.everyone == ("p", "q")


def test_who_has_left_has_nothing_more_to_let_out_and_is_in_no_view_since() -> None:
    desk = leaving()
    membership = desk.brain.membership
    staged(desk)
    assert membership.left == ()
    complete(desk)
    assert membership.left == (), "its output is still to be let out"
    desk.hears(Released("r", 2), SnapshotWanted())
    complete(desk)
    assert membership.left == ("r",)
    desk.restart()
    assert desk.brain.membership.left == ("r",)
    desk.hears(RestoreWanted(None, "because"), SnapshotChosen(None, RING))
    assert desk.brain.membership.left == ()


def test_who_joined_has_not_left_where_all_go_back_to_before_that() -> None:
    """It joins again when it comes."""
    desk = Desk(RING)
    desk.hears(JoinWanted("s", ()))
    desk.drained(2, "p", "q", "r", "s")
    desk.hears(RestoreWanted(None, "because"), SnapshotChosen(None, RING))
    assert desk.brain.membership.left == ()


def test_one_that_joins_again_has_not_left_any_more() -> None:
    desk = leaving()
    staged(desk)
    complete(desk)
    desk.hears(Released("r", 2))
    desk.brain.membership.logged(view("p>q", "q>r", "r>p", number=3), recovering=False)
    assert desk.brain.membership.covered() == {}


def test_R2_a_coordinator_that_comes_back_commits_nothing_before_a_leaver_has_said_how_far_its_output_goes() -> None:
    """Else that snapshot would cover output that it does not name, and which nobody would let out."""
    desk = leaving()
    staged(desk)
    desk.restart()
    desk.hears(ProcessReturned("p"), ProcessReturned("q"))
    desk.drained(2, "p", "q")
    assert complete(desk) == []
    assert those(desk.hears(ProcessReturned("r"), Drained("r", 2, OUT)), Dismiss) == [Dismiss("r", OUT, 2)]
    assert departed(desk) == {"r": Departure(OUT, view=2)}


def test_a_snapshot_that_waits_in_vain_for_a_leaver_says_so_when_it_times_out() -> None:
    desk = leaving()
    staged(desk)
    desk.restart()
    desk.drained(2, "p", "q")
    complete(desk)
    desk.at(desk.now_us + desk.brain.policy.timeout_us)
    (aborted,) = [entry for entry in desk.log if isinstance(entry, Abort)]
    assert aborted.reason.endswith("without the output of r, which leaves")


def test_R2_who_has_joined_again_has_not_left_for_a_snapshot_that_is_logged_late() -> None:
    desk = gone_and_one_begun_on_a_slow_log()
    desk.hears(JoinWanted("r", RING.channels[1:]))  # its view is on its way
    complete(desk)  # and behind it the commit of a snapshot in which it had left
    desk.write()
    desk.write()
    assert desk.brain.view.processes == ("p", "q", "r")
    assert departed(desk) == {"r": Departure(OUT, view=2)}
    assert desk.brain.membership.departed == {}


@pytest.mark.parametrize("known", [False, True], ids=["not known to be out", "known to be out"])
def test_R2_who_had_left_by_a_snapshot_that_is_restored_has_left_whatever_was_meanwhile(known: bool) -> None:
    """What it had not let out then, it still has to."""
    desk = leaving()
    staged(desk)
    complete(desk)
    membership = desk.brain.membership
    left = membership.departed
    if known:
        desk.hears(Released("r", 2))
    else:
        membership.departed = {}  # as where all had gone to another timeline by then
    desk.hears(EntryLogged(EpochStart(2, 0, str(S1), msgspec.structs.replace(desk.brain.view, number=3)), left))
    assert membership.covered() == {"r": Departure(OUT, known, 2)}
    assert membership.unreleased("r") == ({} if known else OUT)


def test_R2_a_lost_commit_is_not_tried_again_in_another_view_which_has_other_leavers() -> None:
    one = Desk(RING, outputs=("r",))
    other = Desk(RING, log=one.log, outputs=("r",))
    one.hears(SnapshotWanted())
    other.catch_up()
    one.slow = other.slow = True
    one.fragments(S1, "p", "q", "r")  # its commit is on its way
    other.hears(LeaveWanted("r"))
    other.write()  # the view is in the log, and then the other coordinator is killed
    one.write()
    one.slow = False
    one.write()
    assert [entry.reason for entry in one.log if isinstance(entry, Abort)] == ["the view changed"]
    one.drained(2, "p", "q")
    one.hears(Drained("r", 2, OUT))
    assert [entry for entry in one.log if isinstance(entry, Commit)] == []


def test_who_leaves_twice_has_left_with_two_views() -> None:
    desk = leaving()
    staged(desk)
    complete(desk)
    desk.hears(Released("r", 2), JoinWanted("r", RING.channels[1:]))
    desk.drained(3, "p", "q", "r")
    desk.hears(LeaveWanted("r"))
    desk.drained(4, "p", "q")
    desk.hears(Drained("r", 4, OUT))
    assert complete(desk) == [Dismiss("r", OUT, 4)]
    assert departed(desk) == {"r": Departure(OUT, view=4, joined=3)}


def gone_and_let_out() -> Desk:
    """A desk where r has left, and has let out all of its output."""
    desk = leaving()
    staged(desk)
    complete(desk)
    desk.hears(Released("r", 2))
    return desk


def joined_again() -> Desk:
    """A desk where r has left with output and has joined again."""
    desk = gone_and_let_out()
    desk.hears(JoinWanted("r", RING.channels[1:]))
    desk.drained(3, "p", "q", "r")
    return desk


def test_R2_a_leaver_ends_when_the_log_has_that_its_output_is_out() -> None:
    desk = leaving()
    staged(desk)
    complete(desk)
    desk.slow = True
    assert those(desk.hears(Released("r", 2)), Dismiss) == []
    assert those(desk.write(), Dismiss) == [Dismiss("r")]
    assert desk.log[-1] == Release("r", 2, desk.now_us)
    assert those(desk.hears(Released("r", 2)), Dismiss) == [Dismiss("r")], "it had missed the word"


def test_E7_the_next_coordinator_knows_that_output_is_out_before_any_snapshot_says_so() -> None:
    desk = gone_and_let_out()
    desk.restart()
    assert desk.brain.membership.unreleased("r") == {}
    assert desk.brain.membership.left == ("r",)


def test_a_release_that_lost_its_place_in_the_log_is_written_again_unless_another_one_has_done_so() -> None:
    desk = leaving()
    staged(desk)
    complete(desk)
    release = Release("r", 2, 0)
    assert desk.brain.handle(AppendLost(release), desk.now_us)[0] == Append(release)
    desk.hears(EntryLogged(release))
    assert those(desk.hears(AppendLost(release)), Append) == []


@pytest.mark.parametrize("restarts", [False, True])
def test_R2_one_that_joined_again_joins_once_more_where_all_go_back_to_before_that(restarts: bool) -> None:
    """Its life before has let out all of its output, though the snapshot does not know that yet."""
    desk = joined_again()
    desk.hears(RestoreWanted(str(S1), "because"))
    desk.hears(SnapshotChosen(str(S1), [entry for entry in desk.log if isinstance(entry, Commit)][-1].manifest.view))
    if restarts:
        desk.restart()
    membership = desk.brain.membership
    assert desk.brain.view.processes == ("p", "q")
    assert membership.covered() == {"r": Departure(OUT, True, 2)}
    desk.drained(4, "p", "q")
    desk.hears(JoinWanted("r", RING.channels[1:]))
    assert desk.brain.view.processes == ("p", "q", "r")


def test_nobody_is_let_go_by_a_word_of_its_life_before() -> None:
    desk = joined_again()
    assert those(desk.hears(EntryLogged(Release("r", 2, 0))), Dismiss) == []
    assert desk.brain.membership.covered() == {}


@pytest.mark.parametrize("restarts", [False, True])
def test_R2_snapshots_say_which_life_of_a_process_they_have(restarts: bool) -> None:
    desk = joined_again()
    if restarts:
        desk.restart()
        desk.drained(3, "p", "q", "r")
    desk.hears(SnapshotWanted())
    desk.fragments(desk.last_begun(), "p", "q", "r", view=3)
    newest = [entry for entry in desk.log if isinstance(entry, Commit)][-1]
    assert newest.manifest.joined == {"r": 3}
    desk.hears(RestoreWanted(None, "because"), SnapshotChosen(newest.snapshot, newest.manifest.view))
    if restarts:
        desk.restart()
    desk.drained(4, "p", "q", "r")
    assert desk.brain.membership.lives() == {"p": 0, "q": 0, "r": 3}


def restored(desk: Desk, before: SnapshotId) -> list[CoordinatorEffect]:
    """Have everybody go back to a snapshot that r is in."""
    desk.hears(RestoreWanted(str(before), "because"))
    return desk.hears(SnapshotChosen(str(before), RING))


def let_go_after_a_snapshot_with_it() -> Desk:
    """A desk where r was in a snapshot, has left since, and was told to let out its output."""
    desk = leaving_after_a_snapshot_with_it()
    complete(desk)
    return desk


@pytest.mark.parametrize("said", ["never", "before", "after"])
def test_R1_one_that_lets_out_its_output_is_told_where_all_go_back_to_before_it_left(said: str) -> None:
    """Whether it has said that all is out or not; it lives, and is not let go for that."""
    desk = let_go_after_a_snapshot_with_it()
    desk.slow = True
    effects = desk.hears(Released("r", 2)) if said == "before" else []
    effects += restored(desk, S1)
    effects += desk.write()
    if said == "after":
        effects += desk.hears(Released("r", 2))
    effects += desk.write()
    if said == "before":
        assert those(effects, Dismiss) == [Dismiss("r")], "the log had it before all went back"
        assert [order.process for order in those(effects, TellRestore)] == ["p", "q"]
    else:
        assert those(effects, Dismiss) == []
        assert [order.process for order in those(effects, TellRestore)] == ["p", "q", "r"]


def test_R1_one_that_lets_out_its_output_begins_anew_with_that_where_all_go_back_to_after_it_left() -> None:
    desk = let_go_after_a_snapshot_with_it()
    newest = [entry for entry in desk.log if isinstance(entry, Commit)][-1]
    desk.hears(RestoreWanted(None, "because"))
    effects = desk.hears(SnapshotChosen(newest.snapshot, newest.manifest.view))
    assert [order.process for order in those(effects, TellRestore)] == ["p", "q"]
    assert to(effects, "r") == [Reset("r")]
    assert desk.brain.membership.unreleased("r") == OUT
    assert those(desk.hears(Released("r", 2)), Dismiss) == [Dismiss("r")]
