"""Snapshots of many processes with declared waits and references, made without running any process (G2)."""

import random

import msgspec

from strobe.declarations import Declared, MessageRule, Waits
from strobe.protocol.process.channels import Outgoing
from strobe.protocol.values.fragment import Fragment, LocalState, Snapshot
from strobe.protocol.values.frames import Frontier, InFlight
from strobe.protocol.values.ids import COORDINATOR, SnapshotId
from strobe.protocol.values.view import ChannelSpec, View

RULES = (MessageRule("type", "Grant", grants=True), MessageRule("type", "Share", references=("name",)))
_REFERENCES, _OBJECTS, _KNOT = 2, 3, 20


def snapshot_of(processes: int, counter: int = 1) -> Snapshot:
    """Return a snapshot in which half of the processes are deadlocked, and some of their objects are garbage.

    The channels are a ring. The first half waits in a long chain that ends with a process that can proceed, and one
    process waits for all of them: each time another one is found free, it still lacks others. The second half waits in
    cycles of twenty. Every object refers to two of other processes; every twentieth channel has a reference in flight.
    """
    chosen, names = random.Random(counter), [f"p{number:06d}" for number in range(processes)]
    edges = tuple(ChannelSpec(f"{a}->{b}", a, b) for a, b in zip(names, [*names[1:], names[0]], strict=True))
    view, snapshot = View(1, tuple(names), edges), SnapshotId(1, counter, COORDINATOR)
    fragments: dict[str, Fragment] = {}
    for number, name in enumerate(names):
        before, after = edges[number - 1], edges[number]
        seed, sent = Outgoing(before).frontier(), _sent(after, number)
        recorded = _in_flight(before, (number - 1) % processes)
        state = LocalState(1, "bytes", b"", declared=_declared(number, names, chosen))
        fragments[name] = Fragment(
            snapshot, name, 1, {after.id: sent}, {before.id: Frontier(0, seed.hash)}, {before.id: recorded}, state
        )
    return Snapshot(snapshot, "chandy-lamport", (names[0],), view, fragments, counter, counter + 1)


def _declared(number: int, names: list[str], chosen: random.Random) -> Declared:
    half = len(names) // 2
    references = {
        _object(number, place): tuple(_object(chosen.randrange(half), 0) for _ in range(_REFERENCES))
        for place in range(_OBJECTS)
    }
    roots = {names[number]: (_object(number, 0),)} if number < half else {}
    return Declared(_waits(number, names, half, chosen), roots | references, number % 1000 == 0, RULES)


def _object(number: int, place: int) -> str:
    return f"object{number:06d}/{place}"


def _waits(number: int, names: list[str], half: int, chosen: random.Random) -> Waits | None:
    if number == half - 1:
        return Waits.all(*names[: half - 1])
    if number < half:
        return Waits.all(names[number - 1]) if number else None
    knot = half + (number - half) // _KNOT * _KNOT
    following = names[number + 1 if number + 1 < min(knot + _KNOT, len(names)) else knot]
    return Waits.all(following, chosen.choice(names[:half]))


def _in_flight(channel: ChannelSpec, number: int) -> tuple[InFlight, ...]:
    if number % 20 != 10:
        return ()
    message = {"type": "Share", "name": _object(number, 1)}
    return (InFlight(Outgoing(channel).seal(1, msgspec.msgpack.encode([message]), 0, 1)),)


def _sent(channel: ChannelSpec, number: int) -> Frontier:
    outgoing = Outgoing(channel)
    for item in _in_flight(channel, number):
        outgoing.seal(1, item.frame.body, 0, 1)
    return outgoing.frontier()
