"""Views at one process (E2): joining, leaving, draining, and frames that are early or late for a view."""

import pytest
from tests.protocol.playbook import (
    Playbook,
    deliver,
    frame,
    marker,
    received,
    request,
    send,
    sent,
    snapshot_id,
    view,
)

from strobe.errors import ProtocolViolation
from strobe.protocol import UNORDERED, ChandyLamport, LaiYang, View
from strobe.protocol.process.effects import (
    DeliverFrame,
    DropRecording,
    PrepareDeparture,
    RecordState,
    ReportDrained,
    SendFrame,
    SendView,
)
from strobe.protocol.process.events import DepartureReady, SnapshotsSettled, ViewInstalled, ViewReceived

S1, S2 = snapshot_id(1), snapshot_id(2)

PAIR = view("p>q", "q>p")
WITH_R = view("p>q", "q>p", "p>r", "r>p", number=2)
WITHOUT_R = view("p>q", "q>p", number=3)
ALONE = View(0, ("r",), ())


def unordered(*channels: str, number: int) -> View:
    return view(*channels, number=number, kind=UNORDERED)


def install(to: View) -> ViewInstalled:
    return ViewInstalled(to)


def view_frame(channel: str, to: View, sent_count: int) -> ViewReceived:
    return ViewReceived(channel, to, sent_count)


# Installing


def test_a_view_goes_out_on_every_channel_before_any_message_of_it() -> None:
    p = Playbook(ChandyLamport("p", PAIR))
    p >> sent("pq", "a") << [send("pq", frame(1, "a", view=1))]
    p >> install(WITH_R) << [SendView("pq", WITH_R, 1), SendView("pr", WITH_R, 0), ReportDrained(2)]
    p >> sent("pr", "hello") << [send("pr", frame(1, "hello", view=2))]
    p >> sent("pq", "b") << [send("pq", frame(2, "b", view=2))]


def test_a_view_received_first_from_a_peer_is_installed_at_once() -> None:
    p = Playbook(ChandyLamport("p", PAIR))
    p >> view_frame("qp", WITH_R, 0) << [SendView("pq", WITH_R, 0), SendView("pr", WITH_R, 0), ReportDrained(2)]
    p.ignores(view_frame("rp", WITH_R, 0))


def test_a_repeated_request_is_answered_again_without_other_effects() -> None:
    p = Playbook(ChandyLamport("p", PAIR))
    p.handle(install(WITH_R))
    p >> install(WITH_R) << [ReportDrained(2)]
    p.ignores(install(PAIR))
    assert p.machine.view == WITH_R


@pytest.mark.parametrize("protocol", [ChandyLamport, LaiYang])
def test_a_new_view_drops_recordings_of_the_old_one(protocol) -> None:
    p = Playbook(protocol("p", PAIR))
    p.handle(request(S1))
    effects = p.handle(install(WITH_R))
    assert effects[0] == DropRecording(S1, "view changed")
    assert not p.machine.open
    p.ignores(request(S1, view=2))


def test_markers_of_the_old_view_are_ignored_after_the_new_one() -> None:
    p = Playbook(ChandyLamport("p", PAIR))
    p.handle(install(WITH_R))
    p.ignores(marker("qp", S1, view=1))
    assert p.handle(marker("qp", S2, view=2))[0] == RecordState(S2)


def test_a_kept_channel_keeps_its_count_and_a_new_one_starts_at_one() -> None:
    p = Playbook(ChandyLamport("p", PAIR))
    p.handle(sent("pq", "a", "b"))
    p.handle(received("qp", frame(1, "x")))
    p.handle(install(WITH_R))
    p >> sent("pq", "c") << [send("pq", frame(3, "c", view=2))]
    p >> received("qp", frame(2, "y")) << [deliver("qp", frame(2, "y"))]
    p >> received("rp", frame(1, "z", view=2)) << [deliver("rp", frame(1, "z", view=2))]


def test_a_channel_with_a_new_incarnation_starts_at_one() -> None:
    again = View(
        4, WITH_R.processes, tuple(_with_new_incarnation(spec) if "r" in spec.id else spec for spec in WITH_R.channels)
    )
    p = Playbook(ChandyLamport("p", WITH_R))
    p.handle(sent("pr", "old"))
    p.handle(received("rp", frame(1, "old", view=2)))
    p.handle(install(again))
    p >> sent("pr", "new") << [send("pr", frame(1, "new", view=4))]
    p >> received("rp", frame(1, "new", view=4)) << [deliver("rp", frame(1, "new", view=4))]


def test_a_channel_that_ended_and_came_back_starts_at_one() -> None:
    again = View(
        4, WITH_R.processes, tuple(_with_new_incarnation(spec) if "r" in spec.id else spec for spec in WITH_R.channels)
    )
    p = Playbook(ChandyLamport("p", WITH_R))
    p.handle(sent("pr", "old"))
    p.handle(install(WITHOUT_R))
    p.handle(view_frame("rp", WITHOUT_R, 0))
    p.handle(install(again))
    p >> sent("pr", "new") << [send("pr", frame(1, "new", view=4))]
    assert p.machine.outgoing["pr"].spec.incarnation == 4


def _with_new_incarnation(spec):
    return type(spec)(spec.id, spec.source, spec.target, spec.kind, 4)


# Joining


def test_a_joiner_ignores_snapshots_settled_before_it_joined() -> None:
    r = Playbook(ChandyLamport("r", ALONE))
    r.ignores(SnapshotsSettled(2))
    r >> install(WITH_R) << [SendView("rp", WITH_R, 0), ReportDrained(2)]
    r.ignores(marker("pr", S1, view=2))
    assert r.handle(marker("pr", S2, view=2))[0] == RecordState(S2)


def test_a_process_that_joins_may_initiate_at_once() -> None:
    """C1: any process may initiate; its first id must not be one of the settled ids, which it ignores."""
    r = Playbook(ChandyLamport("r", ALONE))
    r.ignores(SnapshotsSettled(8))
    r.handle(install(WITH_R))
    own = r.machine.next_id()
    assert r.handle(request(own, view=2))[:1] == [RecordState(own)]


# Leaving


def test_a_leaver_drains_then_runs_its_last_event_then_ends_its_channels() -> None:
    r = Playbook(ChandyLamport("r", WITH_R))
    r.handle(sent("rp", "a"))
    r.ignores(install(WITHOUT_R))
    r >> received("pr", frame(1, "still coming", view=2)) << [deliver("pr", frame(1, "still coming", view=2))]
    r >> view_frame("pr", WITHOUT_R, 1) << [PrepareDeparture()]
    r >> sent("rp", "last words") << [send("rp", frame(2, "last words", view=2))]
    r >> DepartureReady() << [SendView("rp", WITHOUT_R, 2), ReportDrained(3)]
    r >> install(WITHOUT_R) << [ReportDrained(3)]


def test_frames_of_a_leaver_carry_the_last_view_that_it_announced() -> None:
    r = Playbook(LaiYang("r", unordered("p>q", "q>p", "p>r", "r>p", number=2)))
    r.ignores(install(unordered("p>q", "q>p", number=3)))
    (effect,) = r.handle(sent("rp", "x"))
    assert isinstance(effect, SendFrame)
    assert effect.frame.view == 2


def test_a_leaver_that_is_not_drained_does_not_report_when_asked_again() -> None:
    r = Playbook(ChandyLamport("r", WITH_R))
    r.ignores(install(WITHOUT_R))
    r.ignores(install(WITHOUT_R))


def test_a_leaver_with_open_channels_does_not_report_when_asked_again() -> None:
    r = Playbook(ChandyLamport("r", WITH_R))
    r.handle(install(WITHOUT_R))
    r >> view_frame("pr", WITHOUT_R, 0) << [PrepareDeparture()]
    r.ignores(install(WITHOUT_R))


def test_a_leaver_without_inputs_departs_at_once() -> None:
    r = Playbook(ChandyLamport("r", view("r>p", "p>q", number=2)))
    r >> install(view("p>q", number=3)) << [PrepareDeparture()]


def test_a_leaver_with_a_self_loop_departs_after_its_own_messages() -> None:
    """M1, E2: only the leaver itself knows where its self-loop ends, so it must not wait for another process."""
    with_loop = view("p>q", "q>p", "r>p", "r>r:loop", number=2)
    r = Playbook(ChandyLamport("r", with_loop))
    r.handle(sent("loop", "to myself"))
    effects = [*r.handle(install(WITHOUT_R)), *r.handle(received("loop", frame(1, "to myself", view=2)))]
    # What it sends to itself comes back to it, including its view frames.
    effects += [
        answer
        for effect in effects
        if isinstance(effect, SendView) and effect.channel == "loop"
        for answer in r.handle(view_frame("loop", effect.view, effect.sent_count))
    ]
    assert PrepareDeparture() in effects


def test_remaining_processes_drain_the_channel_of_a_leaver_to_its_end() -> None:
    p = Playbook(ChandyLamport("p", WITH_R))
    p.handle(sent("pr", "a"))
    p >> install(WITHOUT_R) << [SendView("pr", WITHOUT_R, 1), SendView("pq", WITHOUT_R, 0)]
    p >> received("rp", frame(1, "x", view=2)) << [deliver("rp", frame(1, "x", view=2))]
    p.ignores(install(WITHOUT_R))
    p >> view_frame("rp", WITHOUT_R, 1) << [ReportDrained(3)]
    with pytest.raises(ProtocolViolation, match="not in the view"):
        p.handle(received("rp", frame(2, "y", view=2)))


def test_drained_is_reported_after_the_last_channel_that_ended() -> None:
    before = view("p>q", "q>p", "r>p:1", "r>p:2", number=2)
    p = Playbook(ChandyLamport("p", before))
    p.handle(install(WITHOUT_R))
    p.ignores(view_frame("2", WITHOUT_R, 0))
    p >> view_frame("1", WITHOUT_R, 0) << [ReportDrained(3)]


def test_channels_that_ended_are_not_part_of_a_snapshot_of_the_new_view() -> None:
    p = Playbook(ChandyLamport("p", WITH_R))
    p.handle(install(WITHOUT_R))
    p.handle(view_frame("rp", WITHOUT_R, 0))
    p.handle(request(S1, view=3))
    fragment = p.finishes(marker("qp", S1, view=3))
    assert (set(fragment.sent), set(fragment.received), fragment.view) == ({"pq"}, {"qp"}, 3)


# Unordered channels: view frames and messages overtake each other


def test_an_unordered_channel_is_drained_by_its_last_message() -> None:
    p = Playbook(LaiYang("p", unordered("p>q", "q>p", "r>p", number=2)))
    after = unordered("p>q", "q>p", number=3)
    p.handle(install(after))
    p.ignores(view_frame("rp", after, 2))
    last, first = frame(2, "b", view=2), frame(1, "a", view=2)
    p >> received("rp", last) << [deliver("rp", last)]
    p >> received("rp", first) << [deliver("rp", first), ReportDrained(3)]


def test_a_late_view_frame_of_an_older_view_is_not_the_end_of_the_channel() -> None:
    p = Playbook(LaiYang("p", unordered("p>q", "q>p", "r>p", number=1)))
    second = unordered("p>q", "q>p", "r>p", "r>q", number=2)
    third = unordered("p>q", "q>p", number=3)
    p.handle(install(second))
    p.handle(received("rp", frame(1, "a", view=1)))
    p.handle(install(third))
    p.ignores(view_frame("rp", second, 1))
    assert p.machine.ending["rp"].ended_at is None
    p >> received("rp", frame(2, "b", view=2)) << [deliver("rp", frame(2, "b", view=2))]
    p >> view_frame("rp", third, 2) << [ReportDrained(3)]


def test_an_early_frame_waits_for_its_view_on_an_unordered_channel() -> None:
    before, after = unordered("p>q", "q>p", number=1), unordered("p>q", "q>p", "q>r", number=2)
    p = Playbook(LaiYang("p", before))
    early, earlier = frame(2, "early", view=2), frame(1, "older", view=1)
    p.ignores(received("qp", early))
    assert p.machine.incoming["qp"].count == 0
    p >> received("qp", earlier) << [deliver("qp", earlier)]
    p >> install(after) << [SendView("pq", after, 0), ReportDrained(2), deliver("qp", early)]
    assert not p.machine.early


def test_frames_on_a_channel_of_a_view_not_installed_yet_wait_for_it() -> None:
    before, after = unordered("p>q", "q>p", number=1), unordered("p>q", "q>p", "r>p", number=2)
    p = Playbook(LaiYang("p", before))
    early = [frame(2, "b", view=2), frame(1, "a", view=2)]
    for item in early:
        p.ignores(received("rp", item))
    effects = p.handle(install(after))
    assert [effect.frame for effect in effects if isinstance(effect, DeliverFrame)] == early


def test_an_early_frame_is_a_violation_on_a_fifo_channel() -> None:
    p = Playbook(ChandyLamport("p", PAIR))
    with pytest.raises(ProtocolViolation, match="a frame of view 2 arrived before it"):
        p.handle(received("qp", frame(1, "x", view=2)))
    assert p.machine.incoming["qp"].count == 0
    assert not p.machine.early


# Counts in view frames


@pytest.mark.parametrize("sent_count", [0, 2])
def test_lost_or_invented_messages_before_a_view_are_found_on_fifo(sent_count: int) -> None:
    p = Playbook(ChandyLamport("p", PAIR))
    p.handle(install(WITH_R))
    p.handle(received("qp", frame(1, "x")))
    with pytest.raises(
        ProtocolViolation, match=f"{sent_count} messages were sent before view 2, but 1 arrived"
    ) as violation:
        p.handle(view_frame("qp", WITH_R, sent_count))
    assert violation.value.channel == "qp"


def test_a_view_frame_that_is_refused_installs_nothing() -> None:
    """The host never sees the effects of a step that raises, so the peers would never receive the view."""
    p = Playbook(ChandyLamport("p", PAIR))
    p.handle(request(S1))
    with pytest.raises(ProtocolViolation):
        p.handle(view_frame("qp", WITH_R, 5))
    assert p.machine.view == PAIR
    assert S1 in p.machine.open


def test_an_unordered_channel_may_be_behind_the_count_of_a_view_frame() -> None:
    before, after = unordered("p>q", "q>p", number=1), unordered("p>q", "q>p", "q>r", number=2)
    p = Playbook(LaiYang("p", before))
    p >> view_frame("qp", after, 5) << [SendView("pq", after, 0), ReportDrained(2)]
