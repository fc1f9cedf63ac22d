"""Complete snapshots as the API shows them, from what the log says of them."""

from strobe.protocol.log import Manifest, ProcessRecord
from strobe.runtime.commits import body_bytes, sizes, state_bytes
from strobe.runtime.documents import RecordedChannel, RecordedProcess, SnapshotDetail, SnapshotList, SnapshotSummary
from strobe.storage import LogState


def list_snapshots(url: str, state: LogState, last: int) -> SnapshotList:
    names = list(state.committed)
    return SnapshotList(url, len(names), [summarize(state, name) for name in names[max(0, len(names) - last) :]])


def summarize(state: LogState, name: str) -> SnapshotSummary:
    complete = state.committed[name]
    manifest = complete.manifest
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
        pinned=name in state.pinned,
        parent=manifest.parent,
        retries=manifest.retries,
    )


def detail(state: LogState, name: str) -> SnapshotDetail:
    manifest = state.committed[name].manifest
    return SnapshotDetail(
        summarize(state, name),
        {process: _process(record) for process, record in manifest.processes.items()},
        _channels(manifest),
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
