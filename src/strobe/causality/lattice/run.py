"""The run under a lattice: the states of each process, and the clock of each state.

State k of a process is its state after k of its events in the trace; a cut is a state for each process. If a trace
begins at a cut, that is the least cut.
"""

from array import array
from functools import cached_property
from typing import TYPE_CHECKING, Any

from strobe.causality.clocks import vector_clocks
from strobe.causality.lattice.compiled import PLAIN, compiled
from strobe.causality.lattice.order import Order, States
from strobe.causality.trace import Trace
from strobe.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from strobe.causality.lattice.order import Integers

_STEPS_IN_PYTHON_MAX = 3_200_000
"""Maximum number of steps run in Python, before importing the compiler pays. An event takes a step per process."""
_STEPS_MIN = 24


class TraceRun(Order):
    """Everything in a valid trace that decides which cuts are consistent."""

    def __init__(self, trace: Trace) -> None:
        trace.check()
        if not trace.processes:
            raise UsageError(f"{trace.name} has no processes: there are no cuts")
        self.trace = trace
        self.processes = trace.processes
        self.bases = [trace.first_count(process) for process in trace.processes]
        super().__init__([trace.event_count(process) - trace.first_count(process) for process in trace.processes])

    @cached_property
    def clocks(self) -> "list[array[int]]":
        if self.event_count * (len(self.processes) + _STEPS_MIN) > _STEPS_IN_PYTHON_MAX:
            try:
                table, starts = clock_table(self.trace, compiled())
            except MissingExtra:
                return self._clocks_in_python()
            parts = [table[start : start + length + 1] for start, length in zip(starts, self.lengths, strict=True)]
            return [array("i", part.tobytes()) for part in parts]
        return self._clocks_in_python()

    def _clocks_in_python(self) -> "list[array[int]]":
        width, found = len(self.processes), vector_clocks(self.trace)
        first = array("i", bytes(4 * width))
        return [first + array("i", self._from_start(found.rows(process))) for process in self.processes]

    def _from_start(self, rows: "array[int]") -> "array[int]":
        """Subtract the counts from before the trace."""
        if not any(self.bases):
            return rows
        width = len(self.bases)
        return array("I", (count - self.bases[place % width] for place, count in enumerate(rows)))

    def positions(self, states: States) -> dict[str, int]:
        """Return a cut as traces write it: the number of events of each process in it, with those before the trace."""
        return {
            process: base + int(state) for process, base, state in zip(self.processes, self.bases, states, strict=True)
        }


def clock_table(trace: Trace, kernels: Any = PLAIN) -> "tuple[npt.NDArray[np.int32], Integers]":
    """Return the clocks of all states, counted from the start of the trace, and the offset of each process in them."""
    processes, rows, cause_starts, causes, starts, total = clock_inputs(trace)
    import numpy as np

    table = np.zeros((total, len(trace.processes)), np.int32)
    kernels.clock_rows(processes, rows, cause_starts, causes, table)
    return table, starts


def clock_inputs(trace: Trace) -> "tuple[Integers, Integers, Integers, Integers, Integers, int]":
    """Return the inputs of the kernel `clock_rows`: the dependencies, as row numbers."""
    import numpy as np

    tables = trace.tables
    bases = np.array([table.base for table in tables.processes], np.int64)
    lengths = np.array([len(table.starts) for table in tables.processes], np.int64)
    starts = np.concatenate(([0], np.cumsum(lengths + 1)[:-1])).astype(np.int64)
    process = np.frombuffer(tables.process, np.int32).astype(np.int64)
    row_of_line = starts[process] + np.frombuffer(tables.position, np.int64) - bases[process]
    ordinal = np.frombuffer(tables.ordinal, np.int64)
    effects, causes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for channel in tables.channels:
        received = np.frombuffer(channel.receives, np.int64)
        received = received[ordinal[received] > channel.base]
        sent = np.frombuffer(channel.sends, np.int64)[ordinal[received] - channel.base - 1]
        effects.append(row_of_line[received])
        causes.append(row_of_line[sent])
    order = np.frombuffer(trace.causal_order(), np.int64)
    rows = row_of_line[order]
    total = int(lengths.sum()) + len(lengths)
    place = np.zeros(total, np.int64)
    place[rows] = np.arange(len(rows))
    effect_places = place[np.concatenate(effects)]
    sorted_by_effect = np.argsort(effect_places, kind="stable")
    cause_starts = np.concatenate(([0], np.cumsum(np.bincount(effect_places, minlength=len(rows))))).astype(np.int64)
    return process[order], rows, cause_starts, np.concatenate(causes)[sorted_by_effect], starts, total
