"""A trace in memory: columns with one entry per line, and indexes of the lines of each process and channel.

A million lines take a quarter of a gigabyte as objects, and a quarter of that as columns. Nothing is rejected here:
inconsistent lines are kept in their place, so that `trace_check` can name them.

Line *indexes* count the lines after the header from 0; line *numbers* are those of the file (index + FIRST_LINE).
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, repeat
from math import isnan, nan
from typing import NamedTuple

import msgspec

from strobe.causality.trace_lines import NO_PAYLOAD, Internal, Line, Receive, Record, Run, Send, TraceHeader
from strobe.protocol.values.frames import FIFO

SEND, RECEIVE, INTERNAL, RECORD = range(4)

FIRST_LINE = 2
"""The line number in the file of the line with index 0: the header is line 1."""

FindPlace = Callable[[str, int], str]

NOBODY = -1
"""The index of the ends of a channel that the header does not name."""


class NameTable(dict[str, int]):
    """Numbers for names; a new name gets the next number."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__()
        self.by_number: list[str] = []
        for name in names:
            self[name]

    def __missing__(self, name: str) -> int:
        number = self[name] = len(self)
        self.by_number.append(name)
        return number


class ProcessEvents:
    """The lines of one process, in the order of the file. Consecutive lines with the same position are one event."""

    __slots__ = ("base", "last_position", "lines", "records", "starts")

    def __init__(self, base: int = 0) -> None:
        self.base = base  # number of events before the trace
        self.lines = array("q")  # indexes of all lines except records
        self.starts = array("q")  # index in `lines` at which each event begins
        self.records = array("q")
        self.last_position = base


class ChannelLines:
    """The lines of one channel: sends in the sender's order, receives in the receiver's.

    `base` messages were sent before the trace; of these, `in_flight` (first ordinal, count) were not received by then.
    """

    __slots__ = ("base", "fifo", "highest", "in_flight", "receives", "sends", "source", "target")

    def __init__(self, source: int, target: int, kind: str, base: int = 0, in_flight: Sequence[Run] = ()) -> None:
        self.base = base
        self.in_flight = tuple(sorted(in_flight))
        self.source = source
        self.target = target
        self.fifo = kind == FIFO
        self.sends = array("q")
        self.receives = array("q")
        self.highest: array[int] | None = None

    @property
    def sent_count(self) -> int:
        """How many messages were sent by the end of the trace."""
        return self.base + len(self.sends)

    @property
    def received_base(self) -> int:
        """How many messages were received before the trace."""
        return self.base - sum(count for _, count in self.in_flight)

    def pending(self) -> list[int]:
        """Return the ordinals of the messages in flight at the start of the trace."""
        return [ordinal for first, count in self.in_flight for ordinal in range(first, first + count)]

    def send_of(self, ordinal: int) -> int | None:
        """Return the line that sent message `ordinal`, if there is one; needs correct send ordinals."""
        place = ordinal - self.base - 1
        return self.sends[place] if 0 <= place < len(self.sends) else None


class Columns(NamedTuple):
    """Lines of one process, in its order, as columns: a fast way to load many lines.

    `subject` is the index of the channel, the event's name or the snapshot in `channels`, `names` or `snapshots`, by
    `kind`. Lines without an ordinal have 0, without a time NaN. `payloads` are keyed by the index of their line.
    """

    process: str
    kind: bytes
    position: "array[int]"
    subject: "array[int]"
    ordinal: "array[int]"
    at: "array[float]"
    payloads: dict[int, bytes]
    channels: Sequence[str]
    names: Sequence[str]
    snapshots: Sequence[str]


class TraceTables:
    """A whole trace except its header. Names that are not in the header come after those that are.

    `find_place` locates an event, by process and position, if the trace is not one file of lines.
    """

    def __init__(
        self,
        header: TraceHeader,
        lines: Iterable[Line],
        columns: Iterable[Columns] = (),
        find_place: FindPlace | None = None,
    ) -> None:
        self.find_place = find_place
        self.process_names = NameTable(header.processes)
        self.channel_names = NameTable(channel.id for channel in header.channels)
        self.snapshot_names = NameTable()
        self.event_names = NameTable()
        start = header.start
        self.processes = [ProcessEvents(start.positions.get(process, 0)) for process in header.processes]
        self.channels = [
            ChannelLines(
                self.process_names[channel.source],
                self.process_names[channel.target],
                channel.kind,
                start.sent.get(channel.id, 0),
                start.in_flight.get(channel.id, ()),
            )
            for channel in header.channels
        ]
        self.kind = bytearray()
        self.process = array("i")
        self.position = array("q")
        self.subject = array("i")  # the number of the channel, the event name or the snapshot, by kind
        self.ordinal = array("q")
        self.at = array("d")
        self.payloads: dict[int, bytes] = {}
        self.message_ids: dict[int, str] = {}
        self.wrong_ends: list[int] = []
        self.misplaced_leads: list[int] = []
        self.further_receives: dict[int, list[int]] = {}  # by the first line of their event
        for line in lines:
            self._append(line)
        for some in columns:
            self._extend(some)

    def _append(self, line: Line) -> None:
        index = len(self.kind)
        process = self.process_names[line.process]
        if process == len(self.processes):
            self.processes.append(ProcessEvents())
        if isinstance(line, Send | Receive):
            kind = SEND if type(line) is Send else RECEIVE
            ordinal, subject = line.ordinal, self.channel_names[line.channel]
            if line.message_id is not None:
                self.message_ids[index] = line.message_id
        elif type(line) is Internal:
            kind, ordinal, subject = INTERNAL, 0, self.event_names[line.name or ""]
        else:
            assert type(line) is Record
            kind, ordinal, subject = RECORD, 0, self.snapshot_names[line.snapshot_id]
        self.kind.append(kind)
        self.process.append(process)
        self.position.append(line.position)
        self.subject.append(subject)
        self.ordinal.append(ordinal)
        self.at.append(nan if line.at is None else line.at)
        if line.payload:
            self.payloads[index] = bytes(line.payload)
        self._enter(index, kind, process, line.position, subject)

    def _extend(self, columns: Columns) -> None:
        """Add lines of a process of the header."""
        index, process = len(self.kind), self.process_names[columns.process]
        channels = [self.channel_names[name] for name in columns.channels]
        numbers = (
            channels,
            channels,
            [self.event_names[name] for name in columns.names],
            [self.snapshot_names[name] for name in columns.snapshots],
        )
        self.kind += columns.kind
        self.process.extend(repeat(process, len(columns.kind)))
        self.position.extend(columns.position)
        self.ordinal.extend(columns.ordinal)
        self.at.extend(columns.at)
        self.payloads.update((index + place, payload) for place, payload in columns.payloads.items())
        for kind, position, place in zip(columns.kind, columns.position, columns.subject, strict=True):
            subject = numbers[kind][place]
            self.subject.append(subject)
            self._enter(index, kind, process, position, subject)
            index += 1

    def _enter(self, index: int, kind: int, process: int, position: int, subject: int) -> None:
        """Add a line to its process, and to its channel if it has one."""
        table = self.processes[process]
        if kind == RECORD:
            table.records.append(index)
            return
        if kind != INTERNAL:
            self._enter_message(index, kind, process, subject)
        if position != table.last_position:
            table.last_position = position
            table.starts.append(len(table.lines))
        elif kind == RECEIVE and table.starts and self.kind[table.lines[-1]] == RECEIVE:
            self.further_receives.setdefault(table.lines[table.starts[-1]], []).append(index)
        elif kind != SEND:
            self.misplaced_leads.append(index)
        table.lines.append(index)

    def _enter_message(self, index: int, kind: int, process: int, channel: int) -> None:
        if channel == len(self.channels):
            self.channels.append(ChannelLines(NOBODY, NOBODY, FIFO))
        table = self.channels[channel]
        if kind == SEND:
            table.sends.append(index)
            end = table.source
        else:
            table.receives.append(index)
            end = table.target
        if end != process and end != NOBODY:
            self.wrong_ends.append(index)

    def line(self, index: int) -> Line:
        """Return line `index` as it was read."""
        kind, subject, position = self.kind[index], self.subject[index], self.position[index]
        process = self.process_names.by_number[self.process[index]]
        payload = msgspec.Raw(self.payloads[index]) if index in self.payloads else NO_PAYLOAD
        at = None if isnan(self.at[index]) else self.at[index]
        if kind == RECORD:
            return Record(process, position, self.snapshot_names.by_number[subject], payload, at)
        if kind == INTERNAL:
            return Internal(process, position, self.event_names.by_number[subject] or None, payload, at)
        message = Send if kind == SEND else Receive
        channel, ordinal = self.channel_names.by_number[subject], self.ordinal[index]
        return message(process, position, channel, ordinal, self.message_ids.get(index), payload, at)

    def event_lines(self, process: int, position: int) -> "array[int]":
        """Return the indexes of the lines of an event; needs correct positions."""
        table = self.processes[process]
        place = position - table.base
        end = table.starts[place] if place < len(table.starts) else len(table.lines)
        return table.lines[table.starts[place - 1] : end]

    def highest_received(self, table: ChannelLines) -> "array[int]":
        """Return, for each receive of a channel, the highest ordinal received so far."""
        if table.highest is None:
            table.highest = array("q", accumulate(map(self.ordinal.__getitem__, table.receives), max))
        return table.highest
