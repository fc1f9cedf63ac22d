"""Blobs: the large data of snapshots, named by hash, written by one snapshot and shared with its children (S2).

A blob is at blobs/<position of the writer's begin>/<BLAKE3 of its bytes>. The directory belongs to the one snapshot
that began at that log position. A snapshot creates files only in its own directory, and reuses only files of its
parent, in place. So two snapshots never create the same file. With a single directory of hashes, garbage collection
could remove a file that another snapshot has just written again under the same name; here that race cannot occur.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing

from blake3 import blake3

from strobe.errors import StoreCorrupt
from strobe.protocol.values.log_entries import BlobRef
from strobe.storage.files.backend import MAPPED_BYTES_MIN, Piece, StorageBackend
from strobe.storage.files.commit_steps import BLOB_STEPS, CommitStep
from strobe.storage.files.layout import BLOBS, UNFINISHED

_CHUNK_BYTES = 1 << 20
_DIRECTORY = re.compile(r"\d{20}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def blob_directory(begin: int) -> str:
    return f"{BLOBS}/{begin:020d}"


def blob_name(ref: BlobRef) -> str:
    """Return the name of the blob within the store."""
    return f"{blob_directory(ref.begin)}/{ref.blake3}"


def directory_begin(name: str) -> int | None:
    """Return the log position that the directory `name` of blobs/ stands for, or None if it is not a blob directory."""
    return int(name) if _DIRECTORY.fullmatch(name) else None


def is_digest(name: str) -> bool:
    return _DIGEST.fullmatch(name) is not None


def digest_of(pieces: Sequence[Piece]) -> str:
    """Return the BLAKE3 of the concatenated `pieces`, in hexadecimal."""
    if len(pieces) == 1 and len(pieces[0]) < MAPPED_BYTES_MIN:
        return blake3(pieces[0]).hexdigest()
    large = sum(len(piece) for piece in pieces) >= MAPPED_BYTES_MIN
    digest = blake3(max_threads=blake3.AUTO if large else 1)
    for chunk in _chunks(pieces):
        digest.update(chunk)
    return digest.hexdigest()


class Blobs:
    """The blobs of one store."""

    def __init__(self, backend: StorageBackend) -> None:
        self._backend = backend

    def write(self, begin: int, pieces: Sequence[Piece], reusable: Mapping[str, BlobRef]) -> BlobRef:
        """Store `pieces` as one blob of the snapshot that began at `begin`; call `sync` when all are written."""
        size = sum(len(piece) for piece in pieces)
        if len(pieces) > 1 and size < MAPPED_BYTES_MIN:
            pieces = [b"".join(pieces)]  # otherwise each piece is processed twice: for the hash and for the write
        ref = BlobRef(digest_of(pieces), size, begin)
        shared = reusable.get(ref.blake3)
        # A blob of the parent that is missing or truncated is not reused.
        if shared is not None and self._backend.size(blob_name(shared)) == size:
            return shared
        self._backend.make_directory(blob_directory(begin))
        if not self._create(blob_name(ref), _chunks(pieces)):
            self.check_size(ref)  # another process has written the same bytes, or this is a retry
        return ref

    def _create(self, name: str, chunks: Iterable[Piece]) -> bool:
        with self._backend.faults(name, "write"), closing(self._backend.open_unfinished()) as file:
            self._backend.step(BLOB_STEPS.opened, name)
            for chunk in chunks:
                file.write(chunk)
            return file.finish(name, BLOB_STEPS)

    def open(self, begin: int) -> "BlobWriter":
        """Start a blob of the snapshot that began at `begin`, to be written piece by piece."""
        return BlobWriter(self._backend, begin)

    def sync(self, begin: int) -> None:
        """Make the names of the blobs durable that the snapshot begun at `begin` has written."""
        directory = blob_directory(begin)
        if self._backend.size(directory) is not None:
            self._backend.sync_directory(directory)
        self._backend.step(CommitStep.BLOBS_DURABLE, directory)

    def read(self, ref: BlobRef, *, checksum: bool = True) -> memoryview:
        """Return the verified bytes of a blob. Large blobs are memory-mapped and use memory only when accessed."""
        name = blob_name(ref)
        raw: Piece | None
        if ref.bytes < MAPPED_BYTES_MIN:
            # In one request: fetching the size first would double the latency of a remote store.
            raw = self._backend.read(name, ref.bytes)
        else:
            self.check_size(ref)
            raw = self._backend.view(name, ref.bytes)
        if raw is None or len(raw) != ref.bytes:  # a large blob may have been collected since the size check
            self._require_size(ref, None if raw is None else max(len(raw), self._backend.size(name) or 0))
        view = memoryview(raw or b"")
        if checksum and digest_of([view]) != ref.blake3:
            raise StoreCorrupt(self._backend.url, name, "its bytes do not match its name; restore it from a copy")
        return view

    def check_size(self, ref: BlobRef) -> None:
        """Raise StoreCorrupt if the file is missing or has the wrong size."""
        self._require_size(ref, self._backend.size(blob_name(ref)))

    def _require_size(self, ref: BlobRef, size: int | None) -> None:
        if size is None:
            raise StoreCorrupt(self._backend.url, blob_name(ref), "is missing; restore it from a copy of the store")
        if size != ref.bytes:
            problem = f"has {size} bytes instead of {ref.bytes}; restore it from a copy of the store"
            raise StoreCorrupt(self._backend.url, blob_name(ref), problem)


class BlobWriter:
    """Writes one blob and hashes it on the way. Use it from one thread at a time, not necessarily the same one;
    only `hash` and `append` may run concurrently.

    End it with `finish` or `abandon`. A process that dies leaves a file in tmp/, which garbage collection removes.
    """

    def __init__(self, backend: StorageBackend, begin: int) -> None:
        self._backend = backend
        self._begin = begin
        self._digest = blake3()
        self.bytes = 0
        self._appended = 0
        with backend.faults(UNFINISHED, "write"):
            self._file = backend.open_unfinished()
        backend.step(BLOB_STEPS.opened, self._file.name)

    def write(self, piece: Piece) -> None:
        """Hash and append some bytes."""
        self.hash(piece)
        self.append(piece)

    def hash(self, piece: Piece) -> None:
        """Add bytes to the hash before they are appended, possibly in another thread."""
        self._digest.update(piece)
        self.bytes += len(piece)

    def append(self, piece: Piece) -> None:
        """Write bytes that were hashed, in the same order."""
        with self._backend.faults(blob_directory(self._begin), "write"):
            self._file.write(piece)
        self._appended += len(piece)

    def finish(self) -> BlobRef:
        """Give the blob its name and return it; call `Blobs.sync` after all blobs of the snapshot are written."""
        assert self._appended == self.bytes, "all that was counted in was appended"
        ref = BlobRef(self._digest.hexdigest(), self.bytes, self._begin)
        try:
            self._backend.make_directory(blob_directory(self._begin))
            with self._backend.faults(blob_name(ref), "write"):
                created = self._file.finish(blob_name(ref), BLOB_STEPS)
            if not created:
                Blobs(self._backend).check_size(ref)
            return ref
        finally:
            self._file.close()

    def abandon(self) -> None:
        """Discard the blob; after `finish`, do nothing."""
        self._file.close()


def _chunks(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Join small pieces, so that the hash and the store are not called for each frame of a channel."""
    waiting: list[Piece] = []
    size = 0
    for piece in pieces:
        if len(piece) >= _CHUNK_BYTES:
            yield b"".join(waiting)
            yield piece
            waiting, size = [], 0
            continue
        waiting.append(piece)
        size += len(piece)
        if size >= _CHUNK_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)
