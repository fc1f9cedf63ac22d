"""The results of a measurement: figures, each with its goal and the command that measures it."""

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """One measured figure. `goal` is its goal in words; `met` is None if there is no goal.

    `where` is the environment: the machine, and the versions of everything involved.
    """

    name: str
    value: float
    unit: str
    goal: str
    met: bool | None
    command: str
    where: str = ""


def at_least(name: str, value: float, unit: str, goal: float, command: str) -> Figure:
    return Figure(name, value, unit, f">= {goal:g}", value >= goal, command)


def at_most(name: str, value: float, unit: str, goal: float, command: str) -> Figure:
    return Figure(name, value, unit, f"<= {goal:g}", value <= goal, command)


def shown(name: str, value: float, unit: str, command: str) -> Figure:
    return Figure(name, value, unit, "", None, command)


def cpu_s(work: Callable[[], Any]) -> float:
    """Return the CPU seconds that `work` takes, in all its threads."""
    start = time.process_time()
    work()
    return time.process_time() - start


def wall_s(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(rounds: int, *measures: Callable[[], float]) -> list[float]:
    """Run the measures in turn, `rounds` times, and return the median of each: noise affects all equally."""
    taken = [[measure() for measure in measures] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*taken, strict=True)]


def cpu_of_tree_s() -> float:
    """Return the CPU seconds so far of this process and all its descendants: Java, and its Python workers."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        words = rest.split()
        # Including ended children, because workers come and go.
        stats[int(name.split()[0])] = int(words[1]), sum(map(int, words[11:15]))
    total, wanted = 0, {os.getpid()}
    while wanted:
        total += sum(stats[pid][1] for pid in wanted if pid in stats)
        wanted = {pid for pid, (parent, _) in stats.items() if parent in wanted}
    return total / os.sysconf("SC_CLK_TCK")
