"""Writes the segments of one process's trace, in order, and keeps them within their bound (R4).

It counts what each channel has carried, so that every segment says where it begins; also while nothing is written.
"""

import logging
import shutil
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from msgspec.structs import replace

from strobe.errors import StoreError, UsageError
from strobe.private_files import make_own, require_directory
from strobe.protocol import FIFO, ChannelSpec, Fragment
from strobe.traces.notes import Notes, trace_name
from strobe.traces.rows import to_table
from strobe.traces.segments import (
    Counts,
    Received,
    SegmentHeader,
    directory_of,
    read_segment,
    segments_in,
    write_segment,
)

SEGMENTS_MAX = 4096

logger = logging.getLogger("strobe.node")


class _Arrivals:
    """Which messages of one channel were received."""

    def __init__(self) -> None:
        self.below = 0
        self.ahead: dict[int, int] = {}

    def add(self, first: int, count: int, fifo: bool) -> None:
        if fifo:
            self.below = first + count - 1
            return
        self.ahead[first] = count
        while (following := self.below + 1) in self.ahead:
            self.below += self.ahead.pop(following)

    def frozen(self) -> Received:
        return Received(self.below, tuple(sorted(self.ahead.items())))


class TraceWriter:
    """The segments of `process` in `epoch`, under the directory `trace`. For one thread at a time.

    `joined` is the view that it has joined with; 0: it is there from the beginning of the epoch. `make_trace` makes
    that directory, or raises StoreError while it must not be touched: the store that it belongs to is not there.
    """

    def __init__(
        self,
        trace: Path,
        process: str,
        epoch: int,
        level: str,
        bytes_max: int,
        joined: int = 0,
        make_trace: Callable[[], object] = lambda: None,
    ) -> None:
        self.directory = directory_of(trace, epoch, process, joined)
        self._trace = trace
        self._make_trace = make_trace
        self._process = process
        self._epoch = epoch
        self._joined = joined
        self._level = level
        self._bytes_max = bytes_max
        self._number = 0
        self._position = 0
        self._sent: dict[str, int] = {}
        self._received: defaultdict[str, _Arrivals] = defaultdict(_Arrivals)
        self._paused = False
        self._older: list[tuple[Path, int]] | None = None
        self._kept: list[tuple[Path, int, bool]] = []  # file, its size, whether it begins at a snapshot
        self._bytes = 0

    def begin_at(self, fragment: Fragment, channels: tuple[ChannelSpec, ...]) -> None:
        """Count on from where `fragment` had come to."""
        self._position = fragment.state.position if fragment.state is not None else 0
        for spec in channels:
            if spec.source == self._process and spec.id in fragment.sent:
                self._sent[trace_name(spec)] = fragment.sent[spec.id].count
            if spec.target == self._process and spec.id in fragment.received:
                self._received[trace_name(spec)] = _arrivals(fragment, spec)

    def write(self, notes: Notes) -> None:
        """Write one segment, unless writing pauses; what fails is told, and recording goes on at the next snapshot."""
        self._number += 1
        begin = self._counts()
        self._count(notes)
        if self._paused and notes.snapshot is None:
            return
        path = self.directory / f"{self._number:06}.parquet"
        try:
            # Not before there is something to write: a process begins also where the disk is full.
            self._make_room()
            if self._paused:
                self._drop(len(self._kept))
            self._paused = False
            rows = to_table(self._process, notes.leads, notes.sends, notes.records)
            size = write_segment(path, self._header(notes, begin), rows)
        except (OSError, StoreError, pa.ArrowException) as error:
            logger.warning("the trace pauses until the next snapshot: %s cannot be written: %s", path, error)
            self._paused = True
            return
        self._kept.append((path, size, notes.snapshot is not None))
        self._bytes += size
        self._keep_bound()

    def _make_room(self) -> None:
        self._make_trace()
        # Nothing is removed or written through a symbolic link: what lies there is none of ours.
        require_directory(str(self._trace))
        make_own(self.directory.parent)
        if self._older is None:
            # An epoch begins once, and a view is joined once: what lies here is of one that ended before it had begun.
            shutil.rmtree(self.directory, ignore_errors=True)
            lives = _lives_in(self._trace, self._process)
            self._older = [(path, _size(path)) for path in lives if path != self.directory]
            self._bytes = sum(size for _, size in self._older)
        make_own(self.directory)

    def skip(self, notes: Notes, reason: str) -> None:
        """Count one segment without writing it."""
        self._number += 1
        self._count(notes)
        if not self._paused:
            logger.warning("the trace pauses until the next snapshot: %s", reason)
        self._paused = True

    def _counts(self) -> Counts:
        received = {channel: arrivals.frozen() for channel, arrivals in self._received.items()}
        return Counts(self._position, dict(self._sent), received)

    def _header(self, notes: Notes, begin: Counts) -> SegmentHeader:
        return SegmentHeader(
            process=self._process,
            epoch=self._epoch,
            level=self._level,
            segment=self._number,
            snapshot=notes.snapshot,
            processes=notes.processes,
            channels=notes.channels,
            begin=begin,
            end=self._counts(),
            lines=notes.lines,
            reason=notes.reason,
            joined=self._joined,
        )

    def _count(self, notes: Notes) -> None:
        self._position = notes.position
        fifo = {spec.id: spec.kind == FIFO for spec in notes.channels}
        for sent in notes.sends:
            self._sent[sent.channel] = sent.ordinal + sent.length - 1
        for lead in notes.leads:
            if lead.channel is not None:
                self._received[lead.channel].add(lead.ordinal, lead.length, fifo[lead.channel])

    def _keep_bound(self) -> None:
        """Remove the oldest: what is left begins at a snapshot, or nothing is added until one comes."""
        while self._bytes > self._bytes_max or len(self._kept) > SEGMENTS_MAX:
            if self._older:
                path, size = self._older.pop(0)
                self._bytes -= size - self._shorten(path)
                continue
            following = next((place for place, kept in enumerate(self._kept) if place and kept[2]), None)
            if following is None:
                logger.warning("the trace pauses until the next snapshot: it has reached its bound")
                self._paused = True
                return
            self._drop(following)

    def _shorten(self, older: Path) -> int:
        """Remove an older life; of one in this epoch, all but how far it had come. Return the size of what is left."""
        if older.is_symlink() or older.parent.is_symlink():
            return 0  # what it leads to is none of ours
        if older.parent == self.directory.parent:
            try:
                return _keep_end(older)
            except (OSError, ValueError, UsageError, pa.ArrowException) as error:  # ValueError: no segments
                logger.warning("the trace of an earlier life of %s is removed: %s", self._process, error)
        shutil.rmtree(older, ignore_errors=True)
        with suppress(OSError):
            older.parent.rmdir()  # unless there are others in that epoch
        return 0

    def _drop(self, count: int) -> None:
        for path, size, _ in self._kept[:count]:
            path.unlink(missing_ok=True)
            self._bytes -= size
        del self._kept[:count]


def _arrivals(fragment: Fragment, spec: ChannelSpec) -> _Arrivals:
    """Return what had been received of a channel: on an unordered one, all that was sent but what was in flight."""
    arrivals = _Arrivals()
    count = fragment.received[spec.id].count
    items = fragment.in_flight.get(spec.id, ())
    if spec.kind == FIFO:
        arrivals.below = count
        return arrivals
    flying = sorted((item.frame.first_ordinal + item.consumed, item.frame.count - item.consumed) for item in items)
    following = 1
    for first, length in [*flying, (count + sum(length for _, length in flying) + 1, 0)]:
        if first > following:
            arrivals.add(following, first - following, fifo=False)
        following = first + length
    return arrivals


def _lives_in(trace: Path, process: str) -> list[Path]:
    """Return where there are segments of `process`, the oldest first."""
    name = directory_of(trace, 0, process).name
    found: list[tuple[str, int, Path]] = []
    with suppress(OSError):  # what cannot be looked at now, such as what is being removed, is not kept within the bound
        found = [(path.parent.name, 0, path) for path in trace.glob(f"epoch-*/{name}")]
        for path in trace.glob(f"epoch-*/{name}@*"):
            joined = path.name.removeprefix(f"{name}@")
            if joined.isdecimal():
                found.append((path.parent.name, int(joined), path))
    return [path for _, _, path in sorted(found)]


def _keep_end(directory: Path) -> int:
    """Make one segment of no events of those in `directory`: how far the process had come. Return its size."""
    *others, path = segments_in(directory)
    header = read_segment(path).header
    # The oldest first, and this one last: wherever it is stopped, what is left can be read.
    for other in others:
        other.unlink()
    end = replace(header, snapshot=None, begin=header.end, lines=0)
    return write_segment(path, end, to_table(header.process, [], [], []))


def _size(directory: Path) -> int:
    """Return the size of an older life, which may be written, shortened or removed meanwhile."""
    size = 0
    with suppress(OSError):
        for file in directory.iterdir():
            with suppress(FileNotFoundError):  # the last of an older epoch has got its name
                size += file.stat().st_size
    return size
