"""Writes the segments of one process's trace, in order, and keeps them within their size bound (R4).

It counts the messages of each channel, even while writing pauses, so that every segment records where it begins.
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
    """The received messages of one channel."""

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
    """The segments of `process` in `epoch`, under the directory `trace`. Not thread-safe.

    `joined` is the view that the process joined with; 0: it exists since the beginning of the epoch. `make_trace`
    creates the directory, or raises StoreError while its store is unreachable.
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
        """Start the counts at those of `fragment`."""
        self._position = fragment.state.position if fragment.state is not None else 0
        for spec in channels:
            if spec.source == self._process and spec.id in fragment.sent:
                self._sent[trace_name(spec)] = fragment.sent[spec.id].count
            if spec.target == self._process and spec.id in fragment.received:
                self._received[trace_name(spec)] = _arrivals(fragment, spec)

    def write(self, notes: Notes) -> None:
        """Write one segment, unless paused. A failure is logged, and pauses the trace until the next snapshot."""
        self._number += 1
        begin = self._counts()
        self._count(notes)
        if self._paused and notes.snapshot is None:
            return
        path = self.directory / f"{self._number:06}.parquet"
        try:
            # Only when there is something to write: a full disk must not keep a process from starting.
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
        # Nothing is removed or written through a symbolic link: its target is not ours.
        require_directory(str(self._trace))
        make_own(self.directory.parent)
        if self._older is None:
            # An epoch begins once, and a view is joined once: existing files are from a run that ended before it began.
            shutil.rmtree(self.directory, ignore_errors=True)
            earlier = _earlier_directories(self._trace, self._process)
            self._older = [(path, _size(path)) for path in earlier if path != self.directory]
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
        """Remove the oldest segments, so that the rest begins at a snapshot; otherwise pause until the next one."""
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
        """Remove the trace of an earlier run; if it is of this epoch, keep its end position. Return the size left."""
        if older.is_symlink() or older.parent.is_symlink():
            return 0  # the target of the link is not ours
        if older.parent == self.directory.parent:
            try:
                return _keep_end(older)
            except (OSError, ValueError, UsageError, pa.ArrowException) as error:  # ValueError: no segments
                logger.warning("the trace of an earlier membership of %s is removed: %s", self._process, error)
        shutil.rmtree(older, ignore_errors=True)
        with suppress(OSError):
            older.parent.rmdir()  # fails if it holds other traces of that epoch
        return 0

    def _drop(self, count: int) -> None:
        for path, size, _ in self._kept[:count]:
            path.unlink(missing_ok=True)
            self._bytes -= size
        del self._kept[:count]


def _arrivals(fragment: Fragment, spec: ChannelSpec) -> _Arrivals:
    """Return the received messages of a channel; if unordered, all sent messages except those in flight."""
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


def _earlier_directories(trace: Path, process: str) -> list[Path]:
    """Return the directories with segments of `process`, oldest first."""
    name = directory_of(trace, 0, process).name
    found: list[tuple[str, int, Path]] = []
    with suppress(OSError):  # directories that cannot be listed, for example while being removed, do not count
        found = [(path.parent.name, 0, path) for path in trace.glob(f"epoch-*/{name}")]
        for path in trace.glob(f"epoch-*/{name}@*"):
            joined = path.name.removeprefix(f"{name}@")
            if joined.isdecimal():
                found.append((path.parent.name, int(joined), path))
    return [path for _, _, path in sorted(found)]


def _keep_end(directory: Path) -> int:
    """Replace the segments in `directory` by one empty segment with their end position. Return its size."""
    *others, path = segments_in(directory)
    header = read_segment(path).header
    # Oldest first, and this one last: after a crash at any point, the rest can be read.
    for other in others:
        other.unlink()
    end = replace(header, snapshot=None, begin=header.end, lines=0)
    return write_segment(path, end, to_table(header.process, [], [], []))


def _size(directory: Path) -> int:
    """Return the size of an earlier run's trace, which may be written, shortened or removed meanwhile."""
    size = 0
    with suppress(OSError):
        for file in directory.iterdir():
            with suppress(FileNotFoundError):  # a temporary file of an older epoch was just renamed
                size += file.stat().st_size
    return size
