"""The proof of a stored snapshot (P1): quickly where it plainly holds, else by its definition, `causality.proof`.

Nearly every snapshot holds, and to say so takes no objects for fragments and frames: each channel's hash is extended by
its records as they lie in the frames blob. `fast_accepts` says yes only where the definition must say so as well. In
any doubt, whatever the reason, it says no, which means nothing: the definition decides then, and names what is wrong.
What is unordered, or was consumed in part at a breakpoint, is left to the definition too.
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
    """Check the proof of a snapshot over the view of its manifest; `read` is asked for blobs, perhaps twice.

    What cannot be put together raises as `to_snapshot` does.
    """
    if fast_accepts(manifest, read):
        frames = sum(section.frames for record in manifest.processes.values() for section in record.in_flight.values())
        return Verdict(str(SnapshotId.parse(snapshot_id)), (), len(manifest.view.channels), frames)
    return verify(to_snapshot(snapshot_id, manifest, read))


def prove_stored(store: Store, snapshot: str, manifest: Manifest) -> Verdict:
    """Check the proof of a snapshot in `store`, of which only the frames are read.

    States may be gigabytes, and the proof does not need them. Frames need no checksums: the proof hashes all of them.
    """
    frames = {record.frames for record in manifest.processes.values() if record.frames is not None}

    def read(ref: BlobRef) -> memoryview:
        return store.blobs.read(ref, checksum=False) if ref in frames else _NOTHING

    try:
        return prove(snapshot, manifest, read)
    except StoreCorrupt as error:
        raise SnapshotCorrupt(snapshot, error.problem) from error


def fast_accepts(manifest: Manifest, read: ReadBlob) -> bool:
    """Tell whether the proof holds beyond doubt; only blobs of frames are read. False says nothing."""
    ends = _ends_of_view[manifest.view]
    if ends is None or manifest.retries is not None or ends.keys() != manifest.processes.keys():
        return False
    records = manifest.processes
    try:
        return all(_is_plain(record, ends[process], records, read) for process, record in records.items())
    except (KeyError, IndexError, ValueError, struct.error):
        return False


class _Incoming(NamedTuple):
    """An incoming channel of a process, and what extends its hash: by a small frame, and by any."""

    source: str
    seed: str
    hash_bytes: int
    digest: Callable[[bytes], bytes]
    extend: Extend


class _Ends(NamedTuple):
    """The ends of channels at one process."""

    outgoing: int
    incoming: dict[str, _Incoming]


def _find_ends(view: View) -> dict[str, _Ends] | None:
    """Return the ends at each process; None where there is anything about the view that makes it a special case."""
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


# A system keeps its view for long, and there are as many hashes to be seeded as it has channels.
_ends_of_view = OncePerObject(_find_ends, _VIEWS_MAX)


def _is_plain(record: ProcessRecord, ends: _Ends, records: dict[str, ProcessRecord], read: ReadBlob) -> bool:
    """Check the incoming channels of one process, and that its record has no more than the channels of the view."""
    if not len(record.received) == len(record.in_flight) == len(ends.incoming) or len(record.sent) != ends.outgoing:
        return False
    blob: bytes | memoryview = read(record.frames) if record.frames is not None else b""
    if len(blob) < MAPPED_BYTES_MIN:
        blob = bytes(blob)  # it is cut into many slices, and those of a view take longer
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
    """Tell whether `received` extended by all the frames of a section is `sent`; KeyError and the like are doubts."""
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
    counted = (at, frames, due - 1 - received.count, due - 1)  # a last frame that does not fit has led beyond the end
    return counted == (end, section.frames, section.messages, sent.count) and running.hex() == sent.hash


def _announces(body: bytes | memoryview, count: int) -> bool:
    return bytes(body[:5]).startswith(array_headers(count))
