"""An endpoint that is handed over goes on as if nothing had happened (E11)."""

from random import Random

import msgspec
import pytest
from tests.protocol.playbook import body, frame, view

from strobe.errors import ProtocolViolation, UsageError
from strobe.protocol import FIFO, PROTOCOLS, UNORDERED, Endpoint
from strobe.protocol.process.endpoint_state import EndpointState, hand_over_obstacle, resumed_endpoint, state_of
from strobe.protocol.process.events import FrameReceived, MarkerReceived, Restarted, SnapshotsSettled, ViewInstalled
from strobe.protocol.process.events import Marker as MarkerContent
from strobe.protocol.values.ids import SnapshotId

LINE = ("p>q", "q>r")


def handed_over(endpoint: Endpoint) -> Endpoint:
    """Return the successor of `endpoint`, through the bytes of a hand-over."""
    endpoint.handle(Restarted())
    raw = msgspec.msgpack.encode(state_of(endpoint))
    state = msgspec.msgpack.decode(raw, type=EndpointState)
    return resumed_endpoint(endpoint.name, endpoint.process, endpoint.epoch, state)


def facts(endpoint: Endpoint) -> object:
    """Return all that decides what an endpoint does next."""
    return state_of(endpoint)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", range(8))
def test_E11_a_successor_does_what_its_predecessor_would_have_done(protocol: str, seed: int) -> None:
    chance, kind = Random(seed), UNORDERED if protocol == "lai-yang" else FIFO
    kept, moved = (PROTOCOLS[protocol]("q", view(*LINE, kind=kind)) for _ in range(2))
    frames = [frame(first, "x", index=first // 9 if protocol == "lai-yang" else 0) for first in range(1, 40)]
    if kind == UNORDERED:
        frames = sorted(frames, key=lambda one: one.first_ordinal + chance.randrange(4))
    for one in frames:
        moved = handed_over(moved) if chance.random() < 0.3 else moved
        kept.handle(Restarted())
        moved.handle(Restarted())
        for endpoint in (kept, moved):
            endpoint.handle(FrameReceived("pq", one))
            endpoint.number("qr", 1, body(one.first_ordinal))
        if protocol == "chandy-lamport" and chance.random() < 0.2:
            marker = MarkerReceived("pq", MarkerContent(1, 1, SnapshotId(1, one.first_ordinal, "p")))
            assert kept.handle(marker) == moved.handle(marker)
        if chance.random() < 0.1:
            settled = SnapshotsSettled(one.first_ordinal)
            assert kept.handle(settled) == moved.handle(settled)
        assert facts(kept) == facts(moved)


def test_E11_a_successor_takes_no_frame_twice_and_misses_none() -> None:
    endpoint = PROTOCOLS["chandy-lamport"]("q", view(*LINE))
    endpoint.handle(FrameReceived("pq", frame(1, "x", "y")))
    successor = handed_over(endpoint)
    for wrong in (frame(1, "x", "y"), frame(4, "z")):
        with pytest.raises(ProtocolViolation):
            successor.handle(FrameReceived("pq", wrong))
    successor.handle(FrameReceived("pq", frame(3, "z")))


def test_E11_a_successor_records_no_snapshot_again() -> None:
    endpoint = PROTOCOLS["chandy-lamport"]("q", view("p>q", "r>q"))
    marker = MarkerContent(1, 1, SnapshotId(1, 5, "p"))
    assert endpoint.handle(MarkerReceived("pq", marker))
    assert handed_over(endpoint).handle(MarkerReceived("rq", marker)) == []


def test_E11_a_process_whose_view_changes_cannot_be_handed_over() -> None:
    endpoint = PROTOCOLS["chandy-lamport"]("q", view("p>q", "r>q"))
    assert hand_over_obstacle(endpoint) == ""
    endpoint.handle(ViewInstalled(view("p>q", number=2)))  # messages of r may still come
    assert hand_over_obstacle(endpoint) == "its view is changing"


def test_E11_a_state_with_other_channels_is_refused() -> None:
    state = state_of(PROTOCOLS["chandy-lamport"]("q", view(*LINE)))
    with pytest.raises(UsageError, match="other channels"):
        resumed_endpoint("chandy-lamport", "q", 1, msgspec.structs.replace(state, sent={}))
