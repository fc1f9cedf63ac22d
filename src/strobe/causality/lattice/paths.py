"""Paths through the lattice that avoid a condition: from the least cut to the greatest, event by event.

Such a path refutes *definitely*: an observer who saw the events in this order never saw the condition hold.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from strobe.causality.lattice.compiled import kernels_for, require_numpy
from strobe.causality.lattice.conjunctive import Stretch, Tables, bad_stretches
from strobe.causality.lattice.enumeration import Progress
from strobe.causality.lattice.order import Order, States, Steps, moved
from strobe.causality.lattice.programs import CompiledCondition

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from strobe.causality.lattice.order import Integers

_GUARDED_MAX = 100_000

Way = tuple[States, "Way | None"]
"""A cut, and the path to it. Paths share their beginnings: many are open at once, and each may be long."""


def guarded_path(run: Order, tables: Tables) -> Steps | None:
    """Return a path on which, at each cut, some process does not fulfil its condition; None if none was found.

    A process in a bad stretch of states guards: the conjunction cannot hold, whatever the others do. Before its stretch
    ends, another process in a bad stretch must take over. This searches for such a chain of guards, the farthest
    handover first. It usually finds one in a few steps, and stops after a hundred thousand.
    """
    bad = {process: list(bad_stretches(table)) for process, table in tables.items()}
    open_: list[tuple[int, Stretch, States, Way | None]] = [
        (process, own[0], run.bottom, None) for process, own in bad.items() if own and own[0].first == 0
    ]
    seen: set[tuple[int, int, States]] = set()
    while open_ and len(seen) < _GUARDED_MAX:
        process, stretch, states, before = open_.pop()
        if (process, stretch.first, states) in seen:
            continue
        seen.add((process, stretch.first, states))
        way: Way = states, before
        if stretch.last == run.lengths[process]:
            return run.steps_along(_cuts_of((run.top, way)))
        for other, own in bad.items():
            if other != process:
                open_ += [(other, *entry, way) for entry in _handovers(run, process, stretch, states, other, own)]
    return None


def _handovers(
    run: Order, process: int, stretch: Stretch, states: States, other: int, own: Sequence[Stretch]
) -> list[tuple[Stretch, States]]:
    """Return the bad stretches of `other` that it can reach while `process` is in `stretch`, the farthest last."""
    found: list[tuple[Stretch, States]] = []
    first = bisect_left(own, states[other], key=lambda stretch: stretch.last)
    for later in islice(own, first, None):
        entered = run.with_past(states, other, max(later.first, states[other]))
        if entered[process] > stretch.last:
            break
        found.append((later, entered))
    return found


def _cuts_of(way: Way) -> list[States]:
    cuts: list[States] = []
    following: Way | None = way
    while following is not None:
        states, following = following
        cuts.append(states)
    return cuts[::-1]


class Dive(NamedTuple):
    """The result of a dive: a path that avoids the condition, certainty that there is none, or neither.

    `examined` is the number of cuts examined; `met` is the first of them at which the condition holds.
    """

    steps: Steps | None
    certain: bool
    examined: int
    met: States | None


def dive(run: Order, condition: CompiledCondition, cuts_max: int) -> Dive:
    """Search depth first for a path that avoids `condition`."""
    if condition.at(run.bottom):
        return Dive(None, True, 1, run.bottom)
    seen, met = {run.bottom}, None
    steps: Steps = []
    way = [run.bottom]
    while way and len(seen) < cuts_max:
        states = way[-1]
        if states == run.top:
            return Dive(steps, True, len(seen), met)
        for process in range(len(states)):
            following = moved(states, process)
            if following not in seen and run.is_enabled(states, process):
                seen.add(following)
                if not condition.at(following):
                    way.append(following)
                    steps.append(process)
                    break
                met = met or following
        else:
            way.pop()
            if steps:
                steps.pop()
    return Dive(None, not way, len(seen), met)


LEVEL_BYTES_MAX = 1 << 30
"""Limit for one level, which is kept whole: one number per process and cut."""


class LevelWalk:
    """All cuts that can be reached without passing one at which `condition` holds, by their number of events.

    `examined` counts the cuts examined; `path` is a path to the greatest cut, if there is one. `met` is the first cut
    at which the condition held. `level_too_large`: the walk stopped before `cuts_max`, at a level of more than
    LEVEL_BYTES_MAX.
    """

    def __init__(
        self, run: Order, condition: CompiledCondition, cuts_max: int, progress: Progress | None = None
    ) -> None:
        require_numpy()
        self.run = run
        self.condition = condition
        self.examined = 1
        self.met: States | None = None
        self.level_too_large = False
        self._cuts_max = cuts_max
        self._progress = progress

    def path(self) -> tuple[Steps | None, bool]:
        """Return a path that avoids the condition, if there is one; and whether the answer is certain."""
        import numpy as np

        cuts = np.zeros((1, len(self.run.lengths)), np.int64)
        if self.condition.at(self.run.bottom):
            return None, True
        arrays = self.run.arrays()
        levels: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]] = []
        for _ in range(self.run.event_count):
            level = self._next_level(arrays, cuts)
            if level is None:
                return None, False
            cuts, parents, steps = level
            self.examined += len(cuts)
            avoiding = ~self.condition.at_cuts(cuts)
            if self.met is None and not avoiding.all():
                self.met = tuple(cuts[int(avoiding.argmin())].tolist())
            cuts = cuts[avoiding]
            levels.append((parents[avoiding], steps[avoiding]))
            if not len(cuts):
                return None, True
            if self._progress is not None:
                self._progress(self.examined)
        return _path_through(levels), True

    def _next_level(
        self, arrays: "tuple[Integers, Integers, Integers]", cuts: "Integers"
    ) -> "tuple[Integers, npt.NDArray[np.int32], npt.NDArray[np.int32]] | None":
        """Return the cuts with one event more, and how each was reached; None if there are too many."""
        import numpy as np

        cuts_left, level_cuts_max = self._cuts_max - self.examined, LEVEL_BYTES_MAX // (8 * cuts.shape[1])
        room_max = max(1, min(cuts_left, level_cuts_max))
        room = min(2 * len(cuts) + 64, room_max)
        while True:
            slots = np.full(1 << (2 * room).bit_length(), -1, np.int32)
            out = np.zeros((room, cuts.shape[1]), np.int64)
            parents, steps = np.zeros(room, np.int32), np.zeros(room, np.int32)
            found = kernels_for(self.examined, cuts.shape[1]).successors(*arrays, cuts, slots, out, parents, steps)
            if found >= 0:
                return out[:found], parents[:found], steps[:found]
            if room == room_max:
                self.level_too_large = level_cuts_max < cuts_left
                return None
            room = min(4 * room, room_max)


def _path_through(levels: "list[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]]") -> Steps:
    """Return the path to the only cut of the last level."""
    steps: Steps = []
    place = 0
    for parents, by in reversed(levels):
        steps.append(int(by[place]))
        place = int(parents[place])
    return steps[::-1]
