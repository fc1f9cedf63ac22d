"""The log file of one child of `strobe up`, of bounded size, in the store's run directory.

It is opened once, and stays open. When the store is moved away, a restarted program keeps logging to the same file, and
nothing is written to a new directory at the store's path.
"""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from strobe.errors import StrobeError
from strobe.private_files import open_file, open_regular

LOG_BYTES_MAX = 16 << 20
"""Maximum size of a log; beyond it, the log is moved to `NAME.log.1` and starts again."""
_TAIL_BYTES = 256 << 10


class ChildLog:
    """The log at `path`; `make_room` makes its directory, or raises StoreError while the store is missing."""

    def __init__(self, path: Path, make_room: Callable[[], object]) -> None:
        self.path = path
        self._make_room = make_room
        self._file = -1
        # The offset at which the log of the program's last run begins.
        self._begin = 0

    def open(self) -> None:
        """Open the file; StrobeError if that fails."""
        self._make_room()
        try:
            file = open_regular(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        except OSError as error:
            raise StrobeError(f"cannot write the log {self.path}: {error.strerror}") from error
        self.close()
        self._file = file

    def begin(self) -> int:
        """Return the file for another run of the program. A removed file is created again if possible."""
        if self._file < 0:
            self.open()
        elif os.fstat(self._file).st_nlink == 0:
            with contextlib.suppress(StrobeError):
                self.open()
        self._begin = os.fstat(self._file).st_size
        return self._file

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def bound(self) -> None:
        """Truncate the log if it is too long. The program keeps writing to it, so it must stay the same file."""
        found = os.fstat(self._file)
        if found.st_size <= LOG_BYTES_MAX:
            return
        with contextlib.suppress(OSError):  # a part that cannot be kept must not fill the disk
            if os.path.samestat(self.path.stat(), found):  # otherwise the store was moved away
                with (
                    open_file(self.path) as log,
                    open_file(self.path.with_name(f"{self.path.name}.1"), "wb") as copy,
                ):
                    shutil.copyfileobj(log, copy)
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, 0)
            self._begin = 0

    def problem(self) -> str:
        """Return why the program may be unable to log anything; empty if nothing is known."""
        with contextlib.suppress(OSError):
            if os.fstatvfs(self._file).f_bavail == 0:
                return f"the file system of {self.path} is full; make room"
        return ""

    def lines(self) -> list[str]:
        """Return the last lines since the program was last started, up to a readable number."""
        try:
            size = os.fstat(self._file).st_size
            begin = max(self._begin, size - _TAIL_BYTES)
            lines = os.pread(self._file, size - begin, begin).decode("utf-8", "replace").splitlines()
            return lines if begin == self._begin else lines[1:]
        except OSError:
            return []
