"""Small random traces whose processes report variables, random conditions on them, and the answers by definition.

A cut is consistent if every message received in it was sent in it; nothing here uses clocks, projections or slices.
Traces begin at any cut, and their processes come in any order. Results are deterministic and take milliseconds.
"""

import random
from collections.abc import Iterator
from itertools import product

import msgspec
from tests.causality.small_lattices import random_trace
from tests.causality.strategies import cut_off

from strobe.causality.cuts import latest_consistent_cut
from strobe.causality.lattice import Detection, definitely, possibly
from strobe.causality.trace import EventRef, Trace
from strobe.causality.trace_lines import Receive, Send
from strobe.expressions import evaluate, parse
from strobe.expressions.nodes import Expression
from strobe.expressions.values import Value

POOLS: list[list[Value]] = [
    [0, 1, 2],
    [0, 1, 2, None, -1],
    [0, 1, 0.5, True, "up", None],
    ["up", "down", None],
    [True, False],
    [0, 1, [1], {"x": 1}],
]
COMPARISONS = ["==", "!=", "<", "<=", ">", ">="]


def trace_of_values(chosen: random.Random) -> Trace:
    """A trace in which every process sometimes reports x and y, from the beginning or from some cut on."""
    trace = random_trace(chosen.randrange(10**9), long=chosen.choice([6, 9, 12]))
    pool = chosen.choice(POOLS)
    lines = []
    for line in trace.lines():
        if not isinstance(line, Send) and chosen.random() < 0.7:
            fields = {name: chosen.choice(pool) for name in "xy" if chosen.random() < 0.7}
            line = msgspec.structs.replace(line, payload=msgspec.Raw(msgspec.json.encode(fields)))
        lines.append(line)
    processes = list(trace.processes)
    chosen.shuffle(processes)
    shuffled = Trace(msgspec.structs.replace(trace.header, processes=tuple(processes)), lines)
    if chosen.random() < 0.7:
        return shuffled
    upper = {process: chosen.randint(0, shuffled.event_count(process) // 2) for process in processes}
    return cut_off(shuffled, latest_consistent_cut(shuffled, upper))


class World:
    """All consistent cuts of a trace, and its names at each, by the definitions."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.first = {process: trace.first_count(process) for process in trace.processes}
        self.last = {process: trace.event_count(process) for process in trace.processes}
        self.lines = list(trace.lines())
        self.reported = {process: self._reported(process) for process in trace.processes}
        sent_in = {(line.channel, line.ordinal): line for line in self.lines if isinstance(line, Send)}
        received = [line for line in self.lines if isinstance(line, Receive)]
        self.messages = [
            (line.process, line.position, sent.process, sent.position)
            for line in received
            if (sent := sent_in.get((line.channel, line.ordinal))) is not None
        ]
        self.cuts = [cut for cut in self._all() if self._is_consistent(cut)]

    def _reported(self, process: str) -> dict[str, list[Value]]:
        """For each variable, return its value after each event, from the first cut on."""
        found: dict[str, list[Value]] = {}
        for line in self.lines:
            if line.process == process and line.payload and not isinstance(line, Send):
                for name, value in msgspec.json.decode(line.payload).items():
                    own = found.setdefault(name, [None] * (self.last[process] - self.first[process] + 1))
                    place = line.position - self.first[process]
                    own[place:] = [value] * (len(own) - place)
        return found

    def _all(self) -> Iterator[dict[str, int]]:
        ranges = [range(self.first[process], self.last[process] + 1) for process in self.first]
        for positions in product(*ranges):
            yield dict(zip(self.first, positions, strict=True))

    def _is_consistent(self, cut: dict[str, int]) -> bool:
        return all(sent <= cut[source] or received > cut[target] for target, received, source, sent in self.messages)

    def where(self, node: Expression) -> list[dict[str, int]]:
        """Return the consistent cuts at which a condition holds."""
        return [cut for cut in self.cuts if evaluate(node, At(self, cut)) is True]

    def is_way(self, path: tuple[EventRef, ...], good: list[dict[str, int]]) -> bool:
        """Return whether a path leads from the first cut to the last through consistent cuts outside of `good`."""
        cut = dict(self.first)
        passed = [dict(cut)]
        for process, position in path:
            if position != cut[process] + 1:
                return False
            cut[process] = position
            passed.append(dict(cut))
        return cut == self.last and all(each in self.cuts and each not in good for each in passed)

    def is_avoidable(self, good: list[dict[str, int]]) -> bool:
        """Return whether some path leads from the first cut to the last without passing any of `good`."""
        free = {tuple(cut.values()) for cut in self.cuts} - {tuple(cut.values()) for cut in good}
        reached: set[tuple[int, ...]] = set()
        fresh = {tuple(self.first.values())} & free
        while fresh:
            reached |= fresh
            fresh = {(*cut[:p], cut[p] + 1, *cut[p + 1 :]) for cut in fresh for p in range(len(cut))} & free
        return tuple(self.last.values()) in reached


class At:
    """Resolves the names of an expression at one cut."""

    def __init__(self, world: World, cut: dict[str, int]) -> None:
        self.world, self.cut = world, cut

    def variable(self, process: str, path: tuple[str, ...]) -> Value:
        return self.world.reported[process][path[0]][self.cut[process] - self.world.first[process]]

    def count(self, kind: str, name: str | None) -> int:
        if kind == "events":
            return self.cut[name] if name is not None else sum(self.cut.values())
        start = self.world.trace.header.start
        inside = [line for line in self.world.lines if line.position <= self.cut[line.process]]
        channels = [name] if name is not None else list(self.world.trace.channels)
        sent = sum(start.sent.get(channel, 0) for channel in channels)
        received = sent - sum(count for channel in channels for _, count in start.in_flight.get(channel, ()))
        sent += sum(isinstance(line, Send) and line.channel in channels for line in inside)
        received += sum(isinstance(line, Receive) and line.channel in channels for line in inside)
        return {"sent": sent, "received": received, "in_flight": sent - received}[kind]


def random_condition(chosen: random.Random, world: World) -> str:
    """A condition on some of the processes, mostly on two or three of them."""
    processes = list(world.trace.processes)
    about = chosen.sample(processes, min(len(processes), chosen.choice([2, 2, 2, 3, 3, 5])))
    parts = [_comparison(chosen, world, about) for _ in range(chosen.choice([1, 1, 2, 2, 3, 4]))]
    while len(parts) > 1:
        left, right = parts.pop(), parts.pop()
        joined = f"({left} {chosen.choice(['and', 'and', 'or'])} {right})"
        parts.append(f"not {joined}" if chosen.random() < 0.2 else joined)
    return parts[0]


def _comparison(chosen: random.Random, world: World, about: list[str]) -> str:
    kind = chosen.random()
    if kind < 0.4:  # on one process
        process = [chosen.choice(about)]
        text = f"{_leaf(chosen, world, process)} {chosen.choice(COMPARISONS)} {_literal(chosen)}"
    elif kind < 0.7:
        first, second = chosen.sample(about, 2)
        text = f"{_leaf(chosen, world, [first])} {chosen.choice(COMPARISONS)} {_leaf(chosen, world, [second])}"
    else:
        left = f"({_leaf(chosen, world, about)} {chosen.choice('+-*/%')} {_leaf(chosen, world, about)})"
        right = _literal(chosen) if chosen.random() < 0.5 else _count(chosen, world, about)
        text = f"{left} {chosen.choice(COMPARISONS)} {right}"
    return f"not ({text})" if chosen.random() < 0.2 else f"({text})"


def _leaf(chosen: random.Random, world: World, about: list[str]) -> str:
    names = [f"{process}.{name}" for process in about for name in world.reported[process]]
    if names and chosen.random() < 0.7:
        return chosen.choice(names)
    return _count(chosen, world, about)


def _count(chosen: random.Random, world: World, about: list[str]) -> str:
    between = [c.id for c in world.trace.channels.values() if c.source in about and c.target in about]
    if between and chosen.random() < 0.5:
        return f"{chosen.choice(['in_flight', 'sent', 'received'])}({chosen.choice(between)})"
    if chosen.random() < 0.1:
        return chosen.choice(["in_flight()", "sent()", "received()", "events()"])
    return f"events({chosen.choice(about)})"


def _literal(chosen: random.Random) -> str:
    return chosen.choice(["0", "1", "1", "2", "3", "null", '"up"', "true"])


def wrong_answers(seeds: range) -> Iterator[str]:
    """Yield the seeds and conditions whose answers differ from the definitions, and why."""
    for seed in seeds:
        chosen = random.Random(seed)
        world = World(trace_of_values(chosen))
        for _ in range(2):
            condition = random_condition(chosen, world)
            good = world.where(parse(condition))
            problem = _wrong_possibly(world, possibly(world.trace, condition), good)
            problem = problem or _wrong_definitely(world, definitely(world.trace, condition), good)
            if problem:
                yield f"seed {seed}, {condition}: {problem}"


def _wrong_possibly(world: World, found: Detection, good: list[dict[str, int]]) -> str | None:
    if found.answer != bool(good):
        return f"possibly is {found.answer}"
    return None if found.cut is None or found.cut in good else f"it does not hold at {found.cut}"


def _wrong_definitely(world: World, found: Detection, good: list[dict[str, int]]) -> str | None:
    if found.answer != (not world.is_avoidable(good)):
        return f"definitely is {found.answer}"
    if found.answer:
        return None if found.cut in good else f"it does not hold at {found.cut}"
    right = found.path is not None and world.is_way(found.path, good)
    return None if right else f"no way past it: {found.path}"
