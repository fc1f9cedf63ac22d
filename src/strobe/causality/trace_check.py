"""Checks that the lines of a trace are consistent; names every event that breaks a rule, with the reason (M2).

What must hold:

- lines name processes and channels of the header, and are at the right end of their channel;
- counting begins at the cut that the header gives, or at 0;
- the positions of a process are 1, 2, 3, ... without a gap, and never go back; an event begins with an `internal` line,
  or with one `receive` line or several, or has neither;
- the messages of a channel are sent with the ordinals 1, 2, 3, ..., in this order;
- only sent messages are received, and only once; on a fifo channel in the order of sending, without gaps;
- nothing is received before it was sent: happens-before has no cycle;
- the records of a process are in the order of their positions, one for a snapshot.

A quick test passes most channels; only the others are checked message by message. Cycles are searched for only if
positions, ends and send ordinals are right: otherwise it is not certain which event sent which message.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from strobe.causality.trace_order import causal_order, cause, cycles
from strobe.causality.trace_tables import FIRST_LINE, NOBODY, RECEIVE, SEND, ChannelLines, ProcessEvents, TraceTables

_CYCLE_EVENTS_MAX = 8


class Violation(msgspec.Struct, frozen=True):
    """An event that breaks a rule. `line` is its line in the file; `position` its number at its process.

    If the trace is not one file of lines, `place` is the location of the event.
    """

    line: int
    process: str
    position: int
    channel: str | None
    problem: str
    place: str = ""

    def __str__(self) -> str:
        channel = f", channel {self.channel}" if self.channel is not None else ""
        place = self.place or f"line {self.line}"
        return f"{place}: {self.process}, position {self.position}{channel}: {self.problem}"


def find_violations(tables: TraceTables, process_count: int) -> list[Violation]:
    """Return every violation, in the order of the lines. The header names the first `process_count` processes."""
    check = _Check(tables, process_count)
    found = [*check.names(), *check.events(), *check.sends()]
    order_is_certain = not found
    found += [*check.receives(), *check.records()]
    if order_is_certain:
        found += check.cycles()
    return sorted(found, key=lambda violation: violation.line)


class _Check:
    def __init__(self, tables: TraceTables, process_count: int) -> None:
        self.tables = tables
        self.known_processes = tables.processes[:process_count]
        self.known_channels = [table for table in tables.channels if table.source != NOBODY]

    def names(self) -> Iterator[Violation]:
        tables = self.tables
        for process in tables.processes[len(self.known_processes) :]:
            for index in (*process.lines, *process.records):
                yield self._violation(index, "the header does not name this process")
        for channel in tables.channels:
            if channel.source == NOBODY:
                for index in (*channel.sends, *channel.receives):
                    yield self._violation(index, "the header does not name this channel")
        for index in tables.wrong_ends:
            if tables.process[index] < len(self.known_processes):
                yield self._violation(index, self._wrong_end(index))

    def _wrong_end(self, index: int) -> str:
        table = self.tables.channels[self.tables.subject[index]]
        names = self.tables.process_names.by_number
        if self.tables.kind[index] == SEND:
            return f"this process sends on the channel, but its source is {names[table.source]}"
        return f"this process receives on the channel, but its target is {names[table.target]}"

    def events(self) -> Iterator[Violation]:
        for index in self.tables.misplaced_leads:
            problem = "this line comes after another of its event; an event begins with one internal or with receives"
            yield self._violation(index, problem)
        for table in self.known_processes:
            yield from self._positions(table)

    def _positions(self, table: ProcessEvents) -> Iterator[Violation]:
        position = self.tables.position
        highest = table.base
        for index in (table.lines[start] for start in table.starts):
            if position[index] <= highest:
                yield self._violation(index, f"the position goes back: the process was at {highest} already")
            elif position[index] > highest + 1:
                missing = _range_text("position", highest + 1, position[index] - 1)
                yield self._violation(index, f"{missing} missing before this event")
            highest = max(highest, position[index])

    def sends(self) -> Iterator[Violation]:
        for table in self.known_channels:
            if not self._sends_are_regular(table):
                ordinals = self._ordinals(table.sends)
                again = [index for index in table.sends if self.tables.ordinal[index] <= table.base]
                for index in again:
                    problem = f"message {self.tables.ordinal[index]} is sent, but {table.base} were before the trace"
                    yield self._violation(index, problem)
                later = [index for index in table.sends if self.tables.ordinal[index] > table.base]
                yield from self._disorder(later, range(table.base + 1, max(ordinals) + 1), "sent", begin=table.base)

    def receives(self) -> Iterator[Violation]:
        for table in self.known_channels:
            if not self._receives_are_regular(table):
                sent = {*table.pending(), *self._ordinals(table.sends)}
                for index in table.receives:
                    if (ordinal := self.tables.ordinal[index]) not in sent:
                        yield self._violation(index, self._no_send(ordinal, table))
                of_sent = [index for index in table.receives if self.tables.ordinal[index] in sent]
                begin = table.received_base
                yield from self._disorder(of_sent, sorted(sent), "received", table.fifo, begin)

    def _no_send(self, ordinal: int, table: ChannelLines) -> str:
        if ordinal <= table.base:
            return f"message {ordinal} is received, but it was received before the trace begins"
        return f"message {ordinal} is received but was never sent"

    def _sends_are_regular(self, table: ChannelLines) -> bool:
        return self._ordinals(table.sends) == array("q", range(table.base + 1, table.sent_count + 1))

    def _receives_are_regular(self, table: ChannelLines) -> bool:
        """Whether the receives of this channel are certainly right; quick, and true of most channels."""
        if not self._sends_are_regular(table):
            return False
        ordinals = self._ordinals(table.receives)
        if table.fifo:
            begin, count = table.received_base, len(ordinals)
            return begin + count <= table.sent_count and ordinals == array("q", range(begin + 1, begin + count + 1))
        early = sum(ordinal <= table.base for ordinal in ordinals)
        if max(ordinals, default=0) > table.sent_count or len(set(ordinals)) != len(ordinals):
            return False
        return early == 0 or len(set(ordinals).intersection(table.pending())) == early

    def _disorder(
        self, indexes: Sequence[int], expected: Sequence[int], verb: str, ordered: bool = True, begin: int = 0
    ) -> Iterator[Violation]:
        """Yield duplicates among the messages at `indexes`; if `ordered`, also late messages and gaps.

        `expected` has all expected ordinals in order, and `begin` is the ordinal before the first. A message that comes
        late is a reordering, one that never comes a gap.
        """
        present = sorted(set(self._ordinals(indexes)))
        first: dict[int, int] = {}
        highest = begin
        for index in indexes:
            ordinal = self.tables.ordinal[index]
            if ordinal in first:
                yield self._violation(index, f"message {ordinal} is {verb} twice, first {self._place(first[ordinal])}")
                continue
            first[ordinal] = index
            if ordered and ordinal < highest:
                problem = f"message {ordinal} is {verb} after message {highest} ({self._place(first[highest])})"
                yield self._violation(index, f"{problem}: reordered")
            elif ordered and (missing := _missing_text(expected, present, highest, ordinal)):
                yield self._violation(index, f"message {ordinal} is {verb}, but {missing} never {verb}: a gap")
            highest = max(highest, ordinal)

    def records(self) -> Iterator[Violation]:
        for table in self.known_processes:
            starts = (self.tables.position[table.lines[start]] for start in table.starts)
            yield from self._records_of(table, max(starts, default=table.base))

    def _records_of(self, table: ProcessEvents, event_count: int) -> Iterator[Violation]:
        first: dict[int, int] = {}
        highest = table.base
        for index in table.records:
            position, snapshot = self.tables.position[index], self.tables.subject[index]
            if position > event_count:
                yield self._violation(index, f"the record is after the end: the process has {event_count} events")
            if position < highest:
                yield self._violation(index, f"the record is out of order: one at position {highest} comes before it")
            if snapshot in first:
                name = self.tables.snapshot_names.by_number[snapshot]
                problem = f"snapshot {name} is recorded twice, first {self._place(first[snapshot])}"
                yield self._violation(index, problem)
            highest = max(highest, position)
            first.setdefault(snapshot, index)

    def cycles(self) -> Iterator[Violation]:
        for cycle in cycles(self.tables, causal_order(self.tables)[1]):
            earliest = cycle.index(min(cycle))
            members = cycle[earliest:] + cycle[:earliest]
            steps = [self._step(index) for index in members[:_CYCLE_EVENTS_MAX]]
            if len(cycle) > len(steps):
                steps.append(f"and {len(cycle) - len(steps)} more")
            yield self._violation(members[0], f"received before it was sent, in a cycle: {'; '.join(steps)}")

    def _step(self, index: int) -> str:
        """Describe what an event on a cycle waits for."""
        tables = self.tables
        sending = cause(tables, index)
        assert sending is not None, "every event on a cycle receives"
        channel = tables.channel_names.by_number[tables.subject[index]]
        receiver, sender = self._event(index), self._event(sending)
        return f"{receiver} receives message {tables.ordinal[index]} of {channel}, sent in {sender}"

    def _ordinals(self, indexes: Iterable[int]) -> "array[int]":
        return array("q", map(self.tables.ordinal.__getitem__, indexes))

    def _event(self, index: int) -> str:
        process = self.tables.process_names.by_number[self.tables.process[index]]
        return f"event {self.tables.position[index]} of {process}"

    def _place(self, index: int) -> str:
        line = f", line {index + FIRST_LINE}" if self.tables.find_place is None else ""
        return f"at position {self.tables.position[index]}{line}"

    def _violation(self, index: int, problem: str) -> Violation:
        tables = self.tables
        process = tables.process_names.by_number[tables.process[index]]
        about_channel = tables.kind[index] in (SEND, RECEIVE)
        channel = tables.channel_names.by_number[tables.subject[index]] if about_channel else None
        position = tables.position[index]
        place = tables.find_place(process, position) if tables.find_place is not None else ""
        return Violation(index + FIRST_LINE, process, position, channel, problem, place)


def _missing_text(expected: Sequence[int], present: Sequence[int], low: int, high: int) -> str:
    """List the `expected` ordinals strictly between `low` and `high` that are not `present`; empty if all are."""
    missing = _count_between(expected, low, high) - _count_between(present, low, high)
    if missing == 0:
        return ""
    if missing == high - low - 1:
        return _range_text("message", low + 1, high - 1)
    return f"{missing} of the messages {low + 1} to {high - 1} {'is' if missing == 1 else 'are'}"


def _count_between(ordinals: Sequence[int], low: int, high: int) -> int:
    return bisect_left(ordinals, high) - bisect_right(ordinals, low)


def _range_text(what: str, first: int, last: int) -> str:
    return f"{what} {first} is" if first == last else f"{what}s {first} to {last} are"
