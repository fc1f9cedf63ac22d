"""Every consistent cut of a run, one after the other in lexical order, in memory that stays the same."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from strobe.causality.lattice.compiled import PLAIN, Kernels, compiled, require_numpy
from strobe.causality.lattice.run import Run
from strobe.causality.trace import Trace

if TYPE_CHECKING:
    from strobe.causality.lattice.run import Integers

CUTS_MAX = 100_000_000
PLAIN_CUTS_MAX = 4_096
"""So many are looked at without the compiler: they take less time than its import."""
_AT_ONCE = 16_384

Progress = Callable[[int], None]
"""Is told, now and then, how many cuts were looked at."""


class CutCount(msgspec.Struct, frozen=True):
    """How many consistent cuts there are; where not `complete`, there are more."""

    cuts: int
    complete: bool


def count_cuts(trace: Trace, cuts_max: int = CUTS_MAX, progress: Progress | None = None) -> CutCount:
    """Count the consistent cuts of a trace, up to `cuts_max`."""
    walk = LexicalWalk(Run(trace), cuts_max, progress)
    for _ in walk.blocks():
        pass
    return CutCount(walk.examined, walk.complete)


def consistent_cuts(trace: Trace) -> Iterator[dict[str, int]]:
    """Yield every consistent cut of a trace, in lexical order of the processes of its header."""
    run = Run(trace)
    for block in LexicalWalk(run, None).blocks():
        for states in block.tolist():
            yield run.positions(tuple(states))


class LexicalWalk:
    """A walk over all consistent cuts, or over the first `cuts_max` of them."""

    def __init__(self, run: Run, cuts_max: int | None, progress: Progress | None = None) -> None:
        require_numpy()
        self.run = run
        self.examined = 0
        self.complete = False
        self._cuts_max = cuts_max
        self._progress = progress

    def blocks(self) -> "Iterator[Integers]":
        """Yield the cuts in blocks of rows; a block is overwritten when the next is asked for."""
        import numpy as np

        clocks, starts, lengths = self.run.arrays()
        width = len(lengths)
        limits = _limits(clocks, starts, lengths)
        cut, tops = np.zeros(width, np.int64), np.zeros(width, np.int64)
        floors = np.zeros((width, width), np.int64)
        buffer = np.zeros((_AT_ONCE, width), np.int64)
        first = 1  # the least cut, which follows no other: the buffer begins as it
        while not self.complete and (room := self._room()) > 0:
            kernel = self._kernels().lexical
            found = first + kernel(clocks, starts, lengths, limits, cut, floors, tops, buffer[first:room])
            first = 0
            self.complete = bool((cut == lengths).all())
            assert self.complete or found == room, "the last consistent cut has every event"
            self.examined += found
            yield buffer[:found]
            if self._progress is not None:
                self._progress(self.examined)

    def _kernels(self) -> Kernels:
        return PLAIN if self.examined < PLAIN_CUTS_MAX else compiled()

    def _room(self) -> int:
        room = PLAIN_CUTS_MAX if self.examined < PLAIN_CUTS_MAX else _AT_ONCE
        return room if self._cuts_max is None else min(room, self._cuts_max - self.examined)


def _limits(clocks: "Integers", starts: "Integers", lengths: "Integers") -> "Integers":
    """Return for each state of each process the last state of the last process that needs no more of it than that."""
    import numpy as np

    of_last = clocks[starts[-1] :]
    return np.concatenate(
        [
            np.searchsorted(of_last[:, process], np.arange(length + 1), side="right") - 1
            for process, length in enumerate(lengths)
        ]
    )
