"""Lai-Yang, rule by rule (V1, L1-L5), at one process."""

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
    sent,
    snapshot_id,
    view,
)

from strobe.errors import ProtocolViolation
from strobe.protocol import UNORDERED, InFlight, LaiYang
from strobe.protocol.process.effects import DropRecording, FinishFragment, RecordState, ReportSentCounts
from strobe.protocol.process.events import Breakpoint, Restarted, SentCountRelayed, SnapshotAborted, SnapshotsSettled
from strobe.protocol.process.lai_yang import CUTS_AT_ONCE_MAX

S1, S2, S3 = snapshot_id(1), snapshot_id(2), snapshot_id(3)

# p has channels to and from q and r.
TRIANGLE = view("p>q", "q>p", "p>r", "r>p", kind=UNORDERED)


def p(topology=TRIANGLE) -> Playbook:
    return Playbook(LaiYang("p", topology))


def report(snapshot, pq: int = 0, pr: int = 0) -> ReportSentCounts:
    return ReportSentCounts(snapshot, {"pq": pq, "pr": pr})


def relayed(snapshot, channel: str, count: int) -> SentCountRelayed:
    return SentCountRelayed(snapshot, channel, count)


# L1: every frame carries its sender's index


def test_frames_carry_the_index_of_the_last_recording() -> None:
    play = p()
    play >> sent("pq", "a") << [send("pq", frame(1, "a", index=0))]
    play.handle(request(S1))
    play >> sent("pq", "b") << [send("pq", frame(2, "b", index=1))]
    play.handle(request(S3))
    play >> sent("pr", "c") << [send("pr", frame(1, "c", index=3))]


def test_no_markers_are_sent_and_received_ones_are_ignored() -> None:
    play = p()
    play >> request(S1) << [RecordState(S1), report(S1)]
    play.ignores(marker("qp", S2))
    assert S2 not in play.machine.open


# L2: a higher index records first, then delivers


def test_a_higher_index_records_before_the_frame_is_delivered() -> None:
    play = p()
    late = frame(1, "x", index=1)
    play >> received("qp", late) << [RecordState(S1), report(S1), deliver("qp", late)]


def test_a_higher_index_records_every_missing_one_in_order_before_delivery() -> None:
    play = p()
    play.handle(sent("pq", "a", "b"))
    ahead = frame(1, "x", index=3)
    (
        play
        >> received("rp", ahead)
        << [
            RecordState(S1),
            report(S1, pq=2),
            RecordState(S2),
            report(S2, pq=2),
            RecordState(S3),
            report(S3, pq=2),
            deliver("rp", ahead),
        ]
    )


def test_the_frame_that_forces_a_recording_is_behind_the_cut() -> None:
    play = p(view("q>p", kind=UNORDERED))
    play.handle(received("qp", frame(2, "behind", index=1)))
    play.handle(received("qp", frame(1, "in flight", index=0)))
    fragment = play.finishes(relayed(S1, "qp", 1))
    assert in_flight(fragment) == {"qp": ["in flight"]}
    assert counts(fragment.received) == {"qp": 0}


def test_an_index_that_is_known_records_nothing() -> None:
    play = p()
    play.handle(request(S2))
    for index in (0, 1, 2):
        known = frame(1 + index, "x", index=index)
        play >> received("qp", known) << [deliver("qp", known)]


# L3: quiet processes are asked


def test_a_quiet_process_records_when_it_is_asked() -> None:
    play = p()
    play.handle(sent("pr", "a"))
    play >> request(S1) << [RecordState(S1), report(S1, pr=1)]


def test_a_process_asked_for_a_later_snapshot_records_those_it_missed_too() -> None:
    play = p()
    play >> request(S2) << [RecordState(S1), report(S1), RecordState(S2), report(S2)]


def test_a_request_for_another_view_records_nothing() -> None:
    play = p()
    play.ignores(request(S1, view=2))
    play.ignores(request(S1, view=0))
    assert play.machine.index == 0


def test_a_process_asked_again_reports_the_counts_of_its_cut_once_more() -> None:
    play = p()
    play.handle(sent("pq", "before"))
    play.handle(request(S1))
    play.handle(sent("pq", "after"))
    play >> request(S1) << [report(S1, pq=1)]


def test_a_repeated_request_after_the_end_has_no_effects() -> None:
    play = p()
    play.handle(request(S1))
    play.handle(relayed(S1, "qp", 0))
    assert finished(play.handle(relayed(S1, "rp", 0)))
    play.ignores(request(S1))


# L4 and L5: channel state


def test_a_frame_of_a_lower_index_after_the_recording_was_in_flight() -> None:
    play = p(view("q>p", kind=UNORDERED))
    play.handle(received("qp", frame(1, "received", index=0)))
    play.handle(request(S1))
    play.handle(received("qp", frame(4, "behind", index=1)))
    play.handle(received("qp", frame(3, "late", index=0)))
    play.handle(received("qp", frame(2, "later", index=0)))
    fragment = play.finishes(relayed(S1, "qp", 3))
    assert in_flight(fragment) == {"qp": ["late", "later"]}
    assert fragment.in_flight["qp"] == (InFlight(frame(3, "late")), InFlight(frame(2, "later")))
    assert counts(fragment.received) == {"qp": 1}


def test_a_channel_is_complete_only_when_the_relayed_count_is_reached() -> None:
    play = p(view("q>p", kind=UNORDERED))
    play.handle(request(S1))
    play.handle(received("qp", frame(1, "a", "b")))
    play.ignores(relayed(S1, "qp", 4))
    assert finished(play.handle(received("qp", frame(4, "d")))) == []
    last = frame(3, "c")
    effects = play.handle(received("qp", last))
    assert effects[0] == deliver("qp", last)
    (fragment,) = finished(effects)
    assert in_flight(fragment) == {"qp": ["a", "b", "d", "c"]}


def test_messages_of_a_higher_index_do_not_count_towards_the_relayed_count() -> None:
    play = p(view("q>p", kind=UNORDERED))
    play.handle(request(S1))
    play.ignores(relayed(S1, "qp", 1))
    assert finished(play.handle(received("qp", frame(2, "x", index=1)))) == []
    assert finished(play.handle(received("qp", frame(1, "y", index=0))))


def test_messages_before_the_recording_count_towards_the_relayed_count() -> None:
    play = p(view("q>p", kind=UNORDERED))
    play.handle(received("qp", frame(1, "a", "b")))
    play.handle(request(S1))
    assert in_flight(play.finishes(relayed(S1, "qp", 2))) == {"qp": []}


def test_a_complete_channel_takes_no_more_frames() -> None:
    play = p()
    play.handle(request(S1))
    play.ignores(relayed(S1, "qp", 0))
    play.handle(received("qp", frame(1, "of a lower index, and yet not of this cut", index=0)))
    assert in_flight(play.finishes(relayed(S1, "rp", 0))) == {"qp": [], "rp": []}


def test_a_relayed_count_before_the_local_recording_records() -> None:
    play = p()
    play >> relayed(S2, "qp", 1) << [RecordState(S1), report(S1), RecordState(S2), report(S2)]
    play.handle(received("qp", frame(1, "x")))
    fragment = play.finishes(relayed(S2, "rp", 0))
    assert in_flight(fragment) == {"qp": ["x"], "rp": []}


def test_a_count_relayed_twice_is_the_same_count() -> None:
    play = p()
    play.handle(request(S1))
    for _ in range(2):
        play.ignores(relayed(S1, "qp", 1))
    play.handle(received("qp", frame(1, "x")))
    play.ignores(relayed(S1, "qp", 1))
    assert in_flight(play.finishes(relayed(S1, "rp", 0)))["qp"] == ["x"]


def test_a_count_relayed_for_a_channel_that_is_not_an_input_closes_nothing() -> None:
    play = p()
    play.handle(request(S1))
    play.ignores(relayed(S1, "pq", 0))
    play.ignores(relayed(S1, "no such channel", 0))
    assert S1 in play.machine.open


# Overlapping snapshots


def test_overlapping_snapshots_each_take_the_frames_below_their_own_index() -> None:
    play = p(view("q>p", kind=UNORDERED))
    play.handle(request(S2))
    play.handle(received("qp", frame(2, "between", index=1)))
    play.handle(received("qp", frame(1, "before both", index=0)))
    first = play.finishes(relayed(S1, "qp", 1))
    second = play.finishes(relayed(S2, "qp", 2))
    assert in_flight(first) == {"qp": ["before both"]}
    assert in_flight(second) == {"qp": ["between", "before both"]}


def test_one_frame_may_complete_several_snapshots() -> None:
    play = p(view("q>p", kind=UNORDERED))
    play.handle(request(S2))
    play.handle(relayed(S1, "qp", 1))
    play.handle(relayed(S2, "qp", 1))
    effects = play.handle(received("qp", frame(1, "x")))
    assert [fragment.snapshot for fragment in finished(effects)] == [S1, S2]


def test_a_process_without_inputs_is_complete_at_each_recording() -> None:
    play = p(view("p>q", kind=UNORDERED))
    effects = play.handle(request(S2))
    assert [type(effect) for effect in effects] == 2 * [RecordState, ReportSentCounts, FinishFragment]


def test_a_self_loop_is_complete_when_the_own_count_is_relayed() -> None:
    play = p(view("p>p:loop", kind=UNORDERED))
    play.handle(sent("loop", "a", "b"))
    play >> request(S1) << [RecordState(S1), ReportSentCounts(S1, {"loop": 2})]
    play.handle(sent("loop", "after"))
    play.handle(received("loop", frame(3, "after", index=1)))
    play.ignores(relayed(S1, "loop", 2))
    (fragment,) = finished(play.handle(received("loop", frame(1, "a", "b"))))
    assert in_flight(fragment) == {"loop": ["a", "b"]}


# Aborts, restarts, memory


def test_an_aborted_index_is_skipped_and_later_ones_are_recorded() -> None:
    play = p()
    play.ignores(SnapshotAborted(S2))
    ahead = frame(1, "x", index=3)
    (
        play
        >> received("qp", ahead)
        << [
            RecordState(S1),
            report(S1),
            RecordState(S3),
            report(S3),
            deliver("qp", ahead),
        ]
    )


@pytest.mark.parametrize("late", [request(S1), relayed(S1, "qp", 0)])
def test_late_requests_and_counts_of_an_aborted_snapshot_are_ignored(late) -> None:
    play = p()
    play.handle(request(S1))
    play >> SnapshotAborted(S1) << [DropRecording(S1, "aborted")]
    play.ignores(late)
    behind = frame(1, "x", index=1)
    play >> received("qp", behind) << [deliver("qp", behind)]


@pytest.mark.parametrize("late", [request(S1), relayed(S1, "qp", 0)])
def test_messages_of_a_snapshot_aborted_before_it_was_known_are_ignored(late) -> None:
    play = p()
    play.ignores(SnapshotAborted(S1))
    play.ignores(late)
    assert not play.machine.open


def test_a_recording_continues_when_another_is_aborted() -> None:
    play = p()
    play.handle(request(S2))
    play.handle(received("qp", frame(1, "x")))
    play >> SnapshotAborted(S1) << [DropRecording(S1, "aborted")]
    play.handle(relayed(S2, "qp", 1))
    assert in_flight(play.finishes(relayed(S2, "rp", 0))) == {"qp": ["x"], "rp": []}


def test_a_restarted_process_keeps_its_index_and_gives_up_its_recordings() -> None:
    play = p()
    play.handle(request(S2))
    play >> Restarted() << [DropRecording(S1, "process restarted"), DropRecording(S2, "process restarted")]
    play.ignores(request(S2))
    play >> sent("pq", "x") << [send("pq", frame(1, "x", index=2))]


def test_settled_indexes_are_skipped_and_frames_carry_the_new_one() -> None:
    play = p()
    play.ignores(SnapshotsSettled(3))
    play >> request(S3) << [RecordState(S3), report(S3)]
    play >> sent("pq", "x") << [send("pq", frame(1, "x", index=3))]


def test_settling_frees_open_recordings_below() -> None:
    play = p()
    play.handle(request(S2))
    play >> SnapshotsSettled(2) << [DropRecording(S1, "settled elsewhere")]
    play.ignores(relayed(S1, "qp", 0))
    assert set(play.machine.open) == {S2}


@pytest.mark.parametrize("epoch", [0, 2])
def test_requests_and_counts_of_another_epoch_are_ignored(epoch: int) -> None:
    foreign = snapshot_id(1, epoch=epoch)
    play = p()
    play.ignores(request(foreign))
    play.ignores(relayed(foreign, "qp", 0))
    assert play.machine.index == 0


# Breakpoints


def test_a_cut_inside_a_frame_keeps_it_with_its_consumed_part() -> None:
    play = p(view("q>p", kind=UNORDERED))
    play.handle(received("qp", frame(1, "a")))
    before = play.machine.incoming["qp"].hash
    play.handle(received("qp", frame(2, "b", "c", "d")))
    play.handle(request(S1, inside=Breakpoint("qp", 1)))
    assert finished(play.handle(relayed(S1, "qp", 5))) == []
    (fragment,) = finished(play.handle(received("qp", frame(5, "e"))))
    assert fragment.in_flight["qp"] == (InFlight(frame(2, "b", "c", "d"), consumed=1), InFlight(frame(5, "e")))
    assert in_flight(fragment) == {"qp": ["c", "d", "e"]}
    assert (fragment.received["qp"].count, fragment.received["qp"].hash) == (2, before)


def test_a_cut_inside_the_last_frame_completes_with_the_relayed_count() -> None:
    play = p(view("q>p", kind=UNORDERED))
    play.handle(received("qp", frame(1, "a", "b")))
    play.handle(request(S1, inside=Breakpoint("qp", 1)))
    assert in_flight(play.finishes(relayed(S1, "qp", 2))) == {"qp": ["b"]}


# Indices that skip ahead


def test_after_a_leap_only_the_last_cuts_are_recorded() -> None:
    play = p()
    effects = play.handle(request(snapshot_id(1_000_000_000)))
    recorded = [effect.snapshot.counter for effect in effects if isinstance(effect, RecordState)]
    assert recorded == list(range(1_000_000_000 - CUTS_AT_ONCE_MAX + 1, 1_000_000_001))


def test_an_index_that_leaps_too_far_is_a_violation_and_changes_nothing() -> None:
    play = p()
    with pytest.raises(ProtocolViolation, match="leaps to"):
        play.handle(received("qp", frame(1, "a", index=2**62)))
    assert play.machine.index == 0
    assert play.machine.incoming["qp"].count == 0
