"""Sources and sinks: where a system's input comes from and where its output goes (R2). See docs/outside.md.

The read and write offsets of a process are part of its state. A rollback reads input again from the snapshot's offset,
and discards output written since. So input must be readable again, and output is held back until a snapshot that covers
it has committed. The available kinds are in `strobe.runtime`.
"""

from abc import ABC, abstractmethod
from typing import Any

__all__ = ["Sink", "Source", "shown_position"]

REACH_BITS = 40
"""The lowest bits of a source's position are its read offset; only these are shown to people."""


def shown_position(position: int) -> int:
    """Return the read offset in a source's position, without the bits above it."""
    return position & ((1 << REACH_BITS) - 1)


class Source(ABC):
    """Input for `process`, which takes each record by `receive(ctx, name of the source, record)`.

    A position is an integer from 0, the beginning, and below 2^53. The lowest 40 bits are the read offset, which is
    shown to people. The source may use the bits above them, for example to recognize a position. Records are decoded as
    `type`. A source is used by one thread at a time.
    """

    process: str
    type: Any = Any

    @abstractmethod
    def open(self, position: int) -> None:
        """Seek to `position`, from which `poll` continues; raise UsageError if the input there no longer exists."""

    @abstractmethod
    def poll(self, records_max: int) -> list[Any]:
        """Return the records available now, at most `records_max`, without waiting for more.

        If it returns none and `position` has moved, it has skipped some input, and is polled again at once.
        """

    @property
    @abstractmethod
    def position(self) -> int:
        """The start of the next `poll`: all records polled so far lie before it."""

    @abstractmethod
    def position_after(self, count: int) -> int:
        """Return the position after the first `count` records of the last poll, for a cut between two of them."""

    def stop_reading(self) -> None:
        """The epoch or the process has ended. No `poll` follows until the source is opened again. By default,
        `close`.
        """
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close files. The source can be opened again."""


class Sink(ABC):
    """Output of `process`: the records it passes to `ctx.emit`.

    Output has two phases. Records emitted before a cut are made durable before the snapshot commits (`prepare`), and
    become visible after it has committed (`release`). `emit`, `position` and `buffered_bytes` are called in the thread
    of the process and must be fast. The other methods may wait for the disk. They are called one at a time, possibly in
    another thread.
    """

    process: str

    @property
    def buffered_bytes(self) -> int:
        """The size of the output in memory. If it is large, `prepare` is called before the next snapshot."""
        return 0

    @property
    def released(self) -> int | None:
        """The offset up to which output was released, as visible before `restore`; None if that is not known.

        A joining process begins at 0, so it is refused if this is more.
        """
        return None

    @abstractmethod
    def restore(self, position: int, *, epoch: int, origin: int = 0, fork: bool = False) -> None:
        """Begin `epoch` at `position`: 0 for the beginning, otherwise the position in a snapshot of the epoch `origin`.

        Complete the release of output before `position`, and discard output after it. Raise UsageError if output after
        it was already released, unless this is a `fork`: then output continues elsewhere.
        """

    def resume(self, position: int, *, epoch: int) -> None:
        """Go on at `position` in `epoch`, where the predecessor of this process has stopped (E11).

        All output before `position` is prepared. Release none of it: no snapshot covers it yet. A sink without this
        method works, but its process cannot hand over: a planned restart of it rolls back everything.
        """
        raise NotImplementedError

    @abstractmethod
    def emit(self, record: Any) -> None:
        """Append `record`. The caller may change it afterwards."""

    @property
    @abstractmethod
    def position(self) -> int:
        """The current end of the output, in constant time."""

    @abstractmethod
    def prepare(self, position: int) -> None:
        """Make all output up to `position` durable, but do not release it. A snapshot that covers it may never come."""

    @abstractmethod
    def release(self, position: int) -> None:
        """Release all output up to `position`, which a committed snapshot covers. Repeating this has no effect."""

    @abstractmethod
    def close(self) -> None:
        """Close files. Output that is not prepared is lost."""
