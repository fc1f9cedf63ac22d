"""Files that are created whole or not at all, by one writer only, and that survive a power cut (S1).

A file is written under a name of its own in tmp/, synced, and then linked to its final name, which fails where that
name is taken: of any number of writers exactly one wins, and nobody ever sees half a file under a final name. Syncing
the directory afterwards makes the name itself durable.

A writer holds a lock on its file in tmp/ as long as it works on it. The kernel drops the lock with the process, so
whoever gets it knows that the file was left behind.
"""

import errno
import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from strobe.errors import StoreError
from strobe.storage.steps import CommitStep, FileSteps, OnStep

UNFINISHED = "tmp"

Piece = bytes | memoryview
"""Some consecutive bytes of a file."""


class Disk:
    """The directory of one store. Names of files are relative to it, with slashes."""

    def __init__(self, root: Path, on_step: OnStep | None = None) -> None:
        self.root = root
        self.url = str(root)
        self.on_step = on_step

    def path(self, name: str) -> str:
        return f"{self.url}/{name}"

    def step(self, step: CommitStep, name: str) -> None:
        if self.on_step is not None:
            self.on_step(step, name)

    def create(self, name: str, pieces: Iterable[Piece], steps: FileSteps | None = None) -> bool:
        """Create the file `name`, or return False where there is one. Its directory is left to be synced."""
        with self.faults(name, "write"), closing(self.open_unfinished()) as file:
            self._file_step(steps, 0, name)
            for piece in pieces:
                file.write(piece)
            return self.finish(file, name, steps)

    def open_unfinished(self) -> "Unfinished":
        """Return a new file in tmp/, locked, for `finish` to name; it must be closed."""
        while True:
            path = self.path(f"{UNFINISHED}/{os.getpid()}-{secrets.token_hex(8)}")
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.fstat(descriptor).st_nlink:
                    return Unfinished(descriptor, path)
            except BaseException:
                os.close(descriptor)
                raise
            # A collector got the lock between the two calls, and has removed the file.
            os.close(descriptor)

    def finish(self, file: "Unfinished", name: str, steps: FileSteps | None = None) -> bool:
        """Give a file whose bytes are all written its name, or return False where that is taken."""
        self._file_step(steps, 1, name)
        os.fsync(file.descriptor)
        self._file_step(steps, 2, name)
        try:
            os.link(file.path, self.path(name))
        except FileExistsError:
            return False
        self._file_step(steps, 3, name)
        return True

    def read(self, name: str) -> bytes | None:
        """Return the bytes of the file `name`, or None where there is none."""
        with self.faults(name, "read"):
            try:
                descriptor = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                return file.readall()

    def size(self, name: str) -> int | None:
        """Return how many bytes the file `name` has, or None where there is none."""
        with self.faults(name, "read"):
            try:
                return os.stat(self.path(name)).st_size  # noqa: PTH116 -- a Path costs more than the call
            except FileNotFoundError:
                return None

    def make_directory(self, name: str) -> None:
        """Make the directory `name`, durably, unless it is there."""
        with self.faults(name, "make the directory"):
            self._make(Path(self.path(name)))

    def sync_directory(self, name: str) -> None:
        with self.faults(name, "sync"):
            self._sync(Path(self.path(name)))

    def names(self, directory: str) -> list[str]:
        """Return the names in `directory`, sorted; none where it does not exist."""
        with self.faults(directory, "list"):
            try:
                return sorted(os.listdir(self.path(directory)))  # noqa: PTH208 -- names, not paths
            except FileNotFoundError:
                return []

    def remove_abandoned(self, name: str, dry_run: bool) -> int | None:
        """Remove a file of tmp/ that no writer works on; return its size, or None where it is gone or in use."""
        with self.faults(name, "remove"):
            try:
                descriptor = os.open(self.path(name), os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return None
                if not dry_run:
                    Path(self.path(name)).unlink(missing_ok=True)
                return os.fstat(descriptor).st_size

    @contextmanager
    def faults(self, name: str, action: str) -> Iterator[None]:
        """Turn what the operating system refuses into a StoreError that names the file."""
        try:
            yield
        except OSError as error:
            raise StoreError(self.url, f"cannot {action} {name or 'itself'}: {_explain(error, action)}") from error

    def _file_step(self, steps: FileSteps | None, number: int, name: str) -> None:
        if steps is not None:
            self.step(steps[number], name)

    def _make(self, path: Path) -> None:
        if not path.is_dir():
            self._make(path.parent)
            path.mkdir(exist_ok=True)
            self._sync(path.parent)

    def _sync(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Unfinished:
    """A file in tmp/ that one writer works on, and that nobody else removes meanwhile."""

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor = descriptor
        self.path = path

    def write(self, piece: Piece) -> None:
        rest = memoryview(piece).cast("B")
        while rest:
            rest = rest[os.write(self.descriptor, rest) :]

    def close(self) -> None:
        """Drop the name in tmp/: after a link it is the second one, after a failure this leaves nothing behind."""
        if self.descriptor < 0:
            return
        with suppress(OSError):
            Path(self.path).unlink()
        descriptor, self.descriptor = self.descriptor, -1
        os.close(descriptor)


def _explain(error: OSError, action: str) -> str:
    problem = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"{problem}; make room, then try again"
    if error.errno in (errno.EACCES, errno.EPERM) and action in ("read", "list", "look at"):
        return f"{problem}; let this user read it, or run as one who may"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{problem}; use a directory that this user may write to, on a file system that has hard links"
    return problem
