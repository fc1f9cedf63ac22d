"""What every committed snapshot must be: a consistent cut with exact channels, a proof that holds, nothing lost."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from strobe.causality.predicate_input import predicate_input_of
from strobe.causality.predicates import deadlock
from strobe.causality.proof import verify
from strobe.process import Process, System
from strobe.protocol import FIFO, Snapshot
from strobe.simulation.checkers.base import Checker
from strobe.storage.content.state_codec import decode_snapshot
from strobe.user_code import calling

if TYPE_CHECKING:
    from strobe.simulation.journal import ChannelJournal
    from strobe.simulation.world import World

_CONSERVED_FAILED = "the function `conserved` of the system failed"
_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def positions(snapshot: Snapshot) -> dict[str, int]:
    """Return the cut of a snapshot."""
    return {name: fragment.state.position for name, fragment in snapshot.fragments.items() if fragment.state}


class CutConsistent(Checker):
    """The recorded positions are a consistent cut of the real run: every message received in it was sent in it."""

    name = "cut-consistent"

    def on_commit(self, world: "World", snapshot: Snapshot) -> Iterator[str]:
        cut = positions(snapshot)
        for spec in snapshot.view.channels:
            if spec.source in cut and spec.target in cut:
                journal = world.journal.channels[spec.id, spec.incarnation]
                for ordinal in journal.orphans(cut[spec.source], cut[spec.target])[:1]:
                    yield f"message {ordinal} on {spec.id} was received before the cut, but sent after it"


class ProofVerifies(Checker):
    """The proof of each snapshot holds (P1)."""

    name = "proof-verifies"

    def on_commit(self, world: "World", snapshot: Snapshot) -> Iterator[str]:
        yield from (str(finding) for finding in verify(snapshot, world.views[snapshot.view.number]).findings)


def recorded_messages(snapshot: Snapshot, target: str, channel: str) -> list[tuple[int, bytes]]:
    """Return (ordinal, bytes) of each message in flight on `channel`, in recorded order."""
    fragment = snapshot.fragments.get(target)
    items = fragment.in_flight.get(channel, ()) if fragment else ()
    return [
        (item.frame.first_ordinal + place, bytes(payload))
        for item in items
        for place, payload in enumerate(_split(item.frame.body))
        if place >= item.consumed
    ]


class ChannelsExact(Checker):
    """Each recorded channel state is exactly the messages in flight at the cut, byte for byte."""

    name = "channels-exact"

    def on_commit(self, world: "World", snapshot: Snapshot) -> Iterator[str]:
        cut = positions(snapshot)
        for spec in snapshot.view.channels:
            if spec.source not in cut or spec.target not in cut:
                continue
            journal = world.journal.channels[spec.id, spec.incarnation]
            source_at, target_at = cut[spec.source], cut[spec.target]
            if journal.orphans(source_at, target_at):
                continue  # the cut is inconsistent here, so there is no channel state to compare
            recorded = recorded_messages(snapshot, spec.target, spec.id)
            yield from _compare(spec.id, journal, journal.in_flight(source_at, target_at), recorded)


def _compare(
    channel: str, journal: "ChannelJournal", expected: list[int], recorded: list[tuple[int, bytes]]
) -> Iterator[str]:
    ordinals = [ordinal for ordinal, _ in recorded]
    if (ordinals if journal.spec.kind == FIFO else sorted(ordinals)) != expected:
        yield f"{channel} has recorded the messages {ordinals}, in flight were {expected}"
        return
    for ordinal, payload in recorded:
        if payload != journal.payloads[ordinal - 1]:
            yield f"message {ordinal} on {channel} is not what was sent"


def conserved_at_start(system: System) -> Any:
    """Return the conserved quantity of a system that has not started; None if it has none."""
    states = {}
    for name, process in system.processes.items():
        with calling(f"process {name!r} failed in capture(), before its start"):
            states[name] = process.capture()
    with calling(_CONSERVED_FAILED):
        return system.conserved_value(states, []) if system.conserved is not None else None


class Conservation(Checker):
    """The conserved quantity of the system, over all states and all messages in flight, is the same as at the start."""

    name = "conservation"

    def applies_to(self, world: "World") -> bool:
        return world.system.conserved is not None

    def on_commit(self, world: "World", snapshot: Snapshot) -> Iterator[str]:
        if world.system.conserved is None:
            return
        with calling(_CONSERVED_FAILED):
            state = decode_snapshot(world.system, snapshot)
            value = world.system.conserved_value(state.states, state.messages)
        if value != world.conserved_at_start:
            yield f"the conserved quantity is {value}, and was {world.conserved_at_start} at the start"


class Invariants(Checker):
    """The invariants that the system declares hold in every snapshot (G1), and no process is deadlocked (G2).

    As in a live system, deadlocks are looked for if a process declares what it waits for.
    """

    name = "invariants"

    def applies_to(self, world: "World") -> bool:
        return bool(world.system.invariants) or _declares_waits(world.system)

    def on_commit(self, world: "World", snapshot: Snapshot) -> Iterator[str]:
        if world.system.invariants:
            yield from self._violations(world.system, snapshot)
        if _declares_waits(world.system):
            stuck = deadlock(predicate_input_of(snapshot))
            if stuck.holds:
                yield f"deadlock: {stuck.brief()}"

    def _violations(self, system: System, snapshot: Snapshot) -> Iterator[str]:
        state = decode_snapshot(system, snapshot)
        for invariant in system.invariants:
            if invariant.missing(state) is not None:  # a process that has left
                continue
            with calling(f"the invariant {invariant.name} failed"):
                violation = invariant.violation(state)
            if violation is not None:
                yield f"{invariant.name}: {violation}"


def _declares_waits(system: System) -> bool:
    return any(type(process).waits_for is not Process.waits_for for process in system.processes.values())
