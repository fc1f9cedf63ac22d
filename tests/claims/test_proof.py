"""P1: every snapshot carries its own proof."""

import msgspec
import pytest
from tests.unit.protocol.network import Network
from tests.unit.protocol.playbook import body, view

from strobe.causality.proof import verify
from strobe.protocol import FIFO, UNORDERED, ChannelSpec, Frame, InFlight, Snapshot, View
from strobe.protocol.frames import extend_all, seed_hash

replace = msgspec.structs.replace


def taken(protocol: str, kind: str) -> Snapshot:
    """A snapshot, taken by the real protocol, with messages in flight from a to b."""
    network = Network(view("a>b:ab", "b>a:ba", kind=kind), protocol)
    for _ in range(3):
        network.send(0, 1)
    network.take(0, 0)
    network.begin(1)
    while network.orders:
        network.obey(0)
    network.calm_down()
    return network.complete()[0]


CASES = pytest.mark.parametrize(("protocol", "kind"), [("chandy-lamport", FIFO), ("lai-yang", UNORDERED)])


@CASES
def test_P1_extending_what_was_received_by_what_is_in_flight_gives_what_was_sent(protocol: str, kind: str) -> None:
    snapshot = taken(protocol, kind)
    assert snapshot.in_flight_messages > 0
    for spec in snapshot.view.channels:
        sent = snapshot.fragments[spec.source].sent[spec.id]
        received = snapshot.fragments[spec.target].received[spec.id]
        frames = [item.frame for item in snapshot.fragments[spec.target].in_flight[spec.id]]
        parts = [(frame.first_ordinal, frame.count, frame.body) for frame in frames]
        assert received.count + sum(frame.count for frame in frames) == sent.count
        assert extend_all(kind, seed_hash(spec.id, spec.incarnation), received.hash, parts) == sent.hash
    assert verify(snapshot).holds


@CASES
def test_P1_a_changed_lost_or_invented_message_is_caught_and_its_channel_named(protocol: str, kind: str) -> None:
    snapshot = taken(protocol, kind)
    fragment = snapshot.fragments["b"]
    first, *rest = fragment.in_flight["ab"]
    changed = replace(first, frame=replace(first.frame, body=first.frame.body[:-1] + b"\x07"))
    invented = InFlight(Frame(7, 1, body("never sent")))
    for wrong in ([changed, *rest], rest, [first, *rest, invented]):
        in_flight = {**fragment.in_flight, "ab": tuple(wrong)}
        damaged = replace(snapshot, fragments={**snapshot.fragments, "b": replace(fragment, in_flight=in_flight)})
        assert {finding.subject for finding in verify(damaged).findings} == {"ab"}


@CASES
def test_P1_the_check_runs_over_the_view_so_that_a_forgotten_one_is_missed(protocol: str, kind: str) -> None:
    snapshot = taken(protocol, kind)
    alone = replace(snapshot, fragments={"a": snapshot.fragments["a"]})
    assert [finding.subject for finding in verify(alone).findings] == ["b"]
    larger = View(1, ("a", "b"), (*snapshot.view.channels, ChannelSpec("second", "a", "b", kind)))
    assert [finding.subject for finding in verify(snapshot, larger).findings] == ["second"]


def test_P1_the_verdict_says_what_it_does_not_know() -> None:
    assert str(verify(taken("chandy-lamport", FIFO))).endswith("holds (self-consistent, signer unknown)")
