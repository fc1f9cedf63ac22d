"""What is shown of a complete snapshot in a list, worked out of its manifest (E1)."""

import msgspec

from strobe.protocol.log import Manifest
from strobe.storage.channel_frames import RECORD


class Summary(msgspec.Struct, frozen=True, array_like=True):
    """`pause_us` is the longest pause of a process."""

    protocol: str
    initiators: tuple[str, ...]
    view: int
    completed_us: int
    state_bytes: int
    in_flight_messages: int
    in_flight_bytes: int
    pause_us: int
    durations_us: dict[str, int]
    parent: str | None


def summarize(manifest: Manifest) -> Summary:
    """Return what is shown of the snapshot with this manifest."""
    records = manifest.processes.values()
    sections = [section for record in records for section in record.in_flight.values()]
    return Summary(
        manifest.protocol,
        manifest.initiators,
        manifest.view.number,
        manifest.completed_us,
        sum(record.state.bytes + sum(delta.bytes for delta in record.deltas) for record in records),
        sum(section.messages for section in sections),
        sum(section.bytes - section.frames * RECORD.size for section in sections),
        max((record.pause_us for record in records), default=0),
        {process: record.duration_us for process, record in manifest.processes.items()},
        manifest.parent,
    )
