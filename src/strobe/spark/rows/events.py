"""The rows of `events`: the lines of traces, each with the vector clock of its event (M3), as Arrow columns.

A trace is a file of JSON lines, or the directory of an epoch with the files of live processes (docs/trace.md). For a
store, the traces of all its epochs are read.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strobe.causality.clocks import vector_clocks
from strobe.causality.trace import Trace, TraceInvalid, read_trace
from strobe.causality.trace_tables import INTERNAL, RECEIVE, RECORD, SEND
from strobe.errors import UsageError
from strobe.spark.schema import columns as c
from strobe.spark.schema.arrow import arrow_schema
from strobe.storage.files.header import read_header
from strobe.storage.files.layout import HEADER, RUN
from strobe.storage.files.urls import backend_at, is_object_url

BATCH_LINES_MAX = 20_000
_KINDS = ("send", "receive", "internal", "record")
assert (SEND, RECEIVE, INTERNAL, RECORD) == (0, 1, 2, 3), "the order of _KINDS"

Integers = npt.NDArray[np.int64]


def traces_at(url: str | Path) -> list[Path]:
    """Return the traces at `url`: a single one, or those of all epochs of a store, which may have none.

    An object store has none: its programs write their traces on their own machines, and these are read by path.
    """
    if is_object_url(url):
        read_header(backend_at(url))  # raises if there is no store
        return []
    path = Path(url)
    of_store = (path / HEADER).exists()
    if of_store:
        path = path / RUN / "trace"
    if path.is_dir() and (epochs := sorted(found for found in path.glob("epoch-*") if found.is_dir())):
        return epochs
    if path.is_file() or any(path.glob("*/*.parquet")):
        return [path]
    if of_store:
        return []
    raise UsageError(f"{path}: there is no trace; give the file or directory of one on this machine, or a store's")


def read_events(path: Path, process: str | None) -> Iterator[pa.RecordBatch]:
    """Yield the events of the trace at `path`; clocks are NULL if its events are inconsistent."""
    trace = _read(path)
    try:
        clocks: _Clocks | None = _Clocks(trace)
    except TraceInvalid:
        clocks = None
    tables = trace.tables
    lines = np.arange(len(trace))
    if process is not None:
        number = trace.tables.process_names.get(process, -1)
        lines = lines[np.frombuffer(tables.process, np.int32) == number]
    for start in range(0, len(lines), BATCH_LINES_MAX):
        yield _batch(path.name, trace, clocks, lines[start : start + BATCH_LINES_MAX])


def _read(path: Path) -> Trace:
    if path.is_file():
        return read_trace(path)
    from strobe.traces.reading import read_live_trace

    return read_live_trace(path).trace


def _batch(trace_id: str, trace: Trace, clocks: "_Clocks | None", lines: Integers) -> pa.RecordBatch:
    tables = trace.tables
    kind = np.frombuffer(tables.kind, np.uint8)[lines].astype(np.int64)
    process = np.frombuffer(tables.process, np.int32)[lines].astype(np.int64)
    position = np.frombuffer(tables.position, np.int64)[lines]
    subject = np.frombuffer(tables.subject, np.int32)[lines].astype(np.int64)
    is_message = kind <= RECEIVE
    schema = arrow_schema(c.EVENTS)
    columns = [
        pa.repeat(trace_id, len(lines)),
        _named(tables.process_names.by_number, process),
        pa.array(position),
        _named(_KINDS, kind),
        _named(tables.channel_names.by_number, subject, ~is_message),
        pa.array(np.frombuffer(tables.ordinal, np.int64)[lines], mask=~is_message),
        pa.array([tables.message_ids.get(int(line)) for line in lines] if tables.message_ids else [None] * len(lines)),
        clocks.column(process, position) if clocks else pa.nulls(len(lines)),
    ]
    return pa.RecordBatch.from_arrays(
        [column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def _named(
    names: "list[str] | tuple[str, ...]", numbers: Integers, mask: "npt.NDArray[np.bool_] | None" = None
) -> pa.Array:
    """Return the names of `numbers`; NULL for masked ones."""
    if mask is not None and mask.all():
        return pa.nulls(len(numbers), pa.string())
    return pa.array(names, pa.string()).take(pa.array(numbers, mask=mask))


class _Clocks:
    """The vector clocks of all events of a trace, as rows of one array."""

    def __init__(self, trace: Trace) -> None:
        clocks = vector_clocks(trace)
        self._processes = pa.array(trace.processes, pa.string())
        width = len(trace.processes)
        parts = [np.array(clocks.rows(process), np.int64).reshape(-1, width) for process in trace.processes]
        ends = np.cumsum([len(part) for part in parts])
        self._rows = np.concatenate(parts)
        # The row that event number 0 of each process would have: event n is n rows further on.
        base = np.array([trace.first_count(process) for process in trace.processes])
        self._first = np.concatenate(([0], ends[:-1])) - base - 1
        self._known = base

    def column(self, process: Integers, position: Integers) -> pa.Array:
        """Return the clocks of these events; NULL at a cut before the first event of the trace."""
        absent = position <= self._known[process]
        places = np.where(absent, 0, self._first[process] + position)
        rows = self._rows[places] if len(self._rows) else np.zeros((len(places), len(self._processes)), np.int64)
        counted = (rows > 0) & ~absent[:, None]
        offsets = np.concatenate(([0], np.cumsum(counted.sum(axis=1)))).astype(np.int32)
        keys = self._processes.take(pa.array(np.nonzero(counted)[1]))
        mask = pa.array(absent) if absent.any() else None
        kind = arrow_schema(c.EVENTS).field(c.VECTOR_CLOCK).type
        return pa.MapArray.from_arrays(pa.array(offsets), keys, pa.array(rows[counted]), type=kind, mask=mask)
