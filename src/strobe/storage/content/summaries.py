"""The sizes and the summary of a snapshot, computed from its manifest without reading a blob (E1)."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from strobe.names import Name
from strobe.protocol.values.bounds import COUNT_MAX, Count, PrintedId, ViewNumber
from strobe.protocol.values.log_entries import Manifest, ProcessRecord, Section
from strobe.storage.content.frames_blob import RECORD


class Sizes(NamedTuple):
    """The totals of some processes."""

    state_bytes: int
    in_flight_bytes: int
    in_flight_messages: int


def sizes(records: Mapping[str, ProcessRecord]) -> Sizes:
    """Return the totals of these processes."""
    sections = [section for record in records.values() for section in record.in_flight.values()]
    return Sizes(
        sum(map(state_bytes, records.values())),
        sum(map(body_bytes, sections)),
        sum(section.messages for section in sections),
    )


def state_bytes(record: ProcessRecord) -> int:
    return record.state.bytes + sum(delta.bytes for delta in record.deltas)


def body_bytes(section: Section) -> int:
    """Return the total size of the frame bodies of a channel."""
    return section.bytes - RECORD.size * section.frames


def written_bytes(record: ProcessRecord, begin: int) -> int:
    """Return the bytes that the process wrote for the snapshot begun at `begin`, without blobs of its parent."""
    refs = (record.state, *record.deltas, *([record.frames] if record.frames is not None else ()))
    return sum(ref.bytes for ref in refs if ref.begin == begin)


class Summary(msgspec.Struct, frozen=True, array_like=True):
    """`pause_us` is the longest pause of a process.

    `written_bytes` is None if the log position of the snapshot's begin is not known, as in older checkpoints.
    """

    protocol: Name
    initiators: tuple[Name, ...]
    view: ViewNumber
    completed_us: Count
    state_bytes: Count
    in_flight_messages: Count
    in_flight_bytes: Count
    pause_us: Count
    durations_us: dict[Name, Count]
    parent: PrintedId | None
    written_bytes: Count | None = None


def total(numbers: Iterable[int]) -> int:
    """Return the sum, clamped to the range that a checkpoint can store: numbers in a manifest are not trusted."""
    return min(max(sum(numbers), 0), COUNT_MAX)


def summarize(manifest: Manifest, begin: int | None = None) -> Summary:
    """Return the summary of the snapshot with this manifest, which was begun at log position `begin`."""
    size = sizes(manifest.processes)
    written = (written_bytes(record, begin) for record in manifest.processes.values()) if begin is not None else None
    return Summary(
        manifest.protocol,
        manifest.initiators,
        manifest.view.number,
        manifest.completed_us,
        total([size.state_bytes]),
        total([size.in_flight_messages]),
        total([size.in_flight_bytes]),
        max((record.pause_us for record in manifest.processes.values()), default=0),
        {process: record.duration_us for process, record in manifest.processes.items()},
        manifest.parent,
        total(written) if written is not None else None,
    )
