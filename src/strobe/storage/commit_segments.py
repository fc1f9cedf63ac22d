"""Segments of a checkpoint: the commits that took effect in one stretch of the log, in columns (S1).

A segment is two files, each named by the stretch `start`..`end`-1 and the BLAKE3 of its bytes. The *commits* have what
every start needs: positions, ids, times. The *details* have what a list shows and what a collector must keep; they are
read when they are asked for, and can also be had from the commits' entries in the log. Of commits that were removed
before the end of the stretch, only positions and ids are kept.

A segment depends on the entries up to its end alone: whoever makes it makes the same bytes.
"""

import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TypeVar

import msgspec
from blake3 import blake3

from strobe.errors import UNREADABLE, StoreCorrupt
from strobe.protocol.log import Manifest
from strobe.storage.entries import CHECKPOINTS
from strobe.storage.log_state import ReadManifest, blob_key, blob_keys
from strobe.storage.manifests import blobs_of
from strobe.storage.place import Place
from strobe.storage.summaries import Summary, summarize

COMMITS, DETAILS = "commits", "details"
_NAME = re.compile(rf"(\d{{20}})-(\d{{20}})-([0-9a-f]{{64}})\.({COMMITS}|{DETAILS})")

logger = logging.getLogger("strobe.store")

Columns = TypeVar("Columns")
Blobs = tuple[tuple[int, bytes], ...]
"""The begin and the BLAKE3 of each blob."""


class SegmentRef(msgspec.Struct, frozen=True):
    """A segment as a checkpoint names it. `live`: so many of its commits are not removed at the checkpoint."""

    start: int
    end: int
    live: int
    commits: str
    details: str


class Row(msgspec.Struct, frozen=True):
    """A commit that took effect. One that was removed has neither blobs nor a summary any more."""

    position: int
    snapshot: str
    checksum: bytes = b""
    started_us: int = 0
    at_us: int = 0
    bytes: int = 0
    blobs: Blobs = ()
    summary: Summary | None = None

    @classmethod
    def of(cls, position: int, snapshot: str, checksum: str, at_us: int, manifest: Manifest) -> "Row":
        refs = list(blobs_of(manifest))
        return cls(
            position,
            snapshot,
            bytes.fromhex(checksum),
            manifest.started_us,
            at_us,
            sum(ref.bytes for ref in refs),
            tuple((ref.begin, bytes.fromhex(ref.blake3)) for ref in refs),
            summarize(manifest),
        )

    def without_details(self) -> "Row":
        return Row(self.position, self.snapshot)


class CommitColumns(msgspec.Struct, frozen=True, array_like=True):
    """The file of commits; `bytes` are the sizes of all blobs of a snapshot."""

    kind: str
    version: int
    positions: list[int]
    snapshots: list[str]
    checksums: list[bytes]
    started_us: list[int]
    at_us: list[int]
    bytes: list[int]
    removed_positions: list[int]
    removed_snapshots: list[str]


class DetailColumns(msgspec.Struct, frozen=True, array_like=True):
    """The file of details, of the same commits in the same order; blobs None: the same as those of the one before."""

    kind: str
    version: int
    blobs: list[Blobs | None]
    summaries: msgspec.Raw


_commits = msgspec.msgpack.Decoder(CommitColumns)
_details = msgspec.msgpack.Decoder(DetailColumns)
_summaries = msgspec.msgpack.Decoder(list[Summary])


def segment_name(start: int, end: int, digest: str, kind: str) -> str:
    """Return the name of a file of a segment within the store."""
    return f"{CHECKPOINTS}/{start:020d}-{end:020d}-{digest}.{kind}"


def segment_end(name: str) -> int | None:
    """Return the end of the stretch of the file `name` of the checkpoints' directory; None: it is no segment's."""
    match = _NAME.fullmatch(name)
    return int(match[2]) if match else None


def segment_digest(name: str) -> str | None:
    """Return the checksum in the name of a file of a segment; None: it is no such name."""
    match = _NAME.fullmatch(name)
    return match[3] if match else None


def encode_segment(start: int, end: int, live_at: int, rows: Sequence[Row]) -> tuple[SegmentRef, dict[str, bytes]]:
    """Return a segment of which `live_at` commits are not removed at the checkpoint, and its two files, by name."""
    live = [row for row in rows if row.summary is not None]
    removed = [row for row in rows if row.summary is None]
    commits = CommitColumns(
        f"strobe-{COMMITS}",
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
    summaries = msgspec.Raw(msgspec.msgpack.encode([row.summary for row in live]))
    details = DetailColumns(f"strobe-{DETAILS}", 1, list(_blobs_once(live)), summaries)
    encoded = {COMMITS: msgspec.msgpack.encode(commits), DETAILS: msgspec.msgpack.encode(details)}
    digests = {kind: blake3(raw).hexdigest() for kind, raw in encoded.items()}
    ref = SegmentRef(start, end, live_at, digests[COMMITS], digests[DETAILS])
    return ref, {segment_name(start, end, digests[kind], kind): raw for kind, raw in encoded.items()}


def _blobs_once(rows: Sequence[Row]) -> Iterator[Blobs | None]:
    before: Blobs | None = None
    for row in rows:
        yield None if row.blobs == before else row.blobs
        before = row.blobs


class Segment:
    """A segment that was read. It is for one thread at a time."""

    def __init__(self, place: Place, ref: SegmentRef, read_manifest: ReadManifest) -> None:
        self.ref = ref
        self._place = place
        self._read_manifest = read_manifest
        name = segment_name(ref.start, ref.end, ref.commits, COMMITS)
        self.commits: CommitColumns = _read(place, name, ref.commits, _commits.decode)

    def blobs(self, position: int) -> str:
        """Return the keys of the blobs of the commit at `position`, one in a line."""
        return self._blobs[self._at(position)]

    def summary(self, position: int) -> Summary:
        found = self._summaries
        return found[self._at(position)] if found is not None else summarize(self._read_manifest(position))

    def checksum(self, position: int) -> str:
        return self.commits.checksums[self._at(position)].hex()

    def rows(self) -> Iterator[Row]:
        """Yield all commits, in order. StoreError: its details cannot be read."""
        name = segment_name(self.ref.start, self.ref.end, self.ref.details, DETAILS)
        details: DetailColumns = _read(self._place, name, self.ref.details, _details.decode)
        columns = self.commits
        found = [Row(position, snapshot) for position, snapshot in self.removed()]
        blobs: Blobs = ()
        for at, (own, summary) in enumerate(zip(details.blobs, _summaries.decode(details.summaries), strict=True)):
            blobs = blobs if own is None else own
            found.append(
                Row(
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
        """Yield position and id of the commits that were removed before the end of the stretch."""
        return zip(self.commits.removed_positions, self.commits.removed_snapshots, strict=True)

    @cached_property
    def _blobs(self) -> list[str]:
        details = self._details()
        if details is None:
            return [blob_keys(self._read_manifest(position)) for position in self.commits.positions]
        found: list[str] = []
        for blobs in details.blobs:
            found.append(found[-1] if blobs is None else "\n".join(blob_key(begin, key.hex()) for begin, key in blobs))
        return found

    @cached_property
    def _summaries(self) -> list[Summary] | None:
        details = self._details()
        return _summaries.decode(details.summaries) if details is not None else None

    def _details(self) -> DetailColumns | None:
        """Return the details, or None if they are damaged: then the entries of the commits have the same."""
        ref = self.ref
        try:
            name = segment_name(ref.start, ref.end, ref.details, DETAILS)
            details: DetailColumns = _read(self._place, name, ref.details, _details.decode)
        except StoreCorrupt as error:
            logger.warning("%s; the entries of the log are read instead", error)
            return None
        return details

    def _at(self, position: int) -> int:
        return bisect_left(self.commits.positions, position)


def _read(place: Place, name: str, digest: str, decode: Callable[[bytes], Columns]) -> Columns:
    raw = place.read(name)
    if raw is None:
        raise StoreCorrupt(place.url, name, "is missing")
    if blake3(raw).hexdigest() != digest:
        raise StoreCorrupt(place.url, name, "its bytes do not match its checksum")
    try:
        return decode(raw)
    except UNREADABLE as error:
        raise StoreCorrupt(place.url, name, f"cannot be read ({error})") from error


def check_details(segment: Segment) -> None:
    """Raise StoreError if the details of a segment are not as they were written."""
    for _ in segment.rows():
        pass
