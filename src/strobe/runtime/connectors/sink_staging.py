"""Staging and release of a sink's output: a crash between any two steps neither loses nor doubles a byte (R2).

A position is the number of bytes of output since the beginning. The directory `audit.jsonl.staged` lies beside the
released file `audit.jsonl`:

    <20 digits>   a segment: the output from the position in its name
    current       the file that output is released into, its start position, and the epoch of that decision
    epoch         the newest epoch in which output was staged
    lock          held by the writing process, which it names

A segment gets its name only when all of it is on the disk, and loses it only when all of it is on the disk in the
released file. In between, the released file may have any part of it, each byte at its offset: releasing again writes
the same bytes at the same offsets.
"""

import enum
import fcntl
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from strobe.errors import UNREADABLE, StrobeError, UsageError
from strobe.private_files import (
    UNFINISHED,
    FileStep,
    directory_mode,
    open_file,
    open_regular,
    replace_file,
    require_directory,
    sync,
)

_CURRENT = "current"
_EPOCH = "epoch"
_LOCK = "lock"
_DIGITS = 20
_COPY_BYTES = 1 << 20
_NAME_BYTES_MAX = 1000
_CURRENT_BYTES_MAX = 64 << 10


class SinkStep(enum.IntEnum):
    """The step just done, for tests that kill the process between any two steps."""

    FILE_OPENED = FileStep.OPENED
    """A segment, or the choice of the released file, has been begun under a temporary name."""
    FILE_WRITTEN = FileStep.WRITTEN
    FILE_SYNCED = FileStep.SYNCED
    FILE_NAMED = FileStep.NAMED
    FILE_DURABLE = FileStep.DURABLE
    OUTPUT_WRITTEN = enum.auto()
    """A part of a segment is in the released file."""
    OUTPUT_SYNCED = enum.auto()
    SEGMENT_REMOVED = enum.auto()


OnStep = Callable[[SinkStep], None]


class StagedSegment(NamedTuple):
    """Staged output: the bytes from position `begin` to `end`."""

    begin: int
    end: int
    path: Path


class Current(msgspec.Struct, frozen=True):
    """The file that output is released into; its first byte is at position `base`."""

    file: str
    base: int = 0
    epoch: int = 0


class Staging:
    """The staged and released output of one sink, open for writing by this process only."""

    def __init__(self, path: Path, on_step: OnStep | None = None) -> None:
        self.directory = _directory_of(path)
        self._path = path
        self._step: OnStep = on_step or (lambda step: None)
        self._epoch = self._staged_epoch = 0
        self._lock = _lock(self.directory)
        try:
            for leftover in self.directory.glob(f"*{UNFINISHED}"):
                leftover.unlink()
            self.current = _read_current(path)
            self._output = self._open_output()
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def output(self) -> Path:
        return self._path.with_name(self.current.file)

    @property
    def released(self) -> int:
        """The position up to which output was released."""
        return self.current.base + os.fstat(self._output).st_size

    def close(self) -> None:
        try:
            os.close(self._output)
        finally:
            os.close(self._lock)

    def begin(self, epoch: int) -> None:
        """Stage in `epoch` from now on. Output staged in a later epoch must not be discarded by this one.

        A process that is given an older epoch follows a coordinator that has been replaced (S1).
        """
        newest = self._newest_epoch()
        if epoch < newest and self._segments():
            raise StrobeError(
                f"the sink in {self.directory} holds output of epoch {newest}, and this process was ordered to begin "
                f"epoch {epoch}: another coordinator leads; if the store was created again, remove {self.directory}"
            )
        self._epoch, self._staged_epoch = epoch, newest

    def _newest_epoch(self) -> int:
        with suppress(FileNotFoundError):
            text = (self.directory / _EPOCH).read_bytes()
            if text.isdigit():
                return int(text)
        return 0

    def stage(self, begin: int, pieces: Iterable[bytes]) -> None:
        """Make a durable segment of `pieces`, starting at position `begin`."""
        if self._epoch > self._staged_epoch:
            self._create(_EPOCH, [str(self._epoch).encode()])
            self._staged_epoch = self._epoch
        self._create(f"{begin:0{_DIGITS}}", pieces)

    def missing(self, position: int) -> int | None:
        """Return the first position before `position` that is neither released nor staged, or None."""
        reached = self.released
        for segment in self._segments():
            if segment.begin <= reached < segment.end:
                reached = segment.end
        return reached if reached < position else None

    def release(self, position: int) -> None:
        """Release durably what is staged up to `position`, then remove the segments that are released completely."""
        segments = [segment for segment in self._segments() if segment.begin < position]
        for segment in segments:
            self._copy(segment, min(segment.end, position))
        if segments:
            os.fdatasync(self._output)
            self._step(SinkStep.OUTPUT_SYNCED)
        for segment in segments:
            if segment.end <= position:
                self._remove(segment)

    def discard(self) -> None:
        """Remove everything that is staged."""
        for segment in self._segments():
            self._remove(segment)

    def fork(self, position: int, epoch: int) -> None:
        """Release into a new file from now on; its first byte is at `position`."""
        following = Current(f"{self._path.name}.epoch-{epoch}", position, epoch)
        path = self._path.with_name(following.file)
        if path.exists():
            raise UsageError(f"{path} exists already; output of the fork would go there: move it away, then restore")
        self._create(_CURRENT, [msgspec.json.encode(following)])
        self.current = following
        before, self._output = self._output, self._open_output()
        os.close(before)

    def _segments(self) -> list[StagedSegment]:
        names = sorted(path for path in self.directory.iterdir() if path.name.isdigit())
        return [StagedSegment(int(path.name), int(path.name) + path.stat().st_size, path) for path in names]

    def _copy(self, segment: StagedSegment, end: int) -> None:
        """Write the part of `segment` up to `end` into the released file; bytes already there are rewritten."""
        base = self.current.base
        source = open_regular(segment.path)
        try:
            position = max(segment.begin, base)
            while position < end:
                data = os.pread(source, min(_COPY_BYTES, end - position), position - segment.begin)
                position += os.pwrite(self._output, data, position - base)
                self._step(SinkStep.OUTPUT_WRITTEN)
        finally:
            os.close(source)

    def _remove(self, segment: StagedSegment) -> None:
        segment.path.unlink()
        self._step(SinkStep.SEGMENT_REMOVED)

    def _create(self, name: str, pieces: Iterable[bytes]) -> None:
        replace_file(self.directory / name, b"".join(pieces), on_step=lambda step: self._step(SinkStep(step)))

    def _open_output(self) -> int:
        output = open_regular(self.output, os.O_RDWR | os.O_CREAT, follow=True)
        sync(self.output.parent)
        return output


def released_in(path: Path) -> int:
    """Return the position up to which output was released, without the lock."""
    current = _read_current(path)
    with suppress(FileNotFoundError):
        return current.base + path.with_name(current.file).stat().st_size
    return current.base


def _directory_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.staged")


def _read_current(path: Path) -> Current:
    chosen = _directory_of(path) / _CURRENT
    try:
        with open_file(chosen) as file:
            return msgspec.json.decode(file.read(_CURRENT_BYTES_MAX), type=Current)
    except FileNotFoundError:
        return Current(path.name)
    except UNREADABLE as error:
        raise StrobeError(f"{chosen} is damaged: {error}; it names the output file: put it back") from error


def _lock(directory: Path) -> int:
    """Create the directory, and lock it until the end of this process."""
    with suppress(FileExistsError):
        directory.mkdir(directory_mode())
        sync(directory.parent)
    require_directory(str(directory))
    lock = open_regular(directory / _LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _sign(lock)
    except BlockingIOError as error:
        holder = os.pread(lock, _NAME_BYTES_MAX, 0).decode("utf-8", "replace") or "another process"
        os.close(lock)
        raise StrobeError(f"the sink in {directory} is in use by {holder}, which must end first") from error
    except BaseException:
        os.close(lock)
        raise
    return lock


def _sign(lock: int) -> None:
    """Write the holder's name into the lock file, for processes that wait for it; left out if the disk is full."""
    with suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"pid {os.getpid()} on host {socket.gethostname()}".encode(), 0)
