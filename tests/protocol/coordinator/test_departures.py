"""A leaving process with output waits until a snapshot covers the output, and releases it before it ends (R2, E2)."""

import msgspec
import pytest
from tests.protocol.coordinator_host import CoordinatorHost, those, to
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
    RestoreState,
    RestoreWanted,
    SnapshotChosen,
    SnapshotWanted,
)
from strobe.protocol.values.log_entries import Abort, Commit, Departure, EpochStart, Release

RING = view("p>q", "q>r", "r>p")
S1 = snapshot_id(1)
OUT = {"audit": 70}


def leaving() -> CoordinatorHost:
    """A host where r, which has output, was asked to leave, and the others have installed the view without it."""
    host = CoordinatorHost(RING, outputs=("r",))
    host.handle(LeaveWanted("r"))
    host.drained(2, "p", "q")
    return host


def leaving_after_a_snapshot_with_it() -> CoordinatorHost:
    """A host where r was in a snapshot, leaves, and has made its output durable."""
    host = CoordinatorHost(RING, outputs=("r",))
    host.handle(SnapshotWanted())
    host.fragments(S1, "p", "q", "r")
    host.handle(LeaveWanted("r"))
    host.drained(2, "p", "q")
    staged(host)
    return host


def departed(host: CoordinatorHost) -> dict[str, Departure]:
    """Return the departed processes that the newest complete snapshot names."""
    return [entry for entry in host.log if isinstance(entry, Commit)][-1].manifest.departed


def staged(host: CoordinatorHost) -> None:
    host.handle(Drained("r", 2, OUT))


def complete(host: CoordinatorHost) -> list[Dismiss]:
    """Complete the snapshot in progress; return the dismissals."""
    return those(host.fragments(host.last_begun(), "p", "q", view=host.lifecycle.view.number), Dismiss)


def departed_with_a_snapshot_begun_on_a_slow_log() -> CoordinatorHost:
    """A host where r has left and a snapshot without it has begun. Later log entries wait for `write()`."""
    host = leaving()
    staged(host)
    complete(host)
    host.slow = True
    host.handle(SnapshotWanted())
    host.write()
    return host


def test_R2_nothing_begins_before_the_output_of_a_leaver_is_durable() -> None:
    host = leaving()
    host.handle(SnapshotWanted())
    assert host.begun() == []
    staged(host)
    assert len(host.begun()) == 1


def test_R2_a_leaver_is_dismissed_when_a_snapshot_covers_its_output() -> None:
    host = leaving()
    assert those(host.handle(Drained("r", 2, OUT)), Dismiss) == []
    assert len(host.begun()) == 1, "the snapshot that it waits for is taken without anybody asking"
    assert complete(host) == [Dismiss("r", OUT, 2)]
    assert departed(host) == {"r": Departure(OUT, view=2)}
    assert host.lifecycle.membership.everyone == ("p", "q")


def test_later_snapshots_name_the_departed_and_whether_they_released() -> None:
    host = leaving()
    staged(host)
    complete(host)
    for events, released in (((), False), ((Released("r", 2),), True)):
        host.handle(*events, SnapshotWanted())
        assert complete(host) == []
        assert departed(host) == {"r": Departure(OUT, released, 2)}


def test_a_late_commit_does_not_undo_a_release() -> None:
    host = departed_with_a_snapshot_begun_on_a_slow_log()
    complete(host)  # its commit is not logged yet
    host.handle(Released("r", 2))
    host.write()
    assert departed(host) == {"r": Departure(OUT, view=2)}
    assert host.lifecycle.membership.unreleased("r") == {}
    host.slow = False
    host.handle(SnapshotWanted())
    complete(host)
    assert departed(host) == {"r": Departure(OUT, True, 2)}


def test_a_lost_leaver_with_durable_output_releases_it_on_return() -> None:
    host = leaving()
    staged(host)
    effects = host.handle(ProcessFailed("r"), ProcessWithoutState("r"))
    assert those(effects, ChooseSnapshot) == []
    assert complete(host) == [Dismiss("r", OUT, 2)]
    assert host.lifecycle.membership.unreleased("r") == OUT


def test_a_leaver_lost_before_its_output_is_durable_rolls_all_back() -> None:
    host = leaving()
    effects = host.handle(ProcessFailed("r"), ProcessWithoutState("r"))
    assert those(effects, ChooseSnapshot) == [ChooseSnapshot(None)]


@pytest.mark.parametrize("lost", [False, True])
def test_after_a_rollback_to_before_its_leave_a_process_leaves_again(lost: bool) -> None:
    host = leaving_after_a_snapshot_with_it()
    if lost:
        host.handle(ProcessFailed("r"), ProcessWithoutState("r"))
    host.handle(RestoreWanted(str(S1), "because"))
    effects = host.handle(SnapshotChosen(str(S1), RING))
    assert [order.process for order in those(effects, RestoreState)] == ["p", "q", "r"]
    assert host.lifecycle.membership.staged == {}
    host.drained(3, "p", "q", "r")
    assert host.views()[-1].processes == ("p", "q")


def test_E7_a_restarted_coordinator_waits_for_the_leavers_end_offsets() -> None:
    host = leaving()
    staged(host)
    host.restart()
    host.drained(2, "p", "q")
    assert not host.lifecycle.settled
    host.handle(ProcessReturned("r"), Drained("r", 2, OUT))
    assert complete(host) == [Dismiss("r", OUT, 2)]


def test_E7_a_restart_knows_an_uncovered_leaver_of_an_earlier_view() -> None:
    host = leaving()
    staged(host)
    host.handle(LeaveWanted("q"))
    assert host.views()[-1].processes == ("p",)
    host.restart()
    assert set(host.lifecycle.membership.leaving) == {"q", "r"}


def test_E7_a_restart_reads_from_the_log_which_output_is_unreleased() -> None:
    host = leaving()
    staged(host)
    complete(host)
    host.restart()
    assert host.lifecycle.membership.unreleased("r") == OUT
    assert host.lifecycle.membership.everyone == ("p", "q")


def test_left_lists_departed_processes_whose_output_is_released() -> None:
    host = leaving()
    membership = host.lifecycle.membership
    staged(host)
    assert membership.left == ()
    complete(host)
    assert membership.left == (), "its output is still to be let out"
    host.handle(Released("r", 2), SnapshotWanted())
    complete(host)
    assert membership.left == ("r",)
    host.restart()
    assert host.lifecycle.membership.left == ("r",)
    host.handle(RestoreWanted(None, "because"), SnapshotChosen(None, RING))
    assert host.lifecycle.membership.left == ()


def test_a_joiner_has_not_left_after_a_rollback_to_before_its_join() -> None:
    """It joins again when it connects."""
    host = CoordinatorHost(RING)
    host.handle(JoinWanted("s", ()))
    host.drained(2, "p", "q", "r", "s")
    host.handle(RestoreWanted(None, "because"), SnapshotChosen(None, RING))
    assert host.lifecycle.membership.left == ()


def test_a_rejoined_process_no_longer_counts_as_departed() -> None:
    host = leaving()
    staged(host)
    complete(host)
    host.handle(Released("r", 2))
    host.lifecycle.membership.logged(view("p>q", "q>r", "r>p", number=3), recovering=False)
    assert host.lifecycle.membership.covered() == {}


def test_R2_a_restart_commits_nothing_before_a_leaver_reports_its_offsets() -> None:
    """Otherwise that snapshot would cover output that it does not name, and nobody would release it."""
    host = leaving()
    staged(host)
    host.restart()
    host.handle(ProcessReturned("p"), ProcessReturned("q"))
    host.drained(2, "p", "q")
    assert complete(host) == []
    assert those(host.handle(ProcessReturned("r"), Drained("r", 2, OUT)), Dismiss) == [Dismiss("r", OUT, 2)]
    assert departed(host) == {"r": Departure(OUT, view=2)}


def test_a_time_out_names_the_leaver_that_the_commit_waited_for() -> None:
    host = leaving()
    staged(host)
    host.restart()
    host.drained(2, "p", "q")
    complete(host)
    host.at(host.now_us + host.lifecycle.policy.timeout_us)
    (aborted,) = [entry for entry in host.log if isinstance(entry, Abort)]
    assert aborted.reason.endswith("without the output of r, which leaves")


def test_R2_a_late_commit_does_not_make_a_rejoined_process_departed() -> None:
    host = departed_with_a_snapshot_begun_on_a_slow_log()
    host.handle(JoinWanted("r", RING.channels[1:]))  # its view is not logged yet
    complete(host)  # then comes the commit of a snapshot that lists it as departed
    host.write()
    host.write()
    assert host.lifecycle.view.processes == ("p", "q", "r")
    assert departed(host) == {"r": Departure(OUT, view=2)}
    assert host.lifecycle.membership.departed == {}


@pytest.mark.parametrize("known", [False, True], ids=["not known to be out", "known to be out"])
def test_R2_a_process_departed_in_the_restored_snapshot_has_left(known: bool) -> None:
    """Output that it had not released by then must still be released."""
    host = leaving()
    staged(host)
    complete(host)
    membership = host.lifecycle.membership
    left = membership.departed
    if known:
        host.handle(Released("r", 2))
    else:
        membership.departed = {}  # as if everything had moved to another timeline by then
    host.handle(EntryLogged(EpochStart(2, 0, str(S1), msgspec.structs.replace(host.lifecycle.view, number=3)), left))
    assert membership.covered() == {"r": Departure(OUT, known, 2)}
    assert membership.unreleased("r") == ({} if known else OUT)


def test_R2_a_lost_commit_is_not_repeated_in_another_view() -> None:
    one = CoordinatorHost(RING, outputs=("r",))
    other = CoordinatorHost(RING, log=one.log, outputs=("r",))
    one.handle(SnapshotWanted())
    other.catch_up()
    one.slow = other.slow = True
    one.fragments(S1, "p", "q", "r")  # its commit is not logged yet
    other.handle(LeaveWanted("r"))
    other.write()  # the view is logged, then the other coordinator is killed
    one.write()
    one.slow = False
    one.write()
    assert [entry.reason for entry in one.log if isinstance(entry, Abort)] == ["the view changed"]
    one.drained(2, "p", "q")
    one.handle(Drained("r", 2, OUT))
    assert [entry for entry in one.log if isinstance(entry, Commit)] == []


def test_a_second_departure_names_the_views_of_the_second_stay() -> None:
    host = leaving()
    staged(host)
    complete(host)
    host.handle(Released("r", 2), JoinWanted("r", RING.channels[1:]))
    host.drained(3, "p", "q", "r")
    host.handle(LeaveWanted("r"))
    host.drained(4, "p", "q")
    host.handle(Drained("r", 4, OUT))
    assert complete(host) == [Dismiss("r", OUT, 4)]
    assert departed(host) == {"r": Departure(OUT, view=4, joined=3)}


def left_and_released() -> CoordinatorHost:
    """A host whose process r has left and has released all its output."""
    host = leaving()
    staged(host)
    complete(host)
    host.handle(Released("r", 2))
    return host


def joined_again() -> CoordinatorHost:
    """A host where r has left with output and has joined again."""
    host = left_and_released()
    host.handle(JoinWanted("r", RING.channels[1:]))
    host.drained(3, "p", "q", "r")
    return host


def test_R2_a_leaver_ends_when_its_release_is_logged() -> None:
    host = leaving()
    staged(host)
    complete(host)
    host.slow = True
    assert those(host.handle(Released("r", 2)), Dismiss) == []
    assert those(host.write(), Dismiss) == [Dismiss("r")]
    assert host.log[-1] == Release("r", 2, host.now_us)
    assert those(host.handle(Released("r", 2)), Dismiss) == [Dismiss("r")], "it had missed the word"


def test_E7_a_restart_knows_a_release_that_no_manifest_has_yet() -> None:
    host = left_and_released()
    host.restart()
    assert host.lifecycle.membership.unreleased("r") == {}
    assert host.lifecycle.membership.left == ("r",)


def test_a_lost_release_entry_is_written_again_unless_it_is_logged() -> None:
    host = leaving()
    staged(host)
    complete(host)
    release = Release("r", 2, 0)
    assert host.lifecycle.handle(AppendLost(release), host.now_us)[0] == Append(release)
    host.handle(EntryLogged(release))
    assert those(host.handle(AppendLost(release)), Append) == []


@pytest.mark.parametrize("restarts", [False, True])
def test_R2_a_rejoined_process_joins_again_after_a_rollback_before_it(restarts: bool) -> None:
    """It had released all its output before it rejoined, though the snapshot does not record that yet."""
    host = joined_again()
    host.handle(RestoreWanted(str(S1), "because"))
    host.handle(SnapshotChosen(str(S1), [entry for entry in host.log if isinstance(entry, Commit)][-1].manifest.view))
    if restarts:
        host.restart()
    membership = host.lifecycle.membership
    assert host.lifecycle.view.processes == ("p", "q")
    assert membership.covered() == {"r": Departure(OUT, True, 2)}
    host.drained(4, "p", "q")
    host.handle(JoinWanted("r", RING.channels[1:]))
    assert host.lifecycle.view.processes == ("p", "q", "r")


def test_a_release_from_before_the_rejoin_dismisses_nobody() -> None:
    host = joined_again()
    assert those(host.handle(EntryLogged(Release("r", 2, 0))), Dismiss) == []
    assert host.lifecycle.membership.covered() == {}


@pytest.mark.parametrize("restarts", [False, True])
def test_R2_manifests_name_the_view_in_which_a_process_joined(restarts: bool) -> None:
    host = joined_again()
    if restarts:
        host.restart()
        host.drained(3, "p", "q", "r")
    host.handle(SnapshotWanted())
    host.fragments(host.last_begun(), "p", "q", "r", view=3)
    newest = [entry for entry in host.log if isinstance(entry, Commit)][-1]
    assert newest.manifest.joined == {"r": 3}
    host.handle(RestoreWanted(None, "because"), SnapshotChosen(newest.snapshot, newest.manifest.view))
    if restarts:
        host.restart()
    host.drained(4, "p", "q", "r")
    assert host.lifecycle.membership.first_views() == {"p": 0, "q": 0, "r": 3}


def restored(host: CoordinatorHost, before: SnapshotId) -> list[CoordinatorEffect]:
    """Roll all processes back to a snapshot that includes r."""
    host.handle(RestoreWanted(str(before), "because"))
    return host.handle(SnapshotChosen(str(before), RING))


def dismissed_after_a_snapshot_with_it() -> CoordinatorHost:
    """A host whose process r was in a snapshot, has left since, and was ordered to release its output."""
    host = leaving_after_a_snapshot_with_it()
    complete(host)
    return host


@pytest.mark.parametrize("reported", ["never", "before", "after"])
def test_R1_a_releasing_leaver_is_restored_by_a_rollback_before_its_leave(reported: str) -> None:
    """Unless the log had its release before the rollback. A report after the rollback does not dismiss it."""
    host = dismissed_after_a_snapshot_with_it()
    host.slow = True
    effects = host.handle(Released("r", 2)) if reported == "before" else []
    effects += restored(host, S1)
    effects += host.write()
    if reported == "after":
        effects += host.handle(Released("r", 2))
    effects += host.write()
    if reported == "before":
        assert those(effects, Dismiss) == [Dismiss("r")], "the log had it before all went back"
        assert [order.process for order in those(effects, RestoreState)] == ["p", "q"]
    else:
        assert those(effects, Dismiss) == []
        assert [order.process for order in those(effects, RestoreState)] == ["p", "q", "r"]


def test_R1_a_releasing_leaver_releases_again_after_a_rollback_after_it() -> None:
    host = dismissed_after_a_snapshot_with_it()
    newest = [entry for entry in host.log if isinstance(entry, Commit)][-1]
    host.handle(RestoreWanted(None, "because"))
    effects = host.handle(SnapshotChosen(newest.snapshot, newest.manifest.view))
    assert [order.process for order in those(effects, RestoreState)] == ["p", "q"]
    assert to(effects, "r") == [Reset("r")]
    assert host.lifecycle.membership.unreleased("r") == OUT
    assert those(host.handle(Released("r", 2)), Dismiss) == [Dismiss("r")]
