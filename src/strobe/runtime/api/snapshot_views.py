"""The API's documents about complete snapshots, from the log."""

from collections.abc import Sequence

import msgspec

from strobe.protocol.values.log_entries import Manifest, ProcessRecord
from strobe.runtime.messages.api_documents import (
    RecordedChannel,
    RecordedProcess,
    SnapshotDetail,
    SnapshotList,
    SnapshotSummary,
)
from strobe.storage import Committed, LogState
from strobe.storage.content.manifest_check import require_whole
from strobe.storage.content.summaries import body_bytes, sizes, state_bytes


class SnapshotPage(msgspec.Struct, frozen=True):
    """The complete snapshots that were looked up, oldest first, and the total number."""

    total: int
    snapshots: tuple[tuple[str, Committed, bool], ...]


def look_up(state: LogState, names: Sequence[str]) -> SnapshotPage:
    """Look up snapshots in the log. Reading their manifests may need disk I/O, which must not run on the event loop."""
    return SnapshotPage(
        len(state.committed), tuple((name, state.committed[name], name in state.pinned) for name in names)
    )


def list_snapshots(url: str, listed: SnapshotPage) -> SnapshotList:
    """Return the list; reads manifests if needed."""
    found = [_summarize(name, complete, complete.manifest, pinned) for name, complete, pinned in listed.snapshots]
    return SnapshotList(url, listed.total, found)


def detail(listed: SnapshotPage) -> SnapshotDetail:
    """Return the one snapshot that was looked up; reads its manifest if needed."""
    ((name, complete, pinned),) = listed.snapshots
    manifest = complete.manifest
    require_whole(name, manifest)
    return SnapshotDetail(
        _summarize(name, complete, manifest, pinned),
        {process: _process(record) for process, record in manifest.processes.items()},
        _channels(manifest),
    )


def _summarize(name: str, complete: Committed, manifest: Manifest, pinned: bool) -> SnapshotSummary:
    state_size, in_flight_bytes, in_flight_messages = sizes(manifest.processes)
    return SnapshotSummary(
        id=name,
        position=complete.position,
        epoch=manifest.epoch,
        view=manifest.view.number,
        protocol=manifest.protocol,
        initiators=manifest.initiators,
        started_us=manifest.started_us,
        completed_us=manifest.completed_us,
        state_bytes=state_size,
        in_flight_bytes=in_flight_bytes,
        in_flight_messages=in_flight_messages,
        pinned=pinned,
        parent=manifest.parent,
        retries=manifest.retries,
    )


def _process(record: ProcessRecord) -> RecordedProcess:
    return RecordedProcess(
        position=record.position,
        encoding=record.encoding,
        state_bytes=state_bytes(record),
        deltas=len(record.deltas),
        recorded_us=record.recorded_us,
        pause_us=record.pause_us,
        duration_us=record.duration_us,
        sources=record.sources,
        sinks=record.sinks,
    )


def _channels(manifest: Manifest) -> dict[str, RecordedChannel]:
    found: dict[str, RecordedChannel] = {}
    for channel in manifest.view.channels:
        sender, receiver = manifest.processes[channel.source], manifest.processes[channel.target]
        section = receiver.in_flight[channel.id]
        found[channel.id] = RecordedChannel(
            source=channel.source,
            target=channel.target,
            kind=channel.kind,
            sent=sender.sent[channel.id].count,
            received=receiver.received[channel.id].count,
            in_flight_messages=section.messages,
            in_flight_frames=section.frames,
            in_flight_bytes=body_bytes(section),
        )
    return found
