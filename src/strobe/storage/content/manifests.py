"""Converts a snapshot to the manifest in its commit entry, with the large data in blobs, and back."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from strobe.errors import SnapshotCorrupt, SnapshotIncomplete
from strobe.protocol.values.fragment import KEYED, Fragment, LocalState, Snapshot
from strobe.protocol.values.frames import Frontier
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import BlobRef, FrontierRecord, Manifest, ProcessRecord
from strobe.storage.content.blobs import blob_name
from strobe.storage.content.frames_blob import pack_frames, unpack_frames
from strobe.storage.files.backend import Piece

WriteBlob = Callable[[Sequence[Piece]], BlobRef]
ReadBlob = Callable[[BlobRef], memoryview]


def to_manifest(snapshot: Snapshot, parent: str | None, write: WriteBlob) -> Manifest:
    """Write all data of `snapshot` with `write`, and return its manifest."""
    wanted = dict.fromkeys((*snapshot.view.processes, *snapshot.fragments))
    missing = [process for process in wanted if not _has_state(snapshot, process)]
    if missing:
        raise SnapshotIncomplete(str(snapshot.id), f"no state was recorded for {', '.join(missing)}")
    return Manifest(
        protocol=snapshot.protocol,
        initiators=snapshot.initiators,
        view=snapshot.view,
        epoch=snapshot.id.epoch,
        started_us=snapshot.started_us,
        completed_us=snapshot.completed_us,
        processes={process: _to_record(fragment, write) for process, fragment in snapshot.fragments.items()},
        retries=str(snapshot.retries) if snapshot.retries else None,
        parent=parent,
    )


def to_snapshot(snapshot_id: str, manifest: Manifest, read: ReadBlob) -> Snapshot:
    """Return the snapshot that `manifest` describes, with its data from `read`."""
    identity = SnapshotId.parse(snapshot_id)
    return Snapshot(
        id=identity,
        protocol=manifest.protocol,
        initiators=manifest.initiators,
        view=manifest.view,
        fragments={
            process: _to_fragment(identity, process, manifest.view.number, record, read)
            for process, record in manifest.processes.items()
        },
        started_us=manifest.started_us,
        completed_us=manifest.completed_us,
        retries=SnapshotId.parse(manifest.retries) if manifest.retries else None,
    )


def blobs_of(manifest: Manifest) -> Iterator[BlobRef]:
    """Yield every blob that the snapshot needs."""
    for record in manifest.processes.values():
        yield from blobs_of_process(record)


def blobs_of_process(record: ProcessRecord) -> Iterator[BlobRef]:
    """Yield every blob that the record of one process needs."""
    yield record.state
    yield from record.deltas
    if record.frames is not None:
        yield record.frames


def frontier_records(frontiers: Mapping[str, Frontier]) -> dict[str, FrontierRecord]:
    """Return frontiers in the form used in a manifest."""
    return {channel: FrontierRecord(end.count, end.hash.hex()) for channel, end in frontiers.items()}


def _has_state(snapshot: Snapshot, process: str) -> bool:
    fragment = snapshot.fragments.get(process)
    return fragment is not None and fragment.state is not None


def _to_record(fragment: Fragment, write: WriteBlob) -> ProcessRecord:
    state = fragment.state
    assert state is not None, "to_manifest has refused those without"
    pieces, sections = pack_frames(fragment.in_flight)
    return ProcessRecord(
        position=state.position,
        encoding=state.encoding,
        state=write([state.data]),
        sent=frontier_records(fragment.sent),
        received=frontier_records(fragment.received),
        in_flight=sections,
        frames=write(pieces) if pieces else None,
        timers=state.timers,
        random=state.random,
        deltas=tuple(write([delta]) for delta in state.deltas),
        sources=state.sources,
        sinks=state.sinks,
        declared=state.declared,
        state_version=state.version,
    )


def _to_fragment(snapshot: SnapshotId, process: str, view: int, record: ProcessRecord, read: ReadBlob) -> Fragment:
    frames = read(record.frames) if record.frames is not None else memoryview(b"")
    try:
        in_flight = unpack_frames(frames, record.in_flight)
        return Fragment(
            snapshot=snapshot,
            process=process,
            view=view,
            sent=_from_records(record.sent),
            received=_from_records(record.received),
            in_flight=in_flight,
            state=to_state(record, read),
        )
    except ValueError as error:
        place = blob_name(record.frames) if record.frames is not None else "its manifest"
        raise SnapshotCorrupt(str(snapshot), f"{place}, of process {process}: {error}") from error


def to_state(record: ProcessRecord, read: ReadBlob) -> LocalState:
    """Return the state of one process, with its data from `read`."""
    data = read(record.state)
    return LocalState(
        position=record.position,
        encoding=record.encoding,
        # A keyed state may be too large for memory: it is read from the mapped file.
        data=cast(bytes, data) if record.encoding == KEYED else bytes(data),
        timers=record.timers,
        random=record.random,
        deltas=tuple(cast(bytes, read(delta)) for delta in record.deltas),
        sources=record.sources,
        sinks=record.sinks,
        declared=record.declared,
        version=record.state_version,
    )


def _from_records(records: dict[str, FrontierRecord]) -> dict[str, Frontier]:
    return {channel: Frontier(end.count, bytes.fromhex(end.hash)) for channel, end in records.items()}
