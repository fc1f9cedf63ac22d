"""The files of a store in a directory: created whole or not at all, by one writer only, and durable (S1).

A file is written under a unique name in tmp/, synced, and then linked to its final name. The link fails if that name is
taken, so exactly one of several writers wins, and no reader ever sees half a file under a final name. Syncing the
directory afterwards makes the name itself durable.

A writer holds a lock on its file in tmp/ while it works on it. The kernel releases the lock when the process ends, so a
file whose lock is free was abandoned.

Only regular files are opened, and no directory within the store may be a symbolic link: files outside the store are
never read, written or removed. The path of the store itself may contain symbolic links, if the user wants that.
"""

import errno
import fcntl
import mmap
import os
import secrets
import stat
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from strobe.errors import StoreCorrupt, StoreError
from strobe.private_files import NotRegularError, directory_mode, open_regular, require_directory, sync
from strobe.storage.files.backend import DOCUMENT_BYTES_MAX, CheckFunction, Piece, StorageBackend, Unfinished
from strobe.storage.files.commit_steps import FileSteps, OnStep
from strobe.storage.files.layout import CREATE_HINT, DIRECTORIES, HEADER, UNFINISHED

WRITTEN_BYTES = 32 << 20
"""After this number of new bytes in a streamed file, the disk is made to start writing them."""

READ_BYTES = 16 << 20
"""Maximum number of bytes per read call."""


Found = TypeVar("Found")

_NOT_HERE = (FileNotFoundError, NotADirectoryError)
"""The errors for a file that is not found while its store is missing."""


class Disk(StorageBackend):
    """The directory of one store."""

    def __init__(self, root: Path, on_step: OnStep | None = None) -> None:
        super().__init__(str(root), on_step)
        self.root = root

    def path(self, name: str, *, directory: bool = False) -> str:
        """Return the path of `name`, after checking each directory on it; `directory`: `name` is a directory itself."""
        path, ahead, rest = self.url, "", name
        while rest:
            ahead, _, rest = rest.partition("/")
            path = f"{path}/{ahead}"
            if rest or directory:
                require_directory(path)
        return path

    def create(
        self, name: str, pieces: Iterable[Piece], steps: FileSteps | None = None, check: CheckFunction | None = None
    ) -> bool:
        with self.faults(name, "write"), closing(self.open_unfinished()) as file:
            self.file_step(steps, 0, name)
            for piece in pieces:
                file.write(piece)
            return file.finish(name, steps, check)

    def open_unfinished(self) -> "UnfinishedFile":
        """Return a new file in tmp/, locked; it must be closed."""
        self.guard()
        while True:
            name = f"{UNFINISHED}/{os.getpid()}-{secrets.token_hex(8)}"
            descriptor = self._open_new(name)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.fstat(descriptor).st_nlink:
                    return UnfinishedFile(self, descriptor, name)
            except BaseException:
                os.close(descriptor)
                raise
            # A collector got the lock between the two calls and removed the file.
            os.close(descriptor)

    def _open_new(self, name: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            return open_regular(self.path(name), flags)
        except FileNotFoundError:
            self.guard()
            # The store was copied by a tool that drops empty directories, such as an object store or git.
            for directory in DIRECTORIES:
                self.make_directory(directory)
            return open_regular(self.path(name), flags)

    def read(self, name: str, bytes_max: int = DOCUMENT_BYTES_MAX) -> bytes | None:
        try:
            # Snapshots have thousands of small files. Here `faults` would cost as much as a system call.
            return self._read(name, bytes_max)
        except OSError as error:
            if not isinstance(error, _NOT_HERE):
                raise self._fault(name, "read", error) from error
        with self.faults(name, "read"):
            return self._if_there(lambda: self._read(name, bytes_max))

    def _read(self, name: str, bytes_max: int) -> bytes:
        descriptor = open_regular(self.path(name))
        try:
            return _read_all(descriptor, bytes_max)
        finally:
            os.close(descriptor)

    def view(self, name: str, size: int) -> memoryview | None:
        def map_it() -> memoryview:
            descriptor = open_regular(self.path(name))
            try:
                mapped = min(size, os.fstat(descriptor).st_size)  # it may have been truncated since
                return memoryview(mmap.mmap(descriptor, mapped, access=mmap.ACCESS_READ) if mapped else b"")
            finally:
                os.close(descriptor)

        with self.faults(name, "read"):
            return self._if_there(map_it)

    def size(self, name: str) -> int | None:
        with self.faults(name, "read"):
            return self._if_there(lambda: os.lstat(self.path(name)).st_size)

    def _if_there(self, look: Callable[[], Found]) -> Found | None:
        """Return the result of `look`. If it finds no file, check that the store is here and look again."""
        try:
            return look()
        except _NOT_HERE:
            self.guard()
        try:
            return look()
        except FileNotFoundError:
            return None

    def fingerprint(self, name: str) -> Hashable | None:
        with self.faults(name, "look at"):
            try:
                found = os.lstat(self.path(name))
            except _NOT_HERE:
                return None
            return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def make_directory(self, name: str) -> None:
        """Create a directory within the store. Parent directories of the store are created only for an empty name."""
        self.guard()
        with self.faults(name, "make the directory"):
            if not name:
                self._make_all(self.root)
            path = self.root
            for part in Path(name).parts:
                path /= part
                self._make(path)

    def sync_directory(self, name: str) -> None:
        with self.faults(name, "sync"):
            sync(Path(self.path(name, directory=True)))

    def names(self, directory: str) -> list[str]:
        with self.faults(directory, "list"):
            return sorted(self._if_there(lambda: self._list(directory)) or ())

    def _list(self, directory: str) -> list[str]:
        return os.listdir(self.path(directory, directory=True))  # noqa: PTH208 -- names

    def sizes(self, directory: str) -> dict[str, int]:
        with self.faults(directory, "list"):
            return self._if_there(lambda: self._sizes(directory)) or {}

    def _sizes(self, directory: str) -> dict[str, int]:
        found: dict[str, int] = {}
        with os.scandir(self.path(directory, directory=True)) as listed:
            for one in listed:
                with suppress(FileNotFoundError):  # it was removed just now
                    found[one.name] = one.stat(follow_symlinks=False).st_size
        return found

    def is_directory(self, name: str) -> bool:
        with self.faults(name, "look at"):
            try:
                return stat.S_ISDIR(os.lstat(self.path(name)).st_mode)
            except _NOT_HERE:
                return False

    def lacks_directory(self, name: str) -> bool:
        with self.faults(name, "look at"):
            return self._if_there(lambda: os.lstat(self.path(name, directory=True))) is None

    def remove(self, names: Iterable[str]) -> None:
        failure: StoreError | None = None
        for name in names:
            try:
                self.guard()
                # Another collector may have removed it, and its directory.
                with self.faults(name, "remove"), suppress(FileNotFoundError):
                    Path(self.path(name)).unlink()
            except StoreError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def remove_empty_directory(self, name: str) -> None:
        self.guard()
        with suppress(OSError):  # it still has files
            Path(self.path(name)).rmdir()

    def remove_abandoned(self, name: str, dry_run: bool) -> int | None:
        self.guard()
        with self.faults(name, "remove"):
            path = self.path(name)
            try:
                descriptor = open_regular(path, os.O_RDWR)
            except (FileNotFoundError, IsADirectoryError, NotRegularError):  # Strobe creates only regular files
                return None
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return None
                if not dry_run:
                    Path(path).unlink(missing_ok=True)
                return os.fstat(descriptor).st_size

    @contextmanager
    def faults(self, name: str, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._fault(name, action, error) from error

    def _fault(self, name: str, action: str, error: OSError) -> StoreError:
        if isinstance(error, NotRegularError):
            inside = str(error.filename).removeprefix(f"{self.url}/")
            return StoreCorrupt(self.url, inside, f"{error.strerror}; it is not followed")
        return StoreError(self.url, f"cannot {action} {name or 'itself'}: {_explain(error, action)}")

    def check_exclusive(self) -> None:
        """Every file system refuses a link to a name that is taken."""

    def unusable(self, creating: bool) -> str | None:
        with self.faults("", "look at"):
            try:
                # `exists` may report a path as absent that it may not access.
                if not stat.S_ISDIR(self.root.stat().st_mode):
                    return f"is not a directory; give the directory that holds {HEADER}"
                empty = not creating and not os.listdir(self.root)  # noqa: PTH208 -- names
            except _NOT_HERE:
                return None if creating else f"does not exist; check the path, or {CREATE_HINT}"
            return f"is empty; if a file system belongs here, mount it, or {CREATE_HINT}" if empty else None

    def _make_all(self, path: Path) -> None:
        if not path.is_dir():
            self._make_all(path.parent)
            self._make(path)

    def _make(self, path: Path) -> None:
        with suppress(FileExistsError):
            path.mkdir(directory_mode())
            sync(path.parent)
            return
        if path != self.root:
            require_directory(str(path))


class UnfinishedFile(Unfinished):
    """A locked file in tmp/ that one writer is still writing."""

    def __init__(self, disk: Disk, descriptor: int, name: str) -> None:
        self.name = name
        self._disk = disk
        self._descriptor = descriptor
        self._bytes = 0
        self._begun = 0

    def write(self, piece: Piece) -> None:
        rest = memoryview(piece).cast("B")
        self._bytes += len(rest)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        if self._bytes - self._begun >= WRITTEN_BYTES:
            # Let the disk write now instead of everything at the end. These bytes are not read again soon.
            os.posix_fadvise(self._descriptor, self._begun, self._bytes - self._begun, os.POSIX_FADV_DONTNEED)
            self._begun = self._bytes

    def finish(self, name: str, steps: FileSteps | None = None, check: CheckFunction | None = None) -> bool:
        self._disk.file_step(steps, 1, name)
        os.fsync(self._descriptor)
        self._disk.file_step(steps, 2, name)
        try:
            if check is None:
                os.link(self._disk.path(self.name), self._disk.path(name))
                self._disk.file_step(steps, 3, name)
            else:
                self._link_checked(name, steps, check)
        except FileExistsError:
            return False
        return True

    def _link_checked(self, name: str, steps: FileSteps | None, check: CheckFunction) -> None:
        parent, _, base = name.rpartition("/")
        try:
            path = self._disk.path(parent, directory=True)
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            check()  # it explains better what is missing
            raise
        try:
            check()
            if not os.path.samestat(os.fstat(directory), os.lstat(path)):
                raise StoreError(self._disk.url, f"cannot write {name}: the directory {parent} was replaced just now")
            os.link(self._disk.path(self.name), base, dst_dir_fd=directory)
            self._disk.file_step(steps, 3, name)
            os.fsync(directory)
        finally:
            os.close(directory)

    def close(self) -> None:
        """Remove the name in tmp/. A finished file keeps its final name; after a failure nothing is left."""
        if self._descriptor < 0:
            return
        with suppress(OSError):
            Path(self._disk.path(self.name)).unlink()
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


def _read_all(descriptor: int, bytes_max: int) -> bytes:
    """Return the content of the file; if it is longer than `bytes_max`, one byte more than that."""
    size = min(os.fstat(descriptor).st_size, bytes_max)
    raw = os.pread(descriptor, min(size, READ_BYTES) + 1, 0)
    if len(raw) == size:
        return raw
    pieces, read = [raw], len(raw)
    while pieces[-1] and read <= bytes_max:
        pieces.append(os.pread(descriptor, min(READ_BYTES, bytes_max + 1 - read), read))
        read += len(pieces[-1])
    return b"".join(pieces)


def _explain(error: OSError, action: str) -> str:
    problem = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"{problem}; make room, then try again"
    if error.errno == errno.ENAMETOOLONG:
        return f"{problem}; give a shorter path"
    if error.errno in (errno.EACCES, errno.EPERM) and action in ("read", "list", "look at"):
        return f"{problem}; let this user read it, or run as one who may"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{problem}; use a directory that this user may write to, on a file system that has hard links"
    return problem
