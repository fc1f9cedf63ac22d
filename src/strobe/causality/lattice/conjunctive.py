"""Conjunctions of conditions on one process each: decided in polynomial time, without searching the lattice.

*Possibly* (V. Garg and B. Waldecker, "Detection of weak unstable predicates", 1994). Begin with the first state in
which each process fulfils its own condition. If the state of p needs more events of q than q has had, no cut with p
there or later has q in its current state, so q moves on to its next good state. When nothing must move any more, this
is the least cut at which all conditions hold. If a process has no next good state, there is none.

*Definitely* (the same, "Detection of strong unstable predicates", 1996). Take for each process a stretch of good
states. The stretches overlap for every observer exactly if each has begun before any of them ends, in the order of
happens-before: the event that begins p's is in the causal past of the event that ends q's. If it is not, q's stretch
may be over before p's begins, or any later one of p, so q moves on to its next stretch. If a process has no next
stretch, some observer may never see the condition hold.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from strobe.causality.lattice.order import Order, States

Tables = Mapping[int, Sequence[bool]]
"""For each process, in which of its states it fulfils its own condition."""


class Stretch(msgspec.Struct, frozen=True):
    """Consecutive states of a process, from `first` to `last`. Its condition holds in all of them, or in none."""

    first: int
    last: int


def least_cut(run: Order, tables: Tables) -> States | None:
    """Return the least consistent cut at which every condition holds, or None."""
    states = list(run.bottom)
    for process, table in tables.items():
        first = _next_good(table, 0)
        if first is None:
            return None
        states[process] = first
    unsettled = list(range(len(states)))
    while unsettled:
        process = unsettled.pop()
        for other, need in enumerate(run.needs(process, states[process])):
            if states[other] < need:
                good = _next_good(tables[other], need) if other in tables else need
                if good is None:
                    return None
                states[other] = good
                unsettled.append(other)
    return tuple(states)


def unavoidable(run: Order, tables: Tables) -> dict[int, Stretch] | None:
    """Return stretches that overlap for every observer, one per process with a condition; None if there are none."""
    stretches = {process: _stretches(table, True) for process, table in tables.items()}
    current: dict[int, Stretch] = {}
    for process, own in stretches.items():
        if (stretch := next(own, None)) is None:
            return None
        current[process] = stretch
    unsettled = list(current)
    while unsettled:
        process = unsettled.pop()
        for first, second in _pairs(process, current):
            if not _begins_before_end(run, first, current[first], second, current[second]):
                if (stretch := next(stretches[second], None)) is None:
                    return None
                current[second] = stretch
                unsettled.append(second)
                if second == process:
                    break
    return current


def bad_stretches(table: Sequence[bool]) -> Iterator[Stretch]:
    """Yield the stretches of states in which a condition does not hold."""
    return _stretches(table, False)


def _pairs(process: int, current: Mapping[int, Stretch]) -> Iterator[tuple[int, int]]:
    for other in list(current):
        if other != process:
            yield process, other
            yield other, process


def _begins_before_end(run: Order, first: int, begins: Stretch, second: int, ends: Stretch) -> bool:
    """Whether the event that begins a stretch of `first` happened before the event that ends a stretch of `second`.

    A stretch from the initial state on begins before everything; a stretch up to the last state never ends.
    """
    if ends.last == run.lengths[second]:
        return True
    return run.needs(second, ends.last + 1)[first] >= begins.first


def _next_good(table: Sequence[bool], state: int) -> int | None:
    while state < len(table):
        if table[state]:
            return state
        state += 1
    return None


def _stretches(table: Sequence[bool], good: bool) -> Iterator[Stretch]:
    first: int | None = None
    for state, value in enumerate(table):
        if value == good and first is None:
            first = state
        elif value != good and first is not None:
            yield Stretch(first, state - 1)
            first = None
    if first is not None:
        yield Stretch(first, len(table) - 1)
