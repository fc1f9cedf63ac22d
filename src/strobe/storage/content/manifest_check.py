"""Checks that a manifest contains exactly the processes and channels of its own view (E14).

The proof follows the view and reports what is missing. Code that shows or compares a snapshot without proving it calls
this check first, and can then rely on every process and channel of the view.
"""

from collections.abc import Iterator

from strobe.errors import SnapshotCorrupt
from strobe.protocol.values.log_entries import Manifest, ProcessRecord
from strobe.protocol.values.view import View


def require_whole(snapshot_id: str, manifest: Manifest) -> None:
    """Raise SnapshotCorrupt with the first mismatch if the manifest does not match its view."""
    for problem in _problems(manifest):
        raise SnapshotCorrupt(snapshot_id, f"its manifest contradicts itself: {problem}")


def _problems(manifest: Manifest) -> Iterator[str]:
    view, records = manifest.view, manifest.processes
    for name in view.processes:
        if name not in records:
            yield f"process {name} of the view has no record"
    for name in records:
        if name not in view.processes:
            yield f"there is a record of {name}, which is no process of the view"
    for name, record in records.items():
        yield from (f"process {name}: {problem}" for problem in _problems_of(name, record, view))


def _problems_of(process: str, record: ProcessRecord, view: View) -> Iterator[str]:
    outgoing = {channel.id for channel in view.channels if channel.source == process}
    incoming = {channel.id for channel in view.channels if channel.target == process}
    for member, found, wanted in (
        ("sent", record.sent, outgoing),
        ("received", record.received, incoming),
        ("in_flight", record.in_flight, incoming),
    ):
        for channel in sorted(wanted ^ found.keys()):
            what = "is missing in" if channel in wanted else "is no channel of the view, and is in"
            yield f"{channel} {what} `{member}`"
    end = 0
    for channel, section in sorted(record.in_flight.items(), key=lambda item: (item[1].offset, item[1].bytes)):
        if section.offset != end:
            yield f"the section of channel {channel} begins at byte {section.offset} instead of {end}"
        end = section.offset + section.bytes
    size = record.frames.bytes if record.frames is not None else 0
    if end != size:
        yield f"its sections cover {end} bytes of {size}"
