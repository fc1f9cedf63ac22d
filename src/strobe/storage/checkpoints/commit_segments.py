"""Segments of a checkpoint: the commits that took effect in one range of the log, in columns (S1).

A segment is two files, each named by the range `start`..`end`-1 and the BLAKE3 of its bytes. The *commits* file has the
data that every start needs: positions, ids, times. The *details* file has the data for lists and for garbage
collection. It is read only when needed, and the log entries of the commits contain the same data. For commits that were
removed before the end of the range, only positions and ids are kept.

A segment depends only on the entries up to its end, so every writer makes the same bytes.
"""

import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Sequence, Sized
from functools import cached_property
from operator import lt
from typing import TypeVar

import msgspec
from blake3 import blake3

from strobe.errors import UNREADABLE, StoreCorrupt
from strobe.protocol.values.bounds import CheckedId, Count, Digest, RawDigest
from strobe.protocol.values.log_entries import Manifest
from strobe.storage.content.manifests import blobs_of
from strobe.storage.content.summaries import Summary, summarize, total
from strobe.storage.entries.log_state import ReadManifest, blob_key, blob_keys
from strobe.storage.files.backend import StorageBackend
from strobe.storage.files.layout import CHECKPOINTS

COMMITS_KIND, DETAILS_KIND = "commits", "details"
_NAME = re.compile(rf"(\d{{20}})-(\d{{20}})-([0-9a-f]{{64}})\.({COMMITS_KIND}|{DETAILS_KIND})")

logger = logging.getLogger("strobe.store")

Columns = TypeVar("Columns")
Whose = TypeVar("Whose")
Blobs = tuple[tuple[Count, RawDigest], ...]
"""The begin and the BLAKE3 of each blob."""


class SegmentRef(msgspec.Struct, frozen=True):
    """A checkpoint's reference to a segment. `live` is the number of its commits not removed at the checkpoint."""

    start: Count
    end: Count
    live: Count
    commits: Digest
    details: Digest


class CommitRow(msgspec.Struct, frozen=True):
    """A commit that took effect. If it was removed, it has no blobs and no summary."""

    position: int
    snapshot: str
    checksum: bytes = b""
    started_us: int = 0
    at_us: int = 0
    bytes: int = 0
    blobs: Blobs = ()
    summary: Summary | None = None

    @classmethod
    def of(
        cls, position: int, snapshot: str, checksum: str, at_us: int, manifest: Manifest, begin: int | None
    ) -> "CommitRow":
        refs = list(blobs_of(manifest))
        return cls(
            position,
            snapshot,
            bytes.fromhex(checksum),
            manifest.started_us,
            at_us,
            total(ref.bytes for ref in refs),
            tuple((ref.begin, bytes.fromhex(ref.blake3)) for ref in refs),
            summarize(manifest, begin),
        )

    def without_details(self) -> "CommitRow":
        return CommitRow(self.position, self.snapshot)


class CommitColumns(msgspec.Struct, frozen=True, array_like=True):
    """The content of a commits file; `bytes` has the total blob size of each snapshot."""

    kind: str
    version: int
    positions: list[Count]
    snapshots: list[CheckedId]
    checksums: list[RawDigest]
    started_us: list[Count]
    at_us: list[Count]
    bytes: list[Count]
    removed_positions: list[Count]
    removed_snapshots: list[CheckedId]

    def check(self, ref: SegmentRef) -> None:
        """Raise ValueError if the values cannot be the commits of that segment."""
        columns = (self.snapshots, self.checksums, self.started_us, self.at_us, self.bytes)
        _check_kind(self.kind, self.version, COMMITS_KIND)
        _check_lengths(len(self.positions), *columns)
        _check_lengths(len(self.removed_positions), self.removed_snapshots)
        for positions in (self.positions, self.removed_positions):
            if positions and not (ref.start <= positions[0] and positions[-1] < ref.end):
                raise ValueError("a position is outside its range of the log")
            if not all(map(lt, positions, positions[1:])):
                raise ValueError("its positions do not ascend")
        if ref.live > len(self.positions):
            raise ValueError(f"it has {len(self.positions)} commits, and the checkpoint says {ref.live}")


class DetailColumns(msgspec.Struct, frozen=True, array_like=True):
    """The content of a details file, for the same commits in the same order; blobs None: same as the previous one."""

    kind: str
    version: int
    blobs: list[Blobs | None]
    summaries: list[Summary]

    def check(self, commits: CommitColumns) -> None:
        """Raise ValueError if the values cannot be the details of those commits."""
        _check_kind(self.kind, self.version, DETAILS_KIND)
        _check_lengths(len(commits.positions), self.blobs, self.summaries)
        if self.blobs and self.blobs[0] is None:
            raise ValueError("its first commit has no blobs")


_commits = msgspec.msgpack.Decoder(CommitColumns)
_details = msgspec.msgpack.Decoder(DetailColumns)


def segment_name(start: int, end: int, digest: str, kind: str) -> str:
    """Return the name of a segment file within the store."""
    return f"{CHECKPOINTS}/{start:020d}-{end:020d}-{digest}.{kind}"


def segment_end(name: str) -> int | None:
    """Return the end of the range of the segment file `name`, or None if it is not a segment file."""
    match = _NAME.fullmatch(name)
    return int(match[2]) if match else None


def segment_digest(name: str) -> str | None:
    """Return the checksum in the name of a segment file, or None if it is not a segment file."""
    match = _NAME.fullmatch(name)
    return match[3] if match else None


def encode_segment(
    start: int, end: int, live_at: int, rows: Sequence[CommitRow]
) -> tuple[SegmentRef, dict[str, bytes]]:
    """Return the segment and its two files by name. `live_at`: the number of commits not removed at the checkpoint."""
    live = [row for row in rows if row.summary is not None]
    removed = [row for row in rows if row.summary is None]
    commits = CommitColumns(
        f"strobe-{COMMITS_KIND}",
        1,
        [row.position for row in live],
        [row.snapshot for row in live],
        [row.checksum for row in live],
        [row.started_us for row in live],
        [row.at_us for row in live],
        [row.bytes for row in live],
        [row.position for row in removed],
        [row.snapshot for row in removed],
    )
    summaries = [row.summary for row in live if row.summary is not None]
    details = DetailColumns(f"strobe-{DETAILS_KIND}", 1, list(_blobs_once(live)), summaries)
    encoded = {COMMITS_KIND: msgspec.msgpack.encode(commits), DETAILS_KIND: msgspec.msgpack.encode(details)}
    digests = {kind: blake3(raw).hexdigest() for kind, raw in encoded.items()}
    ref = SegmentRef(start, end, live_at, digests[COMMITS_KIND], digests[DETAILS_KIND])
    return ref, {segment_name(start, end, digests[kind], kind): raw for kind, raw in encoded.items()}


def _blobs_once(rows: Sequence[CommitRow]) -> Iterator[Blobs | None]:
    before: Blobs | None = None
    for row in rows:
        yield None if row.blobs == before else row.blobs
        before = row.blobs


class CommitSegment:
    """A loaded segment, for one thread at a time."""

    def __init__(self, backend: StorageBackend, ref: SegmentRef, read_manifest: ReadManifest) -> None:
        self.ref = ref
        self._backend = backend
        self._read_manifest = read_manifest
        self.removed_since: list[str] = []
        self.name = segment_name(ref.start, ref.end, ref.commits, COMMITS_KIND)
        self.commits: CommitColumns = _read(backend, self.name, ref.commits, _decode_commits, ref)

    def remove(self, removed: Container[str]) -> None:
        """Record the commits removed since; raise StoreCorrupt if their number differs from the checkpoint."""
        commits, ref = self.commits, self.ref
        if ref.live < len(commits.positions):
            self.removed_since = [snapshot for snapshot in commits.snapshots if snapshot in removed]
        if ref.live != len(commits.positions) - len(self.removed_since):
            raise StoreCorrupt(self._backend.url, self.name, "has another number of commits than the checkpoint says")

    def blobs(self, position: int) -> str:
        """Return the keys of the blobs of the commit at `position`, one per line."""
        found = self._blobs
        return found[self._at(position)] if found is not None else blob_keys(self._read_manifest(position))

    def summary(self, position: int) -> Summary:
        found = self._summaries
        return found[self._at(position)] if found is not None else summarize(self._read_manifest(position))

    def checksum(self, position: int) -> str:
        return self.commits.checksums[self._at(position)].hex()

    def rows(self) -> Iterator[CommitRow]:
        """Yield all commits, in order. StoreError: the details cannot be read."""
        details = self._read_details()
        columns = self.commits
        found = [CommitRow(position, snapshot) for position, snapshot in self.removed()]
        blobs: Blobs = ()
        for at, (own, summary) in enumerate(zip(details.blobs, details.summaries, strict=True)):
            blobs = blobs if own is None else own
            found.append(
                CommitRow(
                    columns.positions[at],
                    columns.snapshots[at],
                    columns.checksums[at],
                    columns.started_us[at],
                    columns.at_us[at],
                    columns.bytes[at],
                    blobs,
                    summary,
                )
            )
        yield from sorted(found, key=lambda row: row.position)

    def removed(self) -> Iterator[tuple[int, str]]:
        """Yield position and id of the commits that were removed before the end of the range."""
        return zip(self.commits.removed_positions, self.commits.removed_snapshots, strict=True)

    @cached_property
    def _blobs(self) -> list[str] | None:
        details = self._details()
        if details is None:
            return None
        found: list[str] = []
        for blobs in details.blobs:
            found.append(found[-1] if blobs is None else "\n".join(blob_key(begin, key.hex()) for begin, key in blobs))
        return found

    @cached_property
    def _summaries(self) -> list[Summary] | None:
        details = self._details()
        return details.summaries if details is not None else None

    def _details(self) -> DetailColumns | None:
        """Return the details, or None if they are damaged: then the log entries of the commits are read instead."""
        try:
            return self._read_details()
        except StoreCorrupt as error:
            logger.warning("%s; the entries of the log are read instead", error)
            return None

    def _read_details(self) -> DetailColumns:
        ref = self.ref
        name = segment_name(ref.start, ref.end, ref.details, DETAILS_KIND)
        return _read(self._backend, name, ref.details, _decode_details, self.commits)

    def _at(self, position: int) -> int:
        return bisect_left(self.commits.positions, position)


def _decode_commits(raw: bytes, ref: SegmentRef) -> CommitColumns:
    columns: CommitColumns = _commits.decode(raw)
    columns.check(ref)
    return columns


def _decode_details(raw: bytes, commits: CommitColumns) -> DetailColumns:
    columns: DetailColumns = _details.decode(raw)
    columns.check(commits)
    return columns


def _check_kind(kind: str, version: int, wanted: str) -> None:
    if (kind, version) != (f"strobe-{wanted}", 1):
        raise ValueError(f"it is not a file of {wanted} of version 1")


def _check_lengths(length: int, *columns: Sized) -> None:
    if any(len(column) != length for column in columns):
        raise ValueError("its columns are not of one length")


def _read(
    backend: StorageBackend, name: str, digest: str, decode: Callable[[bytes, Whose], Columns], whose: Whose
) -> Columns:
    raw = backend.read(name)
    if raw is None:
        raise StoreCorrupt(backend.url, name, "is missing")
    if blake3(raw).hexdigest() != digest:
        raise StoreCorrupt(backend.url, name, "its bytes do not match its checksum")
    try:
        return decode(raw, whose)
    except (*UNREADABLE, ValueError) as error:
        raise StoreCorrupt(backend.url, name, f"cannot be read ({error})") from error


def check_details(segment: CommitSegment) -> None:
    """Raise StoreError if the details of a segment are damaged."""
    for _ in segment.rows():
        pass
