"""From what the processes have stored to a manifest, and the proof of it, before anything is committed (P1).

The proof needs frontiers and frames. States may be gigabytes, and are not read: their names are their checksums.
"""

from collections.abc import Mapping

import msgspec

from strobe.causality.proof import Verdict
from strobe.errors import SnapshotCorrupt, StoreCorrupt
from strobe.protocol import SnapshotId, View
from strobe.protocol.log import Begin, BlobRef, Departure, Manifest, ProcessRecord, Section
from strobe.storage import Store, proving
from strobe.storage.channel_frames import RECORD

_NOTHING = memoryview(b"")


class CommitOrder(msgspec.Struct, frozen=True):
    """Everything that a commit is made of: every process of `view` has stored its part."""

    snapshot: SnapshotId
    begin: Begin
    view: View
    records: dict[str, ProcessRecord]
    departed: dict[str, Departure] = {}
    joined: dict[str, int] = {}


def assemble(order: CommitOrder, parent: str | None, completed_us: int) -> Manifest:
    """Return the manifest of the snapshot that the records make."""
    return Manifest(
        protocol=order.begin.protocol,
        initiators=order.begin.initiators,
        view=order.view,
        epoch=order.snapshot.epoch,
        started_us=order.begin.at_us,
        completed_us=completed_us,
        processes={process: order.records[process] for process in sorted(order.records)},
        retries=order.begin.retries,
        parent=parent,
        departed=order.departed,
        joined=order.joined,
    )


def prove(store: Store, snapshot: str, manifest: Manifest) -> Verdict:
    """Check the proof over the manifest's view; frames need no checksums, for the proof hashes every one of them."""
    frames = {record.frames for record in manifest.processes.values() if record.frames is not None}

    def read(ref: BlobRef) -> memoryview:
        return store.blobs.read(ref, checksum=False) if ref in frames else _NOTHING

    try:
        return proving.prove(snapshot, manifest, read)
    except StoreCorrupt as error:
        raise SnapshotCorrupt(snapshot, error.problem) from error


def sizes(records: Mapping[str, ProcessRecord]) -> tuple[int, int, int]:
    """Return bytes of state, bytes in flight and messages in flight of these processes together."""
    state = sum(state_bytes(record) for record in records.values())
    sections = [section for record in records.values() for section in record.in_flight.values()]
    return state, sum(map(body_bytes, sections)), sum(section.messages for section in sections)


def body_bytes(section: Section) -> int:
    """Return how many bytes the frames of a channel carry."""
    return section.bytes - RECORD.size * section.frames


def state_bytes(record: ProcessRecord) -> int:
    return record.state.bytes + sum(delta.bytes for delta in record.deltas)


def written_bytes(record: ProcessRecord, begin: int) -> int:
    """Return how many bytes the process wrote for the snapshot that began at `begin`; the others are its parent's."""
    refs = (record.state, *record.deltas, *([record.frames] if record.frames is not None else ()))
    return sum(ref.bytes for ref in refs if ref.begin == begin)
