"""Converts the notes of a live process to the rows of a trace segment (R4).

While the process runs, a frame costs one note, not a line for each of its messages. The same holds on disk: a row
stands for `count` lines, each with an ordinal one higher than the line before, and a position `step` higher. Rows are
built and expanded by numpy and pyarrow, in the thread that writes the trace or in the reader.
"""

from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from strobe.causality.trace_tables import INTERNAL, RECEIVE, RECORD, SEND
from strobe.traces.arrow_columns import Integers, bytes_column, integers, name_column, number_column
from strobe.traces.notes import Lead, RecordedNote, Sent

KINDS = ("send", "receive", "internal", "record")  # in the order of their numbers in trace_tables

_NAME = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        ("process", _NAME),
        ("position", pa.int64()),
        ("kind", _NAME),
        ("channel", _NAME),
        ("ordinal", pa.int64()),
        ("count", pa.int64()),
        ("step", pa.int64()),
        ("message_id", pa.string()),
        ("snapshot_id", _NAME),
        ("name", _NAME),
        ("payload", pa.binary()),
        ("at", pa.float64()),
    ]
)

_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


class _Rows(NamedTuple):
    """Rows as columns."""

    kind: Integers
    position: Integers
    ordinal: Integers
    length: Integers
    step: Integers
    subject: Integers
    """The number of the channel, the event's name, or the snapshot."""


def to_table(process: str, leads: list[Lead], sends: list[Sent], records: list[RecordedNote]) -> pa.Table:
    """Return the rows, in the order of the process's events."""
    channels, names, snapshots = _Codes(), _Codes(), _Codes()
    payloads = any(sent.body is not None for sent in sends)
    parts = (
        _lead_rows(leads, channels, names),
        _sent_rows(sends, channels, payloads),
        _record_rows(records, snapshots),
    )
    rows = _Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    order = np.argsort(rows.position * 2 + (rows.kind == SEND) + (rows.kind == RECORD), kind="stable")
    rows = _Rows(*(column[order] for column in rows))
    columns = {
        "process": name_column(np.zeros_like(order), [process]),
        "position": number_column(rows.position),
        "kind": name_column(rows.kind, KINDS),
        "channel": name_column(rows.subject, list(channels), rows.kind <= RECEIVE),
        "ordinal": number_column(rows.ordinal, rows.ordinal != 0),
        "count": number_column(rows.length),
        "step": number_column(rows.step),
        "message_id": pa.nulls(len(order), pa.string()),
        "snapshot_id": name_column(rows.subject, list(snapshots), rows.kind == RECORD),
        "name": name_column(rows.subject, list(names), rows.kind == INTERNAL),
        "payload": _payloads(leads, sends if payloads else [], order),
        "at": _times(leads, order),
    }
    return pa.Table.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _payloads(leads: list[Lead], sends: list[Sent], order: Integers) -> pa.Array:
    """Return the payloads of leads and sends; other rows have none."""
    found: list[bytes | None] = [lead.payload for lead in leads]
    found += [bytes(message) for sent in sends for message in _split(sent.body)]
    if not any(found):
        return pa.nulls(len(order), pa.binary())
    found += [None] * (len(order) - len(found))
    return bytes_column([found[place] for place in order.tolist()], pa.binary())


def _times(leads: list[Lead], order: Integers) -> pa.Array:
    """Return the times of the events; rows of sends have none."""
    times = np.full(len(order), np.nan)
    times[: len(leads)] = [np.nan if lead.at is None else lead.at for lead in leads]
    times = times[order]
    return number_column(times, ~np.isnan(times))


def _lead_rows(leads: list[Lead], channels: "_Codes", names: "_Codes") -> _Rows:
    count = integers(lead.length for lead in leads)
    return _Rows(
        integers(INTERNAL if lead.channel is None else RECEIVE for lead in leads),
        integers(lead.position for lead in leads),
        integers(lead.ordinal for lead in leads),
        count,
        integers(lead.step for lead in leads),
        integers(channels[lead.channel] if lead.channel is not None else names[lead.name or ""] for lead in leads),
    )


def _sent_rows(sends: list[Sent], channels: "_Codes", single: bool) -> _Rows:
    """Return a row for each event that sent on a channel, or for several in sequence; `single`: for each message."""
    counts = integers(sent.length for sent in sends)
    first_places = np.cumsum(counts) - counts
    flat: list[int] = []
    for sent in sends:
        flat.extend(sent.events)
    events = np.array(flat, np.int64).reshape(-1, 2)
    frame = np.repeat(np.arange(len(sends)), integers(len(sent.events) // 2 for sent in sends))
    begins = events[:, 1] + first_places[frame]
    count = np.diff(np.append(begins, counts.sum()))
    position, ordinal = events[:, 0], events[:, 1] + integers(sent.ordinal for sent in sends)[frame]
    subject = integers(channels[sent.channel] for sent in sends)[frame]
    if single:
        position, subject = np.repeat(position, count), np.repeat(subject, count)
        ordinal = count_up(ordinal, count)
        count = np.ones_like(ordinal)
        return _Rows(np.full_like(count, SEND), position, ordinal, count, np.zeros_like(count), subject)
    return _joined(position, ordinal, count, subject)


def _joined(position: Integers, ordinal: Integers, count: Integers, subject: Integers) -> _Rows:
    """Merge consecutive events that each sent one message into one row, as when every message is passed on."""
    lone = count == 1
    follows = np.zeros(len(count), bool)
    follows[1:] = (
        (lone[1:] & lone[:-1])
        & (position[1:] == position[:-1] + 1)
        & (ordinal[1:] == ordinal[:-1] + 1)
        & (subject[1:] == subject[:-1])
    )
    first = np.flatnonzero(~follows)
    total = np.add.reduceat(count, first) if len(first) else count
    step = (np.diff(np.append(first, len(count))) > 1).astype(np.int64)
    return _Rows(np.full_like(total, SEND), position[first], ordinal[first], total, step, subject[first])


def _record_rows(records: list[RecordedNote], snapshots: "_Codes") -> _Rows:
    position = integers(record.position for record in records)
    zeros, ones = np.zeros_like(position), np.ones_like(position)
    subject = integers(snapshots[record.snapshot] for record in records)
    return _Rows(np.full_like(position, RECORD), position, zeros, ones, zeros, subject)


class _Codes(dict[str, int]):
    """Numbers for names, in the order of first use."""

    def __missing__(self, name: str) -> int:
        self[name] = len(self)
        return self[name]


def count_up(first: Integers, counts: Integers, step: Integers | None = None) -> Integers:
    """Return first, first + step, ... for each, as many as `counts` has; without `step`, up by one."""
    ends = np.cumsum(counts)
    within = np.arange(counts.sum(), dtype=np.int64) - np.repeat(ends - counts, counts)
    steps = within if step is None else within * np.repeat(step, counts)
    counted: Integers = np.repeat(first, counts) + steps
    return counted
