"""What a measurement gives: figures, each with its goal and the command that measures it."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """One measured figure. `goal` is what it ought to be, in words; `met` is None where there is no goal.

    `where` says on what it was measured: the machine, and the versions of all that takes part.
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
    """Return the processor seconds that `work` takes, in all its threads."""
    start = time.process_time()
    work()
    return time.process_time() - start


def wall_s(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(rounds: int, *measures: Callable[[], float]) -> list[float]:
    """Take every measure in turn, `rounds` times, and return the median of each: noise hits all alike."""
    taken = [[measure() for measure in measures] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*taken, strict=True)]
