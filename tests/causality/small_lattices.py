"""Small random runs with many messages, their lattices by brute force on tuples, and the searches compared with them.

Much faster than hypothesis, and deterministic: a broken rule is found within some hundred runs.
"""

import random
from collections.abc import Iterator
from itertools import product
from types import ModuleType

import numpy as np

from strobe.causality.clocks import vector_clocks
from strobe.causality.lattice.enumeration import Budget, LexicalWalk
from strobe.causality.lattice.order import States
from strobe.causality.lattice.parts import Joined, Table, value_at
from strobe.causality.lattice.paths import LevelWalk, guarded_path
from strobe.causality.lattice.run import TraceRun, clock_table
from strobe.causality.trace import Trace
from strobe.causality.trace_lines import Internal, Receive, Send, header_of
from strobe.protocol.values.view import ChannelSpec, View

RUNS = 300


def random_trace(seed: int, wide: int = 5, long: int = 11) -> Trace:
    """Two to five processes that often exchange messages."""
    chosen = random.Random(seed)
    names = tuple("abcde"[: chosen.randint(2, wide)])
    channels = tuple(ChannelSpec(s + t, s, t, "unordered") for s in names for t in names if s != t)
    positions, sent = dict.fromkeys(names, 0), dict.fromkeys((channel.id for channel in channels), 0)
    in_flight: list[tuple[str, int]] = []
    lines = []
    for _ in range(chosen.randint(4, long)):
        process = chosen.choice(names)
        positions[process] += 1
        here = [message for message in in_flight if message[0][1] == process]
        if here and chosen.random() < 0.7:
            message = chosen.choice(here)
            in_flight.remove(message)
            lines.append(Receive(process, positions[process], *message))
        else:
            lines.append(Internal(process, positions[process]))
        for target in names:
            if target != process and chosen.random() < 0.4:
                sent[process + target] += 1
                in_flight.append((process + target, sent[process + target]))
                lines.append(Send(process, positions[process], process + target, sent[process + target]))
    return Trace(header_of(View(1, names, channels)), lines)


def all_states(run: TraceRun) -> list[States]:
    """Return every consistent cut in lexical order, by trying all."""
    clocks = vector_clocks(run.trace)
    rows = [[[0] * len(run.lengths)] for _ in run.lengths]
    for number, process in enumerate(run.processes):
        for position in range(1, run.lengths[number] + 1):
            clock = clocks[process, position]
            rows[number].append([clock[other] for other in run.processes])
    return [
        states
        for states in product(*(range(length + 1) for length in run.lengths))
        if all(need <= have for p, k in enumerate(states) for need, have in zip(rows[p][k], states, strict=True))
    ]


def avoidable(run: TraceRun, cuts: list[States], good: set[States]) -> bool:
    """Return whether some path leads from the first cut to the last without passing any of `good`."""
    free, reached = set(cuts) - good, set()
    fresh = {run.bottom} & free
    while fresh:
        reached |= fresh
        fresh = {(*c[:p], c[p] + 1, *c[p + 1 :]) for c in fresh for p in range(len(c))} & free
    return run.top in reached


def is_way(run: TraceRun, steps: list[int], cuts: list[States], good: set[States]) -> bool:
    """Return whether `steps` lead from the first cut to the last through consistent cuts outside of `good`."""
    allowed, states = set(cuts) - good, run.bottom
    for process in steps:
        states = (*states[:process], states[process] + 1, *states[process + 1 :])
        if states not in allowed:
            return False
    return states == run.top and run.bottom in allowed


class OneOf:
    """A condition that holds at exactly these cuts."""

    def __init__(self, good: set[States]) -> None:
        self.good = good

    def at(self, states: States) -> bool:
        return states in self.good

    def at_cuts(self, cuts: np.ndarray) -> np.ndarray:
        return np.array([tuple(cut) in self.good for cut in cuts.tolist()], bool)


def wrong_walks() -> Iterator[int]:
    """Yield the seeds for which the lexical walk differs from the list of all consistent cuts."""
    for seed in range(RUNS):
        run = TraceRun(random_trace(seed))
        walked = [tuple(row) for block in LexicalWalk(run, Budget(None)).blocks() for row in block.tolist()]
        if walked != all_states(run):
            yield seed


def wrong_levels() -> Iterator[int]:
    """Yield the seeds for which the search by levels does not find a path exactly if there is one."""
    for seed in range(RUNS):
        run = TraceRun(random_trace(seed))
        cuts = all_states(run)
        good = {cut for cut in cuts[1:] if random.Random(f"{seed} {cut}").random() < 0.5}
        steps, certain = LevelWalk(run, OneOf(good), 10**6).path()  # type: ignore[arg-type]
        right = is_way(run, steps, cuts, good) if steps is not None else not avoidable(run, cuts, good)
        if not (certain and right):
            yield seed


def wrong_clocks(kernels: object) -> Iterator[int]:
    for seed in range(RUNS):
        trace = random_trace(seed)
        table, starts = clock_table(trace, kernels)
        for number, process in enumerate(trace.processes):
            rows = table[starts[number] + 1 : starts[number] + 1 + trace.event_count(process)]
            if rows.flatten().tolist() != list(vector_clocks(trace).rows(process)):
                yield seed


def random_conjunctions() -> Iterator[tuple[int, TraceRun, list[States], dict[int, list[bool]], set[States]]]:
    """Yield seeds, runs, all their cuts, which states of some processes are good, and at which cuts all are good."""
    for seed in range(RUNS):
        run, chosen = TraceRun(random_trace(seed, wide=3, long=18)), random.Random(-seed)
        cuts, rate = all_states(run), chosen.choice([0.3, 0.6, 0.8])
        tables = {
            process: [chosen.random() < rate for _ in range(length + 1)]
            for process, length in enumerate(run.lengths)
            if chosen.random() < 0.8
        }
        yield seed, run, cuts, tables, {cut for cut in cuts if all(of[cut[process]] for process, of in tables.items())}


def wrong_slices(projection: ModuleType) -> Iterator[int]:
    """Yield the seeds for which the slice is not exactly the cuts at which the processes are good, each once."""
    for seed, run, _, tables, good in random_conjunctions():
        numbers = [Table(process, range(length + 1)) for process, length in enumerate(run.lengths)]
        order = projection.sliced(projection.projected(run, numbers), tables)
        found: list[States] = []
        if order is not None:
            for block in LexicalWalk(order, Budget(None)).blocks():
                found += [order.lifted(tuple(row)) for row in block.tolist()]
        if sorted(found) != sorted(good):
            yield seed


def wrong_pairs(pairs: ModuleType) -> Iterator[int]:
    """Yield the seeds for which the comparison of two processes finds a wrong pair, or misses one."""
    for seed in range(RUNS):
        run, chosen = TraceRun(random_trace(seed, wide=2, long=40)), random.Random(-seed)
        pool = chosen.choice([[0, 1, 2, 3], [0, 1, True, None], ["x", "y", 1, None, 1.5]])
        operator = chosen.choice(["==", "!=", "!=", "<", "<=", ">", ">="])
        if operator == "!=":
            pool = [0] * 12 + [1, True]  # so that it holds at few cuts
        tables = [Table(process, [chosen.choice(pool) for _ in range(n + 1)]) for process, n in enumerate(run.lengths)]
        if operator == "==":
            tables[1] = Table(1, sorted(tables[1].values, key=repr))
        chosen.shuffle(tables)
        good = [cut for cut in all_states(run) if value_at(Joined(operator, tuple(tables)), cut)]
        found = pairs.consistent_pair(run, Joined(operator, tuple(tables)))
        if found not in good if good else found is not None:
            yield seed


def wrong_conjunctions(conjunctive: ModuleType) -> Iterator[int]:
    """Yield the seeds for which a conjunction's least cut, its unavoidability or the path around it is wrong."""
    for seed, run, cuts, tables, good in random_conjunctions():
        least = conjunctive.least_cut(run, tables)
        right = least == (tuple(map(min, zip(*good, strict=True))) if good else None)
        overlap, way_past = conjunctive.unavoidable(run, tables), avoidable(run, cuts, good)
        right = right and (overlap is None) == way_past
        if way_past and right:
            steps = guarded_path(run, tables)
            right = steps is not None and is_way(run, steps, cuts, good)
        if not right:
            yield seed
