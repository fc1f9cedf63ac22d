"""A snapshot as rows of Arrow: what Python hands to Spark, whether it was read from a store or is in memory.

A snapshot becomes one row, a *part*, that holds its view, fragments, channel ends and frames as nested columns;
tables.py takes the parts apart into tables without Python. A snapshot with much in flight becomes several parts, so
that no row and no batch grows with it. What cannot be read becomes a part with an `error` and nothing else. States are
not in it (states.py): a proof does not need them, and they can be large.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from strobe.errors import SnapshotError
from strobe.protocol.fragment import Fragment, Snapshot
from strobe.protocol.frames import can_hash, seed_hash
from strobe.protocol.view import ChannelSpec
from strobe.spark import columns as c

PART_BYTES_MAX = 8 << 20
"""A part is closed before it grows past this; one frame that is larger by itself is a part of its own."""

BATCH_ROWS_MAX = 1000
COUNT_MAX = 1 << 62
"""Ordinals and counts fit a `bigint`, and so do their sums; nothing real comes near."""
MESSAGES_MAX = (1 << 31) - 1
"""Messages of one frame: an `int`."""

Row = dict[str, Any]


_frontier = [(c.SENT_COUNT, pa.int64()), (c.SENT_HASH, pa.binary())]
_frontier += [(c.RECEIVED_COUNT, pa.int64()), (c.RECEIVED_HASH, pa.binary())]

_SNAPSHOT = pa.struct(
    [
        ("parent_id", pa.string()),
        ("protocol", pa.string()),
        ("initiators", pa.list_(pa.string())),
        (c.VIEW_ID, pa.int64()),
        ("epoch", pa.int64()),
        ("started_at", pa.timestamp("us", "UTC")),
        ("completed_at", pa.timestamp("us", "UTC")),
        (c.STATE_BYTES, pa.int64()),
        ("in_flight_bytes", pa.int64()),
    ]
)
_VIEW_CHANNEL = pa.struct(
    [
        (c.CHANNEL, pa.string()),
        (c.SOURCE, pa.string()),
        (c.TARGET, pa.string()),
        (c.KIND, pa.string()),
        (c.INCARNATION, pa.int64()),
        (c.HASH, pa.string()),
        (c.UNUSED_HASH, pa.binary()),
    ]
)
_FRAGMENT = pa.struct(
    [
        (c.PROCESS, pa.string()),
        (c.RECORDED_BY, pa.string()),
        (c.RECORDED_SNAPSHOT, pa.string()),
        (c.RECORDED_VIEW, pa.int64()),
    ]
)
_END = pa.struct(
    [
        (c.PROCESS, pa.string()),
        (c.CHANNEL, pa.string()),
        *_frontier,
        (c.IN_FLIGHT_FRAMES, pa.int64()),
    ]
)
_FRAME = pa.struct(
    [
        (c.PROCESS, pa.string()),
        (c.CHANNEL, pa.string()),
        (c.FRAME, pa.int64()),
        (c.FIRST_ORDINAL, pa.int64()),
        (c.MESSAGE_COUNT, pa.int32()),
        (c.CONSUMED, pa.int32()),
        (c.BYTES, pa.binary()),
    ]
)
PARTS = pa.schema(
    [
        (c.SNAPSHOT_ID, pa.string()),
        (c.LOG_POSITION, pa.int64()),
        ("snapshot", _SNAPSHOT),
        ("view_processes", pa.list_(pa.string())),
        ("view_channels", pa.list_(_VIEW_CHANNEL)),
        ("fragments", pa.list_(_FRAGMENT)),
        ("channel_ends", pa.list_(_END)),
        ("channel_frames", pa.list_(_FRAME)),
        (c.ERROR, pa.string()),
    ]
)


def parts_of(snapshot: Snapshot, log_position: int, parent: str | None = None) -> Iterator[Row]:
    """Yield the parts of `snapshot`; raise SnapshotError before the first one where a value fits no column."""
    _require_fit(snapshot)
    part = _head(snapshot, log_position, parent)
    size = 0
    for column, row, row_bytes in _rows(snapshot):
        if size and size + row_bytes > PART_BYTES_MAX:
            yield part
            part, size = {c.SNAPSHOT_ID: str(snapshot.id), c.LOG_POSITION: log_position}, 0
        part.setdefault(column, []).append(row)
        size += row_bytes
    yield part


def error_part(snapshot_id: str, log_position: int, reason: str) -> Row:
    return {c.SNAPSHOT_ID: snapshot_id, c.LOG_POSITION: log_position, c.ERROR: reason}


def batches_of(parts: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Gather parts into batches of bounded size."""
    waiting: list[Row] = []
    size = 0
    for part in parts:
        waiting.append(part)
        size += _body_bytes(part)
        if size > PART_BYTES_MAX or len(waiting) >= BATCH_ROWS_MAX:
            yield pa.RecordBatch.from_pylist(waiting, PARTS)
            waiting, size = [], 0
    if waiting:
        yield pa.RecordBatch.from_pylist(waiting, PARTS)


def _head(snapshot: Snapshot, log_position: int, parent: str | None) -> Row:
    view = snapshot.view
    return {
        c.SNAPSHOT_ID: str(snapshot.id),
        c.LOG_POSITION: log_position,
        "snapshot": {
            "parent_id": parent,
            "protocol": snapshot.protocol,
            "initiators": snapshot.initiators,
            c.VIEW_ID: view.number,
            "epoch": snapshot.id.epoch,
            "started_at": snapshot.started_us,
            "completed_at": snapshot.completed_us,
            c.STATE_BYTES: snapshot.state_bytes,
            "in_flight_bytes": snapshot.in_flight_bytes,
        },
        "view_processes": view.processes,
        "view_channels": [
            {
                c.CHANNEL: channel.id,
                c.SOURCE: channel.source,
                c.TARGET: channel.target,
                c.KIND: channel.kind,
                c.INCARNATION: channel.incarnation,
                c.HASH: channel.hash,
                c.UNUSED_HASH: _unused_hash(channel),
            }
            for channel in view.channels
        ],
    }


def _unused_hash(channel: ChannelSpec) -> bytes | None:
    if not can_hash(channel.kind, channel.hash):
        return None
    return seed_hash(channel.id, channel.incarnation, channel.hash)


def _rows(snapshot: Snapshot) -> Iterator[tuple[str, Row, int]]:
    """Yield (nested column, row, size) of everything that the fragments hold.

    `process` is where the snapshot has the fragment, `recorded_by` whose it says it is; a proof compares them.
    """
    for process, fragment in snapshot.fragments.items():
        yield "fragments", _fragment_row(process, fragment), 0
        for channel in dict.fromkeys((*fragment.sent, *fragment.received, *fragment.in_flight)):
            yield "channel_ends", _end_row(process, fragment, channel), 0
        for channel, items in fragment.in_flight.items():
            for place, item in enumerate(items):
                frame = item.frame
                row = {
                    c.PROCESS: process,
                    c.CHANNEL: channel,
                    c.FRAME: place,
                    c.FIRST_ORDINAL: frame.first_ordinal,
                    c.MESSAGE_COUNT: frame.count,
                    c.CONSUMED: item.consumed,
                    c.BYTES: frame.body,
                }
                yield "channel_frames", row, len(frame.body)


def _fragment_row(process: str, fragment: Fragment) -> Row:
    return {
        c.PROCESS: process,
        c.RECORDED_BY: fragment.process,
        c.RECORDED_SNAPSHOT: str(fragment.snapshot),
        c.RECORDED_VIEW: fragment.view,
    }


def _end_row(process: str, fragment: Fragment, channel: str) -> Row:
    """What one process recorded of one channel; what it has not recorded is absent, and so NULL."""
    row: Row = {c.PROCESS: process, c.CHANNEL: channel}
    if (sent := fragment.sent.get(channel)) is not None:
        row |= {c.SENT_COUNT: sent.count, c.SENT_HASH: sent.hash}
    if (received := fragment.received.get(channel)) is not None:
        row |= {c.RECEIVED_COUNT: received.count, c.RECEIVED_HASH: received.hash}
    if (in_flight := fragment.in_flight.get(channel)) is not None:
        row[c.IN_FLIGHT_FRAMES] = len(in_flight)
    return row


def _require_fit(snapshot: Snapshot) -> None:
    for what, value, value_max in _numbers(snapshot):
        if not 0 <= value <= value_max:
            raise SnapshotError(str(snapshot.id), f"{what} is {value}, and its column holds 0 to {value_max}")


def _numbers(snapshot: Snapshot) -> Iterator[tuple[str, int, int]]:
    """Yield (name, value, largest value that fits) of every number whose size the format does not bound."""
    yield "the number of the view", snapshot.view.number, COUNT_MAX
    for channel in snapshot.view.channels:
        yield f"the incarnation of channel {channel.id}", channel.incarnation, COUNT_MAX
    for process, fragment in snapshot.fragments.items():
        yield f"the view recorded by {process}", fragment.view, COUNT_MAX
        yield f"the position of {process}", fragment.state.position if fragment.state else 0, COUNT_MAX
        for name, end in (*fragment.sent.items(), *fragment.received.items()):
            yield f"a count of channel {name}", end.count, COUNT_MAX
        for name, items in fragment.in_flight.items():
            for item in items:
                yield f"a first ordinal of channel {name}", item.frame.first_ordinal, COUNT_MAX
                yield f"a message count of channel {name}", item.frame.count, MESSAGES_MAX
                yield f"a consumed count of channel {name}", item.consumed, MESSAGES_MAX


def _body_bytes(part: Row) -> int:
    return sum(len(row[c.BYTES]) for row in part.get("channel_frames", ()))
