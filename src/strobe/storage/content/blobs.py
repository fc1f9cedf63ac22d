"""Blobs: the big bytes of snapshots, named by their content, written by one and shared with its children (S2).

A blob lies at blobs/<position of the writer's begin>/<BLAKE3 of its bytes>. The directory belongs to the one snapshot
that has begun at that position of the log. A writer creates files in its own directory only, and reuses those of its
parent only, in place. So two snapshots never create the same file, and a collector that removes a file by its name can
never hit one that another snapshot has written anew meanwhile: the race that a single directory of hashes would have.
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
    """Return the position that the directory `name` of blobs/ stands for, or None where it is none of ours."""
    return int(name) if _DIRECTORY.fullmatch(name) else None


def is_digest(name: str) -> bool:
    return _DIGEST.fullmatch(name) is not None


def digest_of(pieces: Sequence[Piece]) -> str:
    """Return the BLAKE3 of `pieces`, one after the other, in hexadecimal."""
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
            pieces = [b"".join(pieces)]  # else each is looked at twice, once to be hashed and once to be written
        ref = BlobRef(digest_of(pieces), size, begin)
        shared = reusable.get(ref.blake3)
        # A parent's blob that is gone or cut short is not built upon.
        if shared is not None and self._backend.size(blob_name(shared)) == size:
            return shared
        self._backend.make_directory(blob_directory(begin))
        if not self._create(blob_name(ref), _chunks(pieces)):
            self.check_size(ref)  # another process has the same bytes, or this is a second try
        return ref

    def _create(self, name: str, chunks: Iterable[Piece]) -> bool:
        with self._backend.faults(name, "write"), closing(self._backend.open_unfinished()) as file:
            self._backend.step(BLOB_STEPS.opened, name)
            for chunk in chunks:
                file.write(chunk)
            return file.finish(name, BLOB_STEPS)

    def open(self, begin: int) -> "BlobWriter":
        """Begin a blob of the snapshot that began at `begin`, to be written as its bytes come."""
        return BlobWriter(self._backend, begin)

    def sync(self, begin: int) -> None:
        """Make the names of the blobs durable that the snapshot begun at `begin` has written."""
        directory = blob_directory(begin)
        if self._backend.size(directory) is not None:
            self._backend.sync_directory(directory)
        self._backend.step(CommitStep.BLOBS_DURABLE, directory)

    def read(self, ref: BlobRef, *, checksum: bool = True) -> memoryview:
        """Return the verified bytes of a blob; large ones are mapped, and cost memory only where they are touched."""
        name = blob_name(ref)
        raw: Piece | None
        if ref.bytes < MAPPED_BYTES_MIN:
            # In one go: where the store is far away, asking for its size first would take as long again.
            raw = self._backend.read(name, ref.bytes)
        else:
            self.check_size(ref)
            raw = self._backend.view(name, ref.bytes)
        if raw is None or len(raw) != ref.bytes:  # a large one may have been collected since
            self._require_size(ref, None if raw is None else max(len(raw), self._backend.size(name) or 0))
        view = memoryview(raw or b"")
        if checksum and digest_of([view]) != ref.blake3:
            raise StoreCorrupt(self._backend.url, name, "its bytes do not match its name; restore it from a copy")
        return view

    def check_size(self, ref: BlobRef) -> None:
        """Raise StoreCorrupt where the file is missing, or is shorter or longer than the blob."""
        self._require_size(ref, self._backend.size(blob_name(ref)))

    def _require_size(self, ref: BlobRef, size: int | None) -> None:
        if size is None:
            raise StoreCorrupt(self._backend.url, blob_name(ref), "is missing; restore it from a copy of the store")
        if size != ref.bytes:
            problem = f"has {size} bytes instead of {ref.bytes}; restore it from a copy of the store"
            raise StoreCorrupt(self._backend.url, blob_name(ref), problem)


class BlobWriter:
    """A blob on its way to its place, hashed as it goes. It is for one thread at a time, which need not be the same;
    only `hash` and `append` may go on side by side.

    It ends by `finish` or `abandon`. A process that dies leaves a file in tmp/ that any collector removes.
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
        """Add some bytes."""
        self.hash(piece)
        self.append(piece)

    def hash(self, piece: Piece) -> None:
        """Count in some bytes that are to be appended; this may be done in another thread than appending them."""
        self._digest.update(piece)
        self.bytes += len(piece)

    def append(self, piece: Piece) -> None:
        """Write bytes that were counted in, in the same order."""
        with self._backend.faults(blob_directory(self._begin), "write"):
            self._file.write(piece)
        self._appended += len(piece)

    def finish(self) -> BlobRef:
        """Return the blob, which has its name now; call `Blobs.sync` when all of the snapshot's are written."""
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
        """Leave nothing behind; after `finish`, do nothing."""
        self._file.close()


def _chunks(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Join small pieces, so that neither the hash nor the store is called for each frame of a channel."""
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
