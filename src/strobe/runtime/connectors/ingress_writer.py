"""The writer of an ingress log: holds the file lock, and lets concurrent appends share a sync.

When a writer opens the log, records after the durable part were never acknowledged: whole ones are kept, a torn one is
cut off. Damage before that is refused: cutting it off would lose acknowledged records.
"""

import fcntl
import os
import threading
from pathlib import Path

from strobe.errors import StrobeError, UsageError
from strobe.private_files import open_regular, sync
from strobe.runtime.connectors.ingress_format import (
    BEGIN,
    MAGIC,
    framed,
    marked,
    read_mark,
    records,
    write_all,
    write_mark,
)


class WriterClosed(Exception):
    """Nothing was appended: the writer was closed meanwhile."""


class _Group:
    """Records that share one sync, and their end offsets."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.ends: list[int] = []
        self.error: BaseException | None = None
        self.done = False


class Writer:
    """An ingress log that is open for appending, by any number of threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._changed = threading.Condition()
        self._group = _Group()
        self._syncing = False
        self._closed = False
        self._broken = False
        self._file = _open_locked(path)
        try:
            self._end = self._recover()
        except BaseException:
            os.close(self._file)
            raise

    def append(self, payloads: list[bytes]) -> int:
        """Append `payloads`; return the offset after the last one once they are on the disk. Or raise WriterClosed."""
        with self._changed:
            group = self._group
            group.payloads += payloads
            last = len(group.payloads) - 1
            while not group.done:
                if self._syncing:
                    self._changed.wait()
                elif self._closed:
                    # The file descriptor may belong to another file by now.
                    raise WriterClosed
                else:
                    self._write_group()
        if group.error is not None:
            raise self._failure(group.error) from group.error
        return group.ends[last]

    def _failure(self, error: BaseException) -> StrobeError:
        if isinstance(error, OSError):
            problem = f"{error.strerror}; make room or repair the disk, then append it again"
        else:
            problem = f"another thread, which wrote it too, was stopped by {type(error).__name__}; append it again"
        return StrobeError(f"ingress log {self.path}: the record was not appended: {problem}")

    def close(self) -> None:
        with self._changed:
            while self._syncing:
                self._changed.wait()
            if not self._closed:
                self._closed = True
                os.close(self._file)

    def _write_group(self) -> None:
        """Write all waiting records. The lock is released during disk I/O, so that others can join the next group."""
        group, self._group, self._syncing = self._group, _Group(), True
        self._changed.release()
        try:
            self._write(group)
        except BaseException as error:
            if not group.ends or self._end != group.ends[-1]:
                group.error = error
            if not isinstance(error, OSError):
                raise  # this thread was interrupted; the others in the group get its error
        finally:
            self._changed.acquire()
            group.done, self._syncing = True, False
            self._changed.notify_all()

    def _write(self, group: _Group) -> None:
        """Write and sync `group`, and advance the end of the log; after a failure the end is unchanged."""
        end, pieces = self._end, []
        for payload in group.payloads:
            pieces.append(framed(end, payload))
            end += len(pieces[-1])
            group.ends.append(end)
        durable = False
        try:
            if self._broken:
                self._take_back()
            write_all(self._file, b"".join(pieces), self._end)
            os.fdatasync(self._file)
            durable = True
            write_mark(self._file, end)
            self._end = end
        except BaseException:
            self._broken = self._broken or self._end != end
            if self._broken and durable and read_mark(self._file) == end:
                self._end, self._broken = end, False  # interrupted right after the mark: readers may have read this far
            if self._broken:
                self._take_back()
            raise

    def _take_back(self) -> None:
        """Cut off the last group: its state on disk is unknown, and records after it would not be durable."""
        self._broken = True
        write_mark(self._file, self._end)
        os.ftruncate(self._file, self._end)
        os.fdatasync(self._file)
        self._broken = False

    def _recover(self) -> int:
        """Repair the log: cut off a torn record, make the rest durable, and return the end offset."""
        size = os.fstat(self._file).st_size
        if os.pread(self._file, len(MAGIC), 0) != MAGIC[:size]:
            raise UsageError(f"{self.path} is not an ingress log; give the path of one, or of a new file")
        if size < BEGIN:
            os.ftruncate(self._file, 0)
            write_all(self._file, MAGIC + marked(BEGIN), 0)
            os.fsync(self._file)
            sync(self.path.parent)
            return BEGIN
        end = max((end for _, end in records(self._file, BEGIN, size)), default=BEGIN)
        durable = read_mark(self._file)
        if durable is not None and end < durable:
            raise StrobeError(
                f"ingress log {self.path}: the record at byte {end:,} is damaged, and everything up to byte "
                f"{durable:,} was acknowledged; put back a copy of the log"
            )
        os.ftruncate(self._file, end)
        os.fdatasync(self._file)
        write_mark(self._file, end)
        return end


def _open_locked(path: Path) -> int:
    try:
        file = open_regular(path, os.O_RDWR | os.O_CREAT, follow=True)
    except OSError as error:
        raise StrobeError(f"ingress log {path} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise UsageError(
            f"ingress log {path} is being written by another process; append through that one, or end it first"
        ) from None
    return file
