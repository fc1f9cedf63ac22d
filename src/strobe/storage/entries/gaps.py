"""Entries that are missing in the middle of a log, run by run.

A file may lie at any of 10^20 positions, so no reader tries one position after the other: a run of missing entries is
found by the names that are there. A short run is a loss: each of its entries can be fenced off. Beyond a long run (more
than `GAP_MAX` entries) nothing is part of the log: no reader reads there, and no writer continues the log until those
files are gone.
"""

from bisect import bisect_left

import msgspec

from strobe.storage.entries.log_file import entry_name, entry_position
from strobe.storage.files.backend import StorageBackend
from strobe.storage.files.layout import LOG

GAP_MAX = 1000


class Gap(msgspec.Struct, frozen=True):
    """Entries `first` .. `end` - 1 are missing, though there is a file for entry `end`."""

    first: int
    end: int

    @property
    def is_long(self) -> bool:
        """Whether what lies beyond is no part of the log."""
        return self.end - self.first > GAP_MAX

    @property
    def missing(self) -> str:
        """Which entries are missing, as one phrase that follows the name of the first."""
        if self.end == self.first + 1:
            return "is missing"
        return f"entries {self.first:,} to {self.end - 1:,} are missing"

    @property
    def problem(self) -> str:
        """What is wrong, and what to do."""
        if not self.is_long:
            them = "it" if self.end == self.first + 1 else "them"
            return f"{self.missing}, though later entries exist; restore {them} from a copy of the store"
        return (
            f"{self.missing}, though {entry_name(self.end)} exists; restore them from a copy of the store, or, if that "
            f"file is no part of this log, move it aside: `strobe store repair STORE --set-aside {self.end}`"
        )


def positions(backend: StorageBackend) -> list[int]:
    """Return the positions of the entries that are there, in order, by the names alone."""
    return [found for name in backend.names(LOG) if (found := entry_position(name)) is not None]


def gap_at(backend: StorageBackend, position: int) -> Gap | None:
    """Return the run of missing entries that begins at `position`; None: that is there, or the log ends before it.

    Entries may be created while names are listed. So a gap is one whose first entry is still missing afterwards.
    """
    names = backend.names(LOG)
    # They have 20 digits, so they are in the order of their positions: only those from there on are looked at.
    later = (entry_position(name) for name in names[bisect_left(names, f"{position:020d}") :])
    following = next((found for found in later if found is not None), None)
    if following in (None, position) or backend.size(entry_name(position)) is not None:
        return None
    assert following is not None
    return Gap(position, following)


def near(listed: list[int], start: int) -> list[int]:
    """Return the positions from `start` on, up to the first long gap: those of entries that are part of the log."""
    found: list[int] = []
    before = start - 1
    for position in listed[bisect_left(listed, start) :]:
        if Gap(before + 1, position).is_long:
            break
        found.append(position)
        before = position
    return found
