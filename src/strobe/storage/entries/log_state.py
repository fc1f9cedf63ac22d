"""`LogState`: the current state of the store, computed by applying the log entries in order (S1).

- The first outcome of a snapshot wins: a commit or an abort counts only while the snapshot is open, that is, begun and
  without an outcome. So a commit without a begin, a second outcome and a second begin have no effect.
- A new epoch aborts all open snapshots of older epochs. A later begin from an older epoch is aborted at once, so a
  stale coordinator cannot commit. Epochs, views and terms only increase.
- An entry of an older term than the log's current term has no effect (terms.py).
- A parent counts only if it is complete when the begin is logged. From then on its blobs are kept until the child has
  an outcome, even if the parent is removed (S2).
- A pinned snapshot is not removed.

For ended snapshots it keeps ids and reasons, and for complete ones a short record. Manifests are most of a log, so
long-running readers limit how many are kept in memory; the others are read again when needed.
"""

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from itertools import chain
from typing import Protocol, assert_never

import msgspec

from strobe.errors import SnapshotError, SnapshotIncomplete, SnapshotNotFound
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import (
    Abort,
    Begin,
    Commit,
    Entry,
    EpochStart,
    Fence,
    Manifest,
    Pin,
    ReadEntry,
    Release,
    Remove,
    Term,
    ViewChange,
    Void,
)
from strobe.protocol.values.view import View
from strobe.storage.content.manifests import blobs_of
from strobe.storage.content.summaries import Summary, summarize
from strobe.storage.entries.ended_ids import EndedIds

ReadManifest = Callable[[int], Manifest]
"""Returns the manifest of the commit at a log position."""


class Opened(msgspec.Struct, frozen=True):
    """A snapshot begun at `position`. It may reuse the blobs of `parent`."""

    position: int
    begin: Begin
    parent: str | None


class Manifests:
    """Keeps the manifests of the newest `kept_max` commits, or of all; the others are read with `read`."""

    def __init__(self, read: ReadManifest | None = None, kept_max: int | None = None) -> None:
        self._read = read
        self._kept_max = kept_max
        self._kept: dict[int, Manifest] = {}

    def get(self, position: int) -> Manifest:
        kept = self._kept.get(position)
        if kept is not None:
            return kept
        assert self._read is not None, f"the manifest of entry {position} was not kept"
        return self._read(position)

    def add(self, position: int, manifest: Manifest) -> None:
        self._kept[position] = manifest
        if self._kept_max is not None and len(self._kept) > self._kept_max:
            del self._kept[next(iter(self._kept))]

    def forget(self, position: int) -> None:
        self._kept.pop(position, None)

    def copy(self) -> "Manifests":
        other = Manifests(self._read, self._kept_max)
        other._kept = self._kept.copy()
        return other


class StoredRows(Protocol):
    """The data that a checkpoint stores for each commit (commit_segments.py)."""

    def blobs(self, position: int) -> str: ...
    def summary(self, position: int) -> Summary: ...
    def checksum(self, position: int) -> str: ...


class Committed(msgspec.Struct, frozen=True):
    """A complete snapshot. `position` is the log position of its commit, and the offset for readers of the log.

    `rows` are the stored rows of the checkpoint that it was loaded from; None if its entry was read. `begin` is the
    position of its begin, if that was read too.
    """

    position: int
    started_us: int
    at_us: int
    manifests: Manifests
    read_blobs: str = ""
    rows: StoredRows | None = None
    begin: int | None = None

    @property
    def manifest(self) -> Manifest:
        """The manifest in its commit. Raises StoreError if it is not in memory and cannot be read now."""
        return self.manifests.get(self.position)

    @property
    def blobs(self) -> str:
        """The keys of its blobs (`blob_key`), one per line, for garbage collection."""
        return self.read_blobs if self.rows is None else self.rows.blobs(self.position)

    @property
    def summary(self) -> Summary:
        """Its summary for lists."""
        return summarize(self.manifest, self.begin) if self.rows is None else self.rows.summary(self.position)


def blob_key(begin: int, digest: str) -> str:
    """Return the key that identifies a blob within a store."""
    return f"{begin}/{digest}"


def blob_keys(manifest: Manifest) -> str:
    """Return the keys of the blobs that a snapshot needs, one per line."""
    return "\n".join(blob_key(ref.begin, ref.blake3) for ref in blobs_of(manifest))


class LogState:
    """The state after entries 0 .. `next_position` - 1.

    With `manifests_kept`, only that number of newest manifests is kept; the others are read with `read_manifest`.
    """

    def __init__(self, read_manifest: ReadManifest | None = None, manifests_kept: int | None = None) -> None:
        self.next_position = 0
        self.term: Term | None = None
        """The term of the current leading coordinator."""
        self.epoch = 0
        self.view: View | None = None
        self.open: dict[str, Opened] = {}
        self.committed: dict[str, Committed] = {}
        """The complete snapshots that were not removed, in commit order."""
        self.aborted = EndedIds()
        self.removed = EndedIds()
        self.pinned: set[str] = set()
        self.restored: str | None = None
        """The snapshot that the current epoch started from, until the epoch has a complete snapshot of its own."""
        self.starts: dict[int, EpochStart] = {}
        """The epochs that took effect, without their views."""
        self.removed_parents: dict[str, Committed] = {}
        """Removed snapshots that are parents of open ones."""
        self.manifests = Manifests(read_manifest, manifests_kept)
        self._last_blobs = ""

    @property
    def newest_complete(self) -> str | None:
        return next(reversed(self.committed), None)

    def apply(self, position: int, entry: ReadEntry) -> None:
        """Apply the entry at `position`, which must be the next one."""
        assert position == self.next_position, f"entry {position} was applied after {self.next_position - 1}"
        self.next_position += 1
        match entry:
            case Begin():
                self._begin(position, entry)
            case Commit():
                self._commit(position, entry)
            case Abort():
                self._abort(entry.snapshot, entry.reason)
            case ViewChange():
                if self.view is None or entry.view.number > self.view.number:
                    self.view = entry.view
            case EpochStart():
                self._start_epoch(entry)
            case Pin():
                self._pin(entry)
            case Remove():
                self._remove(entry)
            case Term():
                if self.term is None or entry.term > self.term.term:
                    self.term = entry
            case Release() | Fence() | Void():
                pass  # these do not affect snapshots
            case _:
                assert_never(entry)

    def preview(self, entries: Iterable[Entry]) -> "LogState":
        """Return the state with `entries` added, but with the same `next_position`. This state is not changed."""
        future = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | set | EndedIds | Manifests):
                setattr(future, name, value.copy())
        for entry in entries:
            future.apply(future.next_position, entry)
        future.next_position = self.next_position
        return future

    def opened(self, snapshot: str) -> Opened:
        """Return the open snapshot with this id; raise SnapshotError if no data can be stored for it."""
        if snapshot in self.open:
            return self.open[snapshot]
        if snapshot in self.committed:
            raise SnapshotError(snapshot, f"was committed already, by log entry {self.committed[snapshot].position}")
        if snapshot in self.aborted:
            raise SnapshotIncomplete(snapshot, f"was aborted: {self.aborted[snapshot]}; begin another one")
        if snapshot in self.removed:
            raise SnapshotNotFound(snapshot, f"was removed: {self.removed[snapshot]}")
        raise SnapshotNotFound(snapshot, "has not begun; append a Begin entry to the log first")

    def parent_of(self, opened: Opened) -> Manifest | None:
        """Return the manifest whose blobs an open snapshot may reuse, even if that parent was removed since."""
        if opened.parent is None:
            return None
        return (self.committed.get(opened.parent) or self.removed_parents[opened.parent]).manifest

    def roots(self) -> Iterator[Manifest]:
        """Yield every manifest whose blobs must be kept: of complete snapshots and of parents of open snapshots."""
        for complete in self.rooted():
            yield complete.manifest

    def kept_blobs(self) -> Iterator[str]:
        """Yield the blob keys of all `roots`, without reading a manifest."""
        for blobs in {complete.blobs for complete in self.rooted()}:
            yield from blobs.splitlines()

    def needed_commits(self) -> Iterator[int]:
        """Return the positions of the commits whose entries must be kept: those of all `roots`."""
        return (complete.position for complete in self.rooted())

    def rooted(self) -> Iterator[Committed]:
        """Return the snapshots of all `roots`."""
        return chain(self.committed.values(), self.removed_parents.values())

    def _begin(self, position: int, entry: Begin) -> None:
        snapshot = entry.snapshot
        if snapshot in self.open or self._has_outcome(snapshot):
            return
        parent = entry.parent if entry.parent in self.committed else None
        self.open[snapshot] = Opened(position, entry, parent)
        if SnapshotId.parse(snapshot).epoch < self.epoch:
            self._abort(snapshot, f"begun in an older epoch than {self.epoch}")

    def _commit(self, position: int, entry: Commit) -> None:
        if entry.snapshot in self.open and entry.manifest.epoch == SnapshotId.parse(entry.snapshot).epoch:
            begin = self.open[entry.snapshot].position
            self._close(entry.snapshot)
            self.committed[entry.snapshot] = self._keep(position, entry, begin)
            if entry.manifest.epoch == self.epoch:
                self.restored = None

    def _keep(self, position: int, entry: Commit, begin: int) -> Committed:
        manifest = entry.manifest
        self.manifests.add(position, manifest)
        blobs = blob_keys(manifest)
        # Consecutive snapshots of an idle system have the same blobs.
        self._last_blobs = self._last_blobs if blobs == self._last_blobs else blobs
        return Committed(position, manifest.started_us, entry.at_us, self.manifests, self._last_blobs, begin=begin)

    def _abort(self, snapshot: str, reason: str) -> None:
        if snapshot in self.open:
            self._close(snapshot)
            self.aborted.add(snapshot, reason)

    def _start_epoch(self, entry: EpochStart) -> None:
        epoch = entry.epoch
        if epoch <= self.epoch:
            return
        self.epoch, self.restored, self.view = epoch, entry.restored, entry.view or self.view
        self.starts[epoch] = msgspec.structs.replace(entry, view=None)
        for snapshot in list(self.open):
            if SnapshotId.parse(snapshot).epoch < epoch:
                self._abort(snapshot, f"epoch {epoch} began")

    def _pin(self, entry: Pin) -> None:
        if not entry.pinned:
            self.pinned.discard(entry.snapshot)
        elif entry.snapshot in self.committed or entry.snapshot in self.open:
            self.pinned.add(entry.snapshot)

    def _remove(self, entry: Remove) -> None:
        snapshot = entry.snapshot
        if snapshot not in self.committed or snapshot in self.pinned:
            return
        complete = self.committed.pop(snapshot)
        self.removed.add(snapshot, entry.reason)
        if self._has_open_child(snapshot):
            self.removed_parents[snapshot] = complete
        else:
            self.manifests.forget(complete.position)

    def _close(self, snapshot: str) -> None:
        parent = self.open.pop(snapshot).parent
        if parent in self.removed_parents and not self._has_open_child(parent):
            self.manifests.forget(self.removed_parents.pop(parent).position)

    def _has_open_child(self, parent: str) -> bool:
        return any(opened.parent == parent for opened in self.open.values())

    def _has_outcome(self, snapshot: str) -> bool:
        return snapshot in self.committed or snapshot in self.aborted or snapshot in self.removed
