"""Follows a growing log: finds the commits that took effect and the entries that are damaged.

A `Follower` uses little memory: it applies outlines of the entries (rules: log_state.py) and keeps positions, not
manifests. To process a snapshot, any process can read the entry at its position again (`CommitReader`), without reading
the rest of the log.

A damaged entry does not stop the reading, but is reported: as `Followed` with a problem. Later entries are handled as
if it did not exist, with one exception: a commit counts if its blobs show that the damaged entry was its begin.
"""

import re
from bisect import bisect_left
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from strobe.errors import StoreCorrupt, StoreError, StoreFormatError
from strobe.protocol.values.log_entries import Begin, Commit, Fence
from strobe.storage.checkpoints.checkpoint_files import Checkpoint, Loaded, manifest_at, usable
from strobe.storage.checkpoints.commit_segments import CommitSegment, logger
from strobe.storage.checkpoints.folded_log import unfold
from strobe.storage.checkpoints.removed_entries import has_all_entries, is_superseded, newer_checkpoint
from strobe.storage.content.manifests import blobs_of
from strobe.storage.entries.fences import Fences
from strobe.storage.entries.gaps import Gap, gap_at
from strobe.storage.entries.log_file import decode_entry, decode_outline, entry_name
from strobe.storage.entries.log_state import LogState
from strobe.storage.files.checksummed_json import check_seal, stated_checksum
from strobe.storage.files.header import read_header
from strobe.storage.files.layout import HEADER
from strobe.storage.files.urls import backend_at
from strobe.storage.log.log_end import last_position, probed_end, require_begun
from strobe.storage.log.terms import Terms

_BLOB_BYTES = re.compile(rb'"blake3":"[0-9a-f]{64}","bytes":(\d+),"begin":')
_WEIGHED_BYTES_MAX = 64 << 10
_MISSING = "is missing, though later entries exist; restore it from a copy of the store"
_ANOTHER = "is another store than before; put the first one back, or start over"


class Followed(msgspec.Struct, frozen=True):
    """A log entry that matters to a follower: the commit of `snapshot_id`, or an entry with a `problem`."""

    position: int
    snapshot_id: str | None = None
    problem: str | None = None
    bytes: int = 0
    """The size of the entry and its blobs: an estimate of the work for it."""

    @property
    def name(self) -> str:
        """The name of the entry's file within the store."""
        return entry_name(self.position)


def _bytes_of(raw: bytes) -> int:
    """Return the number of bytes to read for a commit. For a long entry, its own length is a good enough estimate."""
    if len(raw) > _WEIGHED_BYTES_MAX:
        return len(raw)
    return len(raw) + sum(map(int, _BLOB_BYTES.findall(raw)))


class Follower:
    """Follows the log of the store at `url`. It must be used in one thread.

    With `store_id`, the header of the store must have that identity. Without `checkpoints`, every entry is read.
    """

    def __init__(self, url: str | Path, store_id: str | None = None, *, checkpoints: bool = True) -> None:
        self.backend = backend_at(url)
        self.url = self.backend.url
        header = read_header(self.backend)
        if store_id is not None and header.store != store_id:
            raise StoreError(self.url, _ANOTHER)
        self._header = header.blake3
        self._before: str | None = self._header
        self._state = LogState()
        self._terms = Terms()
        self._fences = Fences(self.backend)
        self._followed: list[Followed] = []
        self._damaged: set[int] = set()
        self._listed = False
        # The checkpoint this follower started from, until the commits before it are needed.
        self._unread: Checkpoint | None = None
        self._base = 0
        self._may_skip = checkpoints
        if checkpoints:
            loaded = next(usable(self.backend, self._header, partial(manifest_at, self.backend), []), None)
            if loaded is not None:
                self._begin(loaded)

    def _begin(self, loaded: Loaded) -> None:
        """Start from a checkpoint and discard the state so far."""
        self._state = LogState()
        self._followed, self._damaged = [], set()
        checkpoint = loaded.checkpoint
        unfold(checkpoint.fold, loaded.segments, checkpoint.position, self._state)
        self._terms = Terms.after(checkpoint)
        self._before = checkpoint.previous
        self._base, self._unread = checkpoint.position, checkpoint

    @property
    def end(self) -> int:
        """The position after the last entry read."""
        return self._state.next_position

    @property
    def has_met_damage(self) -> bool:
        """Whether an unreadable entry was skipped permanently."""
        return bool(self._damaged)

    def advance(self) -> int:
        """Read new entries and return the position after them. After a StoreError the call can be retried."""
        start = self.end
        while True:
            try:
                self._read_on()
            except StoreError:
                if not self._catch_up(start):
                    raise
            else:
                if not self._catch_up(start):
                    break
            start = self.end
        # The listing is checked once. From here on, looking one entry ahead is enough.
        self._listed = True
        return self.end

    def _catch_up(self, start: int) -> bool:
        """Start from a later checkpoint if entries from `start` on may have been removed before they were read."""
        loaded = newer_checkpoint(self.backend, self._header, start) if self._may_skip else None
        if loaded is not None:
            self._begin(loaded)
        return loaded is not None

    def _read_on(self) -> None:
        self._require_same_store()
        while self._read_next() or self._pass_gap():
            pass
        if not self.end:
            require_begun(self.backend)

    def _read_next(self) -> bool:
        """Read and apply the next entry; return False if there is none."""
        name = entry_name(self.end)
        try:
            raw = self.backend.read(name)
        except StoreCorrupt as error:
            if error.place != name:
                raise  # the log's directory itself
            self._skip(None, error.problem.removeprefix(f"{name}: "))
            return True
        if raw is not None:
            self._take(raw)
        return raw is not None

    def _pass_gap(self) -> bool:
        """Skip a gap and return whether there was one. Raises StoreCorrupt for a long gap."""
        if not self._is_missing(self.end):
            return False
        gap = gap_at(self.backend, self.end) or Gap(self.end, self.end + 1)
        if gap.is_long:
            raise StoreCorrupt(self.url, entry_name(gap.first), gap.problem)
        for run in self._fences.uncovered(gap):
            for position in range(run.first, run.end):
                self._followed.append(Followed(position, problem=f"{entry_name(position)}: {_MISSING}"))
                self._damaged.add(position)
        self._go_to(gap.end)
        return True

    def between(self, start: int, end: int) -> list[Followed]:
        """Return the commits that took effect, and the damaged entries, from `start` up to but excluding `end`.

        Commits covered by a checkpoint were valid when it was written. Reading them shows whether they still are.
        """
        if start < self._base:
            self._read_below()
        return self._followed[self._index_of(start) : self._index_of(end)]

    def _read_below(self) -> None:
        """Load the commits covered by the checkpoint, including those removed since."""
        if self._unread is None:
            return
        try:
            below = self._stored(self._unread)
        except StoreCorrupt as error:
            if self.backend.size(entry_name(0)) is None:
                raise
            logger.warning("%s; the entries of the log are read instead", error)
            whole = Follower(self.url, checkpoints=False)
            whole.advance()
            below = whole.between(0, self._base)
        self._unread = None
        self._followed = sorted(below, key=lambda followed: followed.position) + self._followed

    def _stored(self, checkpoint: Checkpoint) -> list[Followed]:
        """Return the commits covered by a checkpoint."""
        below: list[Followed] = []
        for ref in checkpoint.segments:
            segment = CommitSegment(self.backend, ref, partial(manifest_at, self.backend))
            columns = segment.commits
            live = zip(columns.positions, columns.snapshots, columns.bytes, strict=True)
            below += [Followed(position, snapshot, bytes=size) for position, snapshot, size in live]
            below += [Followed(position, snapshot) for position, snapshot in segment.removed()]
        return below

    def checksum_before(self, position: int) -> str | None:
        """Return the checksum of the entry before `position`, which was read, or None if it is damaged.

        Before the first entry, it is the checksum of the header.
        """
        if position == self.end:
            return self._before
        if position == 0:
            return self._header
        if is_superseded(self.backend, position - 1) and not has_all_entries(self.backend):
            return None  # a stale writer may have created this file after the entry was removed
        name = entry_name(position - 1)
        raw = self.backend.read(name)
        self._require_same_store()
        with suppress(StoreCorrupt):
            return check_seal(raw or b"", self.url, name)
        return None

    def is_removed(self, snapshot_id: str) -> bool:
        """Return whether the snapshot was complete and has been removed: its blobs may be gone."""
        return snapshot_id in self._state.removed

    def require_commit(self, snapshot_id: str, position: int) -> None:
        """Raise StoreError if the commit of `snapshot_id` is not at `position`, unless the entry is damaged.

        Callers that read the commit there before use this to detect that the log was replaced.
        """
        found = self.between(position, position + 1)
        if not any(one.snapshot_id == snapshot_id or one.problem is not None for one in found):
            raise StoreError(
                self.url,
                f"{entry_name(position)} is not the commit of {snapshot_id} that was read before, as in "
                "an older copy of the store; put the newer one back, or start over",
            )

    def _take(self, raw: bytes) -> None:
        position = self.end
        try:
            decoded = decode_outline(raw, self.url, position, self._before)
            self._terms.require(position, decoded, self.url)
        except (StoreCorrupt, StoreFormatError) as error:
            if self._before is not None and self._retract(position - 1):
                self._before = None  # the writer of this entry had skipped the one before
                self._take(raw)
            else:
                self._skip(raw, error.problem.removeprefix(f"{entry_name(position)}: "))
            return
        self._before = decoded.checksum
        entry = self._terms.take(position, decoded)
        if isinstance(entry, Commit):
            self._take_commit(position, entry, raw)
            return
        if isinstance(entry, Fence):
            self._retract(entry.position)
        self._state.apply(position, entry)

    def _retract(self, position: int) -> bool:
        """Forget a commit that was fenced off, and return whether there was one.

        Its outline was valid, but the rest of it cannot be read.
        """
        place = self._index_of(position)
        found = self._followed[place] if place < len(self._followed) else None
        if found is None or found.position != position or found.snapshot_id is None:
            return False
        raw = self.backend.read(found.name)
        try:
            decode_entry(raw or b"", self.url, position, None)
        except (StoreCorrupt, StoreFormatError):
            if self._fences.covers(position, raw):
                del self._followed[place]
                self._state.committed.pop(found.snapshot_id, None)
                return True
        return False

    def _take_commit(self, position: int, entry: Commit, raw: bytes) -> None:
        if self._damaged and not self._is_known(entry.snapshot) and self._began_at_damage(raw):
            self._state.apply(position, Begin(entry.snapshot, entry.manifest.view.number, "", (), at_us=0))
            self._state.next_position = position
        self._state.apply(position, entry)
        committed = self._state.committed.get(entry.snapshot)
        if committed is not None and committed.position == position:
            self._followed.append(Followed(position, entry.snapshot, bytes=_bytes_of(raw)))

    def _skip(self, raw: bytes | None, problem: str) -> None:
        """Skip an unreadable entry, and report it unless it was fenced off."""
        position = self.end
        if not self._fences.covers(position, raw):
            self._followed.append(Followed(position, problem=f"{entry_name(position)}: {problem}"))
            self._damaged.add(position)
        self._go_to(position + 1)

    def _go_to(self, position: int) -> None:
        """Continue at `position`. The entry there is checked on its own, because its predecessor is not known."""
        self._state.next_position = position
        self._before = None

    def _is_known(self, snapshot: str) -> bool:
        state = self._state
        return any(snapshot in known for known in (state.open, state.committed, state.aborted, state.removed))

    def _began_at_damage(self, raw: bytes) -> bool:
        try:
            entry = decode_entry(raw, self.url, self.end, None).entry
        except StoreFormatError:
            return False
        return isinstance(entry, Commit) and any(ref.begin in self._damaged for ref in blobs_of(entry.manifest))

    def _is_missing(self, position: int) -> bool:
        """Return whether an entry is missing while later ones exist; entries created meanwhile are not missing."""
        if not self._reaches_beyond(position) or self.backend.size(entry_name(position)) is not None:
            return False
        self._require_same_store()
        return True

    def _reaches_beyond(self, position: int) -> bool:
        if self.backend.size(entry_name(position + 1)) is not None:
            return True
        if self._listed:
            return False
        end = probed_end(self.backend, position) if self._base else last_position(self.backend) + 1
        return end > position + 1

    def _require_same_store(self) -> None:
        """Raise StoreError if the store is missing or was replaced: a missing log looks like the end of one."""
        if self.backend.size(HEADER) is None:
            raise StoreError(self.url, "is missing; put it back, and reading continues where it stopped")
        if read_header(self.backend).blake3 != self._header:
            raise StoreError(self.url, _ANOTHER)
        if self.end and self._before is not None:
            raw = self.backend.read(entry_name(self.end - 1))
            if raw is None or stated_checksum(raw) != self._before:
                problem = "is missing" if raw is None else "was replaced"
                raise StoreError(
                    self.url,
                    f"{entry_name(self.end - 1)} {problem} after it had been read, as in an older copy of the store; "
                    "put the newer one back, or start over",
                )

    def _index_of(self, position: int) -> int:
        return bisect_left(self._followed, position, key=lambda followed: followed.position)
