"""Makes checkpoints: applies the entries of a log one by one, and writes their state at regular intervals (S1).

All files depend only on the entries, so any number of writers make the same files: a checkpoint at each multiple of
`every`, and segments of `every` entries, of which 16 are merged into one. The cost of a checkpoint does not grow with
the number of commits, except for a few bytes per segment.

A checkpoint that exists has all its segments, even after a power cut, because of the order of writes: the segments;
fsync of the directory; the checkpoint; fsync of the directory.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator

import msgspec

from strobe.protocol.coordinator.memory import Memory, recall, remember, replay_lifecycle
from strobe.protocol.coordinator.messages import EntryLogged
from strobe.protocol.values.log_entries import Commit, EntryRef, EpochStart, ReadEntry, Remove
from strobe.storage.checkpoints.checkpoint_files import Checkpoint, Loaded, Origin, encode_checkpoint, segment_ranges
from strobe.storage.checkpoints.commit_segments import CommitRow, CommitSegment, SegmentRef, encode_segment
from strobe.storage.checkpoints.folded_log import Folded, fold
from strobe.storage.checkpoints.removed_entries import is_superseded
from strobe.storage.entries.ended_ids import EndedIds
from strobe.storage.entries.log_state import LogState, ReadManifest
from strobe.storage.files.backend import StorageBackend
from strobe.storage.files.checksummed_json import UNSEALED
from strobe.storage.files.commit_steps import CHECKPOINT_STEPS, CommitStep
from strobe.storage.files.layout import CHECKPOINTS

Reference = Callable[[int], EntryRef]
"""Returns the reference to the commit at a position."""

EVERY = 1024


class NextEntry(msgspec.Struct, frozen=True):
    """The next entry, with the facts that must be read from the state before it is applied."""

    entry: ReadEntry
    origin: Origin | None
    removes: bool


class LogPosition(msgspec.Struct, frozen=True):
    """The checksum of an entry, and the term of the log after it."""

    checksum: str
    term: int


class Pending(msgspec.Struct, frozen=True):
    """A checkpoint to be written: the state after the entries before `position`."""

    position: int
    previous: LogPosition
    fold: Folded
    memory: Memory
    origin: Origin | None
    committed: list[int]
    removed: EndedIds


class Made(msgspec.Struct, frozen=True):
    """The files of a checkpoint: the new segments by name, and the checkpoint itself."""

    segments: dict[str, bytes]
    name: str
    document: bytes
    refs: tuple[SegmentRef, ...]


class Checkpointer:
    """Collects the data for checkpoints of the log at `backend`. `header` is the checksum of strobe.json."""

    def __init__(
        self, backend: StorageBackend, header: str, read_manifest: ReadManifest, ref: Reference, every: int = EVERY
    ) -> None:
        self.every = every
        self.pending: Pending | None = None
        self._not_before = 0
        self._backend = backend
        self._header = header
        self._read_manifest = read_manifest
        self._ref = ref
        self._lifecycle = replay_lifecycle()
        self._origin: Origin | None = None
        # The segments written, by their ranges; the commits after them; and the removals since.
        self._segments: dict[tuple[int, int], SegmentRef] = {}
        self._rows: list[CommitRow] = []
        self._removed_at: dict[str, int] = {}

    def begin(self, loaded: Loaded | None, end: int) -> None:
        """Continue from a checkpoint, if there is one, in a log that reaches at least to `end`."""
        # One checkpoint there replaces all earlier ones.
        self._not_before = end // self.every * self.every
        if loaded is not None:
            checkpoint = loaded.checkpoint
            recall(self._lifecycle, checkpoint.memory)
            self._origin = checkpoint.origin
            self._segments = {(ref.start, ref.end): ref for ref in checkpoint.segments}

    def prepare(self, entry: ReadEntry, state: LogState) -> NextEntry:
        """Examine the next entry before `state` applies it. StoreError: required data cannot be read now."""
        removes = isinstance(entry, Remove) and entry.snapshot in state.committed and entry.snapshot not in state.pinned
        return NextEntry(entry, origin_of(entry, state, self._ref), removes)

    def take(self, position: int, next_entry: NextEntry, taken: LogPosition, state: LogState) -> None:
        """Record the entry at `position`, after `state` has applied it."""
        entry, origin = next_entry.entry, next_entry.origin
        if isinstance(entry, EpochStart) and entry.epoch > self._lifecycle.epoch:
            self._origin = origin
        departed, joined = (origin.departed, origin.joined) if origin is not None else ({}, {})
        self._lifecycle.handle(EntryLogged(entry, departed, joined), 0)
        if isinstance(entry, Commit):
            complete = state.committed.get(entry.snapshot)
            if complete is not None and complete.position == position:
                manifest, begin = entry.manifest, complete.begin
                row = CommitRow.of(position, entry.snapshot, taken.checksum, entry.at_us, manifest, begin)
                self._rows.append(row)
        elif isinstance(entry, Remove) and next_entry.removes:
            self._removed_at[entry.snapshot] = position
        # After an entry that was fenced off, there is no checksum to continue the chain from.
        is_due = (position + 1) % self.every == 0 and position + 1 >= self._not_before
        if is_due and taken.checksum != UNSEALED:
            self.pending = self.freeze(position + 1, taken, state)

    def write(self) -> str | None:
        """Write the pending checkpoint, if any, and return its name. StoreError: it could not be written."""
        if self.pending is not None and is_superseded(self._backend, self.pending.position):
            self.pending = None  # newer ones exist, and this one might be removed with the entries before it
        if self.pending is None:
            return None
        made = self.make(self.pending)
        self._backend.make_directory(CHECKPOINTS)
        for name, raw in made.segments.items():
            self._backend.create(name, [raw], CHECKPOINT_STEPS)
        self._backend.sync_directory(CHECKPOINTS)
        self._backend.create(made.name, [made.document], CHECKPOINT_STEPS)
        self._backend.sync_directory(CHECKPOINTS)
        self._backend.step(CommitStep.CHECKPOINT_DURABLE, made.name)
        self._written(self.pending.position, made.refs)
        return made.name

    def make(self, pending: Pending) -> Made:
        """Return the files of a checkpoint. StoreError: a segment to be merged into a longer one is damaged."""
        segments: dict[str, bytes] = {}
        refs: list[SegmentRef] = []
        for start, end in segment_ranges(pending.position, self.every):
            live = bisect_left(pending.committed, end) - bisect_left(pending.committed, start)
            ref = self._segments.get((start, end))
            if ref is None:
                ref, files = encode_segment(start, end, live, list(self._gather(start, end, pending)))
                segments |= files
            refs.append(msgspec.structs.replace(ref, live=live))
        taken = pending.previous
        checkpoint = Checkpoint(
            UNSEALED,
            pending.position,
            taken.checksum,
            self._header,
            taken.term,
            self.every,
            tuple(refs),
            pending.fold,
            pending.memory,
            pending.origin,
        )
        return Made(segments, *encode_checkpoint(checkpoint), tuple(refs))

    def freeze(self, position: int, previous: LogPosition, state: LogState) -> Pending:
        """Return the data for a checkpoint at `position`, after the entry before it was applied."""
        return Pending(
            position,
            previous,
            fold(state),
            remember(self._lifecycle),
            self._origin,
            [complete.position for complete in state.committed.values()],
            state.removed.copy(),
        )

    def _written(self, position: int, refs: tuple[SegmentRef, ...]) -> None:
        self.pending = None
        self._segments = {(ref.start, ref.end): ref for ref in refs}
        self._rows = [row for row in self._rows if row.position >= position]
        self._removed_at = {name: at for name, at in self._removed_at.items() if at >= position}

    def _gather(self, start: int, end: int, pending: Pending) -> Iterator[CommitRow]:
        """Yield the commits of a range, in order, in the form to be stored."""
        for ref in sorted(self._segments.values(), key=lambda ref: ref.start):
            if start <= ref.start and ref.end <= end:
                for row in CommitSegment(self._backend, ref, self._read_manifest).rows():
                    yield self._kept(row, end, pending)
        for row in self._rows:
            if start <= row.position < end:
                yield self._kept(row, end, pending)

    def _kept(self, row: CommitRow, end: int, pending: Pending) -> CommitRow:
        removed = row.snapshot in pending.removed and self._removed_at.get(row.snapshot, -1) < end
        return row.without_details() if removed else row


def origin_of(entry: ReadEntry, state: LogState, ref: Reference) -> Origin | None:
    """Return the snapshot from which `entry` starts an epoch, if any. StoreError: it cannot be read now."""
    restored = entry.restored if isinstance(entry, EpochStart) else None
    complete = state.committed.get(restored) if restored is not None else None
    if complete is None:
        return None
    manifest = complete.manifest
    positions = {process: record.position for process, record in manifest.processes.items()}
    return Origin(ref(complete.position), positions, manifest.departed, manifest.joined)
