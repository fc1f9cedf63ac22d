"""Verifies every byte of the checkpoints: by their checksums and against the entries they cover (S2)."""

from collections.abc import Callable, Iterator

from blake3 import blake3

from strobe.errors import StoreCorrupt, StoreError
from strobe.protocol.values.log_entries import Commit, EntryRef, Manifest, ReadEntry
from strobe.storage.checkpoints.checkpoint_files import (
    Checkpoint,
    Loaded,
    checkpoint_position,
    newest_first,
    read_checkpoint,
)
from strobe.storage.checkpoints.checkpoint_writer import Checkpointer, LogPosition
from strobe.storage.checkpoints.commit_segments import CommitSegment, check_details, segment_digest
from strobe.storage.entries.log_state import LogState
from strobe.storage.files.backend import StorageBackend
from strobe.storage.files.layout import CHECKPOINTS

Found = Callable[[str, StoreError], None]
"""Receives the name of a file and the error found in it."""


class Recomputed:
    """Makes each existing checkpoint again from the entries, and compares the two.

    If it begins with the checkpoint `start`, the entries before that are not needed and may have been removed.
    """

    def __init__(self, backend: StorageBackend, header: str, found: Found, start: Loaded | None = None) -> None:
        self._backend = backend
        self._found = found
        self._wanted: dict[int, list[tuple[str, Checkpoint]]] = {}
        self._makers: dict[int, Checkpointer] = {}
        self._commits: dict[int, str] = {}
        for segment in start.segments if start is not None else ():
            columns = segment.commits
            self._commits |= zip(columns.positions, (one.hex() for one in columns.checksums), strict=True)
        for name, checkpoint in _sound(backend, header, found):
            every = checkpoint.every
            if start is not None and every != start.checkpoint.every:
                continue  # it has other segments
            self._wanted.setdefault(checkpoint.position, []).append((name, checkpoint))
            if every not in self._makers:
                self._makers[every] = Checkpointer(backend, header, _unread, self._ref, every)
                self._makers[every].begin(start, 0)

    def take(self, position: int, entry: ReadEntry, taken: LogPosition, state: LogState) -> None:
        """Apply the next entry to `state`, and compare the checkpoints after it."""
        if isinstance(entry, Commit) and self._makers:
            self._commits[position] = taken.checksum
        prepared = [maker.prepare(entry, state) for maker in self._makers.values()]
        state.apply(position, entry)
        for maker, one in zip(self._makers.values(), prepared, strict=True):
            maker.take(position, one, taken, state)
        for name, checkpoint in self._wanted.get(position + 1, []):
            maker = self._makers[checkpoint.every]
            if maker.make(maker.freeze(position + 1, taken, state)).name != name:
                problem = "does not match the entries before it; remove it, and another one will be written"
                self._found(name, StoreCorrupt(self._backend.url, name, problem))

    def _ref(self, position: int) -> EntryRef:
        return EntryRef(position, self._commits[position])


def _sound(backend: StorageBackend, header: str, found: Found) -> Iterator[tuple[str, Checkpoint]]:
    """Yield the valid checkpoints, and report the damaged ones unless they have just been removed."""
    for name in newest_first(backend):
        try:
            checkpoint = read_checkpoint(backend, name, header)
            for ref in checkpoint.segments:
                check_details(CommitSegment(backend, ref, _unread))
        except StoreCorrupt as error:
            if backend.size(name) is not None:
                found(error.place, error)
        else:
            yield name, checkpoint


def unreferenced_damage(backend: StorageBackend, found: Found) -> None:
    """Report the segments whose bytes do not match their checksum, whether or not a checkpoint refers to them."""
    for name in backend.names(CHECKPOINTS):
        digest = segment_digest(name)
        raw = backend.read(f"{CHECKPOINTS}/{name}") if digest is not None else None
        if raw is not None and blake3(raw).hexdigest() != digest:
            full = f"{CHECKPOINTS}/{name}"
            found(full, StoreCorrupt(backend.url, full, "its bytes do not match its checksum"))


def unknown_names(backend: StorageBackend) -> Iterator[str]:
    """Yield the names of foreign files in the directory of checkpoints."""
    for name in backend.names(CHECKPOINTS):
        if checkpoint_position(name) is None and segment_digest(name) is None:
            yield f"{CHECKPOINTS}/{name}"


def _unread(position: int) -> Manifest:
    raise AssertionError(f"the manifest of entry {position} is at hand")
