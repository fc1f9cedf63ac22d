"""The lattice of consistent cuts: traversal, against pure Python and numpy; vector clocks; a replicated log."""

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.causality.lattice_traces import PROCESSES, random_trace, replicated_log, trace_of
from bench.figures import Figure, at_least, at_most, cpu_s, interleaved, shown, wall_s
from strobe.causality.lattice.compiled import compiled
from strobe.causality.lattice.conditions import Condition
from strobe.causality.lattice.detection import Detection, possibly
from strobe.causality.lattice.enumeration import Budget, LexicalWalk
from strobe.causality.lattice.programs import CompiledCondition
from strobe.causality.lattice.run import TraceRun, clock_inputs
from strobe.causality.trace import Trace
from strobe.traces.clock_logs import to_log

COMMAND = "python -m bench lattice"
_CUTS_MIN = 10_000_000
_ENUMERATED_MAX = 100_000_000
_LOADS = 5


def walk(run: TraceRun) -> int:
    """Visit all consistent cuts; return how many there are."""
    budget = Budget(None)
    for _ in LexicalWalk(run, budget).blocks():
        pass
    return budget.examined


def in_pure_python(run: TraceRun) -> int:
    """The same algorithm on lists."""
    width, lengths = len(run.lengths), run.lengths
    clocks = [[list(run.needs(p, k)) for k in range(lengths[p] + 1)] for p in range(width)]
    cut, count = [0] * width, 1
    while True:
        k = width - 1
        while k >= 0:
            if cut[k] < lengths[k]:
                row = clocks[k][cut[k] + 1]
                if all(row[i] <= cut[i] for i in range(k)):
                    break
            k -= 1
        if k < 0:
            return count
        cut[k] += 1
        for j in range(k + 1, width):
            cut[j] = max(clocks[i][cut[i]][j] for i in range(k + 1))
        count += 1


def by_levels(run: TraceRun) -> int:
    """All cuts with one event, with two, and so on, as arrays; duplicates are removed by sorting."""
    clocks, starts, lengths = run.arrays()
    radix = np.concatenate(([1], np.cumprod(lengths + 1)[:-1]))
    level, count = np.zeros((1, len(lengths)), np.int64), 0
    while len(level):
        count += len(level)
        following = []
        for p in range(len(lengths)):
            room = level[level[:, p] < lengths[p]]
            needs = clocks[starts[p] + room[:, p] + 1].copy()
            needs[:, p] = 0
            ready = room[(needs <= room).all(axis=1)].copy()
            ready[:, p] += 1
            following.append(ready)
        cuts = np.concatenate(following)
        level = cuts[np.unique(cuts @ radix, return_index=True)[1]]
    return count


def _clocks() -> Iterator[Figure]:
    processes, rows, cause_starts, causes, _, total = clock_inputs(random_trace(1_000_000, 0.8))
    kernel = compiled().clock_rows
    table = np.zeros((total, PROCESSES), np.int32)
    kernel(processes, rows, cause_starts, causes, table)  # compile, and touch the memory
    (taken,) = interleaved(7, lambda: cpu_s(lambda: kernel(processes, rows, cause_starts, causes, table)))
    yield at_most("vector clocks of 1 million events of 8 processes, kernel", taken * 1000, "ns/event", 40, COMMAND)


def _log() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "events.log"
        log.write_text("".join(to_log(random_trace(10_000, 0.8))), encoding="utf-8")
        command = [sys.executable, "-m", "strobe", "trace", "import", str(log), "--json"]

        def load() -> None:
            found: Any = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            assert found["executions"][0]["events"] == 10_000

        load()
        before = _children_s()
        (taken,) = interleaved(_LOADS, lambda: wall_s(load))
        worked = (_children_s() - before) / _LOADS
    yield at_most("vector-clock log of 10,000 events: start, load, validate", taken, "s", 1, COMMAND)
    yield shown("the same, in processor time", worked, "CPU s", COMMAND)


def _children_s() -> float:
    """Return the CPU seconds of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _walks() -> Iterator[Figure]:
    large, small = TraceRun(random_trace(96, 0.5)), TraceRun(random_trace(64, 0.8))
    cuts, few = walk(large), walk(small)
    assert cuts > _CUTS_MIN, cuts
    assert in_pure_python(small) == by_levels(small) == few
    impossible = "in_flight() > events() + 1"
    walked, searched, python, levels = interleaved(
        5,
        lambda: cpu_s(lambda: walk(large)),
        lambda: cpu_s(lambda: possibly(large.trace, impossible)),
        lambda: cpu_s(lambda: in_pure_python(small)),
        lambda: cpu_s(lambda: by_levels(small)),
    )
    rate = "million cuts/CPU s"
    yield at_least(f"lexical enumeration, 8 processes, {cuts:,} cuts", cuts / walked / 1e6, rate, 30, COMMAND)
    yield shown("the same with a condition on all processes and channels", cuts / searched / 1e6, rate, COMMAND)
    yield shown(f"in pure Python, {few:,} cuts", few / python / 1e6, rate, COMMAND)
    yield shown("with numpy level by level, the same cuts", few / levels / 1e6, rate, COMMAND)


def by_enumeration(run: TraceRun, expression: str) -> tuple[bool | None, int]:
    """Return whether a condition holds at any consistent cut of the run, and how many cuts were checked."""
    budget, condition = Budget(_ENUMERATED_MAX), CompiledCondition(Condition(run, expression).part)
    walk = LexicalWalk(run, budget)
    for block in walk.blocks():
        if condition.at_cuts(block).any():
            return True, budget.examined
    return (False if walk.complete else None), budget.examined


def _projections() -> Iterator[Figure]:
    """Questions about two of several processes, against the enumeration of all cuts, stopped at 100 million."""
    log, apart = replicated_log(543), trace_of([lambda at: at % 2] * 12, 20)
    cases = [
        (log, "n1.commit > n0.commit", "replicated log, 5 processes, 4,887 events, n1.commit > n0.commit"),
        (log, "n1.commit - n0.commit > 0", "the same log, n1.commit - n0.commit > 0"),
        (
            apart,
            "p0.x == 1 and p1.x == 0 and p0.x > p1.x",
            "12 processes without messages, p0.x > p1.x",
        ),
    ]
    for trace, expression, name in cases:
        yield from _against_enumeration(trace, expression, name)


def _against_enumeration(trace: Trace, expression: str, name: str) -> Iterator[Figure]:
    answer = possibly(trace, expression).answer
    found, seen = by_enumeration(TraceRun(trace), expression)
    assert answer is not None
    assert found in (answer, None)
    (taken,) = interleaved(5, lambda: cpu_s(lambda: possibly(trace, expression)))
    (plain,) = interleaved(1, lambda: cpu_s(lambda: by_enumeration(TraceRun(trace), expression)))
    outcome = "undecided" if found is None else "decided"
    yield at_most(f"possibly, {name}: {'yes' if answer else 'no'}", taken * 1000, "CPU ms", 1000, COMMAND)
    yield shown(f"the same by enumeration, {outcome} after {seen:,} cuts: times as long", plain / taken, "x", COMMAND)


def _comparisons() -> Iterator[Figure]:
    """Compare variables by `==` and by `>`, on the same cuts; neither holds at any of them."""
    trace = trace_of([lambda at, number=number: 10_000 * number + at for number in range(3)], 250)

    def ask(operator: str) -> Detection:
        return possibly(trace, f"p0.x > 0 and p0.x {operator} p1.x and p1.x {operator} p2.x")

    assert ask("==").answer is ask(">").answer is False
    equal, greater = interleaved(5, lambda: cpu_s(lambda: ask("==")), lambda: cpu_s(lambda: ask(">")))
    cuts = f"{ask('==').examined:,} cuts"
    yield at_most(f"== between variables, against > on the same {cuts}", equal / greater, "x", 2, COMMAND)


def measure() -> list[Figure]:
    return [*_walks(), *_projections(), *_comparisons(), *_clocks(), *_log()]
