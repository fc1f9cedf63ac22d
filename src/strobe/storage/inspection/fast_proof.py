"""Proves a stored snapshot (P1): by a fast check if possible, otherwise by the definition, `causality.proof`.

Nearly every snapshot is valid, and the fast check makes no objects for fragments and frames: it extends the hash of
each channel directly from the records in the frames blob. `fast_accepts` returns True only if the definition must
accept too. In any doubt it returns False, which proves nothing: then the definition decides and reports the problem.
Unordered channels, and frames partly consumed at a breakpoint, are also left to the definition.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple

import xxhash
from blake3 import blake3

from strobe.causality.proof import Verdict, verify
from strobe.errors import SnapshotCorrupt, StoreCorrupt
from strobe.protocol.values.frames import BLAKE3, CHAINS, FIFO, XXH3, Extend, array_headers, seed_hash
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import BlobRef, FrontierRecord, Manifest, ProcessRecord, Section
from strobe.protocol.values.view import View
from strobe.storage.content.frames_blob import HASHED_BYTES, RECORD
from strobe.storage.content.manifests import ReadBlob, to_snapshot
from strobe.storage.entries.commit_decoder import OncePerObject
from strobe.storage.files.backend import MAPPED_BYTES_MIN
from strobe.storage.store.store import Store

_NOTHING = memoryview(b"")
_VIEWS_MAX = 8
_JOINED_BYTES_MAX = 4096
_DIGESTS: dict[str, Callable[[bytes], bytes]] = {
    XXH3: xxhash.xxh3_128_digest,
    BLAKE3: lambda data: blake3(data).digest(),
}


def prove(snapshot_id: str, manifest: Manifest, read: ReadBlob) -> Verdict:
    """Check the proof of a snapshot over the view of its manifest. `read` may be called twice for a blob.

    A manifest that does not fit its blobs raises the errors of `to_snapshot`.
    """
    if fast_accepts(manifest, read):
        frames = sum(section.frames for record in manifest.processes.values() for section in record.in_flight.values())
        return Verdict(str(SnapshotId.parse(snapshot_id)), (), len(manifest.view.channels), frames)
    return verify(to_snapshot(snapshot_id, manifest, read))


def prove_stored(store: Store, snapshot: str, manifest: Manifest) -> Verdict:
    """Check the proof of a snapshot in `store`, reading only its frames.

    States may be gigabytes, and the proof does not need them. Frames need no checksums, because the proof hashes them.
    """
    frames = {record.frames for record in manifest.processes.values() if record.frames is not None}

    def read(ref: BlobRef) -> memoryview:
        return store.blobs.read(ref, checksum=False) if ref in frames else _NOTHING

    try:
        return prove(snapshot, manifest, read)
    except StoreCorrupt as error:
        raise SnapshotCorrupt(snapshot, error.problem) from error


def fast_accepts(manifest: Manifest, read: ReadBlob) -> bool:
    """Return True if the proof certainly holds; False proves nothing. Only blobs of frames are read."""
    ends = _ends_of_view[manifest.view]
    if ends is None or manifest.retries is not None or ends.keys() != manifest.processes.keys():
        return False
    records = manifest.processes
    try:
        return all(_is_plain(record, ends[process], records, read) for process, record in records.items())
    except (KeyError, IndexError, ValueError, struct.error):
        return False


class _Incoming(NamedTuple):
    """An incoming channel of a process, with the hash functions for small frames and for frames of any size."""

    source: str
    seed: str
    hash_bytes: int
    digest: Callable[[bytes], bytes]
    extend: Extend


class _Ends(NamedTuple):
    """The channel ends at one process."""

    outgoing: int
    incoming: dict[str, _Incoming]


def _find_ends(view: View) -> dict[str, _Ends] | None:
    """Return the channel ends at each process, or None if the view needs the full proof."""
    ids, members = {channel.id for channel in view.channels}, view.members
    if len(ids) != len(view.channels) or len(members) != len(view.processes):
        return None
    incoming: dict[str, dict[str, _Incoming]] = {process: {} for process in view.processes}
    for channel in view.channels:
        if channel.kind != FIFO or channel.hash not in CHAINS or not {channel.source, channel.target} <= members:
            return None
        try:
            seed = seed_hash(channel.id, channel.incarnation, channel.hash)
        except (OverflowError, UnicodeError):
            return None
        digest, extend = _DIGESTS[channel.hash], CHAINS[channel.hash]
        incoming[channel.target][channel.id] = _Incoming(channel.source, seed.hex(), len(seed), digest, extend)
    return {process: _Ends(len(view.outgoing(process)), incoming[process]) for process in view.processes}


# A view lasts long, and seeding takes one hash per channel.
_ends_of_view = OncePerObject(_find_ends, _VIEWS_MAX)


def _is_plain(record: ProcessRecord, ends: _Ends, records: dict[str, ProcessRecord], read: ReadBlob) -> bool:
    """Check the incoming channels of one process, and that its record has no other channels than the view."""
    if not len(record.received) == len(record.in_flight) == len(ends.incoming) or len(record.sent) != ends.outgoing:
        return False
    blob: bytes | memoryview = read(record.frames) if record.frames is not None else b""
    if len(blob) < MAPPED_BYTES_MIN:
        blob = bytes(blob)  # slicing bytes is faster than slicing a memoryview
    end = 0
    for channel, section in record.in_flight.items():
        incoming = ends.incoming[channel]
        sent, received = records[incoming.source].sent[channel], record.received[channel]
        if section.offset != end or not _extends(received, section, blob, incoming, sent):
            return False
        end += section.bytes
    return end == len(blob)


def _extends(
    received: FrontierRecord, section: Section, blob: bytes | memoryview, channel: _Incoming, sent: FrontierRecord
) -> bool:
    """Return whether `received`, extended by all frames of a section, equals `sent`. Exceptions count as doubt."""
    running, due, at = bytes.fromhex(received.hash), received.count + 1, section.offset
    if len(running) != channel.hash_bytes or due < 1 or (due == 1 and received.hash != channel.seed):
        return False
    end, frames = at + section.bytes, 0
    unpack, record_bytes, digest = RECORD.unpack_from, RECORD.size, channel.digest
    while at < end:
        first, count, consumed, size = unpack(blob, at)
        body = at + record_bytes
        after = body + size
        if first != due or not count or consumed or not size:
            return False
        if (count > 15 or blob[body] != 0x90 | count) and not _announces(blob[body:after], count):
            return False
        if size <= _JOINED_BYTES_MAX:
            running = digest(running + blob[at : at + HASHED_BYTES] + blob[body:after])
        else:
            running = channel.extend(running, first, count, blob[body:after])
        due += count
        frames += 1
        at = after
    counted = (at, frames, due - 1 - received.count, due - 1)  # if the last frame is too long, `at` is beyond `end`
    return counted == (end, section.frames, section.messages, sent.count) and running.hex() == sent.hash


def _announces(body: bytes | memoryview, count: int) -> bool:
    return bytes(body[:5]).startswith(array_headers(count))
