"""The constructive theorem: the state that a consistent cut describes could have been seen (P2).

Take the events of a run in an order in which they happened. Whenever an event outside the cut is directly before an
event inside it, swap the two, until there is no such pair. Then the events of the cut come first and the others after
them, and each group keeps its order. Every such swap leaves a legal execution:

- the two events are of different processes: within a process the events of the cut come first already;
- the second does not receive a message from the first: it would be an orphan, and the cut is consistent;
- a channel's sends keep the order of its sender and its receives that of its receiver, so a fifo channel stays one.

So the reordered run is legal, and begins and ends like the actual one. After the events of the cut it is in exactly the
state that the cut describes: each process after its number of events, each channel with the messages sent and not
received.

`Reordering.check` does not rely on this. It runs the events on bare channels and reports everything that is not legal.
"""

from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from strobe.causality.cuts import Cut, require_consistent
from strobe.causality.trace import EventRef, Trace
from strobe.causality.trace_tables import RECEIVE, SEND


class Reordering(msgspec.Struct, frozen=True):
    """The events of a run, those of `cut` first: `events[:cut_index]`. `swaps` pairs of neighbours were exchanged."""

    cut: dict[str, int]
    events: tuple[EventRef, ...]
    cut_index: int
    swaps: int

    def check(self, trace: Trace) -> list[str]:
        """Return every reason why this is not a legal execution of the events of `trace` that begins with the cut."""
        execution = _Execution(trace)
        problems: list[str] = []
        for place, event in enumerate(self.events):
            if not execution.knows(event):
                problems.append(f"{event} is not in the trace")
                continue
            if (place < self.cut_index) != (event.position <= self.cut.get(event.process, 0)):
                problems.append(f"{event} is {self._wrong_side(place)}")
            problems += execution.run(event)
        problems += [f"{event} is left out" for event in trace.events() if event not in execution.seen]
        return problems + self._cut_problems(trace)

    def _wrong_side(self, place: int) -> str:
        if place < self.cut_index:
            return "among the events of the cut, but is not one of them"
        return "after the events of the cut, but is one of them"

    def _cut_problems(self, trace: Trace) -> list[str]:
        unknown = self.cut.keys() - set(trace.processes)
        return [
            *(f"the cut does not name {process}" for process in trace.processes if process not in self.cut),
            *(f"the cut names {process}, which is not in the trace" for process in sorted(unknown)),
        ]


def reorder(trace: Trace, cut: Cut) -> Reordering:
    """Return the run with the events of `cut` first; raise InconsistentCut if the cut has orphans."""
    positions = require_consistent(trace, cut)
    before: list[EventRef] = []
    after: list[EventRef] = []
    swaps = 0
    for event in trace.events():
        if event.position <= positions[event.process]:
            before.append(event)
            swaps += len(after)  # it moves ahead of each of these, one swap at a time
        else:
            after.append(event)
    return Reordering(positions, (*before, *after), len(before), swaps)


class _Execution:
    """Bare processes and channels on which events are run one by one, to check that each is legal."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.seen: set[EventRef] = set()
        self.latest = {process: trace.first_count(process) for process in trace.processes}
        self.in_flight: list[OrderedDict[int, None]] = [
            OrderedDict.fromkeys(table.pending()) for table in trace.tables.channels
        ]

    def knows(self, event: EventRef) -> bool:
        if event.process not in self.latest:
            return False
        return self.trace.first_count(event.process) < event.position <= self.trace.event_count(event.process)

    def run(self, event: EventRef) -> Iterator[str]:
        """Run one event, and yield everything that is not legal about it."""
        if event in self.seen:
            yield f"{event} comes twice"
            return
        self.seen.add(event)
        if event.position < self.latest[event.process]:
            yield f"{event} comes after event {self.latest[event.process]}"
        self.latest[event.process] = max(event.position, self.latest[event.process])
        tables = self.trace.tables
        for line in tables.event_lines(tables.process_names[event.process], event.position):
            if tables.kind[line] == SEND:
                self.in_flight[tables.subject[line]][tables.ordinal[line]] = None
            elif tables.kind[line] == RECEIVE:
                yield from self._receive(event, tables.subject[line], tables.ordinal[line])

    def _receive(self, event: EventRef, number: int, ordinal: int) -> Iterator[str]:
        """Take a message from its channel: it must be there, and on a fifo channel be the oldest."""
        queue = self.in_flight[number]
        channel = self.trace.tables.channel_names.by_number[number]
        if ordinal not in queue:
            yield f"{event} receives message {ordinal} of {channel}, which is not in the channel"
            return
        oldest = next(iter(queue))
        if self.trace.tables.channels[number].fifo and oldest != ordinal:
            yield f"{event} receives message {ordinal} of {channel}, which is fifo, and message {oldest} comes first"
        del queue[ordinal]
