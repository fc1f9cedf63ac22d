"""The world outside of a system: where input comes from and where output goes (R2). See docs/outside.md.

What a process has read and written is part of its state: a rollback reads again from where the snapshot had come to,
and takes back what was written since. So input must be readable again, and output is held back until a snapshot that
covers it has committed. The kinds that there are live in `strobe.runtime`.
"""

from abc import ABC, abstractmethod
from typing import Any

__all__ = ["Sink", "Source", "shown_position"]

REACH_BITS = 40
"""The lowest bits of a source's position say how far it was read; people are shown these alone."""


def shown_position(position: int) -> int:
    """Return how far a source was read, without what it may keep above that to check a position by."""
    return position & ((1 << REACH_BITS) - 1)


class Source(ABC):
    """Input for `process`, which takes each record by `receive(ctx, name of the source, record)`.

    Positions are integers of the source's own making, from 0, the beginning, and below 2^53: the lowest 40 bits say how
    far it was read, and are what people are shown; those above are for whatever the source wants to know a position by.
    `type` is what records are decoded as. A source is used by one thread at a time.
    """

    process: str
    type: Any = Any

    @abstractmethod
    def open(self, position: int) -> None:
        """Go to `position`, from which `poll` reads on; raise UsageError where what was there is there no more."""

    @abstractmethod
    def poll(self, records_max: int) -> list[Any]:
        """Return what there is now, at most so many records, without waiting for more.

        Where it returns none and `position` has moved, it has skipped something, and is polled again at once.
        """

    @property
    @abstractmethod
    def position(self) -> int:
        """Where the next `poll` begins: all that was polled so far lies before it."""

    @abstractmethod
    def position_after(self, count: int) -> int:
        """Return the position behind the first `count` records of the last poll: for a cut between two of them."""

    def stop_reading(self) -> None:
        """The epoch has ended, or the process: nothing is polled until it is opened again. By default, `close`."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Let go of files. It can be opened again."""


class Sink(ABC):
    """Output of `process`: what it hands to `ctx.emit`.

    In two phases: what was emitted up to a cut is made durable before the snapshot may commit (`prepare`), and let out
    when it has (`release`). `emit`, `position` and `buffered_bytes` are for the thread of the process and cost little;
    the others wait for the disk, one at a time, and may be called in another thread.
    """

    process: str

    @property
    def buffered_bytes(self) -> int:
        """How much of the output is in memory: where that is much, `prepare` is called before there is a snapshot."""
        return 0

    @property
    def released(self) -> int | None:
        """How far output was let out, as can be seen before `restore`; None where that cannot be told.

        A process that joins begins at 0, so it is not let in where this is more.
        """
        return None

    @abstractmethod
    def restore(self, position: int, *, epoch: int, origin: int = 0, fork: bool = False) -> None:
        """Begin `epoch` at `position`: 0 from the beginning, else that of a snapshot taken in the epoch `origin`.

        Complete the release of what lies before `position`, discard what lies behind it. Raise UsageError where more
        than that was released already, unless this is a `fork`: then output goes on elsewhere.
        """

    @abstractmethod
    def emit(self, record: Any) -> None:
        """Append `record`; it may be changed afterwards."""

    @property
    @abstractmethod
    def position(self) -> int:
        """How far output has come, in constant time."""

    @abstractmethod
    def prepare(self, position: int) -> None:
        """Make everything up to `position` durable, still held back. No snapshot need ever come to cover it all."""

    @abstractmethod
    def release(self, position: int) -> None:
        """Let out everything up to `position`, which a committed snapshot covers. Doing so twice does nothing more."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files; what is not prepared is lost."""
