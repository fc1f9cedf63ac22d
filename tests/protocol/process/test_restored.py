"""Endpoints that a rollback has restored (R1) continue from the cut as if nothing had happened after it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.network import Network
from tests.protocol.playbook import (
    Playbook,
    counts,
    deliver,
    examples,
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

from strobe.causality.proof import verify
from strobe.errors import ProtocolViolation, UsageError
from strobe.protocol import (
    FIFO,
    PROTOCOLS,
    UNORDERED,
    ChandyLamport,
    Fragment,
    Frame,
    InFlight,
    LaiYang,
    Snapshot,
    View,
)
from strobe.protocol.process.effects import DeliverFrame, RecordState, ReportSentCounts
from strobe.protocol.process.events import Breakpoint, FrameReceived, SentCountRelayed, SnapshotRequested

PAIR = view("p>q", "q>p")
ONE_WAY = view("p>q")
LOOSE = view("p>q", kind=UNORDERED)
S1, S2 = snapshot_id(1), snapshot_id(2)
NEW1, NEW2 = snapshot_id(1, epoch=2), snapshot_id(2, epoch=2)


def in_epoch_2(of: View) -> View:
    return msgspec.structs.replace(of, number=of.number + 1)


def restored(machine: ChandyLamport | LaiYang, fragment: Fragment, sent_counts: dict[str, int]) -> Playbook:
    return Playbook(type(machine).restored(machine.process, in_epoch_2(machine.view), 2, fragment, sent_counts))


def cut_inside() -> tuple[Fragment, Frame]:
    """Return q's fragment of a cut after the first of three messages of a frame from p, and that frame."""
    q = Playbook(ChandyLamport("q", ONE_WAY))
    whole = frame(1, "a", "b", "c")
    q.handle(received("pq", whole))
    q.handle(request(S1, inside=Breakpoint("pq", 1)))
    return q.finishes(marker("pq", S1)), whole


# Continuing


def test_R1_a_sender_continues_with_the_next_ordinal_and_the_same_hash() -> None:
    p = Playbook(ChandyLamport("p", PAIR))
    p.handle(sent("pq", "a", "b"))
    p.handle(request(S1))
    fragment = p.finishes(marker("qp", S1))
    unbroken = p.handle(sent("pq", "c"))
    again = restored(p.machine, fragment, {"qp": 0})
    assert again.handle(sent("pq", "c")) == [send("pq", frame(3, "c", view=2))]
    assert unbroken == [send("pq", frame(3, "c"))]
    assert again.machine.outgoing["pq"].frontier() == p.machine.outgoing["pq"].frontier()


def test_R1_recorded_frames_are_received_first_and_keep_their_ordinals() -> None:
    q = Playbook(ChandyLamport("q", ONE_WAY))
    q.handle(received("pq", frame(1, "a")))
    q.handle(request(S1))
    q.handle(received("pq", frame(2, "b")))
    q.handle(received("pq", frame(3, "c")))
    fragment = q.finishes(marker("pq", S1))
    again = restored(q.machine, fragment, {"pq": 3})
    for item in fragment.in_flight["pq"]:
        again >> received("pq", item.frame) << [deliver("pq", item.frame)]
    again >> received("pq", frame(4, "d", view=2)) << [deliver("pq", frame(4, "d", view=2))]
    assert counts({"pq": again.machine.incoming["pq"].frontier()}) == {"pq": 4}


def test_a_missing_or_duplicate_redelivery_is_noticed() -> None:
    q = Playbook(ChandyLamport("q", ONE_WAY))
    q.handle(request(S1))
    q.handle(received("pq", frame(1, "a")))
    fragment = q.finishes(marker("pq", S1))
    again = restored(q.machine, fragment, {"pq": 1})
    with pytest.raises(ProtocolViolation, match="1 missing"):
        again.machine.handle(received("pq", frame(2, "b", view=2)))
    again.handle(received("pq", frame(1, "a")))
    with pytest.raises(ProtocolViolation, match="duplicate"):
        again.machine.handle(received("pq", frame(1, "a")))


def test_recorded_frames_stay_channel_state_until_received() -> None:
    q = Playbook(ChandyLamport("q", ONE_WAY))
    q.handle(request(S1))
    q.handle(received("pq", frame(1, "a")))
    fragment = q.finishes(marker("pq", S1))
    again = restored(q.machine, fragment, {"pq": 1})
    again >> request(NEW1, view=2) << [RecordState(NEW1)]
    again.handle(received("pq", frame(1, "a")))
    second = again.finishes(marker("pq", NEW1, view=2))
    assert in_flight(second) == {"pq": ["a"]}
    assert counts(second.received) == {"pq": 0}


def test_markers_and_requests_of_the_old_epoch_are_ignored() -> None:
    q = Playbook(ChandyLamport("q", PAIR))
    q.handle(request(S1))
    fragment = q.finishes(marker("pq", S1))
    again = restored(q.machine, fragment, {"pq": 0})
    again.ignores(marker("pq", S2, view=2))
    again.ignores(request(S2, view=2))
    again >> request(NEW1, view=2) << [RecordState(NEW1), send_marker("qp", NEW1, view=2)]


# Cuts inside a frame


def test_a_frame_cut_inside_is_received_without_the_consumed_part() -> None:
    fragment, whole = cut_inside()
    again = Playbook(ChandyLamport.restored("q", in_epoch_2(ONE_WAY), 2, fragment, {"pq": 3}))
    again >> FrameReceived("pq", whole, 1) << [DeliverFrame("pq", whole, 1)]
    p = ChandyLamport("p", ONE_WAY)
    p.handle(sent("pq", "a", "b", "c"))
    assert again.machine.incoming["pq"].frontier() == p.outgoing["pq"].frontier()
    again >> received("pq", frame(4, "d")) << [deliver("pq", frame(4, "d"))]


def test_a_frame_cut_inside_is_recorded_again_with_its_consumed_part() -> None:
    fragment, whole = cut_inside()
    again = Playbook(ChandyLamport.restored("q", in_epoch_2(ONE_WAY), 2, fragment, {"pq": 3}))
    again.handle(request(NEW1, view=2))
    again.handle(FrameReceived("pq", whole, 1))
    second = again.finishes(marker("pq", NEW1, view=2))
    assert second.in_flight == {"pq": (InFlight(whole, 1),)}
    assert second.received == fragment.received


def test_a_further_cut_inside_the_same_frame_has_more_of_it_consumed() -> None:
    fragment, whole = cut_inside()
    again = Playbook(ChandyLamport.restored("q", in_epoch_2(ONE_WAY), 2, fragment, {"pq": 3}))
    again.handle(FrameReceived("pq", whole, 1))
    again.handle(request(NEW1, view=2, inside=Breakpoint("pq", 2)))
    second = again.finishes(marker("pq", NEW1, view=2))
    assert second.in_flight == {"pq": (InFlight(whole, 2),)}
    assert counts(second.received) == {"pq": 2}
    assert second.received["pq"].hash == fragment.received["pq"].hash


@pytest.mark.parametrize("consumed", [0, 2])
def test_a_wrong_consumed_count_from_the_host_is_a_violation(consumed: int) -> None:
    fragment, whole = cut_inside()
    again = ChandyLamport.restored("q", in_epoch_2(ONE_WAY), 2, fragment, {"pq": 3})
    with pytest.raises(ProtocolViolation, match="not 1"):
        again.handle(FrameReceived("pq", whole, consumed))


def test_no_frame_from_the_wire_can_claim_to_be_consumed() -> None:
    q = ChandyLamport("q", ONE_WAY)
    with pytest.raises(ProtocolViolation, match="are recorded as received before the cut"):
        q.handle(FrameReceived("pq", frame(1, "a", "b"), 1))


# Unordered channels


def loose_cut() -> tuple[LaiYang, Fragment]:
    """q under Lai-Yang: of five messages it had received 2 and 4 at the cut; 1, 3 and 5 were in flight."""
    q = LaiYang("q", LOOSE)
    for ordinal in (2, 4):
        q.handle(received("pq", frame(ordinal, f"m{ordinal}")))
    q.handle(request(S1))
    for ordinal in (3, 5, 1):
        q.handle(received("pq", frame(ordinal, f"m{ordinal}")))
    (fragment,) = finished(q.handle(SentCountRelayed(S1, "pq", 5)))
    return q, fragment


def test_an_unordered_channel_accepts_exactly_the_recorded_frames() -> None:
    machine, fragment = loose_cut()
    again = restored(machine, fragment, {"pq": 5}).machine
    for ordinal in (2, 4):
        with pytest.raises(ProtocolViolation, match="duplicate"):
            again.handle(received("pq", frame(ordinal, f"m{ordinal}")))
    for ordinal in (5, 6, 1, 3):
        assert again.handle(received("pq", frame(ordinal, f"m{ordinal}")))
    assert again.incoming["pq"].next_ordinal == 7
    assert not again.incoming["pq"].ahead


def test_V1_messages_of_the_old_epoch_lie_before_every_new_cut() -> None:
    """Cut indices restart with the epoch. Those on old frames must neither record a cut nor exclude a frame."""
    q = Playbook(LaiYang("q", LOOSE))
    for index in range(1, 8):
        q.handle(request(snapshot_id(index)))
        q.handle(SentCountRelayed(snapshot_id(index), "pq", 0))
    q.handle(request(snapshot_id(8)))
    old = frame(1, "a", index=7)
    q.handle(received("pq", old))
    fragment = q.finishes(SentCountRelayed(snapshot_id(8), "pq", 1))
    again = restored(q.machine, fragment, {"pq": 1})
    again >> request(NEW1, view=2) << [RecordState(NEW1), ReportSentCounts(NEW1, {})]
    again >> received("pq", old) << [deliver("pq", old)]
    assert again.machine.index == 1
    assert in_flight(again.finishes(SentCountRelayed(NEW1, "pq", 1))) == {"pq": ["a"]}


def test_V1_a_frame_of_the_new_epoch_still_records_first() -> None:
    machine, fragment = loose_cut()
    again = restored(machine, fragment, {"pq": 5})
    new = frame(6, "new", index=1, view=2)
    effects = again.handle(received("pq", new))
    assert effects == [RecordState(NEW1), ReportSentCounts(NEW1, {}), deliver("pq", new)]


def test_V1_a_cut_inside_a_frame_counts_only_what_was_not_consumed() -> None:
    q = Playbook(LaiYang("q", LOOSE))
    whole = frame(1, "a", "b", "c")
    q.handle(received("pq", whole))
    q.handle(SnapshotRequested(S1, 1, Breakpoint("pq", 1)))
    fragment = q.finishes(SentCountRelayed(S1, "pq", 3))
    again = restored(q.machine, fragment, {"pq": 3})
    again.handle(request(NEW1, view=2))
    again >> FrameReceived("pq", whole, 1) << [DeliverFrame("pq", whole, 1)]
    second = again.finishes(SentCountRelayed(NEW1, "pq", 3))
    assert second.in_flight == {"pq": (InFlight(whole, 1),)}


# Refused restores


def test_a_view_with_another_channel_than_the_snapshot_is_refused_by_name() -> None:
    q = ChandyLamport("q", ONE_WAY)
    q.handle(request(S1))
    (fragment,) = finished(q.handle(marker("pq", S1)))
    with pytest.raises(UsageError, match="the snapshot has no channel 'qp'"):
        ChandyLamport.restored("q", PAIR, 2, fragment, {"pq": 0})
    with pytest.raises(UsageError, match="the view has no channel 'pq'"):
        ChandyLamport.restored("q", view("q>r"), 2, msgspec.structs.replace(fragment, sent={"qr": None}), {})


@pytest.mark.parametrize("sent_counts", [{}, {"pq": 2}])
def test_a_sender_whose_count_does_not_fit_is_refused(sent_counts: dict[str, int]) -> None:
    q = ChandyLamport("q", ONE_WAY)
    q.handle(request(S1))
    q.handle(received("pq", frame(1, "a")))
    (fragment,) = finished(q.handle(marker("pq", S1)))
    with pytest.raises(UsageError, match="channel 'pq' cannot be restored at q"):
        ChandyLamport.restored("q", in_epoch_2(ONE_WAY), 2, fragment, sent_counts)


# Whole systems


SHAPES = (("p>q", "q>p"), ("p>q", "q>r", "r>p", "p>r"), ("p>q", "p>q:second", "r>q"), ("p>q", "q>p", "r>s", "p>p"))
CHOICES = ("send", "take", "take", "take", "apply", "begin", "settle")
steps = st.lists(st.tuples(st.sampled_from(CHOICES), st.integers(0, 7), st.integers(0, 7)), max_size=60)


def driven(network: Network, choices: list[tuple[str, int, int]]) -> list[Snapshot]:
    for name, first, second in choices:
        getattr(network, name)(first, second)
    network.calm_down()
    return network.complete()


def rolled_back(network: Network, snapshot: Snapshot) -> Network:
    """Return the same system with every process restored to `snapshot` and the recorded frames first on the wires."""
    again = Network(in_epoch_2(network.view), network.protocol)
    again.epoch = 2
    again.serial = network.serial
    for process, fragment in snapshot.fragments.items():
        sent_counts = {
            spec.id: snapshot.fragments[spec.source].sent[spec.id].count for spec in network.view.incoming(process)
        }
        again.machines[process] = PROTOCOLS[network.protocol].restored(process, again.view, 2, fragment, sent_counts)
        for channel, items in fragment.in_flight.items():
            again.restored[channel] = list(items)
    return again


@pytest.mark.parametrize("protocol", ["chandy-lamport", "lai-yang"])
@examples(0.5)
@given(st.sampled_from(SHAPES), steps, steps, steps, st.integers(0, 100))
def test_R1_snapshots_after_a_rollback_hold_and_can_be_restored(
    protocol: str, shape: tuple[str, ...], before: list, after: list, later: list, which: int
) -> None:
    network = Network(view(*shape, kind=FIFO if protocol == "chandy-lamport" else UNORDERED), protocol)
    for choices in (before, after, later):
        network.begin(which)
        complete = driven(network, choices)
        assert complete
        for snapshot in complete:
            assert verify(snapshot).holds
        network = rolled_back(network, complete[which % len(complete)])
