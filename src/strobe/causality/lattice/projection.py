"""The part of a run that can change a condition: a smaller order whose cuts decide the same questions.

Keep the events that change a value the condition depends on, and happens-before among them (also through processes that
are left out). Then:

- A cut of the run restricts to a cut of the kept events, at which the condition has the same value. A cut of the kept
  events extends to the run: its events together with their causal past. The past adds no kept event, since the cut
  already had all of those. So the condition *possibly* holds in one order exactly if it does in the other.
- A path through the run restricts to a path through the kept events. A path through the kept events extends to the run:
  before each event, insert the events of its causal past that have not happened yet, and at the end all other events.
  No inserted event is a kept one, so none changes the condition. So it *definitely* holds in one exactly if it does in
  the other.

If parts of the condition depend on one process each, *possibly* needs only the cuts at which all these hold. They are
closed under union and intersection, so they are the cuts of an order again, the slice (V. Garg and N. Mittal, "On
slicing a distributed computation", 2001): a state needs everything in the least such cut that includes it.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from strobe.causality.lattice.compiled import kernels_for_steps, require_numpy
from strobe.causality.lattice.order import Order, States, Steps
from strobe.causality.lattice.parts import Part, Table, changes, translated
from strobe.causality.lattice.run import TraceRun

if TYPE_CHECKING:
    from strobe.causality.lattice.order import Integers


class Projection(Order):
    """Some states of some processes of a run, in a smaller order: state i of column c is `kept[c][i]` of the run.

    `processes` has the process of each column. The columns do not depend on the order of processes in the trace: they
    are sorted by their number of states, then by name.
    """

    def __init__(
        self, run: TraceRun, processes: Sequence[int], kept: list[list[int]], clocks: "list[array[int]]"
    ) -> None:
        super().__init__([len(states) - 1 for states in kept])
        self.run = run
        self.processes = processes
        self.kept = kept
        self._clocks = clocks

    @property
    def clocks(self) -> "list[array[int]]":
        return self._clocks

    def translated(self, part: Part) -> Part:
        """Return a part of a condition on the run as a part of one on this order."""
        columns = {process: column for column, process in enumerate(self.processes)}

        def picked(table: Table) -> Table:
            if table.process is None:
                return table
            column = columns[table.process]
            return Table(column, [table.values[state] for state in self.kept[column]])

        return translated(part, picked)

    def lifted(self, states: States) -> States:
        """Return the least consistent cut of the run that extends this cut."""
        cut = self.run.bottom
        for process, kept, state in zip(self.processes, self.kept, states, strict=True):
            cut = self.run.with_past(cut, process, kept[state])
        return cut

    def lifted_steps(self, steps: Steps) -> Steps:
        """Return all events of the run in an order that keeps the order of `steps`."""
        return self.run.steps_along(self._way(steps))

    def _way(self, steps: Steps) -> Iterable[States]:
        reached, cut = list(self.bottom), self.run.bottom
        for column in steps:
            reached[column] += 1
            cut = self.run.with_past(cut, self.processes[column], self.kept[column][reached[column]])
            yield cut
        yield self.run.top


def projected(run: TraceRun, tables: Iterable[Table]) -> Projection:
    """Return the events of `run` that change one of `tables`, in their order."""
    states = changes(tables)
    processes = sorted(states, key=lambda process: (len(states[process]), run.processes[process]))
    kept = [states[process] for process in processes]
    clocks = []
    for process, own in zip(processes, kept, strict=True):
        rows = (run.needs(process, state) for state in own)
        columns = list(zip(processes, kept, strict=True))
        clocks.append(array("i", (bisect_right(of, row[other]) - 1 for row in rows for other, of in columns)))
    return Projection(run, processes, kept, clocks)


def sliced(order: Projection, local: Mapping[int, Sequence[bool]]) -> Projection | None:
    """Return the cuts at which each process fulfils its own condition, as an order; None if there are none.

    `local` has, for each process, whether it does in each state of the run.
    """
    good = [_good(local.get(process), kept) for process, kept in zip(order.processes, order.kept, strict=True)]
    if all(all(states) for states in good):
        return order
    import numpy as np

    least, starts = _least_cuts(order, good)
    ends = [*starts[1:].tolist(), len(least)]
    own = [least[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]
    # A state is in the slice if the least cut that includes it has exactly that state.
    members = [np.flatnonzero(cuts[:, column] == np.arange(len(cuts))) for column, cuts in enumerate(own)]
    if not all(map(len, members)):
        return None
    kept = [[states[place] for place in places.tolist()] for states, places in zip(order.kept, members, strict=True)]
    clocks = [
        np.stack([np.searchsorted(places, cuts[of, column]) for column, places in enumerate(members)], axis=1)
        for cuts, of in zip(own, members, strict=True)
    ]
    rows = [array("i", clock.astype(np.int32).tobytes()) for clock in clocks]
    return Projection(order.run, order.processes, kept, rows)


def _good(table: Sequence[bool] | None, kept: Sequence[int]) -> list[bool]:
    return [True] * len(kept) if table is None else [table[state] for state in kept]


def _least_cuts(order: Projection, good: Sequence[Sequence[bool]]) -> "tuple[Integers, Integers]":
    """Return for each state the least cut with it, or with a later state, at which all states are good; or -1."""
    require_numpy()
    import numpy as np

    clocks, starts, lengths = order.arrays()
    following = np.concatenate([_next_good(states) for states in good])
    cuts = np.zeros(clocks.shape, np.int64)
    kernel = kernels_for_steps(len(clocks) * len(lengths) ** 2).least_cuts
    kernel(clocks, starts, lengths, following, cuts)
    return cuts, starts


def _next_good(states: Sequence[bool]) -> "Integers":
    """Return for each state the first good state from it on; the number of states if there is none."""
    import numpy as np

    following = np.where(states, np.arange(len(states)), len(states))
    return np.minimum.accumulate(following[::-1])[::-1].astype(np.int64)
