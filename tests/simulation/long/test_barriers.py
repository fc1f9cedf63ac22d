"""Barriers on dataflows, under faults and rollbacks: no checker finds a violation (V3-V5)."""

import msgspec
import pytest
from tests.simulation.systems import Coin, Note, Player, players

from strobe import Channel, System
from strobe.errors import UsageError
from strobe.simulation.channel_queues import ChannelQueues
from strobe.simulation.checkers import all_checkers
from strobe.simulation.faults import KINDS, Faults
from strobe.simulation.world import World

BARRIERS = ("aligned", "unaligned", "aligned-then-unaligned")
SHAPES = ("dag", "sources and sinks", "alone")
STAYING = ",".join(kind for kind in KINDS if kind != "membership")


class Guest(Player):
    """Leaves without handing anything over: in a dataflow there may be no process to take it."""

    def leave(self, ctx):
        pass


def run(system, seed, faults, snapshots=6):
    chosen = Faults.parse(faults) if isinstance(faults, str) else faults
    world = World(system, seed, faults=chosen, checkers=all_checkers())
    world.taken = []
    world.on_commit = world.taken.append
    world.run(snapshots)
    return world


@pytest.mark.parametrize("faults", [STAYING, "delays,rollbacks"], ids=["all", "rollbacks"])
@pytest.mark.parametrize("protocol", BARRIERS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(2))
def test_no_checker_finds_a_violation_in_any_shape_under_any_faults(protocol, shape, faults, seed):
    world = run(players(shape, protocol, snapshots=True), seed, faults)
    assert [str(violation) for violation in world.violations] == []
    assert len(world.committed) > 6


@pytest.mark.parametrize("faults", ["delays,membership", "all,rollbacks"])
@pytest.mark.parametrize("protocol", BARRIERS)
def test_E2_processes_leave_and_join_dataflows(protocol, faults):
    channels = [Channel(*pair) for pair in ("ab", "ac", "bd", "cd", "ad")]
    system = System({name: Guest() for name in "abcd"}, channels, [Coin, Note], protocol)
    often = msgspec.structs.replace(Faults.parse(faults), membership_every_us=150_000)
    world = run(system, 5, often, snapshots=20)
    assert [str(violation) for violation in world.violations] == []
    assert {"joins", "leaves"} <= set(world.injected)


def test_E2_a_process_without_outputs_lost_while_leaving_has_left():
    """Seed 136: no process waits for its last event. It comes back without state and is dismissed."""
    channels = [Channel(*pair) for pair in ("ab", "ac", "bd", "cd", "ad")]
    system = System({name: Guest() for name in "abcd"}, channels, [Coin, Note], "unaligned")
    world = run(system, 136, msgspec.structs.replace(Faults.parse("all,rollbacks"), membership_every_us=150_000), 10)
    assert [str(violation) for violation in world.violations] == []


def test_V3_aligned_snapshots_have_nothing_in_flight():
    world = run(players("dag", "aligned"), 1, "delays", snapshots=20)
    assert [snapshot.in_flight_messages for snapshot in world.taken] == [0] * len(world.taken)


def test_V4_unaligned_barriers_overtake_at_both_ends(monkeypatch):
    overtaken = []
    original = ChannelQueues.arrive

    def arrive(queues, channel, item):
        overtaken.append((len(queues.of(channel).arrived), len(getattr(item, "overtaken", ()))))
        original(queues, channel, item)

    monkeypatch.setattr(ChannelQueues, "arrive", arrive)
    world = run(players("dag", "unaligned"), 1, "delays", snapshots=20)
    assert world.violations == []
    assert any(waiting for waiting, _ in overtaken)
    assert any(at_sender for _, at_sender in overtaken)
    assert any(snapshot.in_flight_messages for snapshot in world.taken)


def test_V5_some_snapshots_align_in_time_and_others_become_unaligned():
    world = run(players("dag", "aligned-then-unaligned"), 1, "delays", snapshots=30)
    in_flight = [snapshot.in_flight_messages for snapshot in world.taken]
    assert 0 in in_flight
    assert any(in_flight)


@pytest.mark.parametrize("protocol", BARRIERS)
def test_a_cycle_is_refused_before_anything_runs(protocol):
    with pytest.raises(UsageError, match="a -> b -> c -> d -> a is one"):
        World(players("ring", protocol), 1)
