"""`StorageBackend`: named files, each created whole or not at all, and by exactly one of several creators (S1).

The other parts of the storage package use a store only through this interface. `disk.py` implements it for a directory,
`object_store.py` for a prefix in an object store. Names are relative to the store, with slashes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from copy import copy
from typing import Self

from strobe.storage.files.commit_steps import CommitStep, FileSteps, OnStep

MAPPED_BYTES_MIN = 1 << 20
"""Files of at least this size are memory-mapped instead of read."""

DOCUMENT_BYTES_MAX = 256 << 20
"""Maximum length of a log entry."""

Piece = bytes | memoryview
"""Consecutive bytes of a file."""

CheckFunction = Callable[[], None]
"""Raises an error if a file must not be created now."""


class Unfinished(ABC):
    """A file that one writer is still writing. Others neither see nor remove it. It must be closed."""

    name: str

    @abstractmethod
    def write(self, piece: Piece) -> None: ...

    @abstractmethod
    def finish(self, name: str, steps: FileSteps | None = None) -> bool:
        """Give the complete file its name, or return False if the name is taken.

        The name must identify the bytes: if several writers use the same name, any of their files may end up under it.
        """

    @abstractmethod
    def close(self) -> None:
        """Discard the file unless it was finished."""


class StorageBackend(ABC):
    """The files of one store.

    After a store was opened here, `guard` raises StoreMissing while that store is not here: its directory was moved or
    is not mounted, and another store may be in its place. It is called before every write or removal, and before a file
    is reported as absent. A check is valid for `guarded_s`, because it may cost a network request.
    """

    guarded_s = 0.0

    def __init__(self, url: str, on_step: OnStep | None = None) -> None:
        self.url = url
        self.on_step = on_step
        self.guard: Callable[[], None] = _no_guard

    def unguarded(self) -> Self:
        """Return the same backend without the guard, to see what is there now."""
        twin = copy(self)
        twin.guard = _no_guard
        return twin

    def step(self, step: CommitStep, name: str) -> None:
        if self.on_step is not None:
            self.on_step(step, name)

    def file_step(self, steps: FileSteps | None, number: int, name: str) -> None:
        if steps is not None:
            self.step(steps[number], name)

    @abstractmethod
    def create(
        self, name: str, pieces: Iterable[Piece], steps: FileSteps | None = None, check: CheckFunction | None = None
    ) -> bool:
        """Create the file `name`, or return False if it exists. The caller syncs the directory.

        Of any number of creators, in any number of processes, exactly one gets True. `check` is called last and may
        refuse. On a disk, the file is created in the directory that `check` saw, even if another one takes its place at
        that moment, and the directory is synced here.
        """

    @abstractmethod
    def open_unfinished(self) -> Unfinished:
        """Return a new file, to be written piece by piece and then named after its bytes."""

    @abstractmethod
    def read(self, name: str, bytes_max: int = DOCUMENT_BYTES_MAX) -> bytes | None:
        """Return the bytes of the file `name`, or None if it does not exist.

        If the file is longer than `bytes_max`, only `bytes_max` + 1 bytes are read.
        """

    @abstractmethod
    def view(self, name: str, size: int) -> memoryview | None:
        """Return the bytes of the large file `name`, of that size, or None if it does not exist.

        Bytes use memory only when they are accessed.
        """

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Return the size of the file `name` in bytes, or None if it does not exist."""

    @abstractmethod
    def fingerprint(self, name: str) -> Hashable | None:
        """Return a value that changes if the file `name` is replaced, or None if it is missing. It is not read."""

    @abstractmethod
    def names(self, directory: str) -> list[str]:
        """Return the names in `directory`, sorted; an empty list if it does not exist."""

    @abstractmethod
    def sizes(self, directory: str) -> dict[str, int]:
        """Return the size in bytes of each file in `directory`, by name; an empty dict if it does not exist."""

    @abstractmethod
    def is_directory(self, name: str) -> bool: ...

    def lacks_directory(self, name: str) -> bool:
        """Return whether the directory `name`, which every store on this backend has, is missing."""
        return False

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Remove files. Files that do not exist are ignored.

        A file that cannot be removed raises StoreError; on a disk, after all the others were removed.
        """

    @abstractmethod
    def remove_abandoned(self, name: str, dry_run: bool) -> int | None:
        """Remove an abandoned file of tmp/; return its size, or None if it is not a file, is gone or is in use."""

    @abstractmethod
    def faults(self, name: str, action: str) -> AbstractContextManager[None]:
        """Turn an error of the backend into a StoreError with the name of the file and what to do."""

    def unusable(self, creating: bool) -> str | None:
        """Return why no store can be here and, after a semicolon, what to do; None if one can be here."""
        return None

    @abstractmethod
    def check_exclusive(self) -> None:
        """Raise StoreError if the backend lets a writer create a file that already exists."""

    @abstractmethod
    def make_directory(self, name: str) -> None:
        """Create the directory `name` durably, unless it exists."""

    @abstractmethod
    def remove_empty_directory(self, name: str) -> None:
        """Remove the directory `name` if it is empty."""

    @abstractmethod
    def sync_directory(self, name: str) -> None:
        """Make the names in the directory `name` durable."""


def _no_guard() -> None:
    """No store was opened here yet."""
