"""The rows of `frontiers`, the largest table: built with as little Python per row as possible.

The view's columns are built once for all its snapshots. The recorded ends come process by process
(frontier_arrays.py), and are put into the order of the view's channels.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strobe.spark.rows.committed_snapshot import CommittedSnapshot
from strobe.spark.rows.frontier_arrays import (
    End,
    FrontierArrays,
    RecordedChannels,
    ViewColumns,
    hash_bytes,
    view_columns,
)
from strobe.spark.schema.arrow import Chunks, Rows


def frontiers(snapshot: CommittedSnapshot) -> Rows:
    """One row for each channel of the view; NULL if its sender or its receiver has not recorded it."""
    view = view_columns[snapshot.view]
    if view.senders:
        yield _frontiers(snapshot, view), 0


def frontier_details(snapshot: CommittedSnapshot) -> Rows:
    """The same, with the view's columns for each channel."""
    view = view_columns[snapshot.view]
    if view.senders:
        in_flight = {name: part.in_flight for name, part in snapshot.recorded.items()}
        frames = list(chain.from_iterable(part.values() for part in in_flight.values()))
        in_order = _numbers(np.array(frames, np.int64), RecordedChannels(in_flight, view.receivers))
        details = [in_order, view.source, view.target, view.incarnation, view.hash, view.unused_hash]
        yield _frontiers(snapshot, view) + details, 0


def _frontiers(snapshot: CommittedSnapshot, view: ViewColumns) -> Chunks:
    columns: Chunks = [pa.repeat(snapshot.id, len(view.senders)), view.channel, view.kind]
    for ends in (snapshot.sent, snapshot.received):
        columns += [_numbers(ends.counts, ends.names), _hashes(ends)]
    return columns


def _numbers(numbers: npt.NDArray[Any], names: RecordedChannels) -> pa.Array:
    if names.all_there:
        return pa.array(numbers[names.places], pa.int64())
    return pa.array(_in_order(numbers.tolist(), names), pa.int64())


def _hashes(ends: FrontierArrays) -> pa.Array:
    table = ends.hash_table() if ends.names.all_there else None
    if table is None:
        return pa.array(_in_order(ends.hashes(), ends.names), pa.binary())
    table = table[ends.names.places]
    offsets = np.arange(0, table.size + 1, table.shape[1], dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(table), [None, pa.py_buffer(offsets), pa.py_buffer(table)])


def _in_order(values: list[Any], names: RecordedChannels) -> list[Any]:
    return [None if place < 0 else values[place] for place in names.places]


def counts(ends: Sequence[End | None]) -> pa.Array:
    """Return the counts of `ends` as a column."""
    return pa.array([None if end is None else end.count for end in ends], pa.int64())


def hashes(ends: Sequence[End | None]) -> pa.Array:
    """Return the hashes of `ends` as a column."""
    return pa.array([None if end is None else hash_bytes(end) for end in ends], pa.binary())
