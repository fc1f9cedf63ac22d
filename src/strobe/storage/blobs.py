"""Blobs: the big bytes of snapshots, named by their content, written by one and shared with its children (S2).

A blob lies at blobs/<position of the writer's begin>/<BLAKE3 of its bytes>. The directory belongs to the one snapshot
that has begun at that position of the log. A writer creates files in its own directory only, and reuses those of its
parent only, in place. So two snapshots never create the same file, and a collector that removes a file by its name can
never hit one that another snapshot has written anew meanwhile: the race that a single directory of hashes would have.
"""

import mmap
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from blake3 import blake3

from strobe.errors import StoreCorrupt
from strobe.protocol.log import BlobRef
from strobe.storage.disk import Disk, Piece
from strobe.storage.steps import BLOB_STEPS, CommitStep

BLOBS = "blobs"
MAPPED_BYTES_MIN = 1 << 20
"""From this size on, a blob is mapped instead of read, and hashed by several threads."""

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
    large = sum(len(piece) for piece in pieces) >= MAPPED_BYTES_MIN
    digest = blake3(max_threads=blake3.AUTO if large else 1)
    for chunk in _chunks(pieces):
        digest.update(chunk)
    return digest.hexdigest()


class Blobs:
    """The blobs of one store."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def write(self, begin: int, pieces: Sequence[Piece], reusable: Mapping[str, BlobRef]) -> BlobRef:
        """Store `pieces` as one blob of the snapshot that began at `begin`; call `sync` when all are written."""
        size = sum(len(piece) for piece in pieces)
        ref = BlobRef(digest_of(pieces), size, begin)
        shared = reusable.get(ref.blake3)
        # A parent's blob that is gone or cut short is not built upon.
        if shared is not None and self._disk.size(blob_name(shared)) == size:
            return shared
        self._disk.make_directory(blob_directory(begin))
        if not self._disk.create(blob_name(ref), _chunks(pieces), BLOB_STEPS):
            self.check_size(ref)  # another process has the same bytes, or this is a second try
        return ref

    def sync(self, begin: int) -> None:
        """Make the names of the blobs durable that the snapshot begun at `begin` has written."""
        directory = blob_directory(begin)
        if self._disk.size(directory) is not None:
            self._disk.sync_directory(directory)
        self._disk.step(CommitStep.BLOBS_DURABLE, directory)

    def read(self, ref: BlobRef, *, checksum: bool = True) -> memoryview:
        """Return the verified bytes of a blob; large ones are mapped, and cost memory only where they are touched."""
        name = blob_name(ref)
        self.check_size(ref)
        with self._disk.faults(name, "read"), open(self._disk.path(name), "rb", buffering=0) as file:  # noqa: PTH123
            view = _view(file.fileno(), ref.bytes)
        if checksum and digest_of([view]) != ref.blake3:
            raise StoreCorrupt(self._disk.url, name, "its bytes do not match its name; restore it from a copy")
        return view

    def check_size(self, ref: BlobRef) -> None:
        """Raise StoreCorrupt where the file is missing, or is shorter or longer than the blob."""
        size = self._disk.size(blob_name(ref))
        if size is None:
            raise StoreCorrupt(self._disk.url, blob_name(ref), "is missing; restore it from a copy of the store")
        if size != ref.bytes:
            problem = f"has {size} bytes instead of {ref.bytes}; restore it from a copy of the store"
            raise StoreCorrupt(self._disk.url, blob_name(ref), problem)


def _view(descriptor: int, size: int) -> memoryview:
    if size < MAPPED_BYTES_MIN:
        return memoryview(os.read(descriptor, size))
    return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))


def _chunks(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Join small pieces, so that neither the hash nor the disk is called for each frame of a channel."""
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
