"""The partial order under a lattice of cuts: the states of each process, and what each state needs of the others.

A cut is a state for each process. It is consistent if no state in it needs more of a process than the cut has.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]

States = tuple[int, ...]
"""A cut in the lattice: the number of a state for each process."""

Steps = list[int]
"""The processes whose events happen, in order."""


class Order(ABC):
    """States 0 to `lengths[p]` of each process p; each event leads from one state to the next."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.bottom: States = (0,) * len(lengths)
        self.top: States = tuple(lengths)
        self.event_count = sum(lengths)

    @property
    @abstractmethod
    def clocks(self) -> "list[array[int]]":
        """For each process the clocks of its states, concatenated: how many events of each process they need."""

    def needs(self, process: int, state: int) -> "array[int]":
        """Return how many events of each process are in the causal past of a state."""
        width = len(self.lengths)
        return self.clocks[process][state * width : (state + 1) * width]

    def is_enabled(self, states: States, process: int) -> bool:
        """Whether the next event of `process` can happen at this cut."""
        if states[process] == self.lengths[process]:
            return False
        needs = self.needs(process, states[process] + 1)
        return all(needs[other] <= state or other == process for other, state in enumerate(states))

    def with_past(self, states: States, process: int, state: int) -> States:
        """Return the least consistent cut above `states`, itself consistent, with `process` in this state."""
        return tuple(map(max, states, self.needs(process, state)))

    def arrays(self) -> "tuple[Integers, Integers, Integers]":
        """Return the clocks of all states, the offset of each process in them, and the last state of each."""
        import numpy as np

        width = len(self.lengths)
        clocks = np.concatenate([np.frombuffer(own, np.int32).reshape(-1, width) for own in self.clocks])
        lengths = np.array(self.lengths, np.int64)
        starts = np.concatenate(([0], np.cumsum(lengths + 1)[:-1])).astype(np.int64)
        return clocks, starts, lengths

    def steps_along(self, path: Iterable[States]) -> Steps:
        """Return events that lead from the least cut through each cut of `path`, in order."""
        steps: Steps = []
        states = self.bottom
        for target in path:
            while states != target:
                for process, goal in enumerate(target):
                    while states[process] < goal and self.is_enabled(states, process):
                        states = moved(states, process)
                        steps.append(process)
        return steps


def moved(states: States, process: int) -> States:
    """Return the cut with one more event of `process`."""
    return (*states[:process], states[process] + 1, *states[process + 1 :])
