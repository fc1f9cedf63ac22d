"""A comparison of one process with another: decided in one sweep over their states.

Go through the states of one process in order. The states of the other that are consistent with each are a stretch, and
both its ends only move forward. So it is enough to keep the values of the stretch that the comparison needs: for an
ordering the least or greatest value, for an equality the values themselves. Every state is added once and removed once.

(A. Tomlinson and V. Garg, "Detecting relational global predicates in distributed systems", 1993. For conditions in
general the question is NP-complete: C. Chase and V. Garg, "Detection of global predicates", 1998.)
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from strobe.causality.lattice.order import Order, States
from strobe.causality.lattice.parts import Joined, Part, Table
from strobe.expressions.nodes import EQUALITIES, ORDERINGS
from strobe.expressions.values import BINARY, Value, is_number


def is_pair(part: Joined) -> bool:
    """Whether this is a comparison of a value of one process with a value of another."""
    if part.operator not in (*EQUALITIES, *ORDERINGS):
        return False
    return all(isinstance(inner, Table) and not _has_containers(inner) for inner in part.parts)


def consistent_pair(order: Order, part: Part) -> States | None:
    """Return a cut at which `part`, a comparison of two processes, holds; None if there is none."""
    assert isinstance(part, Joined)
    left, right = (inner for inner in part.parts if isinstance(inner, Table))
    assert left.process is not None
    assert right.process is not None
    stretch = _stretch(part.operator)
    following = 0
    for state, value in enumerate(left.values):
        while following < len(right.values) and order.needs(right.process, following)[left.process] <= state:
            stretch.add(following, right.values[following])
            following += 1
        found = stretch.match(value, order.needs(left.process, state)[right.process])
        if found is not None:
            return order.with_past(order.with_past(order.bottom, left.process, state), right.process, found)
    return None


class _Stretch(Protocol):
    """Consecutive states of a process, with their values."""

    def add(self, state: int, value: Value) -> None:
        """Extend the stretch to this state."""

    def match(self, value: Value, first: int) -> int | None:
        """Let the stretch begin with state `first`; return a state in it whose value matches `value`, if any."""


def _stretch(operator: str) -> _Stretch:
    if operator == "==":
        return _Equal()
    return _Different() if operator == "!=" else _Ordered(BINARY[operator])


class _Ordered:
    """Keeps each value that no later value is better than: the first is the best."""

    def __init__(self, compare: Callable[[Value, Value], Value]) -> None:
        self._compare = compare
        self._numbers: deque[tuple[int, Value]] = deque()
        self._texts: deque[tuple[int, Value]] = deque()

    def add(self, state: int, value: Value) -> None:
        kept = self._kept(value)
        # Whatever compares with the earlier value compares with this one too, and this one stays longer.
        while kept and self._compare(kept[-1][1], value):
            kept.pop()
        kept.append((state, value))

    def match(self, value: Value, first: int) -> int | None:
        kept = self._kept(value)
        while kept and kept[0][0] < first:
            kept.popleft()
        return kept[0][0] if kept and self._compare(value, kept[0][1]) else None

    def _kept(self, value: Value) -> deque[tuple[int, Value]]:
        if is_number(value):
            return self._numbers
        return self._texts if isinstance(value, str) else deque()


class _Equal:
    """Keeps the last state with each value."""

    def __init__(self) -> None:
        self._states: dict[tuple[bool, Value], int] = {}

    def add(self, state: int, value: Value) -> None:
        self._states[_key(value)] = state

    def match(self, value: Value, first: int) -> int | None:
        state = self._states.get(_key(value), -1)
        return state if state >= first else None


class _Different:
    """Keeps the last state, and the last state with a different value."""

    def __init__(self) -> None:
        self._last = self._other = (-1, (False, None))

    def add(self, state: int, value: Value) -> None:
        if self._last[1] != _key(value):
            self._other = self._last
        self._last = (state, _key(value))

    def match(self, value: Value, first: int) -> int | None:
        state, key = self._last
        if key == _key(value):
            state = self._other[0]
        return state if state >= first else None


def _key(value: Value) -> tuple[bool, Value]:
    """Return a key that is equal exactly for equal values: true is not 1, but 1 is 1.0."""
    return isinstance(value, bool), value


def _has_containers(table: Table) -> bool:
    return any(isinstance(value, list | dict) for value in table.values)
