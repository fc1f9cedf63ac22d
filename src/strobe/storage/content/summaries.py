"""The summary of a complete snapshot for lists, computed from its manifest (E1)."""

from collections.abc import Iterable

import msgspec

from strobe.names import Name
from strobe.protocol.values.bounds import COUNT_MAX, Count, PrintedId, ViewNumber
from strobe.protocol.values.log_entries import Manifest
from strobe.storage.content.frames_blob import RECORD


class Summary(msgspec.Struct, frozen=True, array_like=True):
    """`pause_us` is the longest pause of a process."""

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


def total(numbers: Iterable[int]) -> int:
    """Return the sum, clamped to the range that a checkpoint can store: numbers in a manifest are not trusted."""
    return min(max(sum(numbers), 0), COUNT_MAX)


def summarize(manifest: Manifest) -> Summary:
    """Return the summary of the snapshot with this manifest."""
    records = manifest.processes.values()
    sections = [section for record in records for section in record.in_flight.values()]
    return Summary(
        manifest.protocol,
        manifest.initiators,
        manifest.view.number,
        manifest.completed_us,
        total(record.state.bytes + sum(delta.bytes for delta in record.deltas) for record in records),
        total(section.messages for section in sections),
        total(section.bytes - section.frames * RECORD.size for section in sections),
        max((record.pause_us for record in records), default=0),
        {process: record.duration_us for process, record in manifest.processes.items()},
        manifest.parent,
    )
