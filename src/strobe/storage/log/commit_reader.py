"""Reads commits by their positions in the log, and their blobs. Each is verified on its own, without the rest."""

from pathlib import Path

from strobe.errors import StoreCorrupt
from strobe.protocol.values.log_entries import BlobRef, Commit
from strobe.storage.content.blobs import Blobs
from strobe.storage.entries.commit_decoder import CommitDecoder
from strobe.storage.entries.log_file import entry_name
from strobe.storage.files.urls import backend_at


class CommitReader:
    """Reads the store at `url`, for workers that get the positions from a follower.

    `encoded_ends` is passed to the `CommitDecoder`.
    """

    def __init__(self, url: str | Path, *, encoded_ends: bool = False) -> None:
        self.backend = backend_at(url)
        self.blobs = Blobs(self.backend)
        self._decoder = CommitDecoder(encoded_ends=encoded_ends)

    def read_raw(self, position: int) -> bytes:
        """Return the unchecked bytes of the entry at `position`; raise StoreError if it is missing."""
        raw = self.backend.read(entry_name(position))
        if raw is None:
            raise StoreCorrupt(
                self.backend.url, entry_name(position), "is missing; restore it from a copy of the store"
            )
        return raw

    def read_commit(self, position: int) -> Commit:
        """Return the commit at `position`, verified on its own; raise StoreError if there is none.

        It may share objects with commits read before, and must not be modified.
        """
        raw = self.read_raw(position)
        return self._decoder.decode(raw, self.backend.url, position)

    def read_commit_of(self, snapshot_id: str, position: int) -> Commit:
        """Return the commit at `position` like `read_commit`; raise StoreError if it is not of `snapshot_id`."""
        commit = self.read_commit(position)
        if commit.snapshot != snapshot_id:
            raise StoreCorrupt(
                self.backend.url,
                entry_name(position),
                f"is the commit of {commit.snapshot}, and not that of {snapshot_id}",
            )
        return commit

    def read_blob(self, ref: BlobRef) -> memoryview:
        """Return the verified bytes of a blob."""
        return self.blobs.read(ref)
