"""Replay: the same states from the trace alone, in the recorded order and in the order of the theorem (R4, P2)."""

import random
import threading

import msgspec
import pytest
from tests.simulation.systems import Player, players

from strobe import Channel, Process, System
from strobe.causality.trace import Trace, parse_trace
from strobe.causality.trace_lines import VERSION, Internal, Receive, Send, TraceHeader
from strobe.cli.traces.replay import states_of
from strobe.errors import UsageError
from strobe.protocol import ChannelSpec
from strobe.protocol.process.first_view import first_view
from strobe.simulation.faults import Faults
from strobe.simulation.recorder import Recorder
from strobe.simulation.replay import Replay, ReplayDiverged, compare_at_cut
from strobe.simulation.world import World

PROTOCOLS = ("chandy-lamport", "lai-yang")


def record(system, seed=3, level="full", bytes_max=1 << 24, snapshots=5):
    recorder = Recorder(first_view(system), seed, level, bytes_max=bytes_max)
    world = World(system, seed, faults=Faults.parse("all"), recorder=recorder)
    taken = []
    world.on_commit = taken.append
    world.run(snapshots)
    trace = parse_trace(recorder.text().splitlines(keepends=True))
    trace.check()
    return world, trace, taken, recorder


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_replay_of_a_full_trace_gives_the_same_states(protocol):
    world, trace, _, _ = record(players("complete", protocol, snapshots=True))
    replay = Replay(players("complete", protocol, snapshots=True), trace)
    replay.run(trace.events())
    for name, node in (world.nodes | world.departed).items():
        assert replay.has_state(name, node.capture())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_recorded_state_occurs_in_the_reordered_run(protocol):
    _, trace, taken, _ = record(players("ring", protocol, snapshots=True))
    for snapshot in taken:
        assert compare_at_cut(players("ring", protocol, snapshots=True), trace, snapshot) == []


def test_a_wrong_recorded_state_is_not_found_in_the_reordered_run():
    _, trace, taken, _ = record(players("ring", "chandy-lamport"))
    fragments = dict(taken[0].fragments)
    state = msgspec.structs.replace(fragments["b"].state, data=fragments["a"].state.data)
    fragments["b"] = msgspec.structs.replace(fragments["b"], state=state)
    wrong = msgspec.structs.replace(taken[0], fragments=fragments)
    assert compare_at_cut(players("ring", "chandy-lamport"), trace, wrong) == [
        "the state of b in the replay is not the one recorded"
    ]


def test_a_process_with_its_own_randomness_is_detected():
    class Loose(Player):
        def timer(self, ctx, name):
            ctx.random.setstate(random.getrandbits(64))
            super().timer(ctx, name)

    def loose():
        system = players("ring", "chandy-lamport")
        system.processes = {name: Loose() for name in system.processes}
        return system

    _, trace, _, _ = record(loose())
    with pytest.raises(ReplayDiverged, match=r"event .* of .: it sent .*must come from the context"):
        Replay(loose(), trace).run(trace.events())


def test_a_trace_of_ordinals_has_no_payloads_and_cannot_be_replayed():
    _, trace, _, recorder = record(players("pair", "chandy-lamport"), level="ordinals")
    assert b"payload" not in recorder.text()
    with pytest.raises(UsageError, match="record it with level 'full'"):
        Replay(players("pair", "chandy-lamport"), trace).run(trace.events())


def test_a_bounded_trace_is_truncated_and_still_valid():
    _, trace, _, recorder = record(players("pair", "chandy-lamport"), bytes_max=100_000)
    assert recorder.truncated
    assert len(recorder.text()) < 110_000
    assert trace.violations() == ()


class Reporter(Process):
    """Sends how often its timer has fired since its start; the other process keeps the last number."""

    def __init__(self):
        self.count = 0

    def start(self, ctx):
        self._send_count(ctx)

    def timer(self, ctx, name):
        self.count += 1
        self._send_count(ctx)

    def receive(self, ctx, channel, message):
        self.count = message

    def _send_count(self, ctx):
        for channel in ctx.outputs:
            ctx.send(channel, self.count)


TYPED = """
import msgspec
from strobe import Channel, Process, System

class Count(msgspec.Struct, tag=True):
    n: int

class Counter(Process):
    def __init__(self):
        self.decoder, self.count = msgspec.json.Decoder(), 0  # which cannot be copied

    def capture(self):
        return self.count

    def restore(self, state):
        self.count = state

    def start(self, ctx):
        for channel in ctx.outputs:
            ctx.send(channel, Count(1))

    def receive(self, ctx, channel, message):
        assert isinstance(message, Count)
        self.count += message.n

system = System({"a": Counter(), "d": Counter()}, [Channel("a", "d")], messages=[Count])
"""


def test_R4_each_life_of_a_process_gets_messages_of_its_own_types(tmp_path):
    file = tmp_path / "typed.py"
    file.write_text(TYPED)
    facts = msgspec.Raw(b'{"inputs":[],"outputs":["a->d"],"random":7}')
    channels = (ChannelSpec("a->d", "a", "d"), ChannelSpec("a->d#2", "a", "d#2", incarnation=2))
    one = msgspec.Raw(b'{"type":"Count","n":1}')
    lines = [
        Internal("a", 1, "start", facts, at=0.0),
        Send("a", 1, "a->d", 1, payload=one),
        Receive("d", 1, "a->d", 1, at=1.0),
        Internal("a", 2, "start", facts, at=2.0),
        Send("a", 2, "a->d#2", 1, payload=one),
        Receive("d#2", 1, "a->d#2", 1, at=3.0),
    ]
    trace = Trace(TraceHeader(VERSION, ("a", "d", "d#2"), channels, lives={"d#2": "d"}), lines)
    states = states_of(trace, f"{file}:system", None)
    assert (states["d"], states["d#2"]) == ([0, 1], [0, 1])


@pytest.mark.parametrize("renewed", [False, True])
def test_R4_a_process_that_rejoined_starts_from_scratch_in_a_replay(renewed):
    facts = msgspec.Raw(b'{"inputs":[],"outputs":["d->a"],"random":7}')
    first, second = ChannelSpec("d->a", "d", "a"), ChannelSpec("d->a#2", "d#2", "a", incarnation=2)
    header = TraceHeader(VERSION, ("a", "d", "d#2"), (first, second), lives={"d#2": "d"})
    lines = [
        Internal("d", 1, "start", facts, at=0.0),
        Send("d", 1, "d->a", 1, payload=msgspec.Raw(b"0")),
        Internal("d", 2, "timer t", at=1.0),
        Send("d", 2, "d->a", 2, payload=msgspec.Raw(b"1")),
        Internal("d#2", 1, "start", facts, at=2.0),
        Send("d#2", 1, "d->a#2", 1, payload=msgspec.Raw(b"0")),
        Receive("a", 1, "d->a", 1, at=3.0),
        Receive("a", 2, "d->a", 2, at=3.0),
        Receive("a", 3, "d->a#2", 1, at=3.0),
    ]
    trace = Trace(header, lines)
    trace.check()

    def load():
        system = System({"a": Reporter(), "d": Reporter()}, [Channel("d", "a")])
        system.processes["d"].lock = threading.Lock() if renewed else None  # which cannot be copied
        return system

    replay = Replay(load(), trace, renew=load if renewed else None)
    replay.run(trace.events())
    assert [replay.processes[name].count for name in trace.processes] == [0, 1, 0]
    assert replay.contexts["d#2"].name == "d"
