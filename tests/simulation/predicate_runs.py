"""Runs the example systems under detectors of stable predicates, and keeps what is needed to check each claim."""

import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from tests.simulation.naive import SequentialReader, without_channels

from strobe import Channel, System
from strobe.causality.predicate_input import predicate_input_of
from strobe.protocol import Policy
from strobe.simulation import Faults, World

EXAMPLES = Path(__file__).parents[2] / "examples"
SNAPSHOT, NO_CHANNELS, ONE_AFTER_THE_OTHER = "of a snapshot", "without channels", "one after the other"
NO_GRANTS, NO_REQUESTS = "without grants in flight", "without requests in flight"
SLOW = Faults(delay_us_max=3000)
OFTEN = Policy(interval_us=1500, overlapping_max=8, timeout_us=400_000, backoff_us=10_000)


class Claim(NamedTuple):
    """What a detector found, when, and the decoded states that it examined."""

    at_us: int
    found: Any
    states: dict[str, Any]


class Run(NamedTuple):
    """A finished run: each detector's claims that the predicate holds, the findings of snapshots, the final states."""

    claims: dict[str, list[Claim]]
    snapshots: list[tuple[int, Any]]
    end: dict[str, Any]
    last: Any

    def later(self, claim):
        """Return the findings of the snapshots that were begun after the claim was made."""
        return [found for begun_us, found in self.snapshots if begun_us > claim.at_us]


def example(name):
    """Load an example system. It must be a new one each time, since processes keep their state."""
    module, _, attribute = name.partition(":")
    spec = importlib.util.spec_from_file_location(f"example_{module}", EXAMPLES / f"{module}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return getattr(loaded, attribute)


def unordered(name):
    """An example on unordered channels, under the protocol for those."""
    system = example(name)
    channels = [Channel(one.source, one.target, "unordered") for one in system.channels]
    return System(system.processes, channels, system.messages, "lai-yang", system.conserved)


def run(system, seed, predicate, snapshots=60, policy=OFTEN, faults=SLOW):
    """Run an example, or the system that a function makes; evaluate `predicate` on snapshots and for naive
    detectors.
    """
    world = World(system() if callable(system) else example(system), seed, faults=faults, policy=policy)
    claims = {detector: [] for detector in (SNAPSHOT, NO_CHANNELS, NO_GRANTS, NO_REQUESTS, ONE_AFTER_THE_OTHER)}
    taken = []

    def claim(detector, facts, states):
        found = predicate(facts)
        if found.holds:
            claims[detector].append(Claim(world.now_us, found, states))
        return found

    def committed(snapshot):
        states = {name: plain(fragment.state) for name, fragment in snapshot.fragments.items()}
        facts = predicate_input_of(snapshot)
        claim(NO_CHANNELS, without_channels(snapshot), states)
        claim(NO_GRANTS, msgspec.structs.replace(facts, granted=frozenset()), states)
        claim(NO_REQUESTS, msgspec.structs.replace(facts, asked=frozenset()), states)
        taken.append((world.begun[str(snapshot.id)].at_us, claim(SNAPSHOT, facts, states)))

    world.on_commit = committed
    SequentialReader(world, lambda facts: claim(ONE_AFTER_THE_OTHER, facts, states_now(world)))
    world.run(snapshots)
    assert world.violations == []
    return Run(claims, taken, states_now(world), taken[-1][1])


def states_now(world):
    return {name: plain(node.capture()) for name, node in world.nodes.items()}


def plain(state):
    return {"position": state.position, **msgspec.msgpack.decode(state.data)}
