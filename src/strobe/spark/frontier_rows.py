"""The rows of `frontiers`, the table with the most of them: made without a step of Python for each, as far as can be.

What a view says is made once for all its snapshots (view_columns.py). What the processes recorded comes process by
process and is needed channel by channel: where the names stand in the order in which they stood in an earlier snapshot,
which is nearly always, the order of the earlier one is used again.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strobe.spark.arrow import Chunks, Rows
from strobe.spark.committed import CommittedSnapshot, End, Recorded
from strobe.spark.view_columns import ViewColumns, view_columns

Order = npt.NDArray[np.int64]
_ORDERS_MAX = 64


def frontiers(snapshot: CommittedSnapshot) -> Rows:
    """One row for each channel of the view; NULL where its sender or its receiver has not recorded it."""
    view = view_columns[snapshot.view]
    if view.senders:
        yield _frontiers(snapshot, view, snapshot.recorded()), 0


def frontier_details(snapshot: CommittedSnapshot) -> Rows:
    """The same, with what the view says of each channel."""
    view = view_columns[snapshot.view]
    if view.senders:
        recorded = snapshot.recorded()
        in_flight = _Side({name: part.in_flight for name, part in recorded.items()}, view.receivers)
        details = [in_flight.numbers(), view.source, view.target, view.incarnation, view.hash, view.unused_hash]
        yield _frontiers(snapshot, view, recorded) + details, 0


def _frontiers(snapshot: CommittedSnapshot, view: ViewColumns, recorded: dict[str, Recorded]) -> Chunks:
    sent = _Side({name: part.sent for name, part in recorded.items()}, view.senders)
    received = _Side({name: part.received for name, part in recorded.items()}, view.receivers)
    names = [pa.repeat(snapshot.id, len(view.senders)), view.channel, view.kind]
    return [*names, sent.counts(), sent.hashes(), received.counts(), received.hashes()]


class _Side:
    """What the processes at one side of the channels recorded of them, brought into the order of `wanted`."""

    def __init__(self, parts: Mapping[str, Mapping[str, Any]], wanted: list[tuple[str, str]]) -> None:
        self._values = list(chain.from_iterable(part.values() for part in parts.values()))
        self._order = _order(parts, wanted)
        self._absent = int(self._order[-1]) < 0 or bool((self._order < 0).any())

    def counts(self) -> pa.Array:
        return self._ordered([end.count for end in self._values])

    def numbers(self) -> pa.Array:
        return self._ordered(self._values)

    def hashes(self) -> pa.Array:
        found = self._hashes_of_one_length()
        return found if found is not None else pa.array(self._in_order([*map(_hash, self._values)]), pa.binary())

    def _ordered(self, numbers: list[int]) -> pa.Array:
        if self._absent:
            return pa.array(self._in_order(numbers), pa.int64())
        return pa.array(np.array(numbers, np.int64)[self._order])

    def _in_order(self, values: list[Any]) -> list[Any]:
        return [None if place < 0 else values[place] for place in self._order]

    def _hashes_of_one_length(self) -> pa.Array | None:
        """Return the hashes, moved all at once: only where all are there, and as long as each other."""
        hashes = [end.hash for end in self._values]
        if self._absent or not hashes:
            return None
        width = len(hashes[0])
        if not width or any(map(width.__ne__, map(len, hashes))):
            return None
        joined = bytes.fromhex("".join(hashes)) if isinstance(hashes[0], str) else b"".join(hashes)
        table = np.frombuffer(joined, np.uint8).reshape(len(hashes), -1)[self._order]
        offsets = np.arange(0, table.size + 1, table.shape[1], dtype=np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(table))]
        return pa.Array.from_buffers(pa.binary(), len(self._order), buffers)


_orders: dict[int, tuple[list[tuple[str, str]], list[str], list[str], Order]] = {}


def _order(parts: Mapping[str, Mapping[str, Any]], wanted: list[tuple[str, str]]) -> Order:
    """Return where each (channel, process) of `wanted` lies among all values of `parts`; -1 where it does not."""
    processes = [process for process, part in parts.items() for _ in part]
    channels = list(chain.from_iterable(parts.values()))
    known = _orders.get(id(wanted))
    if known is not None and known[0] is wanted and known[1] == channels and known[2] == processes:
        return known[3]
    places = {pair: place for place, pair in enumerate(zip(channels, processes, strict=True))}
    order = np.array([places.get(pair, -1) for pair in wanted], np.int64)
    if len(_orders) >= _ORDERS_MAX:
        _orders.clear()
    _orders[id(wanted)] = wanted, channels, processes, order
    return order


def counts(ends: Sequence[End | None]) -> pa.Array:
    """Return the counts of `ends` as a column."""
    return pa.array([None if end is None else end.count for end in ends], pa.int64())


def hashes(ends: Sequence[End | None]) -> pa.Array:
    """Return the hashes of `ends` as a column."""
    return pa.array([None if end is None else _hash(end) for end in ends], pa.binary())


def _hash(end: End) -> bytes:
    return bytes.fromhex(end.hash) if isinstance(end.hash, str) else end.hash
