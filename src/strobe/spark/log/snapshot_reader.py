"""Reads committed snapshots by position, in a worker or the driver: entries and blobs, verified (S2)."""

import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

from strobe.errors import SnapshotError, StoreCorrupt, StoreError, StoreFormatError, StrobeError
from strobe.protocol.values.fragment import Snapshot
from strobe.protocol.values.log_entries import BlobRef, Commit, Manifest
from strobe.storage.content.manifests import blobs_of_process, to_snapshot
from strobe.storage.entries.log_file import entry_name
from strobe.storage.files.header import read_header
from strobe.storage.log.commit_reader import CommitReader
from strobe.storage.log.follower import Follower

_NOTHING = memoryview(b"")
_SOUND_MAX = 100_000
_READERS_MAX = 4


class Damage(NamedTuple):
    """An unusable file of the store, and the reason."""

    place: str
    problem: str


DAMAGE = (StoreCorrupt, StoreFormatError)
"""Permanent problems of a store. Any other StoreError may be gone at the next try."""


class Unavailable(Exception):
    """The store or the output cannot be reached now; the batch has to be retried. The message is for people."""


def may_be_readable_later(error: Exception) -> bool:
    """Return whether `error` means only that bytes could not be read now, not that a snapshot is wrong.

    Not the rule of a process that starts (`strobe.runtime.retry.is_transient`): that one waits for a store that is gone
    and for output that is locked; here an error of the operating system that reaches a reader is a bug.
    """
    return isinstance(error, StoreError) and not isinstance(error, DAMAGE)


def new_marker() -> str:
    """Return the prefix for `marked`. It must not be guessable, because the text of an error may quote user data."""
    return f"unavailable-{secrets.token_hex(16)}:"


@contextmanager
def marked(marker: str, *, damage_too: bool = True) -> Iterator[None]:
    """Put `marker` before the message of temporary errors, because Spark keeps only the text of an error.

    If `damage_too` is false, damage is raised unchanged: then it is a finding about a snapshot.
    """
    try:
        yield
    except (StoreError, Unavailable) as error:
        if isinstance(error, DAMAGE) and not damage_too:
            raise
        raise Unavailable(f"{marker} {error}") from error


def unavailable_reason(error: Exception, marker: str) -> str | None:
    """Return what was unavailable, if that made Spark fail. Spark keeps only the text of a Python error."""
    found = re.search(f"{re.escape(marker)} (.*)", str(error))
    return found[1] if found else None


def place_and_problem(error: Exception, place: str) -> tuple[str, str]:
    """Return the file that `error` is about (by default `place`) and its problem."""
    if isinstance(error, StoreCorrupt):
        place = error.place
    if isinstance(error, SnapshotError | StoreError):
        return place, error.problem.removeprefix(f"{place}: ")
    return place, f"cannot be read: {str(error) if isinstance(error, StrobeError) else repr(error)}"


@lru_cache(_READERS_MAX)
def _table_reader(url: str) -> CommitReader:
    """Return a reader for all tasks of a worker, because it caches views."""
    return CommitReader(url, encoded_ends=True)


class SnapshotReader:
    """Reads commits and blobs of the store at `url`; if `store_id` is given, its header must have it.

    Tables need few frontiers decoded: they use `encoded_ends` (`CommitDecoder`).
    """

    def __init__(self, url: str, store_id: str | None = None, *, encoded_ends: bool = False) -> None:
        self._reader = _table_reader(url) if encoded_ends else CommitReader(url)
        self._backend = self._reader.backend
        self._store_id = store_id
        self._sound: set[BlobRef] = set()
        self._follower: Follower | None = None

    @property
    def url(self) -> str:
        return self._backend.url

    def address(self, name: str) -> str:
        """Return the address of the file `name` of the store."""
        return f"{self._backend.url}/{name}"

    def commit(self, position: int, snapshot_id: str | None = None) -> Commit:
        """Return the commit at `position`, which must be of `snapshot_id` if given."""
        if snapshot_id is None:
            return self._reader.read_commit(position)
        return self._reader.read_commit_of(snapshot_id, position)

    def blob(self, ref: BlobRef) -> memoryview:
        """Return the verified bytes of a blob."""
        return self._reader.read_blob(ref)

    def frames(self, manifest: Manifest, position: int) -> tuple[dict[BlobRef, memoryview], list[Damage]]:
        """Return the frames blobs of a snapshot, and the damage found in any of its blobs. Reads a shared state once.

        States may be gigabytes, and the proof does not need them: they are read for their checksums only.
        """
        frames: dict[BlobRef, memoryview] = {}
        damaged: list[Damage] = []
        for record in manifest.processes.values():
            for ref in blobs_of_process(record):
                try:
                    if ref is record.frames:
                        frames[ref] = self._reader.read_blob(ref)
                    else:
                        self._check(ref)
                except Exception as error:
                    # A malformed manifest fails only its own snapshot.
                    if may_be_readable_later(error):
                        raise
                    damaged.append(Damage(*place_and_problem(error, entry_name(position))))
        return frames, damaged

    def snapshot(
        self, snapshot_id: str, manifest: Manifest, position: int, frames: Mapping[BlobRef, memoryview]
    ) -> Snapshot | Damage:
        """Return a snapshot with these frames blobs and without its states, or why it cannot be built."""
        try:
            return to_snapshot(snapshot_id, manifest, lambda ref: frames.get(ref, _NOTHING))
        except Exception as error:  # noqa: BLE001 -- a malformed manifest fails only its own snapshot
            return Damage(*place_and_problem(error, entry_name(position)))  # sections that do not match, malformed ids

    def absence(self) -> str | None:
        """Return why the store is missing or replaced, or None. If it is, missing files prove nothing."""
        try:
            found = read_header(self._backend).store
        except StoreError as error:
            return error.problem
        return None if self._store_id in (None, found) else "is another store than the one read before"

    def require_present(self) -> None:
        """Raise Unavailable if the store is missing or was replaced."""
        if (absence := self.absence()) is not None:
            raise Unavailable(f"store {self.url}: {absence}")

    def is_removed(self, snapshot_id: str, position: int) -> bool:
        """Return whether the log records the removal of the snapshot at `position`: then its blobs may be gone.

        Raise StoreError, for a retry, if the store is gone or does not have its commit there.
        """
        if self._follower is None:
            self._follower = Follower(self._backend.url, self._store_id)
        if not self._follower.is_removed(snapshot_id):
            self._follower.advance()
        self._follower.require_commit(snapshot_id, position)
        return self._follower.is_removed(snapshot_id)

    def _check(self, ref: BlobRef) -> None:
        if ref in self._sound:
            return
        self._reader.read_blob(ref)
        if len(self._sound) >= _SOUND_MAX:
            self._sound.clear()
        self._sound.add(ref)
