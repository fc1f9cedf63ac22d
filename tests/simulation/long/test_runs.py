"""Runs under every kind of fault, on every shape of topology: no checker finds a violation."""

from itertools import pairwise

import pytest
from tests.simulation.systems import SHAPES, parallel_channels, players

from strobe.errors import UsageError, UserCodeFailed
from strobe.simulation.checkers import all_checkers
from strobe.simulation.faults import KINDS, Faults
from strobe.simulation.world import World

PROTOCOLS = ("chandy-lamport", "lai-yang")


def run(system, seed, faults="all", snapshots=6):
    world = World(system, seed, faults=Faults.parse(faults), checkers=all_checkers())
    world.run(snapshots)
    return world


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(2))
def test_no_checker_finds_a_violation_in_any_shape_under_any_faults(protocol, shape, seed):
    system = players(shape, protocol, snapshots=True)
    # A process without outputs cannot hand over what it holds, so it may not leave.
    everyone_sends = {channel.source for channel in system.channels} == set(system.processes)
    world = run(system, seed, ",".join(kind for kind in KINDS if kind != "membership" or everyone_sends))
    assert [str(violation) for violation in world.violations] == []
    assert len(world.committed) > 6


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_blake3_chains_survive_the_same_faults_as_xxh3_chains(protocol):
    world = run(players("complete", protocol, snapshots=True, hashed_by="blake3"), 4, ",".join(KINDS), snapshots=12)
    assert [str(violation) for violation in world.violations] == []
    hashes = {channel.hash for channel in world.views[1].channels}
    assert hashes == ({"blake3"} if protocol == "chandy-lamport" else {"blake3", "xxh3"})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_two_channels_between_the_same_pair_are_distinguished(protocol):
    assert run(parallel_channels(protocol), 1).violations == []


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_fault_is_survived_alone(kind):
    world = run(players("complete", "chandy-lamport"), 3, kind, snapshots=25)
    assert world.violations == []


def test_the_faults_really_happen():
    injected = set()
    for seed in range(4):
        injected |= set(run(players("complete", "chandy-lamport"), seed, snapshots=20).injected)
    assert injected >= {
        "partitions",
        "process crashes",
        "coordinator crashes",
        "joins",
        "leaves",
        "snapshots by a process",
    }


def test_aborted_snapshots_are_retried_under_a_new_id_naming_the_old():
    world = run(players("complete", "chandy-lamport"), 5, "crashes,delays", snapshots=30)
    retries = [begin for begin in world.begun.values() if begin.retries]
    assert retries
    assert all(begin.retries in world.begun and begin.retries != begin.snapshot for begin in retries)


def test_a_snapshot_in_the_middle_of_a_frame_records_the_rest_of_it():
    consumed = []
    for seed in range(6):
        world = World(players("complete", "chandy-lamport", snapshots=True), seed, checkers=all_checkers())
        world.on_commit = lambda snapshot: consumed.extend(
            item.consumed for f in snapshot.fragments.values() for items in f.in_flight.values() for item in items
        )
        world.run(10)
        assert world.violations == []
    assert any(consumed)


def test_snapshots_overlap():
    world = run(players("ring", "chandy-lamport"), 2, "delays", snapshots=30)
    spans = sorted((begin.at_us, world.outcomes[name].at_us) for name, begin in world.begun.items())
    assert any(later[0] < earlier[1] for earlier, later in pairwise(spans))


def test_a_message_is_delivered_as_a_decoded_copy():
    """Changes to a message after it was sent do not reach the receiver."""
    import msgspec

    from strobe import Channel, Process, System

    class Box(msgspec.Struct):
        items: list

    class Sender(Process):
        def start(self, ctx):
            box = Box([1])
            ctx.send("a->b", box)
            box.items.append(2)

        def capture(self):
            return b""

    class Receiver(Process):
        got = None

        def receive(self, ctx, channel, box):
            Receiver.got = box.items

        def capture(self):
            return b""

    World(System({"a": Sender(), "b": Receiver()}, [Channel("a", "b")], [Box]), 1).run(1)
    assert Receiver.got == [1]


def test_sending_on_a_channel_that_is_no_output_is_named():
    from strobe import Process, System

    class Lost(Process):
        def start(self, ctx):
            ctx.send("a->nowhere", 1)

        def capture(self):
            return b""

    with pytest.raises(UserCodeFailed, match=r"'a' sends on 'a->nowhere', which is not an output of it"):
        World(System({"a": Lost()}, []), 1).run(1)


def test_unknown_faults_are_named_with_the_known_ones():
    with pytest.raises(UsageError, match="unknown faults floods; choose: none, all, delays"):
        Faults.parse("floods")
