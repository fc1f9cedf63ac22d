"""Traces: what happened in one run, event by event (docs/trace.md).

An *event* is one run of a handler together with its sends. A trace has for every process its events in order, for every
channel the messages sent and received, and for every snapshot after how many events each process recorded.

    trace = read_trace(path)      # raises UsageError if a line is malformed
    trace.check()                 # raises TraceInvalid if lines contradict each other

Cuts, clocks and reorderings are defined on valid traces only, and call `check` themselves; it runs once.
"""

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from strobe.causality.trace_check import Violation, find_violations
from strobe.causality.trace_lines import Internal, Line, Receive, Record, Send, TraceHeader, decode_trace
from strobe.causality.trace_order import causal_order
from strobe.causality.trace_tables import Columns, FindPlace, TraceTables
from strobe.errors import UsageError
from strobe.protocol.values.view import ChannelSpec

_VIOLATIONS_PRINTED_MAX = 20


class TraceInvalid(UsageError):
    """The lines of a trace contradict each other; `violations` names every event concerned."""

    def __init__(self, name: str, violations: tuple[Violation, ...]) -> None:
        super().__init__(name, violations)
        self.name = name
        self.violations = violations

    def __str__(self) -> str:
        count = len(self.violations)
        lines = [f"{self.name} is not a valid trace, {count} problem{'s' if count > 1 else ''}:"]
        lines += [f"  {violation}" for violation in self.violations[:_VIOLATIONS_PRINTED_MAX]]
        if count > _VIOLATIONS_PRINTED_MAX:
            lines.append(f"  and {count - _VIOLATIONS_PRINTED_MAX} more")
        lines.append("record the run again, or correct what produced these lines; docs/trace.md has the rules")
        return "\n".join(lines)


class EventRef(NamedTuple):
    """Event number `position` (from 1) of `process`."""

    process: str
    position: int

    def __str__(self) -> str:
        return f"event {self.position} of {self.process}"


class TracedEvent(msgspec.Struct, frozen=True):
    """One event: its trigger (None in a trace that holds only sends), and its sends, in order.

    In an imported trace it may have received more than the message that triggered it.
    """

    ref: EventRef
    lead: Receive | Internal | None
    sends: tuple[Send, ...]
    further: tuple[Receive, ...] = ()


class Trace:
    """One run in memory. Built from lines in which those of each process are in order; immutable."""

    def __init__(
        self,
        header: TraceHeader,
        lines: Iterable[Line],
        name: str = "trace",
        columns: Iterable[Columns] = (),
        find_place: FindPlace | None = None,
    ) -> None:
        self.header = header
        self.name = name
        self.processes = header.processes
        self.channels: dict[str, ChannelSpec] = {channel.id: channel for channel in header.channels}
        self.tables = TraceTables(header, lines, columns, find_place)
        self._violations: tuple[Violation, ...] | None = None
        self._order: array[int] | None = None

    def __len__(self) -> int:
        """The number of lines, without the header."""
        return len(self.tables.kind)

    def lines(self) -> Iterator[Line]:
        """Yield the lines as they were read."""
        return map(self.tables.line, range(len(self)))

    def violations(self) -> tuple[Violation, ...]:
        """Return every violation, in the order of the file; a valid trace has none."""
        if self._violations is None:
            self._violations = tuple(find_violations(self.tables, len(self.processes)))
        return self._violations

    def check(self) -> None:
        """Raise TraceInvalid unless the trace is valid."""
        if self.violations():
            raise TraceInvalid(self.name, self.violations())

    def event_count(self, process: str) -> int:
        """Return how many events `process` has had by the end of the trace: the position of its last."""
        table = self.tables.processes[self.process_number(process)]
        return table.base + len(table.starts)

    def first_count(self, process: str) -> int:
        """Return how many events `process` had before the trace: 0, unless it begins at a cut."""
        return self.tables.processes[self.process_number(process)].base

    def event(self, ref: tuple[str, int]) -> TracedEvent:
        """Return event number `ref[1]` of process `ref[0]`."""
        self.check()
        process, position = ref
        self.require_event(process, position)
        lines = [self.tables.line(index) for index in self.tables.event_lines(self.process_number(process), position)]
        lead = lines[0] if isinstance(lines[0], Receive | Internal) else None
        sends = tuple(line for line in lines if isinstance(line, Send))
        further = tuple(line for line in lines[1:] if isinstance(line, Receive))
        return TracedEvent(EventRef(process, position), lead, sends, further)

    def events(self) -> Iterator[EventRef]:
        """Yield every event after all that happened before it: in the order of the file, if that is a causal order."""
        for first_line in self.causal_order():
            yield self.event_at(first_line)

    def sent_in(self, channel: str, ordinal: int) -> EventRef:
        """Return the event that sent message `ordinal` on `channel`."""
        self.check()
        if channel not in self.channels:
            raise UsageError(f"{self.name} has no channel {channel!r}; it has: {', '.join(self.channels)}")
        table = self.tables.channels[self.tables.channel_names[channel]]
        line = table.send_of(ordinal)
        if line is None:
            first = f", and it begins after message {table.base}" if table.base else ""
            raise UsageError(f"{self.name} has no message {ordinal} of {channel}: {table.sent_count} were sent{first}")
        return self.event_at(line)

    def snapshots(self) -> tuple[str, ...]:
        """Return the ids of the snapshots that have a record, in the order of their first record."""
        return tuple(self.tables.snapshot_names.by_number)

    def records(self) -> dict[str, dict[str, int]]:
        """Return for every snapshot the position at which each process recorded; processes that did not are missing."""
        self.check()
        found: dict[str, dict[str, int]] = {snapshot: {} for snapshot in self.snapshots()}
        for process in self.tables.processes:
            for index in process.records:
                record = self.tables.line(index)
                assert isinstance(record, Record)
                found[record.snapshot_id][record.process] = record.position
        return found

    def require_event(self, process: str, position: int) -> None:
        """Raise UsageError unless `process` has an event number `position`."""
        count, before = self.event_count(process), self.first_count(process)
        if not before < position <= count:
            first = f", and the trace begins after event {before}" if before else ""
            raise UsageError(f"{self.name} has no event {position} of {process}: the process has {count} events{first}")

    def process_number(self, process: str) -> int:
        if process not in self.tables.process_names:
            raise UsageError(f"{self.name} has no process {process!r}; it has: {', '.join(self.processes)}")
        return self.tables.process_names[process]

    def event_at(self, index: int) -> EventRef:
        """Return the event that line `index` of the tables belongs to."""
        tables = self.tables
        return EventRef(tables.process_names.by_number[tables.process[index]], tables.position[index])

    def causal_order(self) -> "array[int]":
        """Return the indexes of the first lines of all events, in a causal order."""
        self.check()
        if self._order is None:
            self._order, _ = causal_order(self.tables)
        return self._order


def parse_trace(lines: Iterable[bytes], name: str = "trace") -> Trace:
    """Return the trace in `lines`, which may be a file opened for reading bytes; `name` is its name in messages."""
    header, rest = decode_trace(lines, name)
    return Trace(header, rest, name)


def read_trace(path: str | Path) -> Trace:
    """Return the trace in the file `path`."""
    try:
        with Path(path).open("rb") as file:
            return parse_trace(file, str(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be read as a trace: {error.strerror or error}") from error
