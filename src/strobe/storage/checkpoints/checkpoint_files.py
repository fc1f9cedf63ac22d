"""Reads checkpoints: the state of the log at a position, so that it need not be read from the beginning (S1).

A checkpoint at n is a checksummed file `checkpoints/<n>-<its checksum>.json`. It has the state after the entries before
n, the coordinator's memory of them, references to the segments with the commits, and the checksum of entry n-1, from
which the chain continues. It is derived from the entries alone: from all of them, it can be made again byte for byte.

The newest checkpoint that is complete and fits the log is used. If one is damaged, that is reported, and an older one
or the entries are used. If those entries were removed, the log cannot be read.
"""

import re
from collections.abc import Iterator, Sequence

import msgspec

from strobe.errors import UNREADABLE, StoreCorrupt, UsageError
from strobe.names import Name
from strobe.protocol.coordinator.memory import Memory, check_memory
from strobe.protocol.values.bounds import Count, Digest, ViewNumber
from strobe.protocol.values.log_entries import Commit, Departure, EntryRef, Manifest
from strobe.storage.checkpoints.commit_segments import CommitSegment, SegmentRef, logger
from strobe.storage.checkpoints.folded_log import Folded
from strobe.storage.entries.log_file import decode_entry, entry_name
from strobe.storage.entries.log_state import ReadManifest
from strobe.storage.files.backend import StorageBackend
from strobe.storage.files.checksummed_json import UNSEALED, check_seal, seal
from strobe.storage.files.layout import CHECKPOINTS

MERGED = 16
"""The number of segments merged into one."""
EVERY_MAX = 1 << 16
"""Maximum number of entries of a segment before merging. It bounds the number of segments for a position, so that
impossible positions are refused."""
_NAME = re.compile(r"(\d{20})-([0-9a-f]{64})\.json")


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """The snapshot that an epoch starts from: its commit, and the number of events of each process before it.

    `departed` are the processes that had left with output. `joined` has the first view with each later process.
    """

    commit: EntryRef
    positions: dict[Name, Count]
    departed: dict[Name, Departure] = {}
    joined: dict[Name, ViewNumber] = {}


class Checkpoint(msgspec.Struct, frozen=True):
    """The content of a checkpoint. `header` is the checksum of strobe.json.

    `every` is the interval of checkpoints and segments. `term` is the highest term of the entries before it.
    """

    blake3: Digest
    position: Count
    previous: Digest
    header: Digest
    term: Count
    every: Count
    segments: tuple[SegmentRef, ...]
    fold: Folded
    memory: Memory
    origin: Origin | None = None

    def check(self) -> None:
        """Raise ValueError or UsageError if its values cannot come from any log."""
        check_segment_ranges([(ref.start, ref.end) for ref in self.segments], self.position, self.every)
        self.fold.check(self.position)
        check_memory(self.memory, self.position)
        leader = self.fold.term
        if not (leader.term if leader is not None else 0) <= self.term <= self.position:
            raise ValueError(f"no log is in term {self.term} after {self.position} entries")


_decoder = msgspec.json.Decoder(Checkpoint)


class Loaded(msgspec.Struct, frozen=True):
    """A complete checkpoint, with the segments that contain commits not yet removed."""

    checkpoint: Checkpoint
    segments: list[CommitSegment]


def segment_ranges(position: int, every: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a checkpoint's segments: first the long ones, then the short ones."""
    start = 0
    for length in (every * MERGED, every):
        while start + length <= position:
            yield start, start + length
            start += length


def check_segment_ranges(found: Sequence[tuple[int, int]], position: int, every: int) -> None:
    """Raise ValueError if these are not the segment ranges of a checkpoint at `position`."""
    if not 1 <= every <= EVERY_MAX or position < every or position % every:
        raise ValueError(f"there is no checkpoint at {position} if there is one every {every} entries")
    long = every * MERGED
    # Count first: an unchecked position may be huge.
    count = position // long + position % long // every
    if len(found) != count or list(found) != list(segment_ranges(position, every)):
        raise ValueError("its segments are not those of its position")


def checkpoint_name(position: int, digest: str) -> str:
    """Return the name of a checkpoint within the store."""
    return f"{CHECKPOINTS}/{position:020d}-{digest}.json"


def checkpoint_position(name: str) -> int | None:
    """Return the position of the checkpoint in the file `name`, or None if it is not a checkpoint."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def encode_checkpoint(checkpoint: Checkpoint) -> tuple[str, bytes]:
    """Return the name and the bytes of a checkpoint."""
    unsealed = msgspec.structs.replace(checkpoint, blake3=UNSEALED)
    # Sets and maps in a fixed order, so that every writer makes the same bytes.
    raw, digest = seal(msgspec.json.encode(unsealed, order="deterministic") + b"\n")
    return checkpoint_name(checkpoint.position, digest), raw


def read_checkpoint(backend: StorageBackend, name: str, header: str) -> Checkpoint:
    """Return the checkpoint `name`; raise StoreCorrupt if it is damaged or belongs to another store."""
    raw = backend.read(name)
    if raw is None:
        raise StoreCorrupt(backend.url, name, "is missing")
    digest = check_seal(raw, backend.url, name)
    try:
        checkpoint = _decoder.decode(raw)
        checkpoint.check()
    except (*UNREADABLE, ValueError, UsageError) as error:
        raise StoreCorrupt(backend.url, name, f"its checksum holds, but it cannot be read ({error})") from error
    if name != checkpoint_name(checkpoint.position, digest):
        raise StoreCorrupt(backend.url, name, "was renamed")
    if checkpoint.header != header:
        raise StoreCorrupt(backend.url, name, "is of another store")
    return checkpoint


def read_commit(backend: StorageBackend, position: int) -> tuple[Commit, str]:
    """Return the commit at `position`, verified on its own, and its checksum."""
    name = entry_name(position)
    raw = backend.read(name)
    if raw is None:
        raise StoreCorrupt(backend.url, name, "is missing; restore it from a copy of the store")
    entry, checksum, _ = decode_entry(raw, backend.url, position, None)
    if not isinstance(entry, Commit):
        raise StoreCorrupt(backend.url, name, "is no commit: it was replaced")
    return entry, checksum


def manifest_at(backend: StorageBackend, position: int) -> Manifest:
    """Return the manifest of the commit at `position`."""
    return read_commit(backend, position)[0].manifest


def newest_first(backend: StorageBackend) -> list[str]:
    """Return the names of the existing checkpoints, newest first."""
    names = backend.names(CHECKPOINTS)
    return [f"{CHECKPOINTS}/{name}" for name in reversed(names) if checkpoint_position(name) is not None]


def usable(backend: StorageBackend, header: str, read_manifest: ReadManifest, problems: list[str]) -> Iterator[Loaded]:
    """Yield the checkpoints that are complete and fit the log, newest first; errors are added to `problems`.

    Garbage collection may remove listed checkpoints after newer ones were written. So the names are listed again until
    there are no new ones.
    """
    seen: set[str] = set()
    while names := [name for name in newest_first(backend) if name not in seen]:
        seen.update(names)
        for name in names:
            try:
                loaded = load(backend, read_checkpoint(backend, name, header), name, read_manifest)
            except StoreCorrupt as error:
                problems.append(error.problem)
                if backend.size(name) is not None:  # otherwise garbage collection has removed it since
                    logger.warning("store %s: a checkpoint cannot be used: %s", backend.url, error.problem)
            else:
                yield loaded


def load(backend: StorageBackend, checkpoint: Checkpoint, name: str, read_manifest: ReadManifest) -> Loaded:
    """Return the checkpoint with its segments; raise StoreCorrupt if one is damaged or the log does not match."""
    _check_fit(backend, checkpoint, name)
    removed = checkpoint.fold.removed_ids()
    committed: set[str] = set()
    segments = [CommitSegment(backend, ref, read_manifest) for ref in checkpoint.segments if ref.live]
    for segment in segments:
        segment.remove(removed)
        committed.update(segment.commits.snapshots)
        committed.difference_update(segment.removed_since)
    try:
        if len(committed) != sum(ref.live for ref in checkpoint.segments):
            raise ValueError("a snapshot is complete twice")
        checkpoint.fold.check_commits(committed)
    except ValueError as error:
        raise StoreCorrupt(backend.url, name, f"its checksum holds, but it cannot be read ({error})") from error
    return Loaded(checkpoint, segments)


def _check_fit(backend: StorageBackend, checkpoint: Checkpoint, name: str) -> None:
    before = entry_name(checkpoint.position - 1)
    raw = backend.read(before)
    if raw is None:
        raise StoreCorrupt(backend.url, name, f"is beyond the end of the log: {before} is missing")
    if check_seal(raw, backend.url, before) != checkpoint.previous:
        raise StoreCorrupt(backend.url, name, f"does not follow {before}: one of the two was replaced")
