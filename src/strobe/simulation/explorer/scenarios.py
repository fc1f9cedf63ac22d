"""The small systems that are explored exhaustively (P3)."""

import msgspec

from strobe.errors import UsageError
from strobe.protocol import (
    FIFO,
    UNORDERED,
    Aligned,
    AlignedThenUnaligned,
    ChandyLamport,
    LaiYang,
    Unaligned,
    View,
)
from strobe.simulation.explain.stage import view_of_edges


class Scenario(msgspec.Struct, frozen=True):
    """A system small enough for every interleaving.

    Each process sends up to `messages` messages, each on any of its outgoing channels, at any time. `snapshots` holds,
    for each snapshot, the processes that initiate it (under Lai-Yang every process gets a request anyway). With
    `crash`, any one process crashes at any step: snapshots that cannot complete are aborted once and retried once. With
    `rollback`, all processes go back at any step, once, and the snapshots are taken again. With `reorder`, FIFO
    channels break their promise, for a mutant that does not check. If alignment has a timer, it may fire at any step at
    the `timeouts_at` processes; at others it never fires.
    """

    name: str
    protocol: str
    view: View
    messages: int
    snapshots: tuple[tuple[str, ...], ...]
    crash: bool = False
    rollback: bool = False
    reorder: bool = False
    large: bool = False
    timeouts_at: tuple[str, ...] = ()

    def reordering(self) -> "Scenario":
        """Return the same scenario on channels that break their promise."""
        return msgspec.structs.replace(self, reorder=True)

    @property
    def title(self) -> str:
        crash = ", one crash anywhere" if self.crash else ", one rollback anywhere" if self.rollback else ""
        who = " and ".join("+".join(initiators) for initiators in self.snapshots)
        messages = "one message" if self.messages == 1 else f"up to {self.messages} messages"
        times = f", time-outs at {'+'.join(self.timeouts_at)}" if self.timeouts_at else ""
        return f"{self.protocol}, {messages} a process, snapshots from {who}{times}{crash}"


Snapshots = tuple[tuple[str, ...], ...]


class _Shape(msgspec.Struct, frozen=True):
    """A topology, and its snapshots, without a crash and with one."""

    processes: str
    edges: str
    messages: int
    snapshots: tuple[Snapshots, ...]
    crashing: dict[str, tuple[Snapshots, ...]]


_FROM_EACH: tuple[Snapshots, ...] = ((("a",),), (("b",),), (("c",),))
_OVERLAPPING: Snapshots = (("a",), ("b",))
_FROM_A: Snapshots = (("a",),)

# With a crash, Lai-Yang takes one snapshot of the pair, not two: two would have too many states to search in minutes.
_SHAPES = {
    "pair": _Shape("ab", "ab ba", 3, (_OVERLAPPING,), {"cl": (_OVERLAPPING,), "ly": (_FROM_A,)}),
    "ring": _Shape("abc", "ab bc ca", 1, _FROM_EACH, {"cl": _FROM_EACH, "ly": _FROM_EACH}),
    "complete": _Shape("abc", "ab ba ac ca bc cb", 1, _FROM_EACH, {"cl": _FROM_EACH, "ly": _FROM_EACH}),
}
_LARGE_PAIRS = frozenset({"pair-ly", "pair-cl-crash", "pair-ly-crash"})
_KINDS = {ChandyLamport.name: FIFO, LaiYang.name: UNORDERED}
_SHORT = {ChandyLamport.name: "cl", LaiYang.name: "ly"}


_BARRIERS = {Aligned.name: "aligned", Unaligned.name: "unaligned", AlignedThenUnaligned.name: "timed"}


def smallest(protocol: str) -> Scenario:
    """Return the system used to compare merging equal states with not merging them."""
    if protocol in _BARRIERS:
        messages = {Aligned.name: 3, Unaligned.name: 2, AlignedThenUnaligned.name: 1}[protocol]
        return Scenario(f"smallest-{_BARRIERS[protocol]}", protocol, view_of_edges("ab", "ab", FIFO), messages, _FROM_A)
    view = view_of_edges("ab", "ab ba", _KINDS[protocol])
    return Scenario(f"smallest-{_SHORT[protocol]}", protocol, view, 1, (("a",),))


def _together() -> Scenario:
    """Return two snapshots that both processes initiate, each with the same id (C1)."""
    both = ("a", "b")
    return Scenario("pair-cl-together", ChandyLamport.name, view_of_edges("ab", "ab ba", FIFO), 3, (both, both))


def _rollbacks(protocol: str) -> list[Scenario]:
    """Return systems that go back once, at any step. The pair has overlapping snapshots, so that the later one has
    messages in flight that were sent after the earlier one: under Lai-Yang, with an index of the old epoch.
    """
    short, kind = _SHORT[protocol], _KINDS[protocol]
    pair, ring, complete = (view_of_edges(shape.processes, shape.edges, kind) for shape in _SHAPES.values())
    messages = 2 if protocol == ChandyLamport.name else 1
    return [
        Scenario(f"pair-{short}-rollback", protocol, pair, messages, _OVERLAPPING, rollback=True),
        Scenario(f"ring-{short}-a-rollback", protocol, ring, 1, _FROM_A, rollback=True),
        Scenario(f"complete-{short}-a-rollback", protocol, complete, 1, _FROM_A, rollback=True, large=True),
    ]


def _barriers(protocol: str) -> list[Scenario]:
    """Return a diamond of four processes, whose last process joins two inputs; and the join alone.

    A timer that may fire at any step, at every process, makes many states. With two snapshots that overlap at a join it
    would be millions, so there it fires only at the join, whose inputs are held back.
    """
    short, timed, aligned = _BARRIERS[protocol], protocol == AlignedThenUnaligned.name, protocol == Aligned.name
    pair, join, diamond = (
        view_of_edges(names, edges, FIFO) for names, edges in (("ab", "ab"), ("abc", "ac bc"), ("abcd", "ab ac bd cd"))
    )
    from_both: Snapshots = (("a", "b"),)
    found = [
        smallest(protocol),
        Scenario(f"join-{short}", protocol, join, 1 if timed else 2, from_both),
        Scenario(f"join-{short}-twice", protocol, join, 1, from_both * 2, timeouts_at=("c",) if timed else ()),
        Scenario(f"pair-{short}-twice", protocol, pair, 1 if timed else 2, _FROM_A * 2),
        Scenario(f"pair-{short}-crash", protocol, pair, 2, _FROM_A, crash=True),
        Scenario(f"join-{short}-rollback", protocol, join, 1, from_both, rollback=True, large=timed),
        Scenario(f"diamond-{short}", protocol, diamond, 2 if aligned else 1, _FROM_A),
    ]
    if not timed:
        found += [
            Scenario(f"diamond-{short}-twice", protocol, diamond, 1, _FROM_A * 2, large=not aligned),
            Scenario(f"diamond-{short}-crash", protocol, diamond, 1, _FROM_A, crash=True, large=True),
            Scenario(f"diamond-{short}-rollback", protocol, diamond, 1, _FROM_A, rollback=True, large=not aligned),
        ]
    return found


def scenarios() -> tuple[Scenario, ...]:
    """Return every scenario of `strobe explore --all`, in order."""
    found = []
    for protocol in _KINDS:
        found.append(smallest(protocol))
        if protocol == ChandyLamport.name:
            found.append(_together())
        found += [
            _make(protocol, shape, snapshots, False) for shape in _SHAPES for snapshots in _SHAPES[shape].snapshots
        ]
        found += [
            _make(protocol, shape, snapshots, True)
            for shape in _SHAPES
            for snapshots in _SHAPES[shape].crashing[_SHORT[protocol]]
        ]
        found += _rollbacks(protocol)
    for protocol in _BARRIERS:
        found += _barriers(protocol)
    return tuple(found)


def _make(protocol: str, name: str, snapshots: Snapshots, crash: bool) -> Scenario:
    shape = _SHAPES[name]
    initiator = "" if name == "pair" else f"-{snapshots[0][0]}"
    full_name = f"{name}-{_SHORT[protocol]}{initiator}{'-crash' if crash else ''}"
    view = view_of_edges(shape.processes, shape.edges, _KINDS[protocol])
    return Scenario(
        full_name,
        protocol,
        view,
        shape.messages,
        snapshots,
        crash,
        large=full_name in _LARGE_PAIRS or (crash and name == "complete"),
    )


def scenario(name: str) -> Scenario:
    """Return the scenario called `name`."""
    known = {scenario.name: scenario for scenario in scenarios()}
    if name not in known:
        raise UsageError(f"there is no scenario {name!r}; scenarios are: {', '.join(known)}")
    return known[name]
