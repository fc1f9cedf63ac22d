"""The fast path for frames, `take_plain` and `number`, has the same effects as `handle`.

Every frame of random runs goes through a machine in both ways: through `handle`, which is the reference, and on a copy
through the fast path. If the fast path accepts a frame, the copy equals the machine afterwards, and `handle` ordered
nothing but the delivery. If it does not, it has changed nothing. In these runs views change, processes crash, leave
and roll back, cuts fall inside frames, and cut indices overtake each other.
"""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.cluster import Cluster
from tests.protocol.network import Network
from tests.protocol.playbook import examples, frame, received, view
from tests.protocol.process.test_restored import ONE_WAY, SHAPES, cut_inside, driven, in_epoch_2, rolled_back
from tests.protocol.process.test_restored import steps as choices
from tests.protocol.test_random_runs import RECORDING, SENDING, Step, check_all, play, steps, topologies

from strobe.errors import ProtocolViolation
from strobe.protocol import FIFO, PROTOCOLS, UNORDERED, ChandyLamport, Frame, LaiYang, SnapshotId, View
from strobe.protocol.process.channels import Incoming, Outgoing
from strobe.protocol.process.effects import DeliverFrame, Effect, SendFrame
from strobe.protocol.process.endpoint import Endpoint, Recording
from strobe.protocol.process.events import Event, FrameReceived, MessagesSent, SnapshotRequested, ViewInstalled


def state(thing: Any) -> Any:
    """Return everything that a machine stores, down to the last slot."""
    if isinstance(thing, (Incoming, Outgoing, Recording)):
        return {name: state(getattr(thing, name)) for name in type(thing).__slots__}
    if isinstance(thing, Endpoint):
        return {name: state(value) for name, value in vars(thing).items()}
    if isinstance(thing, dict):
        return {key: state(value) for key, value in thing.items()}
    return thing


class Compared:
    """Handles every frame in both ways and fails if they differ."""

    taken = 0
    left = 0

    def handle(self: Any, event: Event) -> list[Effect]:
        fast, before = copy.deepcopy(self), state(self)
        effects: list[Effect] | None = None
        if type(event) is MessagesSent:
            first = fast.number(event.channel, event.count, event.body)
            sent = Frame(first, event.count, event.body, fast.index, fast.announced)
            effects = [SendFrame(event.channel, sent)]
        elif type(event) is FrameReceived and not event.consumed:
            if fast.take_plain(event.channel, event.frame):
                effects = [DeliverFrame(event.channel, event.frame)]
                Compared.taken += 1
            else:
                assert state(fast) == before
                Compared.left += 1
        handled: list[Effect] = super().handle(event)  # type: ignore[misc]
        if effects is not None:
            assert handled == effects
            assert state(fast) == state(self)
        return handled


class ComparedChandyLamport(Compared, ChandyLamport):
    pass


class ComparedLaiYang(Compared, LaiYang):
    pass


@pytest.fixture(scope="module")
def compared() -> Iterator[None]:
    """Build networks and clusters from machines that compare."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PROTOCOLS, ChandyLamport.name, ComparedChandyLamport)
        patch.setitem(PROTOCOLS, LaiYang.name, ComparedLaiYang)
        yield
    assert Compared.taken, "no frame went the short way: nothing was compared"
    assert Compared.left, "every frame went the short way"


@pytest.mark.usefixtures("compared")
@given(topologies((FIFO,)), steps(*SENDING, *RECORDING))
def test_chandy_lamport_in_random_runs_with_cuts_inside_frames(view: View, run: list[Step]) -> None:
    check_all(play(view, "chandy-lamport", run))


@pytest.mark.usefixtures("compared")
@given(topologies((UNORDERED, FIFO, FIFO)), steps(*SENDING, *RECORDING))
def test_lai_yang_in_random_runs_whose_indices_overtake(view: View, run: list[Step]) -> None:
    check_all(play(view, "lai-yang", run))


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("protocol", ["chandy-lamport", "lai-yang"])
@examples(0.2)
@given(st.sampled_from(SHAPES), choices, choices, st.integers(0, 100))
def test_after_a_rollback_with_frames_in_flight(
    protocol: str, shape: tuple[str, ...], before: list, after: list, which: int
) -> None:
    network = Network(view(*shape), protocol)
    for run in (before, after):
        network.begin(which)
        complete = driven(network, run)
        network = rolled_back(network, complete[which % len(complete)])
    network.send(0, which)
    network.calm_down()


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("protocol", ["chandy-lamport", "lai-yang"])
@examples(0.2)
@given(st.sampled_from(SHAPES[:3]), st.integers(0, 2**32))
def test_while_views_change_and_processes_crash_join_and_leave(
    protocol: str, shape: tuple[str, ...], seed: int
) -> None:
    cluster = Cluster(view(*shape), protocol, seed)
    cluster.watched = False
    for _ in range(300):
        cluster.step()
    cluster.calm_down()


# Frames that only `handle` may process


def receiver(protocol: type[Endpoint] = ChandyLamport, kind: str = FIFO) -> Endpoint:
    machine = protocol("q", view("p>q", "q>p", kind=kind))
    machine.handle(received("pq", frame(1, "a")))
    return machine


def recording() -> Endpoint:
    machine = receiver()
    machine.handle(SnapshotRequested(SnapshotId(1, 1, "q"), 1))
    return machine


def ending() -> Endpoint:
    machine = receiver()
    machine.handle(ViewInstalled(view("q>p", number=2)))
    return machine


def restored_inside() -> Endpoint:
    fragment, _ = cut_inside()
    return ChandyLamport.restored("q", in_epoch_2(ONE_WAY), 2, fragment, {"pq": 3})


CASES = {
    "one that is recorded": (recording(), frame(2, "b"), None),
    "one whose cut index is above one's own": (receiver(LaiYang), Frame(2, 1, b"\x91\x01", 1, 1), None),
    "one on a channel that has ended": (ending(), frame(2, "b"), None),
    "one on an unordered channel": (receiver(LaiYang, UNORDERED), frame(2, "b"), None),
    "one of a view not announced": (receiver(), Frame(2, 1, b"\x91\x01", 0, 2), "a frame of view 2 arrived before it"),
    "one that came before": (receiver(), frame(1, "a"), r"message 1 arrived again or out of order: 2 was expected"),
    "one behind a gap": (receiver(), frame(4, "d"), r"message 4 arrived, but 2 was expected \(2 missing"),
    "one that the restored cut fell inside of": (restored_inside(), cut_inside()[1], "not 1"),
    "one on a channel not in the view": (
        ChandyLamport("q", view("q>p")),
        frame(1, "a"),
        "a frame arrived on a channel that is not in the view",
    ),
}


@pytest.mark.parametrize(("machine", "item", "violation"), CASES.values(), ids=list(CASES))
def test_M2_a_frame_that_is_not_plain_is_left_to_handle(machine: Endpoint, item: Frame, violation: str | None) -> None:
    before = copy.deepcopy(state(machine))
    assert not machine.take_plain("pq", item)
    assert state(machine) == before
    if violation is not None:
        with pytest.raises(ProtocolViolation, match=violation):
            machine.handle(FrameReceived("pq", item))
