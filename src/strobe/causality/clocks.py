"""Happens-before, and the two clocks that follow it (M3).

An event e *happened before* an event f, written e -> f, exactly if one of these holds:

1. both are events of one process, and e comes first there;
2. a message was sent in e and received in f;
3. there is an event d with e -> d and d -> f.

Two different events are *concurrent* when neither happened before the other.

A **vector clock** decides this exactly. C(e) counts, for each process, the events that are e or happened before e.
Then e -> f exactly when C(e) < C(f): no component greater, and at least one smaller.

A **hybrid logical clock** decides it one way, in two integers instead of one for each process. H(e) = (time, counter),
compared in that order, such that

- e -> f implies H(e) < H(f) (the converse does not hold);
- `time` is never behind the physical clock of its process, and it is a physical time that some process in the causal
  past has read. So it is ahead by at most the clock skew.

So "everything up to time t" is a consistent cut for any clock skew. With physical clocks alone it is not. (S. Kulkarni
and others, "Logical Physical Clocks", 2014. The physical time is an integer in any unit, for example microseconds; it
is an argument, since these definitions read no clock.)
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from strobe.causality.trace import Trace
from strobe.causality.trace_order import cause, receives


class VectorClock(Mapping[str, int]):
    """The number of known events of each process; a process that is not named counts 0. Immutable."""

    __slots__ = ("_counts",)

    def __init__(self, counts: Mapping[str, int] | Iterable[tuple[str, int]] = ()) -> None:
        # Zeros are dropped, so that equal clocks have equal contents.
        self._counts = {process: count for process, count in dict(counts).items() if count}

    def __getitem__(self, process: str) -> int:
        return self._counts.get(process, 0)

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def __contains__(self, process: object) -> bool:
        return process in self._counts

    def __hash__(self) -> int:
        return hash(frozenset(self._counts.items()))

    def __repr__(self) -> str:
        return f"VectorClock({self._counts})"

    def increment(self, process: str) -> "VectorClock":
        """Return the clock after one more event of `process`."""
        return VectorClock({**self._counts, process: self[process] + 1})

    def merge(self, other: "VectorClock") -> "VectorClock":
        """Return the greater count for each process."""
        return VectorClock({process: max(self[process], other[process]) for process in (*self, *other)})

    def includes(self, other: "VectorClock") -> bool:
        """Whether no component of `other` is greater."""
        return all(count <= self[process] for process, count in other._counts.items())

    def happened_before(self, other: "VectorClock") -> bool:
        return self != other and other.includes(self)

    def concurrent(self, other: "VectorClock") -> bool:
        return not self.includes(other) and not other.includes(self)


class HybridTime(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """A reading of a hybrid logical clock: the highest physical time known, and a counter of events within it.

    Compared field by field. A process keeps its latest reading, beginning with `HybridTime()`, and replaces it at every
    event: with `tick` if the event receives nothing, with `merge` if it receives a message stamped `other`. A message
    is stamped with the reading of the event that sends it.
    """

    time: int = 0
    counter: int = 0

    def tick(self, physical: int) -> "HybridTime":
        """Return the time of the next event, at the physical time `physical`."""
        if physical > self.time:
            return HybridTime(physical, 0)
        return HybridTime(self.time, self.counter + 1)

    def merge(self, other: "HybridTime", physical: int) -> "HybridTime":
        """Return the time of an event that receives a message stamped `other`, at the physical time `physical`."""
        return max(self, other).tick(physical)


class EventClocks:
    """The vector clocks of all events of a trace: 4 bytes for each event and process."""

    def __init__(self, trace: Trace, rows: "list[array[int]]") -> None:
        self._trace = trace
        self._rows = rows

    def __getitem__(self, event: tuple[str, int]) -> VectorClock:
        """Return the clock of event number `event[1]` of process `event[0]`."""
        return VectorClock(zip(self._trace.processes, self._row(event), strict=True))

    def happened_before(self, first: tuple[str, int], second: tuple[str, int]) -> bool:
        """Whether `first` -> `second`, in constant time: whether the clock of `second` counts `first`."""
        process, position = first
        self._row(first)
        return first != second and self._row(second)[self._trace.process_number(process)] >= position

    def concurrent(self, first: tuple[str, int], second: tuple[str, int]) -> bool:
        return first != second and not self.happened_before(first, second) and not self.happened_before(second, first)

    def rows(self, process: str) -> "array[int]":
        """Return the clocks of all events of `process`, concatenated: one count per process of the trace."""
        return self._rows[self._trace.process_number(process)]

    def _row(self, event: tuple[str, int]) -> "array[int]":
        process, position = event
        width = len(self._trace.processes)
        self._trace.require_event(process, position)
        row = self._rows[self._trace.process_number(process)]
        place = position - self._trace.first_count(process)
        return row[(place - 1) * width : place * width]


def vector_clocks(trace: Trace) -> EventClocks:
    """Return the vector clock of every event.

    An event's clock is its predecessor's clock, merged with the clock of the event that sent the received message, plus
    one for the process itself.
    """
    tables, width = trace.tables, len(trace.processes)
    rows = [array("I") for _ in trace.processes]
    # If the trace begins at a cut, all processes know everything before it: the cut acts as one first event.
    latest = [list(map(trace.first_count, trace.processes)) for _ in trace.processes]
    for line in trace.causal_order():
        process = tables.process[line]
        clock = latest[process]
        for receive in receives(tables, line):
            if (sending := cause(tables, receive)) is not None:
                sender = tables.process[sending]
                end = (tables.position[sending] - tables.processes[sender].base) * width
                clock = latest[process] = list(map(max, clock, rows[sender][end - width : end]))
        clock[process] += 1
        rows[process].extend(clock)
    return EventClocks(trace, rows)
