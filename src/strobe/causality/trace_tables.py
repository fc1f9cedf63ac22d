"""A trace in memory: columns with one entry a line, and where to find the lines of each process and channel.

A million lines as objects are a quarter of a gigabyte; as columns they are a quarter of that. Nothing is refused here:
lines that do not fit are kept in their place, for `trace_check` to name them.

Line *indexes* count the lines behind the header from 0; line *numbers* are those of the file (index + FIRST_LINE).
"""

from array import array
from collections.abc import Iterable
from itertools import accumulate
from math import isnan, nan

import msgspec

from strobe.causality.trace_lines import NO_PAYLOAD, Internal, Line, Receive, Record, Send, TraceHeader
from strobe.protocol.frames import FIFO

SEND, RECEIVE, INTERNAL, RECORD = range(4)

FIRST_LINE = 2
"""The number in the file of the line with index 0: the header is line 1."""

NOBODY = -1
"""The index of the ends of a channel that the header does not name."""


class Names(dict[str, int]):
    """Names and their numbers; a new name gets the next number."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__()
        self.by_number: list[str] = []
        for name in names:
            self[name]

    def __missing__(self, name: str) -> int:
        number = self[name] = len(self)
        self.by_number.append(name)
        return number


class ProcessTable:
    """The lines of one process, in the order of the file. Lines in a row with the same position are one event."""

    __slots__ = ("last_position", "lines", "records", "starts")

    def __init__(self) -> None:
        self.lines = array("q")  # indexes of all lines but records
        self.starts = array("q")  # where in `lines` each event begins
        self.records = array("q")
        self.last_position = 0


class ChannelTable:
    """The lines of one channel: sends in the sender's order, receives in the receiver's."""

    __slots__ = ("fifo", "highest", "receives", "sends", "source", "target")

    def __init__(self, source: int, target: int, kind: str) -> None:
        self.source = source
        self.target = target
        self.fifo = kind == FIFO
        self.sends = array("q")
        self.receives = array("q")
        self.highest: array[int] | None = None


class Tables:
    """All of a trace but its header. Names that the header does not have come behind those that it has."""

    def __init__(self, header: TraceHeader, lines: Iterable[Line]) -> None:
        self.process_names = Names(header.processes)
        self.channel_names = Names(channel.id for channel in header.channels)
        self.snapshot_names = Names()
        self.event_names = Names()
        self.processes = [ProcessTable() for _ in header.processes]
        self.channels = [
            ChannelTable(self.process_names[channel.source], self.process_names[channel.target], channel.kind)
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
        for line in lines:
            self._append(line)

    def _append(self, line: Line) -> None:
        index = len(self.kind)
        process = self.process_names[line.process]
        if process == len(self.processes):
            self.processes.append(ProcessTable())
        if type(line) is Send:
            kind, ordinal, subject = SEND, line.ordinal, self._channel(line, index, process)
        elif type(line) is Receive:
            kind, ordinal, subject = RECEIVE, line.ordinal, self._channel(line, index, process)
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
        self._place(index, kind, self.processes[process], line.position)

    def _channel(self, line: Send | Receive, index: int, process: int) -> int:
        """Enter a message's line with its channel, and return the channel's number."""
        channel = self.channel_names[line.channel]
        if channel == len(self.channels):
            self.channels.append(ChannelTable(NOBODY, NOBODY, FIFO))
        table = self.channels[channel]
        if type(line) is Send:
            table.sends.append(index)
            end = table.source
        else:
            table.receives.append(index)
            end = table.target
        if end != process and end != NOBODY:
            self.wrong_ends.append(index)
        if line.message_id is not None:
            self.message_ids[index] = line.message_id
        return channel

    def _place(self, index: int, kind: int, table: ProcessTable, position: int) -> None:
        """Enter a line with its process."""
        if kind == RECORD:
            table.records.append(index)
            return
        if position != table.last_position:
            table.last_position = position
            table.starts.append(len(table.lines))
        elif kind != SEND:
            self.misplaced_leads.append(index)
        table.lines.append(index)

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
        """Return the indexes of the lines of an event; only where positions are without fault."""
        table = self.processes[process]
        end = table.starts[position] if position < len(table.starts) else len(table.lines)
        return table.lines[table.starts[position - 1] : end]

    def highest_received(self, table: ChannelTable) -> "array[int]":
        """Return, for each receive of a channel, the highest ordinal among it and those before it."""
        if table.highest is None:
            table.highest = array("q", accumulate(map(self.ordinal.__getitem__, table.receives), max))
        return table.highest
