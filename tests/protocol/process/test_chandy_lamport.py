"""Chandy-Lamport, rule by rule (C1-C7), at one process."""

import pytest
from tests.protocol.playbook import (
    Playbook,
    counts,
    deliver,
    finished,
    frame,
    in_flight,
    marker,
    received,
    request,
    send,
    send_marker,
    sent,
    snapshot_id,
    view,
)

from strobe.protocol import ChandyLamport, InFlight, SnapshotId
from strobe.protocol.process.channels import Outgoing
from strobe.protocol.process.effects import DropRecording, FinishFragment, RecordState
from strobe.protocol.process.events import Breakpoint, SnapshotAborted
from strobe.protocol.values.view import ChannelSpec

S1, S2, S3 = snapshot_id(1), snapshot_id(2), snapshot_id(3)

# p has channels to and from q and r.
TRIANGLE = view("p>q", "q>p", "p>r", "r>p")


def p(topology=TRIANGLE) -> Playbook:
    return Playbook(ChandyLamport("p", topology))


# C1: any process may initiate


def test_a_process_asked_twice_records_once() -> None:
    play = p()
    play >> request(S1) << [RecordState(S1), send_marker("pq", S1), send_marker("pr", S1)]
    play.ignores(request(S1))


def test_an_initiator_reached_by_the_marker_of_another_records_once() -> None:
    play = p()
    play.handle(request(S1))
    play.ignores(marker("qp", S1))
    fragment = play.finishes(marker("rp", S1))
    assert in_flight(fragment) == {"qp": [], "rp": []}


def test_a_request_that_comes_after_the_marker_does_nothing() -> None:
    play = p()
    play.handle(marker("qp", S1))
    play.ignores(request(S1))


def test_a_counter_that_leaps_too_far_is_ignored() -> None:
    play = p()
    play.ignores(marker("qp", SnapshotId(1, 2**63 - 1, "q")))
    play.ignores(request(SnapshotId(1, 2**40, "q")))
    assert play.machine.next_id() == SnapshotId(1, 1, "p")


def test_an_own_id_is_one_above_the_highest_counter_seen() -> None:
    play = p()
    assert play.machine.next_id() == SnapshotId(1, 1, "p")
    play.handle(marker("qp", SnapshotId(1, 7, "q")))
    play.handle(request(SnapshotId(1, 4, "r")))
    assert play.machine.next_id() == SnapshotId(1, 8, "p")


# C2: first the state, then the markers, before any later message


def test_the_initiator_records_then_sends_markers_then_later_messages() -> None:
    play = p()
    play >> sent("pq", "before") << [send("pq", frame(1, "before"))]
    play >> request(S1) << [RecordState(S1), send_marker("pq", S1), send_marker("pr", S1)]
    play >> sent("pq", "after") << [send("pq", frame(2, "after"))]


def test_the_recorded_frontier_excludes_messages_sent_later() -> None:
    play = p(view("p>q"))
    play.handle(sent("pq", "a", "b"))
    fragment = play.finishes(request(S1))
    expected = Outgoing(ChannelSpec("pq", "p", "q"))
    expected.seal(2, frame(1, "a", "b").body, 0, 1)
    play.handle(sent("pq", "c"))
    assert fragment.sent == {"pq": expected.frontier()}
    assert fragment.sent["pq"].count == 2


def test_a_process_recording_on_a_marker_sends_markers_on_every_channel() -> None:
    play = p()
    play >> marker("qp", S1) << [RecordState(S1), send_marker("pq", S1), send_marker("pr", S1)]


# C3: the first marker


def test_the_first_marker_closes_only_its_own_channel() -> None:
    play = p()
    play.handle(marker("qp", S1))
    play.handle(received("qp", frame(1, "behind the marker")))
    play.handle(received("rp", frame(1, "in flight")))
    assert in_flight(play.finishes(marker("rp", S1))) == {"qp": [], "rp": ["in flight"]}


def test_the_first_marker_makes_its_channel_empty() -> None:
    play = p()
    play.handle(received("qp", frame(1, "a", "b", "c")))
    play.handle(marker("qp", S1))
    fragment = play.finishes(marker("rp", S1))
    assert in_flight(fragment)["qp"] == []
    assert counts(fragment.received) == {"qp": 3, "rp": 0}


def test_the_first_marker_completes_a_process_with_one_incoming_channel() -> None:
    play = p(view("q>p", "p>r"))
    effects = play.handle(marker("qp", S1))
    assert effects[:2] == [RecordState(S1), send_marker("pr", S1)]
    assert isinstance(effects[2], FinishFragment)


# C4: a later marker


def test_a_later_marker_closes_its_channel_with_the_frames_since() -> None:
    play = p()
    play.handle(received("qp", frame(1, "before")))
    play.handle(request(S1))
    play.handle(received("qp", frame(2, "x", "y")))
    play.handle(received("qp", frame(4, "z")))
    play.ignores(marker("qp", S1))
    play.handle(received("qp", frame(5, "behind")))
    fragment = play.finishes(marker("rp", S1))
    assert in_flight(fragment) == {"qp": ["x", "y", "z"], "rp": []}
    assert fragment.in_flight["qp"] == (InFlight(frame(2, "x", "y")), InFlight(frame(4, "z")))
    assert counts(fragment.received) == {"qp": 1, "rp": 0}


def test_frontiers_stay_as_they_were_at_the_recording() -> None:
    play = p()
    play.handle(request(S1))
    before = {channel: end.frontier() for channel, end in play.machine.incoming.items()}
    play.handle(received("qp", frame(1, "x")))
    play.handle(sent("pq", "later"))
    play.handle(marker("qp", S1))
    fragment = play.finishes(marker("rp", S1))
    assert fragment.received == before
    assert counts(fragment.sent) == {"pq": 0, "pr": 0}


# C5: completion


@pytest.mark.parametrize("order", [("qp", "rp", "sp"), ("sp", "qp", "rp"), ("rp", "sp", "qp")])
def test_a_process_is_complete_exactly_with_the_last_marker(order: tuple[str, ...]) -> None:
    play = p(view("q>p", "r>p", "s>p"))
    first, second, last = order
    assert finished(play.handle(marker(first, S1))) == []
    play.ignores(marker(second, S1))
    fragment = play.finishes(marker(last, S1))
    assert (fragment.snapshot, fragment.process, fragment.view, fragment.state) == (S1, "p", 1, None)


def test_a_process_without_inputs_is_complete_at_once() -> None:
    play = p(view("p>q"))
    effects = play.handle(request(S1))
    assert effects[:2] == [RecordState(S1), send_marker("pq", S1)]
    assert finished(effects)[0].in_flight == {}


def test_a_process_without_outputs_records_and_sends_nothing() -> None:
    play = p(view("q>p"))
    effects = play.handle(marker("qp", S1))
    assert effects[0] == RecordState(S1)
    assert finished(effects)[0].sent == {}
    assert len(effects) == 2


def test_a_process_without_channels_is_complete_at_once() -> None:
    play = p(view("q>r", alone=["p"]))
    assert play.handle(request(S1))[0] == RecordState(S1)
    assert S1 not in play.machine.open


# C6: overlapping snapshots


def test_overlapping_snapshots_each_record_their_own_channel_state() -> None:
    play = p()
    play.handle(request(S1))
    play.handle(received("qp", frame(1, "one")))
    play >> request(S2) << [RecordState(S2), send_marker("pq", S2), send_marker("pr", S2)]
    play.handle(received("qp", frame(2, "two")))
    play.ignores(marker("qp", S2))
    play.handle(received("qp", frame(3, "three")))
    play.ignores(marker("qp", S1))
    first, second = play.finishes(marker("rp", S1)), play.finishes(marker("rp", S2))
    assert in_flight(first)["qp"] == ["one", "two", "three"]
    assert in_flight(second)["qp"] == ["two"]
    assert (first.received["qp"].count, second.received["qp"].count) == (0, 1)


def test_ids_with_the_same_counter_differ_by_their_initiator() -> None:
    by_q, by_r = SnapshotId(1, 1, "q"), SnapshotId(1, 1, "r")
    play = p()
    assert play.handle(marker("qp", by_q))[0] == RecordState(by_q)
    assert play.handle(marker("rp", by_r))[0] == RecordState(by_r)
    assert play.finishes(marker("rp", by_q)).snapshot == by_q
    assert play.finishes(marker("qp", by_r)).snapshot == by_r


def test_an_abort_of_one_snapshot_leaves_the_overlapping_one_alone() -> None:
    play = p()
    play.handle(request(S1))
    play.handle(request(S2))
    play.handle(received("qp", frame(1, "x")))
    play >> SnapshotAborted(S1) << [DropRecording(S1, "aborted")]
    play.handle(marker("qp", S2))
    assert in_flight(play.finishes(marker("rp", S2))) == {"qp": ["x"], "rp": []}


# C7: never paused


def test_messages_are_delivered_and_sent_at_once_during_a_recording() -> None:
    play = p()
    for snapshot in (S1, S2, S3):
        play.handle(request(snapshot))
        play.handle(marker("qp", snapshot))
    for ordinal in range(1, 5):
        for channel in ("qp", "rp"):
            play >> received(channel, frame(ordinal, ordinal)) << [deliver(channel, frame(ordinal, ordinal))]
        play >> sent("pq", ordinal) << [send("pq", frame(ordinal, ordinal))]


# Topologies


def test_a_self_loop_is_recorded_until_the_own_marker_comes_round() -> None:
    play = p(view("p>p:loop"))
    play >> sent("loop", "before") << [send("loop", frame(1, "before"))]
    play >> request(S1) << [RecordState(S1), send_marker("loop", S1)]
    play.handle(sent("loop", "after"))
    play.handle(received("loop", frame(1, "before")))
    fragment = play.finishes(marker("loop", S1))
    play.handle(received("loop", frame(2, "after")))
    assert in_flight(fragment) == {"loop": ["before"]}
    assert (fragment.sent["loop"].count, fragment.received["loop"].count) == (1, 0)


def test_two_channels_between_the_same_pair_each_get_and_need_a_marker() -> None:
    play = p(view("p>q:1", "p>q:2", "q>p:3", "q>p:4"))
    play >> marker("3", S1) << [RecordState(S1), send_marker("1", S1), send_marker("2", S1)]
    play.handle(received("3", frame(1, "behind")))
    play.handle(received("4", frame(1, "in flight")))
    assert in_flight(play.finishes(marker("4", S1))) == {"3": [], "4": ["in flight"]}


def test_a_process_records_only_channels_of_its_own_component() -> None:
    play = p(view("p>q", "q>p", "r>s", "s>r"))
    play >> request(S1) << [RecordState(S1), send_marker("pq", S1)]
    fragment = play.finishes(marker("qp", S1))
    assert set(fragment.sent) == {"pq"}
    assert set(fragment.received) == set(fragment.in_flight) == {"qp"}


# Breakpoints


def test_a_cut_inside_a_frame_keeps_it_with_its_consumed_part() -> None:
    play = p()
    play.handle(received("qp", frame(1, "a")))
    play.handle(received("rp", frame(1, "x", "y")))
    play.handle(received("qp", frame(2, "b", "c", "d")))
    play.handle(request(S1, inside=Breakpoint("qp", 2)))
    play.handle(received("qp", frame(5, "e")))
    play.handle(marker("qp", S1))
    fragment = play.finishes(marker("rp", S1))
    assert fragment.in_flight["qp"] == (InFlight(frame(2, "b", "c", "d"), consumed=2), InFlight(frame(5, "e")))
    assert in_flight(fragment) == {"qp": ["d", "e"], "rp": []}
    assert counts(fragment.received) == {"qp": 3, "rp": 2}


def test_a_cut_inside_a_frame_has_the_hash_from_before_that_frame() -> None:
    play = p(view("q>p"))
    play.handle(received("qp", frame(1, "a")))
    before = play.machine.incoming["qp"].hash
    play.handle(received("qp", frame(2, "b", "c")))
    play.handle(request(S1, inside=Breakpoint("qp", 1)))
    fragment = play.finishes(marker("qp", S1))
    assert fragment.received["qp"].hash == before


@pytest.mark.parametrize("consumed", [0, 2, 3])
def test_a_breakpoint_lies_inside_a_frame(consumed: int) -> None:
    play = p(view("q>p"))
    play.handle(received("qp", frame(1, "a", "b")))
    with pytest.raises(AssertionError, match="inside a frame"):
        play.handle(request(S1, inside=Breakpoint("qp", consumed)))
