"""Which term the log was in at each position: what a coordinator writes after another one has replaced it is void (S1).

A document carries the highest term that its writer had read. Since entry n is created only if absent, by a writer that
has read 0..n-1, that is the term the log is in; a lower one comes from a writer that broke this rule, and its entry has
no effect. A reader does not take the rule for granted: it compares.
"""

from bisect import bisect_left

from strobe.protocol.log import ReadEntry, Term, Void
from strobe.storage.entries import Decoded


class Terms:
    """The terms of a log as far as it was read, in order; `term` is the one that it was in at the beginning."""

    def __init__(self, term: int = 0, coordinator: str = "") -> None:
        self._first = term
        # The positions of the entries that raised the term, and what each raised it to.
        self._positions: list[int] = []
        self._terms: list[int] = []
        # Where the coordinator of the current term runs, for people.
        self.coordinator = coordinator

    @property
    def current(self) -> int:
        """The highest term so far."""
        return self._terms[-1] if self._terms else self._first

    def take(self, position: int, decoded: Decoded) -> ReadEntry:
        """Return the entry at `position`, which was read for the first time or again, or that it has no effect."""
        before = self.before(position)
        entry = decoded.entry
        if decoded.term < before:
            return Void(f"it was written in term {decoded.term}, after term {before} had begun")
        self._raise_to(position, decoded.term, "unknown")  # the entry that began it could not be read
        if isinstance(entry, Term):
            self._raise_to(position, entry.term, entry.coordinator)
        return entry

    def before(self, position: int) -> int:
        """Return the term that the log is in before the entry at `position`."""
        index = bisect_left(self._positions, position)
        return self._terms[index - 1] if index else self._first

    def _raise_to(self, position: int, term: int, coordinator: str) -> None:
        if term > self.current:
            self._positions.append(position)
            self._terms.append(term)
            self.coordinator = coordinator
