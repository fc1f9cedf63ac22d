"""Creates and opens files: readable by their owner alone, regular files only, and written whole or not at all.

New files have the mode 0600 and new directories 0700, whatever the umask of the process. To let others read them, set
`STROBE_UMASK=027` (octal digits, as for umask) for every program that writes.

Only regular files are opened. A symbolic link could lead out of the directory, a FIFO would block its reader for ever,
and a device has no end.

A file that others may read meanwhile is written under a temporary name, synced and renamed. A file that must never be
replaced is linked to its name instead, so that one of several creators wins. (The store links its own files, and keeps
their temporary names apart: `storage/files/disk.py`.)
"""

import enum
import errno
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from strobe.errors import UsageError

UMASK_VARIABLE = "STROBE_UMASK"
UNFINISHED = ".unfinished"
"""The end of the temporary name of a file that is being written."""
_UMASK = "077"
_NEW = os.O_WRONLY | os.O_CREAT
_FLAGS = {"rb": os.O_RDONLY, "wb": _NEW | os.O_TRUNC, "ab": _NEW | os.O_APPEND}
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISREG, "a file"),
)


class FileStep(enum.IntEnum):
    """The step just done in writing a file, for tests that end the process between any two steps."""

    OPENED = enum.auto()
    WRITTEN = enum.auto()
    SYNCED = enum.auto()
    NAMED = enum.auto()
    DURABLE = enum.auto()


OnStep = Callable[[FileStep], None]


class NotRegularError(OSError):
    """The path of a file or directory holds something else."""

    def __init__(self, path: str | Path, mode: int, wanted: str = "a regular file") -> None:
        kind = next((kind for test, kind in _KINDS if test(mode)), "a device")
        super().__init__(errno.EINVAL, f"is {kind}, but must be {wanted}", str(path))


def file_mode() -> int:
    """Return the mode of a new file."""
    return 0o666 & ~_umask()


def directory_mode() -> int:
    """Return the mode of a new directory."""
    return 0o777 & ~_umask()


def open_regular(path: str | Path, flags: int = os.O_RDONLY, *, follow: bool = False) -> int:
    """Return a descriptor of the regular file at `path`. With O_CREAT, a new file is readable by its owner alone.

    `follow`: also accept a symbolic link to a regular file. Use it for a path that the user has chosen.
    """
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags, file_mode())
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO) and not follow:  # a link, a FIFO without a reader, or a socket
            _refuse(path)
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotRegularError(path, mode)
    return descriptor


def open_file(path: str | Path, mode: str = "rb", *, follow: bool = False) -> IO[bytes]:
    """Open the regular file at `path` as Python's `open` does, in mode rb, wb or ab."""
    return os.fdopen(open_regular(path, _FLAGS[mode], follow=follow), mode)


def _ignore(_: FileStep) -> None:
    pass


def replace_file(path: Path, data: bytes, unfinished: Path | None = None, on_step: OnStep = _ignore) -> None:
    """Create or replace the file at `path`, atomically and durably. If that fails, nothing has changed.

    `unfinished`: the temporary path, if several processes may write the file at once; on the same file system.
    """
    unfinished = unfinished or path.with_name(path.name + UNFINISHED)
    try:
        with open_file(unfinished, "wb") as file:
            on_step(FileStep.OPENED)
            file.write(data)
        on_step(FileStep.WRITTEN)
        finish_file(unfinished, path, on_step)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise


def create_file(path: Path, data: bytes, mode: int, on_step: OnStep = _ignore) -> None:
    """Create the file at `path` with exactly this mode, atomically and durably; raise FileExistsError if it exists."""
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8)}{UNFINISHED}")
    try:
        # Created with its final mode, so that no other user can read it at any moment.
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            on_step(FileStep.OPENED)
            file.write(data)
        on_step(FileStep.WRITTEN)
        sync(unfinished)
        on_step(FileStep.SYNCED)
        os.link(unfinished, path)
        on_step(FileStep.NAMED)
    finally:
        with suppress(OSError):
            unfinished.unlink()
    sync(path.parent)
    on_step(FileStep.DURABLE)


def finish_file(unfinished: Path, path: Path, on_step: OnStep = _ignore) -> None:
    """Give a written file its name, replacing any other file of that name; all of it is durable."""
    sync(unfinished)
    on_step(FileStep.SYNCED)
    unfinished.rename(path)
    on_step(FileStep.NAMED)
    sync(path.parent)
    on_step(FileStep.DURABLE)


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: Path) -> None:
    """Create the directory `path` and its missing parents; new ones are accessible to their owner alone."""
    if not path.is_dir():
        make_directories(path.parent)
        path.mkdir(directory_mode(), exist_ok=True)


def make_own(*paths: Path) -> None:
    """Create each of these directories in turn, but no parents; raise NotRegularError if one is a symbolic link."""
    for path in paths:
        path.mkdir(directory_mode(), exist_ok=True)
        require_directory(str(path))


def require_directory(path: str) -> None:
    """Raise NotRegularError if a symbolic link, a FIFO or a device is at `path` instead of a directory.

    A regular file is left to the system, which refuses whatever is looked for below it.
    """
    mode = os.lstat(path).st_mode
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise NotRegularError(path, mode, "a directory")


def _refuse(path: str | Path) -> None:
    mode = os.lstat(path).st_mode
    if not stat.S_ISREG(mode):
        raise NotRegularError(path, mode)


def _umask() -> int:
    text = os.environ.get(UMASK_VARIABLE) or _UMASK
    if len(text) > 4 or not text.isascii() or any(digit not in "01234567" for digit in text):
        raise UsageError(f"{UMASK_VARIABLE}={text!r} is not a mask; give octal digits, such as 027")
    return int(text, 8) & 0o777
