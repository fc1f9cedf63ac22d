"""Barriers, rule by rule: aligned (A1-A5), unaligned (U1, U2), and aligned up to a time limit (T1-T4)."""

import pytest
from tests.protocol.playbook import (
    Playbook,
    counts,
    deliver,
    finished,
    frame,
    in_flight,
    received,
    request,
    sent,
    snapshot_id,
    view,
)

from strobe.errors import ProtocolViolation, UsageError
from strobe.protocol import Aligned, AlignedThenUnaligned, InFlight, Unaligned, check_channels
from strobe.protocol.process.effects import (
    DropRecording,
    FinishFragment,
    HoldChannel,
    RecordState,
    ResumeChannel,
    SendBarrier,
    SendMarker,
    SetAlignmentTimer,
)
from strobe.protocol.process.events import (
    AlignmentTimedOut,
    BarrierArrived,
    Marker,
    MarkerReceived,
    Restarted,
    SnapshotAborted,
    SnapshotsSettled,
    ViewInstalled,
)

S1, S2, S3 = snapshot_id(1), snapshot_id(2), snapshot_id(3)

# p has inputs from q and r, and sends to s.
JOIN = view("q>p", "r>p", "p>s")
BARRIERS = ("aligned", "unaligned", "aligned-then-unaligned")


def barrier(snapshot, sent_count=0, view=1):
    return Marker(1, view, snapshot, sent_count)


def turn(channel, snapshot, sent_count=0):
    """A barrier received in its place behind the frames before it."""
    return MarkerReceived(channel, barrier(snapshot, sent_count))


def arrived(channel, snapshot, sent_count=0, waiting=(), overtaken=(), overtakes=True):
    items = tuple(InFlight(one) for one in waiting)
    return BarrierArrived(channel, barrier(snapshot, sent_count), items, tuple(overtaken), overtakes)


def kinds(effects):
    return [type(effect) for effect in effects]


# Aligned


def test_a_source_records_on_request_and_sends_barriers_behind_its_frames() -> None:
    play = Playbook(Aligned("q", JOIN))
    play.handle(sent("qp", "one"))
    effects = play.handle(request(S1))
    assert effects[:2] == [RecordState(S1), SendMarker("qp", barrier(S1, 1))]
    assert kinds(effects[2:]) == [FinishFragment]
    play.ignores(request(S1))


def test_a_process_with_inputs_is_not_made_to_record_by_a_request() -> None:
    Playbook(Aligned("p", JOIN)).ignores(request(S1))


def test_a_source_does_not_record_an_earlier_snapshot_after_a_later_one() -> None:
    play = Playbook(Aligned("q", JOIN))
    play.handle(request(S2))
    play.ignores(request(S1))


def test_inputs_are_held_at_their_barrier_until_the_last_one() -> None:
    play = Playbook(Aligned("p", JOIN))
    play >> turn("qp", S1) << [HoldChannel("qp", S1)]
    early = frame(1, "before the barrier of r")
    play >> received("rp", early) << [deliver("rp", early)]
    effects = play.handle(turn("rp", S1, 1))
    assert effects[:2] == [RecordState(S1), SendMarker("ps", barrier(S1))]
    (fragment,) = finished(effects)
    assert effects[-1] == ResumeChannel("qp")
    assert counts(fragment.received) == {"qp": 0, "rp": 1}
    assert in_flight(fragment) == {"qp": [], "rp": []}


def test_delivering_a_held_back_frame_is_a_violation() -> None:
    play = Playbook(Aligned("p", JOIN))
    play.handle(turn("qp", S1))
    assert not play.machine.take_plain("qp", frame(1, "behind"))
    with pytest.raises(ProtocolViolation, match="held back"):
        play.handle(received("qp", frame(1, "behind")))


def test_a_barrier_ahead_of_earlier_frames_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="2 messages arrived before it, not 0"):
        Playbook(Aligned("p", JOIN)).handle(turn("qp", S1, 2))


def test_a_later_barrier_abandons_the_snapshot_waiting_for_its_channel() -> None:
    play = Playbook(Aligned("p", JOIN))
    play.handle(turn("qp", S1))
    play >> turn("rp", S2) << [ResumeChannel("qp"), HoldChannel("rp", S2)]
    assert finished(play.handle(turn("qp", S2)))


@pytest.mark.parametrize(
    "end", [SnapshotAborted(S1), SnapshotsSettled(2), Restarted()], ids=["aborted", "settled", "crash"]
)
def test_the_end_of_a_snapshot_resumes_inputs_and_ignores_late_barriers(end) -> None:
    play = Playbook(Aligned("p", JOIN))
    play.handle(turn("qp", S1))
    play >> end << [ResumeChannel("qp")]
    play.ignores(turn("rp", S1))
    assert not play.machine.is_under_way(S1)


def test_a_view_change_resumes_held_inputs() -> None:
    play = Playbook(Aligned("p", JOIN))
    play.handle(turn("qp", S1))
    effects = play.handle(ViewInstalled(view("q>p", "r>p", "p>s", number=2)))
    assert effects[0] == ResumeChannel("qp")


# Unaligned


def test_the_first_barrier_starts_the_recording_and_barriers_overtake() -> None:
    play = Playbook(Unaligned("p", JOIN))
    play.handle(sent("ps", "out"))
    effects = play.handle(arrived("qp", S1))
    assert effects == [RecordState(S1), SendBarrier("ps", barrier(S1, 1))]


def test_frames_waiting_here_and_at_the_sender_are_joined_in_order() -> None:
    play = Playbook(Unaligned("p", JOIN))
    play.handle(arrived("qp", S1))
    play.handle(received("rp", frame(1, "came")))
    effects = play.handle(arrived("rp", S1, 4, [frame(2, "here")], [frame(3, "there", "too")]))
    (fragment,) = finished(effects)
    assert in_flight(fragment) == {"qp": [], "rp": ["came", "here", "there", "too"]}
    assert counts(fragment.received) == {"qp": 0, "rp": 0}
    later = frame(2, "here")
    play >> received("rp", later) << [deliver("rp", later)]


def test_frames_sent_after_the_cut_are_not_in_flight() -> None:
    play = Playbook(Unaligned("p", view("q>p")))
    fragment = play.finishes(arrived("qp", S1, 1, [frame(1, "before"), frame(2, "after")]))
    assert in_flight(fragment) == {"qp": ["before"]}


def test_a_barrier_without_all_overtaken_messages_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="3 messages were sent before it; 1 were received or overtaken"):
        Playbook(Unaligned("p", JOIN)).handle(arrived("qp", S1, 3, [frame(1, "one")]))


def test_overlapping_unaligned_snapshots_are_kept_separate() -> None:
    play = Playbook(Unaligned("p", JOIN))
    play.handle(arrived("qp", S1))
    play.handle(arrived("qp", S2, 1, [frame(1, "between")]))
    first = play.finishes(arrived("rp", S1, 1, [frame(1, "r")]))
    second = play.finishes(arrived("rp", S2, 1, [frame(1, "r")]))
    assert in_flight(first) == {"qp": [], "rp": ["r"]}
    assert in_flight(second) == {"qp": ["between"], "rp": ["r"]}


# Aligned, then unaligned


def test_the_time_limit_starts_at_the_first_barrier_to_arrive() -> None:
    play = Playbook(AlignedThenUnaligned("p", JOIN))
    play >> arrived("qp", S1, 1, [frame(1, "waits")], overtakes=False) << [SetAlignmentTimer(S1)]
    play.ignores(arrived("rp", S1, overtakes=False))


def test_within_the_time_limit_a_snapshot_is_aligned() -> None:
    play = Playbook(AlignedThenUnaligned("p", JOIN))
    play.handle(arrived("qp", S1, overtakes=False))
    play >> turn("qp", S1) << [HoldChannel("qp", S1)]
    play.handle(arrived("rp", S1, overtakes=False))
    effects = play.handle(turn("rp", S1))
    assert SendMarker("ps", barrier(S1)) in effects
    assert in_flight(finished(effects)[0]) == {"qp": [], "rp": []}


def test_after_the_time_limit_inputs_resume_with_waiting_frames_as_state() -> None:
    play = Playbook(AlignedThenUnaligned("p", JOIN))
    play.handle(arrived("qp", S1, overtakes=False))
    play.handle(turn("qp", S1))
    play.handle(arrived("rp", S1, 2, [frame(1, "one"), frame(2, "two")], overtakes=False))
    play.handle(received("rp", frame(1, "one")))
    effects = play.handle(AlignmentTimedOut(S1))
    assert effects[:3] == [RecordState(S1), SendBarrier("ps", barrier(S1)), ResumeChannel("qp")]
    (fragment,) = finished(effects)
    assert in_flight(fragment) == {"qp": [], "rp": ["two"]}
    play.handle(received("rp", frame(2, "two")))
    play.ignores(turn("rp", S1, 2))


def test_a_late_barrier_ends_its_channel_when_it_reaches_the_machine() -> None:
    play = Playbook(AlignedThenUnaligned("p", JOIN))
    play.handle(arrived("qp", S1, overtakes=False))
    play.handle(turn("qp", S1))
    assert not finished(play.handle(AlignmentTimedOut(S1)))
    play.handle(received("rp", frame(1, "one")))
    fragment = play.finishes(arrived("rp", S1, 2, [frame(2, "two")], overtakes=False))
    assert in_flight(fragment) == {"qp": [], "rp": ["one", "two"]}


def test_an_overtaking_barrier_makes_its_receiver_record_at_once() -> None:
    play = Playbook(AlignedThenUnaligned("p", JOIN))
    effects = play.handle(arrived("qp", S1, 1, [], [frame(1, "there")]))
    assert effects == [RecordState(S1), SendBarrier("ps", barrier(S1))]


def test_waiting_barriers_are_sent_again_ahead_after_the_time_limit() -> None:
    play = Playbook(AlignedThenUnaligned("q", JOIN))
    play.handle(sent("qp", "one"))
    assert play.handle(request(S1))[-1] == SetAlignmentTimer(S1)
    play.handle(sent("qp", "two"))
    play >> AlignmentTimedOut(S1) << [SendBarrier("qp", barrier(S1, 1))]
    play.ignores(AlignmentTimedOut(S1))


def test_an_abort_drops_a_recording_that_became_unaligned() -> None:
    play = Playbook(AlignedThenUnaligned("p", JOIN))
    play.handle(arrived("qp", S1))
    play >> SnapshotAborted(S1) << [DropRecording(S1, "aborted")]
    play.ignores(arrived("rp", S1))
    play.ignores(AlignmentTimedOut(S1))


# Topologies


@pytest.mark.parametrize("protocol", BARRIERS)
@pytest.mark.parametrize(
    ("channels", "cycle"),
    [
        (("p>p",), "p -> p"),
        (("p>q", "q>p"), "p -> q -> p"),
        (("a>b", "b>c", "c>d", "d>b", "a>e"), "b -> c -> d -> b"),
    ],
)
def test_a_cycle_is_refused_by_name(protocol, channels, cycle) -> None:
    with pytest.raises(UsageError, match=f"{protocol} needs channels without a cycle, and {cycle} is one"):
        check_channels(protocol, view(*channels))


@pytest.mark.parametrize("protocol", BARRIERS)
def test_barriers_allow_any_topology_of_fifo_channels_without_a_cycle(protocol) -> None:
    check_channels(protocol, view("a>b", "a>c", "b>d", "c>d", "a>d:short", "a>d:long", "e>d", alone=["f"]))
    with pytest.raises(UsageError, match="needs fifo channels"):
        check_channels(protocol, view("a>b", kind="unordered"))
