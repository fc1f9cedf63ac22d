"""Enumerates every consistent cut of a run in lexical order, in constant memory."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from strobe.causality.lattice.compiled import kernels_for, plain_cuts_max, require_numpy
from strobe.causality.lattice.order import Order
from strobe.causality.lattice.run import TraceRun
from strobe.causality.trace import Trace

if TYPE_CHECKING:
    from strobe.causality.lattice.order import Integers

CUTS_MAX = 100_000_000
_AT_ONCE = 16_384
_AT_ONCE_BYTES = 1 << 24

Progress = Callable[[int], None]
"""Called regularly with the number of cuts examined."""


class CutCount(msgspec.Struct, frozen=True):
    """How many consistent cuts there are; if not `complete`, there are more."""

    cuts: int
    complete: bool


class Budget:
    """The number of cuts that may be examined, `cuts_max` (None: all), shared by walks that take turns."""

    def __init__(self, cuts_max: int | None, progress: Progress | None = None) -> None:
        self.examined = 0
        self._cuts_max = cuts_max
        self._progress = progress

    @property
    def left(self) -> int | None:
        """How many more cuts may be examined; None if there is no limit."""
        return None if self._cuts_max is None else self._cuts_max - self.examined

    def take(self, cuts: int) -> None:
        """Count examined cuts."""
        self.examined += cuts

    def report(self) -> None:
        """Report the progress."""
        if self._progress is not None:
            self._progress(self.examined)


def count_cuts(trace: Trace, cuts_max: int = CUTS_MAX, progress: Progress | None = None) -> CutCount:
    """Count the consistent cuts of a trace, up to `cuts_max`."""
    budget = Budget(cuts_max, progress)
    walk = LexicalWalk(TraceRun(trace), budget)
    for _ in walk.blocks():
        pass
    return CutCount(budget.examined, walk.complete)


def consistent_cuts(trace: Trace) -> Iterator[dict[str, int]]:
    """Yield every consistent cut of a trace, in lexical order of the processes of its header."""
    run = TraceRun(trace)
    for block in LexicalWalk(run, Budget(None)).blocks():
        for states in block.tolist():
            yield run.positions(tuple(states))


class LexicalWalk:
    """A walk over all consistent cuts within the budget; one of `walks` that share the memory for blocks."""

    def __init__(self, order: Order, budget: Budget, walks: int = 1) -> None:
        require_numpy()
        self.order = order
        self.complete = False
        self._budget = budget
        self._at_once = max(1, min(_AT_ONCE, _AT_ONCE_BYTES // (8 * len(order.lengths) * walks or 1)))

    def blocks(self) -> "Iterator[Integers]":
        """Yield the cuts in blocks of rows; requesting the next block overwrites the last."""
        import numpy as np

        clocks, starts, lengths = self.order.arrays()
        width = len(lengths)
        limits = _limits(clocks, starts, lengths)
        cut, tops = np.zeros(width, np.int64), np.zeros(width, np.int64)
        floors = np.zeros((width, width), np.int64)
        buffer = np.zeros((self._at_once, width), np.int64)
        first = 1  # the least cut has no predecessor: the buffer begins with it
        while not self.complete and (room := self._room()) > 0:
            kernel = kernels_for(self._budget.examined, width).lexical
            found = first + kernel(clocks, starts, lengths, limits, cut, floors, tops, buffer[first:room])
            first = 0
            self.complete = bool((cut == lengths).all())
            assert self.complete or found == room, "the last consistent cut has every event"
            self._budget.take(found)
            yield buffer[:found]
            self._budget.report()

    def _room(self) -> int:
        plain = plain_cuts_max(len(self.order.lengths)) - self._budget.examined
        room = min(plain, self._at_once) if plain > 0 else self._at_once
        left = self._budget.left
        return room if left is None else min(room, left)


def _limits(clocks: "Integers", starts: "Integers", lengths: "Integers") -> "Integers":
    """Return for each state of each process the last state of the last process that needs no later state of it."""
    import numpy as np

    of_last = clocks[starts[-1] :]
    return np.concatenate(
        [
            np.searchsorted(of_last[:, process], np.arange(length + 1), side="right") - 1
            for process, length in enumerate(lengths)
        ]
    )
