"""Processes that receive the messages of a frame at once: under every fault, in traces, and when replayed."""

import re
from pathlib import Path

import pytest
from tests.runtime.tracing_host import write_segments
from tests.simulation.long.test_replay import record
from tests.simulation.systems import SHAPES, BatchPlayer, Player, players

from strobe.causality.cuts import VIOLATED, check_cuts
from strobe.causality.trace_lines import Receive
from strobe.errors import UserCodeFailed
from strobe.simulation import Faults, World, all_checkers
from strobe.simulation.faults import KINDS
from strobe.simulation.replay import Replay, ReplayDiverged, compare_at_cut
from strobe.traces.reading import read_live_trace

PAGE = Path(__file__).parents[3] / "docs" / "batches.md"
PROTOCOLS = ("chandy-lamport", "lai-yang")


def batch_players(shape, protocol):
    return players(shape, protocol, snapshots=True, player=BatchPlayer)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("rollbacks", [False, True])
def test_R1_batches_satisfy_every_checker_under_all_faults(protocol, rollbacks):
    """R1, C4: consistent cuts, exact channels, and each message applied exactly once, in every shape."""
    for seed, shape in enumerate(SHAPES):
        system = batch_players(shape, protocol)
        everyone_sends = {channel.source for channel in system.channels} == set(system.processes)
        kinds = [kind for kind in (*KINDS, "rollbacks") if kind != "membership" or everyone_sends]
        faults = Faults.parse(",".join(kinds if rollbacks else kinds[:-1]))
        world = World(system, seed, faults=faults, checkers=all_checkers())
        world.run(8)
        assert [str(violation) for violation in world.violations] == []


@pytest.mark.parametrize("player", [Player, BatchPlayer])
def test_no_cut_falls_inside_a_batch(player):
    """A snapshot that a handler requests in the middle of a frame cuts it, if each message is an event of its own."""
    consumed = set()
    for seed in range(6):
        system = players("complete", "chandy-lamport", snapshots=True, player=player)
        world = World(system, seed, faults=Faults.parse("initiators"), checkers=all_checkers())
        world.on_commit = lambda snapshot: consumed.update(
            item.consumed for f in snapshot.fragments.values() for items in f.in_flight.values() for item in items
        )
        world.run(30)
        assert world.violations == []
    assert 0 in consumed
    assert bool(consumed - {0}) == (player is Player)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_R4_a_trace_with_batches_is_valid_and_is_replayed(protocol):
    """R4, P2: each batch is one event with several messages, and a replay hands it over as one."""
    world, trace, taken, _ = record(batch_players("ring", protocol))
    received = [trace.event(ref) for ref in trace.events() if isinstance(trace.event(ref).lead, Receive)]
    assert {len(event.further) for event in received} >= {0, 1, 2, 3}
    assert not [verdict for verdict in check_cuts(trace) if verdict.verdict == VIOLATED]
    replay = Replay(batch_players("ring", protocol), trace)
    replay.run(trace.events())
    for name, node in (world.nodes | world.departed).items():
        assert replay.has_state(name, node.capture())
    for snapshot in taken:
        assert compare_at_cut(batch_players("ring", protocol), trace, snapshot) == []


def test_R4_a_batch_is_not_replayed_message_by_message():
    """The process has changed since the recording: it may come to another state message by message."""

    class Unbatched(Player):
        timer = BatchPlayer.timer

    _, trace, _, _ = record(batch_players("ring", "chandy-lamport"))
    with pytest.raises(ReplayDiverged, match=r"received \d messages in one event, but Unbatched has no receive_many"):
        Replay(players("ring", "chandy-lamport", snapshots=True, player=Unbatched), trace).run(trace.events())


@pytest.mark.parametrize("level", ["ordinals", "full"])
def test_R4_segments_of_a_live_trace_keep_batches(level, tmp_path):
    """R4: what is read back has the same events, whether batches or single messages."""
    _, trace, _, _ = record(batch_players("ring", "chandy-lamport"))
    system = batch_players("ring", "chandy-lamport")
    live = read_live_trace(write_segments(trace, tmp_path, level, system=system if level == "full" else None))
    assert live.trace.violations() == ()
    for ref in trace.events():
        event, again = trace.event(ref), live.trace.event(ref)
        assert [(line.channel, line.ordinal) for line in event.further] == [
            (line.channel, line.ordinal) for line in again.further
        ]
    if level == "full":
        Replay(batch_players("ring", "chandy-lamport"), live.trace).run(live.trace.events())


def test_the_example_of_the_page_loses_no_reading():
    names = {}
    exec(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)[0], names)
    world = World(names["metering"], 3, faults=Faults.parse("delays,crashes,rollbacks"), checkers=all_checkers())
    world.run(10)
    assert world.violations == []
    assert world.nodes["meter"].process.totals.readings > 1000
    assert world.epoch > 1


def test_a_failure_in_a_batch_names_its_messages():
    class Failing(BatchPlayer):
        def receive_many(self, ctx, channel, messages):
            if len(messages) > 2:
                raise RuntimeError("too many coins")

    with pytest.raises(UserCodeFailed, match=r"failed in event \d+ \(receive_many, messages \d+ to \d+ on \w->\w\)"):
        World(players("pair", "chandy-lamport", player=Failing), 1).run(5)
