"""Stable predicates: on one snapshot of many processes, against networkx; over many, on Spark against a loop."""

import tempfile
from collections.abc import Callable, Iterator
from cProfile import Profile
from pathlib import Path
from typing import Any

import networkx as nx

from bench.figures import Figure, at_most, cpu_of_tree_s, cpu_s, interleaved, shown, wall_s
from bench.spark.predicate_snapshots import snapshot_of
from bench.spark.spark_stores import fill
from strobe.causality.predicate_input import PredicateInput, predicate_input_of
from strobe.causality.predicates import deadlock, garbage, termination
from strobe.spark import deadlocked, local_session, stop_local_session, tables, terminated
from strobe.spark import garbage as garbage_on_spark
from strobe.storage import Store

COMMAND = "python -m bench predicates"
_SMALL, _LARGE = 10_000, 100_000
_GROWTH_MAX = 10.5
_ROUNDS = 5
_SNAPSHOTS, _PROCESSES = 200, 12
_ROOT = ""


def deadlock_with_networkx(facts: PredicateInput) -> set[str]:
    """All waits are for all members: a process is stuck if it is in a cycle, or waits for a stuck process."""
    graph = nx.DiGraph()
    for process, declaration in facts.declarations.items():
        if declaration.declared.waits is not None:
            waits = (one for one in declaration.declared.waits.processes if isinstance(one, str))
            graph.add_edges_from((one, process) for one in waits if not facts.need_not_count(process, one))
    cores = [core for core in nx.strongly_connected_components(graph) if len(core) > 1]
    graph.add_edges_from((_ROOT, process) for core in cores for process in core)
    return set(nx.descendants(graph, _ROOT)) if cores else set()


def garbage_with_networkx(facts: PredicateInput) -> set[str]:
    """The objects that are not descendants of a process that can act, or of a message."""
    graph = nx.DiGraph()
    holders: set[str] = set()
    for process, declaration in facts.declarations.items():
        holders.update(declaration.declared.references)
        for holder, names in declaration.declared.references.items():
            graph.add_edges_from((holder, name) for name in names)
        if declaration.awake:
            graph.add_edge(_ROOT, process)
    graph.add_edges_from((_ROOT, name) for name in facts.receiving | facts.carried)
    return holders - nx.descendants(graph, _ROOT)


def termination_in_python(facts: PredicateInput) -> set[str]:
    return {process for process, declaration in facts.declarations.items() if declaration.declared.active}


def _on_one() -> Iterator[Figure]:
    snapshots = snapshot_of(_SMALL), snapshot_of(_LARGE)
    small, large = map(predicate_input_of, snapshots)
    assert set(deadlock(large).processes) == deadlock_with_networkx(large)
    assert set(garbage(large).garbage) == garbage_with_networkx(large)
    assert set(termination(large).active) == termination_in_python(large)
    yield from _compared("predicate input of a snapshot", predicate_input_of, *snapshots, None, "")
    yield from _compared("deadlock", deadlock, small, large, deadlock_with_networkx, "networkx")
    yield from _compared("garbage", garbage, small, large, garbage_with_networkx, "networkx")
    yield from _compared(
        "termination", termination, small, large, termination_in_python, "naming who is active in Python"
    )


def _compared(
    name: str, ours: Callable[[Any], Any], small: Any, large: Any, other: Callable[[Any], Any] | None, what: str
) -> Iterator[Figure]:
    # A small one is evaluated ten times, because a single millisecond cannot be measured well.
    tenfold, taken, others = interleaved(
        _ROUNDS,
        lambda: cpu_s(lambda: [ours(small) for _ in range(10)]),
        lambda: cpu_s(lambda: ours(large)),
        lambda: cpu_s(lambda: other(large)) if other is not None else 0.0,
    )
    yield shown(f"{name}, {_LARGE:,} processes", taken * 1000, "CPU ms", COMMAND)
    # Calls count the work itself; time also grows by cache misses.
    growth = _calls(lambda: ours(large)) / _calls(lambda: ours(small))
    yield at_most(f"{name}, ten times the processes", growth, "x calls", _GROWTH_MAX, COMMAND)
    yield shown("the same, in processor time", taken / (tenfold / 10), "x CPU", COMMAND)
    if other is not None:
        yield shown(f"{name}, against {what}", others / taken, "x", COMMAND)


def _on_many() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "store")
        fill(Path(path), [snapshot_of(_PROCESSES, counter) for counter in range(1, _SNAPSHOTS + 1)])
        spark = local_session()

        def in_loop() -> list[int]:
            store = Store.open(path)
            inputs = [predicate_input_of(store.load(name)) for _, name, _ in store.list()]
            return [
                sum(len(deadlock(one).processes) for one in inputs),
                sum(len(garbage(one).garbage) for one in inputs),
                sum(termination(one).holds for one in inputs),
            ]

        def on_spark() -> list[int]:
            stored = tables(spark, path)
            return [found(stored).count() for found in (deadlocked, garbage_on_spark, terminated)]

        first_s = wall_s(lambda: _same(on_spark(), in_loop()))
        spark_s, loop_s, spark_cpu_s = interleaved(
            2, lambda: wall_s(on_spark), lambda: wall_s(in_loop), lambda: _tree_s(on_spark)
        )
        stop_local_session()
    many = f"{_SNAPSHOTS} snapshots of {_PROCESSES} processes"
    yield shown(f"all three on Spark, {many}, the first time", first_s, "s", COMMAND)
    yield shown("the same later", spark_s, "s", COMMAND)
    yield shown("the same, in processor time of all", spark_cpu_s, "CPU s", COMMAND)
    yield shown("Spark against a Python loop over the same store", loop_s / spark_s, "x", COMMAND)


def _calls(work: Callable[[], Any]) -> int:
    """Return the number of calls that `work` makes: of Python and C functions, and of generators for each item."""
    profile = Profile()
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())


def _same(first: list[int], second: list[int]) -> None:
    assert first == second, (first, second)
    assert all(first[:2]), first


def _tree_s(work: Callable[[], Any]) -> float:
    before = cpu_of_tree_s()
    work()
    return cpu_of_tree_s() - before


def measure() -> list[Figure]:
    return [*_on_one(), *_on_many()]
