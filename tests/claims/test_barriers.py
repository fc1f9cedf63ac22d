"""The promises about barriers: aligned, unaligned, and aligned with a timeout (V3-V5)."""

import pytest
from tests.simulation.systems import players

from strobe.causality.proof import verify
from strobe.errors import UsageError
from strobe.process import Channel, System
from strobe.simulation.checkers import all_checkers
from strobe.simulation.explorer import explore, scenario
from strobe.simulation.faults import Faults
from strobe.simulation.matrix import Payer, caught_by
from strobe.simulation.mutants.catalog import mutant
from strobe.simulation.world import World

BARRIERS = ("aligned", "unaligned", "aligned-then-unaligned")


def taken(protocol, faults="all", snapshots=8):
    """Return the snapshots of a diamond under faults; all checkers must pass."""
    world = World(players("dag", protocol), 3, faults=Faults.parse(faults), checkers=all_checkers())
    found = []
    world.on_commit = found.append
    world.run(snapshots)
    assert world.violations == []
    assert all(verify(snapshot).holds for snapshot in found)
    return found


def test_V3_operators_align_and_no_message_is_in_flight():
    found = taken("aligned")
    assert len(found) >= 8
    assert not any(snapshot.in_flight_messages for snapshot in found)


@pytest.mark.parametrize("protocol", BARRIERS)
def test_V3_a_topology_with_a_cycle_is_refused_by_name(protocol):
    """V3, V4, V5: the cycle is printed."""
    channels = [Channel("a", "b"), Channel("b", "c"), Channel("c", "b")]
    with pytest.raises(UsageError, match="b -> c -> b is one"):
        World(System({name: Payer() for name in "abc"}, channels, protocol=protocol), 1)


def test_V4_what_barriers_overtake_is_channel_state():
    assert any(snapshot.in_flight_messages for snapshot in taken("unaligned"))


def test_V5_alignment_that_takes_too_long_turns_unaligned():
    in_flight = [snapshot.in_flight_messages for snapshot in taken("aligned-then-unaligned", "delays", 25)]
    assert 0 in in_flight
    assert any(in_flight)


def test_V4_completion_does_not_wait_for_queues(monkeypatch):
    """V4, V5: if processes receive more slowly than messages arrive, aligned barriers never complete; others do."""
    monkeypatch.setattr("strobe.simulation.channel_queues.SERVICE_US_MAX", 20_000)
    complete = {}
    for protocol in BARRIERS:
        world = World(players("dag", protocol), 1, checkers=all_checkers())
        world.run(5, us_max=2_000_000)
        complete[protocol] = world.committed
        queued = max(len(queue.arrived) + len(queue.outbox) for queue in world.channel_queues.values())
        assert queued > 50
    assert complete["aligned"] == []
    assert len(complete["unaligned"]) > 5
    assert len(complete["aligned-then-unaligned"]) > 5


@pytest.mark.parametrize("name", ["diamond-aligned", "diamond-unaligned", "join-timed-twice"])
def test_P3_every_interleaving_of_barriers_on_a_join_is_right(name):
    explored = explore(scenario(name))
    assert explored.problem == ""
    assert explored.states > 1_500
    assert explored.ends > 50


@pytest.mark.parametrize(
    "name", ["recorded-before-alignment", "delivered-early", "forgotten-at-sender", "forgotten-when-time-is-over"]
)
def test_P4_barriers_with_a_broken_rule_are_caught(name):
    broken = mutant(name)
    assert caught_by(broken) == set(broken.caught_by)
