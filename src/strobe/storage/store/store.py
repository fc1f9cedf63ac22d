"""`Store`: the log and the snapshot data of one store (S1, S2).

A writer uses it in this order, and each step survives a failure of the next one:
1. `append` a Begin, which names the parent whose blobs may be reused.
2. `write_snapshot`: every blob, synced, then their directory.
3. `commit`: the entry with the manifest. From here on the snapshot exists, and not before.

A `Store` is for one thread. Any number of them, in any number of processes, may be open at the same URL.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from strobe.errors import LeftBehind, SnapshotCorrupt, StoreCorrupt, UsageError
from strobe.protocol.values.fragment import Snapshot
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import BlobRef, Commit, Entry, EntryRef, Manifest, ReadEntry
from strobe.storage.checkpoints.checkpoint_files import Loaded, Origin, manifest_at, read_commit, usable
from strobe.storage.checkpoints.checkpoint_writer import Checkpointer, origin_of
from strobe.storage.checkpoints.folded_log import unfold
from strobe.storage.content.blobs import Blobs, blob_name
from strobe.storage.content.manifests import blobs_of, to_manifest, to_snapshot
from strobe.storage.entries.gaps import positions
from strobe.storage.entries.log_file import decode_entry, entry_name
from strobe.storage.entries.log_state import LogState, Opened
from strobe.storage.files.backend import Piece, StorageBackend
from strobe.storage.files.commit_steps import OnStep
from strobe.storage.files.header import StoreGuard, create_header, read_header
from strobe.storage.files.layout import HEADER
from strobe.storage.files.urls import backend_at
from strobe.storage.log.log import EntryMatch, Log
from strobe.storage.log.log_end import last_position, probed_end, require_entry, require_present
from strobe.storage.store.integrity import Problem, verify_bytes
from strobe.storage.store.snapshot_names import resolve

Listing = list[tuple[int, str, Manifest]]
Problems = list[Problem]


class Store:
    """An open store. Make one with `create`, `open` or `open_or_create`, from a path or a URL (urls.py).

    `manifests_kept` limits the manifests held in memory, for stores that stay open for long; by default all are held.
    With `checkpoint_every`, checkpoints at multiples of it are prepared for `write_checkpoint`.
    """

    def __init__(
        self,
        backend: StorageBackend,
        manifests_kept: int | None = None,
        identity: str = "",
        *,
        checkpoint_every: int | None = None,
    ) -> None:
        header = read_header(backend, identity)
        backend.guard = StoreGuard(backend, header.store).check
        self.backend = backend
        self.url = backend.url
        self.header = header
        self.blobs = Blobs(backend)
        self.swept: list[str] = []
        """The checkpoints at the time when all obsolete log entries were last removed by this object."""
        self._log = Log(backend, header.blake3)
        self._manifests_kept = manifests_kept
        self._state = LogState(self.read_manifest, manifests_kept)
        self._checkpoint_every = checkpoint_every
        self._checkpointer = self._new_checkpointer()
        self._resumed: Loaded | None = None
        self._is_begun = False

    def _new_checkpointer(self) -> Checkpointer | None:
        if self._checkpoint_every is None:
            return None
        return Checkpointer(
            self.backend, self.header.blake3, self.read_manifest, self.entry_ref, self._checkpoint_every
        )

    @classmethod
    def create(cls, url: str | Path, *, identity: str | None = None, on_step: OnStep | None = None) -> "Store":
        """Create a store in a directory that is missing or empty; its `identity` is random by default."""
        backend = backend_at(url, on_step)
        if not create_header(backend, identity):
            raise UsageError(f"{backend.url} is a store already; open it, or give another directory")
        return cls(backend)

    @classmethod
    def open(
        cls,
        url: str | Path,
        *,
        identity: str = "",
        on_step: OnStep | None = None,
        manifests_kept: int | None = None,
        checkpoint_every: int | None = None,
    ) -> "Store":
        """Open the store at `url`; raise StoreMissing if there is none, or not the one with this `identity`."""
        return cls(backend_at(url, on_step), manifests_kept, identity, checkpoint_every=checkpoint_every)

    @classmethod
    def open_or_create(cls, url: str | Path) -> "Store":
        """Open the store at `url`, and create it if there is none; of several concurrent callers, one creates it.

        Use it only for a first start, on request. At every start, it would create another store whenever the existing
        one is temporarily not visible.
        """
        backend = backend_at(url)
        if backend.fingerprint(HEADER) is None:
            create_header(backend)
        return cls(backend)

    def require(self) -> None:
        """Raise StoreMissing while this store is not at its URL."""
        self.backend.guard()

    @property
    def on_step(self) -> OnStep | None:
        """The callback after each step of a commit; it may be set at any time."""
        return self.backend.on_step

    @on_step.setter
    def on_step(self, on_step: OnStep | None) -> None:
        self.backend.on_step = on_step

    @property
    def term(self) -> int:
        """The highest term read from the log."""
        return self._log.term

    def lead(self, term: int) -> None:
        """Act for the coordinator of `term`: once a higher term is read, reading and appending raise TakenOver."""
        self._log.lead(term)

    def require_lead(self) -> None:
        """Raise TakenOver if a term higher than the led one was read. This reads nothing from the store."""
        self._log.require_lead()

    def require_known_end(self) -> None:
        """Raise StoreAway or LogReplaced if the newest entry that was read is not there, as in an older copy."""
        if self._log.newest is not None:
            require_entry(self.backend, self.header.store, self._log.newest)

    def resume(self) -> Loaded | None:
        """Start from the newest usable checkpoint, before the log is read; return it, if any."""
        if not self._is_begun:
            problems: list[str] = []
            with _without_garbage_collection():
                found = usable(self.backend, self.header.blake3, self.read_manifest, problems)
                self._begin(next(found, None), problems)
            self._is_begun = True
        return self._resumed

    def _begin(self, loaded: Loaded | None, problems: list[str]) -> None:
        if loaded is not None:
            checkpoint = loaded.checkpoint
            unfold(checkpoint.fold, loaded.segments, checkpoint.position, self._state)
            self._log.resume(checkpoint)
        elif problems and self.backend.size(entry_name(0)) is None:
            problem = (
                f"is missing, and no checkpoint can be used ({problems[0]}); restore them from a copy of the store"
            )
            raise StoreCorrupt(self.url, entry_name(0), problem)
        if self._checkpointer is not None:
            base = loaded.checkpoint.position if loaded is not None else 0
            self._checkpointer.begin(
                loaded, probed_end(self.backend, base) if base else last_position(self.backend) + 1
            )
        self._resumed = loaded

    def write_checkpoint(self) -> str | None:
        """Write the newest checkpoint that is due and return its name, or None if none is due."""
        return self._checkpointer.write() if self._checkpointer is not None else None

    def append(self, entry: Entry, position: int) -> None:
        """Create entry `position` of the log; raise LogConflict if it exists or the log ends before it."""
        self.resume()
        self._log.append(entry, position)
        self._take_in(position, entry)

    def read_log(self, start: int = 0) -> Iterator[tuple[int, ReadEntry]]:
        """Yield (position, entry) from `start` to the end of the log, verified; raise StoreCorrupt at damage.

        An entry of an older term than the log's term at that point is returned as `Void`. Entries covered by a
        checkpoint may have been removed; then `start` must be at least the position of the checkpoint.
        """
        self.resume()
        for position, entry in self._log.read(start):
            self._take_in(position, entry)
            yield position, entry

    def positions(self) -> list[int]:
        """Return the positions of the existing entries. Some before a checkpoint may have been removed."""
        return positions(self.backend)

    def read_entry(self, position: int) -> ReadEntry | None:
        """Return the entry at `position`, verified on its own, or None if it does not exist."""
        raw = self.backend.read(entry_name(position))
        return decode_entry(raw, self.url, position, None).entry if raw is not None else None

    def read_manifest(self, position: int) -> Manifest:
        """Return the manifest of the commit at `position`, verified on its own. Any thread may call this."""
        return manifest_at(self.backend, position)

    def read_commit(self, ref: EntryRef) -> Commit:
        """Return the commit that `ref` refers to, without reading the log.

        The checksum proves that it is the entry that the creator of the reference has read, which is as good as reading
        the whole log. It does not show whether the commit took effect or was removed since.
        """
        commit, checksum = read_commit(self.backend, ref.position)
        if checksum != ref.blake3:
            problem = "differs from the entry that the coordinator read: it was replaced, or this is another store"
            raise StoreCorrupt(self.url, entry_name(ref.position), problem)
        return commit

    def require_present(self, ref: EntryRef) -> None:
        """Raise StoreAway if this entry is missing: the store was replaced by an older copy."""
        require_present(self.backend, self.header.store, ref.position)

    def entry_ref(self, position: int) -> EntryRef:
        """Return the reference to an entry that was read here, or to a commit known from a checkpoint."""
        if position >= self._log.base - 1:  # a checkpoint has the checksum of the entry before it
            return self._log.ref(position)
        known = (complete for complete in reversed(self._state.committed.values()) if complete.position == position)
        rows = next(known).rows
        assert rows is not None, "it lies below the checkpoint"
        return EntryRef(position, rows.checksum(position))

    @property
    def durable_entry(self) -> EntryRef | None:
        """The newest entry that is known to be on disk, or None. Any thread may read this."""
        return self._log.durable

    def find(self, entry: EntryRef) -> EntryMatch:
        """Return whether the log, as read so far, has this entry. Any thread may call this."""
        return self._log.find(entry)

    def look_up(self, entry: EntryRef) -> EntryMatch:
        """Return whether the log has this entry; it is read if it lies before the checkpoint."""
        return self._log.look_up(entry)

    def origin(self, entry: ReadEntry) -> Origin | None:
        """Return the snapshot from which `entry` starts an epoch, if any. StoreError: it cannot be read now."""
        return origin_of(entry, self._state, self.entry_ref)

    @property
    def known(self) -> LogState:
        """The state of the log as read so far. This reads nothing from the store."""
        return self._state

    def state(self) -> LogState:
        """Return the current state of the log. Every call updates and returns the same object."""
        while True:
            self.resume()
            try:
                for _ in self.read_log(self._state.next_position):
                    pass
            except LeftBehind as error:
                self._start_over(error)
            else:
                return self._state

    def _start_over(self, error: LeftBehind) -> None:
        """Start again from the newest checkpoint, because the next entries were removed. A coordinator cannot."""
        if self._log.is_led:
            raise error
        self._log = Log(self.backend, self.header.blake3)
        vars(self._state).update(vars(LogState(self.read_manifest, self._manifests_kept)))
        self._checkpointer = self._new_checkpointer()
        self._is_begun = False
        self.resume()
        if self._log.base <= error.position:
            raise StoreCorrupt(self.url, entry_name(error.position), "is missing, though later entries exist")

    def write_blob(self, snapshot_id: str, data: Piece) -> BlobRef:
        """Store `data`, durably, as a blob of the open snapshot `snapshot_id`."""
        opened = self.state().opened(snapshot_id)
        ref = self.blobs.write(opened.position, [data], self._reusable(opened))
        self.blobs.sync(opened.position)
        return ref

    def read_blob(self, ref: BlobRef) -> memoryview:
        """Return the bytes of a blob after verifying size and BLAKE3; StoreCorrupt names the file."""
        return self.blobs.read(ref)

    def write_snapshot(self, snapshot: Snapshot) -> Manifest:
        """Store all data of `snapshot`, whose begin is in the log, and return the manifest for its commit."""
        opened = self.state().opened(str(snapshot.id))
        reusable = self._reusable(opened)
        manifest = to_manifest(
            snapshot, opened.parent, lambda pieces: self.blobs.write(opened.position, pieces, reusable)
        )
        self.blobs.sync(opened.position)
        return manifest

    def commit(self, snapshot_id: str, manifest: Manifest, position: int, at_us: int) -> None:
        """Append the commit as entry `position`. Raise an error if the log would ignore it."""
        state = self.state()
        if state.next_position <= position:
            opened = state.opened(snapshot_id)
            _check_manifest(snapshot_id, manifest, opened)
            self._check_blobs(snapshot_id, manifest, opened)
        self.append(Commit(snapshot_id, manifest, at_us), position)

    def load(self, snapshot_id: str, *, checksums: bool = True) -> Snapshot:
        """Return a complete snapshot, with every byte verified; the bodies of its frames are views into mapped blobs.

        Without `checksums` the bytes are not verified. That is enough for the causal proof, which hashes every frame.
        """
        identity = self.resolve(snapshot_id)
        try:
            read = partial(self.blobs.read, checksum=checksums)
            return to_snapshot(identity, self._state.committed[identity].manifest, read)
        except StoreCorrupt as error:
            self.resolve(identity)  # a snapshot that was removed meanwhile is not damaged
            raise SnapshotCorrupt(identity, error.problem) from error

    def list(self) -> Listing:
        """Return (position of the commit, id, manifest) of every complete snapshot, oldest first."""
        return [(complete.position, name, complete.manifest) for name, complete in self.state().committed.items()]

    def resolve(self, name: str) -> str:
        """Return the id of the complete snapshot for `latest`, an id or the beginning of one."""
        return resolve(self.state(), name)

    def verify_bytes(self) -> Problems:
        """Check every byte of every file, referenced or not, and return the problems by file."""
        return verify_bytes(self.backend)

    def _take_in(self, position: int, entry: ReadEntry) -> None:
        """Apply an entry that was read or written, so that no entry is read twice for the state."""
        if position != self._state.next_position:
            return
        if self._checkpointer is None:
            self._state.apply(position, entry)
            return
        next_entry = self._checkpointer.prepare(entry, self._state)
        self._state.apply(position, entry)
        self._checkpointer.take(position, next_entry, self._log.taken(position), self._state)

    def _reusable(self, opened: Opened) -> dict[str, BlobRef]:
        parent = self._state.parent_of(opened)
        return {ref.blake3: ref for ref in blobs_of(parent)} if parent is not None else {}

    def _check_blobs(self, snapshot_id: str, manifest: Manifest, opened: Opened) -> None:
        """Refuse blobs that are missing, or that garbage collection would not keep while the snapshot is open."""
        parent = self._state.parent_of(opened)
        # The parent may have the same bytes twice, from different begins: each process reuses its own.
        reusable = set(blobs_of(parent)) if parent is not None else set()
        for ref in blobs_of(manifest):
            if ref.begin != opened.position and ref not in reusable:
                raise UsageError(f"snapshot {snapshot_id}: {blob_name(ref)} is neither its own blob nor its parent's")
            self.blobs.check_size(ref)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Pause Python's garbage collector while many long-lived objects are made; it would visit them repeatedly."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _check_manifest(snapshot_id: str, manifest: Manifest, opened: Opened) -> None:
    if manifest.parent not in (None, opened.parent):
        raise UsageError(f"snapshot {snapshot_id}: its manifest names the parent {manifest.parent}, its begin does not")
    if manifest.epoch != SnapshotId.parse(snapshot_id).epoch:
        raise UsageError(f"snapshot {snapshot_id}: its manifest is of epoch {manifest.epoch}")
    if manifest.view.number != opened.begin.view:
        raise UsageError(
            f"snapshot {snapshot_id}: its manifest is of view {manifest.view.number}, its begin of {opened.begin.view}"
        )
