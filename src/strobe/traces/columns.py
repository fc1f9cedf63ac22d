"""Expands the rows of a process's segments into lines: columns of numbers, in the order of its events."""

from array import array
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strobe.causality.trace_tables import INTERNAL, RECEIVE, RECORD, SEND, Columns
from strobe.errors import UNREADABLE, TraceDamaged
from strobe.traces.arrow_columns import Integers, numbers_in, times_in
from strobe.traces.rows import KINDS, count_up, to_table
from strobe.traces.sealing import unreadable
from strobe.traces.segments import COUNT_MAX, LINES_MAX, TraceSegment

NOTHING = -1
# Limits that keep numbers within a segment: numpy's would wrap around.
_RANGES = {"count": (1, LINES_MAX), "step": (0, 1)}
_SUBJECTS = {"channel": ("send", "receive"), "name": ("internal",), "snapshot_id": ("record",)}

_decode = msgspec.msgpack.Decoder().decode
_to_json = msgspec.json.Encoder().encode


class ProcessLines:
    """The lines of `process` that these consecutive segments hold."""

    def __init__(self, process: str, segments: Sequence[TraceSegment]) -> None:
        self.process = process
        rows = _read(segments)
        length = numbers_in(rows.column("count"))
        kind, kinds = _codes(rows, "kind")
        kind = np.array([KINDS.index(name) for name in kinds] or [0])[kind]
        channel, self.channels = _codes(rows, "channel")
        name, self.names = _codes(rows, "name")
        snapshot, self.snapshots = _codes(rows, "snapshot_id")
        subject = np.select([kind <= RECEIVE, kind == INTERNAL], [channel, name], snapshot)
        position = count_up(numbers_in(rows.column("position")), length, numbers_in(rows.column("step")))
        expanded = np.repeat(kind, length)
        # A send may be stored after later events, if its frame was sealed after the end of a segment.
        order = np.argsort(position * 2 + (expanded == SEND) + (expanded == RECORD), kind="stable")
        self.kind = expanded[order]
        self.position = position[order]
        self.subject = np.repeat(subject, length)[order]
        self.ordinal = count_up(numbers_in(rows.column("ordinal")), length)[order]
        self.at = np.repeat(times_in(rows.column("at")), length)[order]
        self._payloads = _payloads(rows, length, order)
        self._sends: dict[str, Integers] = {}
        self._receives: dict[str, tuple[Integers, Integers]] = {}

    def sends(self, channel: str) -> Integers:
        """Return the positions of the events that sent on `channel`, in the order of the messages."""
        if channel not in self._sends:
            self._sends[channel] = self.position[self._of(SEND, channel)]
        return self._sends[channel]

    def receives(self, channel: str) -> tuple[Integers, Integers]:
        """Return for each message received on `channel` the position, and the highest ordinal so far."""
        if channel not in self._receives:
            found = self._of(RECEIVE, channel)
            self._receives[channel] = self.position[found], np.maximum.accumulate(self.ordinal[found])
        return self._receives[channel]

    def recorded(self, end: int) -> list[str]:
        """Return the snapshots for which the process recorded, up to event number `end`."""
        found = (self.kind == RECORD) & (self.position <= end)
        return [self.snapshots[number] for number in self.subject[found]]

    def last_position(self, default: int) -> int:
        return int(self.position[-1]) if len(self.position) else default

    def columns(self, end: int) -> Columns:
        """Return the lines of the events up to number `end`."""
        count = int(np.searchsorted(self.position, end, "right"))
        payloads = {place: self._payload(payload) for place, payload in self._payloads.items() if place < count}
        return Columns(
            self.process,
            self.kind[:count].astype(np.uint8).tobytes(),
            array("q", self.position[:count].tobytes()),
            array("q", self.subject[:count].tobytes()),
            array("q", self.ordinal[:count].tobytes()),
            array("d", self.at[:count].tobytes()),
            payloads,
            self.channels,
            self.names,
            self.snapshots,
        )

    def _payload(self, payload: bytes) -> bytes:
        try:
            return _to_json(_decode(payload))
        except (*UNREADABLE, TypeError, ValueError) as error:  # TypeError and ValueError: the payload has no JSON form
            raise TraceDamaged(f"a payload in the trace of {self.process} cannot be read: {error}") from error

    def _of(self, kind: int, channel: str) -> npt.NDArray[np.bool_]:
        number = self.channels.index(channel) if channel in self.channels else NOTHING - 1
        found: npt.NDArray[np.bool_] = (self.kind == kind) & (self.subject == number)
        return found


def _read(segments: Sequence[TraceSegment]) -> pa.Table:
    tables = [segment.rows() for segment in segments]
    for segment, table in zip(segments, tables, strict=True):
        _check(segment, table)
    return pa.concat_tables(tables or [to_table("", [], [], [])]).unify_dictionaries().combine_chunks()


def _check(segment: TraceSegment, rows: pa.Table) -> None:
    """Raise UsageError if the rows do not match the header; the consistency of the lines is checked later."""
    problem = _problem_with_numbers(segment, rows) or _problem_with_names(segment, rows)
    if problem is not None:
        raise unreadable(segment.path, problem)


def _problem_with_numbers(segment: TraceSegment, rows: pa.Table) -> str | None:
    for name in ("position", "count", "step"):
        if rows.column(name).null_count:
            return f"a row has no {name}"
    columns = {name: numbers_in(rows.column(name)) for name in ("position", "ordinal", "count", "step")}
    for name, numbers in columns.items():
        least, most = _RANGES.get(name, (0, COUNT_MAX))
        if len(numbers) and not least <= numbers.min() <= numbers.max() <= most:
            return f"a row has a {name} that is not between {least} and {most}"
    if columns["count"].sum() != segment.header.lines:
        return f"its rows do not stand for the {segment.header.lines:,} lines of its header"
    return None


def _problem_with_names(segment: TraceSegment, rows: pa.Table) -> str | None:
    rows = rows.unify_dictionaries().combine_chunks()
    kind, kinds = _codes(rows, "kind")
    if not set(kinds) <= set(KINDS) or (kind < 0).any():
        return f"a row is not of the kind {', '.join(KINDS)}"
    for name, of in _SUBJECTS.items():
        code, names = _codes(rows, name)
        wanted = np.isin(kind, [number for number, one in enumerate(kinds) if one in of])
        if (code[wanted] < 0).any() or None in names:
            return f"a row of the kind {' or '.join(of)} has no {name}"
    strange = set(_codes(rows, "channel")[1]).difference(channel.id for channel in segment.header.channels)
    return f"its header has no channel {min(strange)!r}" if strange else None


def _codes(rows: pa.Table, name: str) -> tuple[Integers, list[str]]:
    """Return the names in a column, and the index of each; NOTHING for null."""
    column = rows.column(name)
    if column.num_chunks == 0:
        return np.zeros(0, np.int64), []
    chunk = column.chunk(0)
    return numbers_in(pa.chunked_array([chunk.indices]), NOTHING), chunk.dictionary.to_pylist()


def _payloads(rows: pa.Table, length: Integers, order: Integers) -> dict[int, bytes]:
    """Return the payloads by the index of their line; the payload of a row belongs to its first line."""
    column = rows.column("payload")
    if column.null_count == len(column):
        return {}
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    first = place[np.cumsum(length) - length]
    values: list[Any] = column.to_pylist()
    return {int(first[row]): value for row, value in enumerate(values) if value is not None}
