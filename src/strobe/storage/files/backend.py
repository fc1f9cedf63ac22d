"""Where a store lies: files with names, each created whole or not at all, and of several creators by one only (S1).

Log, blobs, header, collection and verification know a store by this alone; `disk.py` is a directory, `object_store.py`
a prefix in an object store. Names are relative to the store, with slashes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from copy import copy
from typing import Self

from strobe.storage.files.commit_steps import CommitStep, FileSteps, OnStep

MAPPED_BYTES_MIN = 1 << 20
"""From this size on, a file is mapped instead of read."""

DOCUMENT_BYTES_MAX = 256 << 20
"""The longest entry of a log."""

Piece = bytes | memoryview
"""Some consecutive bytes of a file."""


class Unfinished(ABC):
    """A file that one writer works on, and that nobody else sees or removes meanwhile. It must be closed."""

    name: str

    @abstractmethod
    def write(self, piece: Piece) -> None: ...

    @abstractmethod
    def finish(self, name: str, steps: FileSteps | None = None) -> bool:
        """Give a file whose bytes are all written its name, or return False where that is taken.

        `name` must say what the bytes are: where several give the same, it may be anyone's file that has it then.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave nothing behind but what was finished."""


class StorageBackend(ABC):
    """The files of one store.

    Once a store was opened here, `guard` raises StoreMissing while that store is not here: its directory was moved away
    or is not mounted, and perhaps another one lies in its place. It is called before anything is written or removed,
    and before a file is taken to be absent. A check counts for `guarded_s`: it may cost a request over the network.
    """

    guarded_s = 0.0

    def __init__(self, url: str, on_step: OnStep | None = None) -> None:
        self.url = url
        self.on_step = on_step
        self.guard: Callable[[], None] = _no_guard

    def unguarded(self) -> Self:
        """Return the same place for a look at what is there now."""
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
    def create(self, name: str, pieces: Iterable[Piece], steps: FileSteps | None = None) -> bool:
        """Create the file `name`, or return False where there is one. Its directory is left to be synced.

        Of any number of creators, in any number of processes, exactly one gets True.
        """

    @abstractmethod
    def open_unfinished(self) -> Unfinished:
        """Return a new file, to be written as its bytes come, and then named by them."""

    @abstractmethod
    def read(self, name: str, bytes_max: int = DOCUMENT_BYTES_MAX) -> bytes | None:
        """Return the bytes of the file `name`, or None where there is none.

        A file may be longer than it should be: of more than `bytes_max` bytes, only one more than these is read.
        """

    @abstractmethod
    def view(self, name: str, size: int) -> memoryview | None:
        """Return the bytes of the large file `name`, of that size, or None where there is none.

        They cost memory only where they are touched.
        """

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Return how many bytes the file `name` has, or None where there is none."""

    @abstractmethod
    def fingerprint(self, name: str) -> Hashable | None:
        """Return what differs if the file `name` is another one now, or None where there is none; it is not read."""

    @abstractmethod
    def names(self, directory: str) -> list[str]:
        """Return the names in `directory`, sorted; none where it does not exist."""

    @abstractmethod
    def sizes(self, directory: str) -> dict[str, int]:
        """Return how many bytes each file in `directory` has, by its name there; none if it does not exist."""

    @abstractmethod
    def is_directory(self, name: str) -> bool: ...

    def lacks_directory(self, name: str) -> bool:
        """Tell whether the directory `name`, which every store here has, is missing."""
        return False

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Remove files; those that are gone already are no matter.

        One that cannot be removed is named by a StoreError, on a disk when all the others are gone.
        """

    @abstractmethod
    def remove_abandoned(self, name: str, dry_run: bool) -> int | None:
        """Remove a file of tmp/ that no writer works on; return its size, or None where it is none, gone or in use."""

    @abstractmethod
    def faults(self, name: str, action: str) -> AbstractContextManager[None]:
        """Turn what is refused into a StoreError that names the file, and says what to do."""

    def unusable(self, creating: bool) -> str | None:
        """Return why no store can be here, and after a semicolon what to do; None where one may be."""
        return None

    @abstractmethod
    def check_exclusive(self) -> None:
        """Raise StoreError where creating a file that is there is not refused."""

    @abstractmethod
    def make_directory(self, name: str) -> None:
        """Make the directory `name`, durably, unless it is there."""

    @abstractmethod
    def remove_empty_directory(self, name: str) -> None:
        """Remove the directory `name` if nothing is in it."""

    @abstractmethod
    def sync_directory(self, name: str) -> None:
        """Make the names in a directory durable."""


def _no_guard() -> None:
    """No store was opened here yet."""
