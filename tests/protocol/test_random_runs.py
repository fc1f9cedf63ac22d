"""Real machines under random interleavings: every snapshot is consistent, exact, and completes unless aborted."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.network import Network
from tests.protocol.playbook import examples
from tests.protocol.specification import channel_state, is_consistent

from strobe.causality.proof import verify
from strobe.protocol import FIFO, UNORDERED, ChannelSpec, Snapshot, View

NAMES = ("a", "b", "c", "d")
CHOICES = st.integers(0, 1_000)
SENDING = ("send", "take", "take", "take")
RECORDING = ("begin", "apply", "apply", "apply", "abort", "restart", "settle")

Step = tuple[str, int, int]


@st.composite
def topologies(draw: st.DrawFn, kinds: tuple[str, ...]) -> View:
    """Generate cycles, DAGs, self-loops, parallel channels, several components: whatever a few random channels form."""
    processes = NAMES[: draw(st.integers(1, len(NAMES)))]
    end = st.sampled_from(processes)
    ends = draw(st.lists(st.tuples(end, end, st.sampled_from(kinds)), max_size=7))
    return View(1, processes, tuple(ChannelSpec(str(place), *spec) for place, spec in enumerate(ends)))


def steps(*names: str) -> st.SearchStrategy[list[Step]]:
    return st.lists(st.tuples(st.sampled_from(names), CHOICES, CHOICES), min_size=10, max_size=60)


def play(view: View, protocol: str, run: list[Step]) -> Network:
    network = Network(view, protocol)
    for name, first, second in run:
        getattr(network, name)(first, second)
    network.calm_down()
    return network


def recorded(snapshot: Snapshot, spec: ChannelSpec) -> list[int]:
    """Return the serial numbers of the messages that the snapshot has on the channel."""
    items = snapshot.fragments[spec.target].in_flight[spec.id]
    bodies: list[list[Any]] = [msgspec.msgpack.decode(item.frame.body)[item.consumed :] for item in items]
    serials = [serial for messages in bodies for serial, _ in messages]
    return serials if spec.kind == FIFO else sorted(serials)


def check_all(network: Network) -> None:
    whole = network.complete()
    assert {snapshot.id for snapshot in whole} >= set(network.begun) - network.aborted, "a snapshot did not complete"
    for snapshot in whole:
        assert str(verify(snapshot)) == f"{snapshot.id}: holds (self-consistent, signer unknown)"
        cut = network.cut(snapshot)
        assert is_consistent(network.history, cut)
        for spec in network.view.channels:
            assert recorded(snapshot, spec) == channel_state(network.history, cut, spec.id)
            assert recorded(snapshot, spec) == network.in_flight_at(snapshot.id, spec.id)


@given(topologies((FIFO,)), steps(*SENDING, *RECORDING))
def test_chandy_lamport_is_consistent_and_exact_in_random_runs(view: View, run: list[Step]) -> None:
    check_all(play(view, "chandy-lamport", run))


@given(topologies((UNORDERED, UNORDERED, FIFO)), steps(*SENDING, *RECORDING))
def test_lai_yang_is_consistent_and_exact_in_random_runs(view: View, run: list[Step]) -> None:
    check_all(play(view, "lai-yang", run))


@examples(0.5)
@given(topologies((FIFO,)), steps(*SENDING, "begin", "apply"), st.sampled_from(["chandy-lamport", "lai-yang"]))
def test_no_recording_stays_open_after_everything_arrived(view: View, run: list[Step], protocol: str) -> None:
    network = play(view, protocol, run)
    assert not network.captured
    assert not any(machine.open for machine in network.machines.values())
    assert len(network.complete()) == len(network.begun)


@examples(0.5)
@given(topologies((FIFO, UNORDERED)), steps(*SENDING, *RECORDING))
def test_snapshots_do_not_change_what_the_application_does(view: View, run: list[Step]) -> None:
    """C7: without the recording steps, the same messages are delivered and forwarded in the same steps."""
    plain, busy = Network(view, "lai-yang"), Network(view, "lai-yang")
    for name, first, second in run:
        getattr(busy, name)(first, second)
        if name in SENDING:
            getattr(plain, name)(first, second)
    assert busy.history == plain.history
