"""Late, duplicate and foreign markers: an id seen once never records again (E6), and memory is bounded."""

import pytest
from tests.protocol.playbook import (
    Playbook,
    deliver,
    frame,
    in_flight,
    marker,
    received,
    request,
    snapshot_id,
    view,
)

from strobe.errors import ProtocolViolation
from strobe.protocol import ChandyLamport
from strobe.protocol.process.effects import DropRecording, RecordState
from strobe.protocol.process.events import Restarted, SentCountRelayed, SnapshotAborted, SnapshotsSettled

S1, S2, S3 = snapshot_id(1), snapshot_id(2), snapshot_id(3)

# p has channels to and from q and r.
TRIANGLE = view("p>q", "q>p", "p>r", "r>p")


def p(topology=TRIANGLE) -> Playbook:
    return Playbook(ChandyLamport("p", topology))


# Late, duplicate and foreign markers


def test_a_duplicate_marker_of_an_open_snapshot_changes_nothing() -> None:
    play = p()
    play.handle(marker("qp", S1))
    play.ignores(marker("qp", S1))
    play.handle(received("qp", frame(1, "behind")))
    assert in_flight(play.finishes(marker("rp", S1)))["qp"] == []


@pytest.mark.parametrize("late", [marker("qp", S1), marker("rp", S1), request(S1)])
def test_late_messages_of_a_finished_snapshot_are_ignored(late) -> None:
    play = p()
    play.handle(marker("qp", S1))
    play.handle(marker("rp", S1))
    play.ignores(late)


@pytest.mark.parametrize("late", [marker("qp", S1), marker("rp", S1), request(S1)])
def test_messages_of_a_snapshot_aborted_before_it_was_known_are_ignored(late) -> None:
    play = p()
    play.ignores(SnapshotAborted(S1))
    play.ignores(late)
    assert not play.machine.open


@pytest.mark.parametrize("events", [[request(S1)], [marker("qp", S1)], [request(S1), marker("rp", S1)]])
def test_an_abort_at_any_point_drops_the_recording_for_good(events) -> None:
    play = p()
    for event in events:
        play.handle(event)
    play >> SnapshotAborted(S1) << [DropRecording(S1, "aborted")]
    assert not play.machine.open
    play.ignores(SnapshotAborted(S1))
    for late in (marker("qp", S1), marker("rp", S1), request(S1)):
        play.ignores(late)
    play >> received("qp", frame(1, "x")) << [deliver("qp", frame(1, "x"))]


def test_an_abort_of_a_finished_snapshot_has_nothing_to_free() -> None:
    play = p(view("q>p"))
    play.handle(marker("qp", S1))
    play.ignores(SnapshotAborted(S1))


def test_only_markers_of_settled_snapshots_are_ignored() -> None:
    play = p()
    play.ignores(SnapshotsSettled(3))
    play.ignores(marker("qp", S1))
    play.ignores(marker("qp", S2))
    assert play.handle(marker("qp", S3))[0] == RecordState(S3)


def test_settling_frees_open_recordings_below_and_only_those() -> None:
    play = p()
    for snapshot in (S1, S2, S3):
        play.handle(request(snapshot))
    play >> SnapshotsSettled(3) << [DropRecording(S1, "settled elsewhere"), DropRecording(S2, "settled elsewhere")]
    assert set(play.machine.open) == {S3}


@pytest.mark.parametrize("end", ["finished", "aborted"])
def test_only_ids_that_are_not_settled_are_remembered(end: str) -> None:
    play = p(view("q>p"))
    for counter in range(1, 200):
        snapshot = snapshot_id(counter)
        play.handle(marker("qp", snapshot) if end == "finished" else SnapshotAborted(snapshot))
        play.ignores(SnapshotsSettled(counter - 9))
        assert len(play.machine.closed) <= 10
    play.ignores(SnapshotsSettled(1000))
    assert not play.machine.closed
    play.ignores(SnapshotAborted(S1))
    assert not play.machine.closed


def test_the_floor_of_settled_snapshots_never_falls() -> None:
    play = p()
    play.ignores(SnapshotsSettled(3))
    play.ignores(SnapshotsSettled(1))
    play.ignores(marker("qp", S2))


def test_a_restarted_process_never_records_an_open_snapshot_again() -> None:
    play = p()
    play.handle(request(S1))
    play.handle(marker("qp", S2))
    play >> Restarted() << [DropRecording(S1, "process restarted"), DropRecording(S2, "process restarted")]
    play.ignores(marker("rp", S1))
    play.ignores(request(S2))


def test_a_marker_or_request_of_an_older_view_is_ignored() -> None:
    play = Playbook(ChandyLamport("p", view("q>p", "p>q", number=2)))
    play.ignores(marker("qp", S1, view=1))
    play.ignores(request(S1, view=1))
    assert play.handle(marker("qp", S1, view=2))[0] == RecordState(S1)


def test_a_marker_of_a_view_not_announced_is_a_violation() -> None:
    play = p()
    with pytest.raises(ProtocolViolation, match="view 2") as violation:
        play.handle(marker("qp", S1, view=2))
    assert (violation.value.process, violation.value.channel) == ("p", "qp")
    assert not play.machine.open


def test_a_request_for_a_view_not_yet_installed_is_ignored() -> None:
    p().ignores(request(S1, view=2))


@pytest.mark.parametrize("epoch", [0, 2])
def test_markers_requests_and_aborts_of_another_epoch_are_ignored(epoch: int) -> None:
    foreign = snapshot_id(1, epoch=epoch)
    play = p()
    for event in (marker("qp", foreign), request(foreign), SnapshotAborted(foreign)):
        play.ignores(event)
    assert not play.machine.open
    assert not play.machine.closed


def test_a_marker_of_another_epoch_is_ignored_whatever_its_view() -> None:
    """R1: an epoch fences off everything older; view numbers of another timeline mean nothing in this one."""
    p().ignores(marker("qp", snapshot_id(1, epoch=0), view=2))


def test_markers_carry_epoch_view_and_id() -> None:
    play = Playbook(ChandyLamport("p", view("p>q", number=4), epoch=3))
    snapshot = snapshot_id(9, epoch=3)
    (carried,) = [effect.marker for effect in play.handle(request(snapshot, view=4)) if hasattr(effect, "marker")]
    assert (carried.epoch, carried.view, carried.snapshot) == (3, 4, snapshot)


def test_relayed_counts_are_ignored() -> None:
    play = p()
    play.handle(request(S1))
    play.ignores(SentCountRelayed(S1, "qp", 0))
    assert S1 in play.machine.open
