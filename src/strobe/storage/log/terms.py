"""Checks the numbers that only increase along a log: term, epoch and view (S1).

An entry's file has the highest term that its writer had read. Since entry n is created only if absent, by a writer that
has read 0..n-1, that is the current term of the log. A lower term comes from a writer that broke this rule, and its
entry has no effect. Readers check this.

Coordinators increase terms, epochs and views by one. An entry that jumps far ahead was forged or damaged: it would use
up the numbers, and no coordinator could write the next one. Such an entry is invalid. A jump of up to `LEAP_MAX` is
valid, because entries that were fenced off may have increased the numbers.
"""

from bisect import bisect_left

from strobe.errors import EntryUnreadable
from strobe.protocol.values.log_entries import EpochStart, ReadEntry, Term, ViewChange, Void
from strobe.storage.checkpoints.checkpoint_files import Checkpoint
from strobe.storage.entries.log_file import DecodedEntry, entry_name

LEAP_MAX = 1000


class Terms:
    """The terms, epochs and views of a log up to the last entry read, starting with the given values."""

    def __init__(self, term: int = 0, coordinator: str = "", epoch: int = 0, view: int = 0) -> None:
        self._terms = _Ascent(term)
        self._epochs = _Ascent(epoch)
        self._views = _Ascent(view)
        # The address of the current term's coordinator, for error messages.
        self.coordinator = coordinator

    @classmethod
    def after(cls, checkpoint: Checkpoint) -> "Terms":
        """Return the terms of a log that is read from a checkpoint on."""
        fold = checkpoint.fold
        known = fold.term is not None and fold.term.term == checkpoint.term
        coordinator = fold.term.coordinator if known and fold.term is not None else "unknown"
        return cls(checkpoint.term, coordinator, fold.epoch, fold.view.number if fold.view is not None else 0)

    @property
    def current(self) -> int:
        """The highest term so far."""
        return self._terms.current

    def require(self, position: int, decoded: DecodedEntry, url: str) -> None:
        """Raise EntryUnreadable if a number in the entry at `position` is out of range."""
        problem = self.problem(position, decoded)
        if problem is not None:
            raise EntryUnreadable(url, f"{entry_name(position)}: its checksum holds, but {problem}")

    def problem(self, position: int, decoded: DecodedEntry) -> str | None:
        """Return which number of the entry at `position` is out of range, or None."""
        entry, before = decoded.entry, self.before(position)
        if decoded.term < before:
            return None  # it has no effect
        if decoded.term > before + LEAP_MAX:
            return f"it was written in term {decoded.term}, and the log is in term {before}"
        if isinstance(entry, Term) and entry.term != decoded.term + 1:
            return f"it begins term {entry.term} after term {decoded.term}"
        epoch, view = _numbers(entry)
        if epoch > (last := self._epochs.before(position)) + LEAP_MAX:
            return f"it starts epoch {epoch} after epoch {last}"
        if view > (last := self._views.before(position)) + LEAP_MAX:
            return f"it has view {view} after view {last}"
        return None

    def take(self, position: int, decoded: DecodedEntry) -> ReadEntry:
        """Return the entry at `position`, or a `Void` if it has no effect. An entry may be read more than once."""
        before = self.before(position)
        entry = decoded.entry
        if decoded.term < before:
            return Void(f"it was written in term {decoded.term}, after term {before} had begun")
        if self._terms.raise_to(position, decoded.term):
            self.coordinator = "unknown"  # the entry that began the term could not be read
        if isinstance(entry, Term) and self._terms.raise_to(position, entry.term):
            self.coordinator = entry.coordinator
        epoch, view = _numbers(entry)
        self._epochs.raise_to(position, epoch)
        self._views.raise_to(position, view)
        return entry

    def before(self, position: int) -> int:
        """Return the term of the log before the entry at `position`."""
        return self._terms.before(position)


class _Ascent:
    """A number that only increases: the positions of the entries that raised it, and the new values."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._positions: list[int] = []
        self._values: list[int] = []

    @property
    def current(self) -> int:
        return self._values[-1] if self._values else self._first

    def before(self, position: int) -> int:
        index = bisect_left(self._positions, position)
        return self._values[index - 1] if index else self._first

    def raise_to(self, position: int, value: int) -> bool:
        """Store `value` if it is higher than the current one, and return whether it is."""
        if value <= self.current:
            return False
        self._positions.append(position)
        self._values.append(value)
        return True


def _numbers(entry: ReadEntry) -> tuple[int, int]:
    """Return the epoch that an entry starts and the number of its view; 0 for none."""
    match entry:
        case EpochStart():
            return entry.epoch, entry.view.number if entry.view is not None else 0
        case ViewChange():
            return 0, entry.view.number
        case _:
            return 0, 0
