"""Segments of a live trace: Parquet files that each hold consecutive events of one process (docs/trace.md).

    <trace>/epoch-000001/<process>/000001.parquet, 000002.parquet, ...

A process that joins during the epoch has them in <process>@<view>, by the view that it joined with: it may have been a
member before, and have left.

The key-value metadata of a segment states where it begins, and the counts of each channel of the process there. So any
set of segments can be read from the first one that begins at a snapshot which the other processes also have. Every byte
is under a checksum (sealing.py).
"""

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from strobe.causality.trace_lines import VERSION
from strobe.errors import UNREADABLE, TraceDamaged, UsageError
from strobe.private_files import replace_file
from strobe.protocol import ChannelSpec
from strobe.traces.pages import check_pages
from strobe.traces.rows import SCHEMA
from strobe.traces.sealing import KEY, UNSEALED, read_sealed, seal, unreadable

# Why a segment ends.
SNAPSHOT = "snapshot"
SIZE = "size"
CLOSED = "closed"
"""All events of the process are on disk, and so are all its sends."""

_COUNTED = ("position", "ordinal", "count", "step")
_NAMED = [field.name for field in SCHEMA if pa.types.is_dictionary(field.type)]
LINES_MAX = 1 << 24
"""Maximum number of lines in a segment: a few bytes can stand for very many. Writers stop at a quarter of it."""
COUNT_MAX = 1 << 53
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]


# A file with a valid checksum may still come from another writer.
_FOREIGN = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError)


class Received(msgspec.Struct, frozen=True):
    """The received messages of a channel: all up to `below`, and on unordered channels runs (first, count)."""

    below: Count = 0
    ahead: tuple[tuple[Count, Count], ...] = ()


class Counts(msgspec.Struct, frozen=True):
    """The progress of a process: its number of events, and the counts of its channels."""

    position: Count
    sent: dict[str, Count]
    received: dict[str, Received]


class SegmentHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Where a segment begins and ends. It begins at the recording for `snapshot`, if that is set.

    `processes` and `channels` are those of all views that the process has had; `lines` counts the lines that the rows
    stand for; `reason` is why it ends. `joined` is the view that the process joined with; 0: it was a member when the
    epoch began.
    """

    strobe_trace: int = VERSION
    process: str
    epoch: Count
    level: str
    segment: Count
    snapshot: str | None
    processes: tuple[str, ...]
    channels: tuple[ChannelSpec, ...]
    begin: Counts
    end: Counts
    lines: Annotated[int, msgspec.Meta(ge=0, le=LINES_MAX)]
    reason: str
    joined: Count = 0


class TraceSegment(msgspec.Struct, frozen=True):
    """One file, with its decoded header."""

    path: Path
    header: SegmentHeader

    def rows(self) -> pa.Table:
        """Return the rows."""
        raw = read_sealed(self.path)
        try:
            # Not read_table: it imports pandas if that is installed, which takes a second.
            with pq.ParquetFile(pa.BufferReader(raw)) as file:
                self._check(raw, file)
                rows = file.read()
            rows.validate(full=True)
            return rows
        except _FOREIGN as error:
            raise unreadable(self.path, str(error)) from error

    def _check(self, raw: bytes, file: pq.ParquetFile) -> None:
        """Refuse a file with other columns, or whose rows would take more memory than a segment may."""
        if not file.schema_arrow.remove_metadata().equals(SCHEMA):
            raise TraceDamaged(f"{self.path} does not have the columns of a trace: {', '.join(SCHEMA.names)}")
        if file.metadata.num_rows > self.header.lines:
            raise unreadable(
                self.path, f"it has {file.metadata.num_rows:,} rows for the {self.header.lines:,} lines of its header"
            )
        check_pages(raw, file.metadata, _NAMED)


def directory_of(trace: Path, epoch: int, process: str, joined: int = 0) -> Path:
    """Return the directory of the segments of `process` in `epoch`, for the incarnation that `joined` with that view.

    Names of processes may have any printable characters.
    """
    name = quote(process, safe="")
    name = name if not name.startswith(".") else f"%2E{name[1:]}"
    return trace / f"epoch-{epoch:06}" / (f"{name}@{joined}" if joined else name)


def segments_in(directory: Path) -> list[Path]:
    """Return the segment files in `directory`, sorted by number: a long trace has more than six digits."""
    return sorted(directory.glob("*.parquet"), key=lambda path: (len(path.stem), path.stem))


def write_segment(path: Path, header: SegmentHeader, rows: pa.Table) -> int:
    """Write a segment atomically; return its size."""
    fields = msgspec.to_builtins(header)
    metadata = {name: msgspec.json.encode(value) for name, value in fields.items()}
    written = pa.BufferOutputStream()
    pq.write_table(
        rows.replace_schema_metadata(metadata | {KEY: UNSEALED}),
        written,
        compression="zstd",
        compression_level=1,
        use_dictionary=_NAMED,
        column_encoding=dict.fromkeys(_COUNTED, "DELTA_BINARY_PACKED"),
    )
    raw = seal(written.getvalue().to_pybytes())
    replace_file(path, raw)
    return len(raw)


def read_segment(path: Path) -> TraceSegment:
    """Read the header of a segment."""
    raw = read_sealed(path)
    try:
        with pq.ParquetFile(pa.BufferReader(raw)) as file:
            metadata: dict[bytes, bytes] = file.schema_arrow.metadata or {}
    except _FOREIGN as error:
        raise unreadable(path, str(error)) from error
    fields: dict[str, Any] = {}
    try:
        for name in SegmentHeader.__struct_fields__:
            if name.encode() in metadata:
                fields[name] = msgspec.json.decode(metadata[name.encode()])
        if fields.get("strobe_trace", VERSION) != VERSION:
            raise UsageError(f"{path} is of version {fields['strobe_trace']}, and this Strobe reads version {VERSION}")
        return TraceSegment(path, msgspec.convert(fields, SegmentHeader))
    except UNREADABLE as error:
        raise TraceDamaged(f"{path} is not a segment of a trace: {error}; give a directory epoch-NNNNNN") from error
