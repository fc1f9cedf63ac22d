"""Gaps: runs of missing entries in the middle of a log.

There are 10^20 possible positions, so readers do not try them one by one: they find gaps from the names of the files. A
short gap is a loss, and each of its entries can be fenced off. Files beyond a long gap (more than `GAP_MAX` entries)
are not part of the log: no reader reads them, and no writer continues the log until they are gone.
"""

from bisect import bisect_left

import msgspec

from strobe.storage.entries.log_file import entry_name, entry_position
from strobe.storage.files.backend import StorageBackend
from strobe.storage.files.layout import CHECKPOINTS, LOG

GAP_MAX = 1000


class Gap(msgspec.Struct, frozen=True):
    """Entries `first` .. `end` - 1 are missing, though there is a file for entry `end`."""

    first: int
    end: int

    @property
    def is_long(self) -> bool:
        """Whether the files beyond the gap are outside the log."""
        return self.end - self.first > GAP_MAX

    @property
    def is_beginning(self) -> bool:
        """Whether the log has lost its beginning. Then no file is known to be outside the log, or to be in it."""
        return self.first == 0

    @property
    def missing(self) -> str:
        """The missing entries, as a phrase that follows the name of the first one."""
        if self.end == self.first + 1:
            return "is missing"
        return f"entries {self.first:,} to {self.end - 1:,} are missing"

    @property
    def problem(self) -> str:
        """What is wrong, and what to do."""
        if not self.is_long or self.is_beginning:
            return self.loss
        return (
            f"{self.missing}, though {entry_name(self.end)} exists; restore them from a copy of the store, or, if that "
            f"file is no part of this log, move it aside: `strobe store repair STORE --set-aside {self.end}`"
        )

    @property
    def loss(self) -> str:
        """What is wrong, if the entries are known to be lost."""
        if self.is_beginning:
            return (
                f"{self.missing}, though {entry_name(self.end)} exists: the beginning of the log, or the checkpoint "
                f"that stands for it, is lost; restore the directories {LOG} and {CHECKPOINTS} from a copy of the store"
            )
        them = "it" if self.end == self.first + 1 else "them"
        return f"{self.missing}, though later entries exist; restore {them} from a copy of the store"


def positions(backend: StorageBackend) -> list[int]:
    """Return the positions of the existing entries, in order, from the file names."""
    return [found for name in backend.names(LOG) if (found := entry_position(name)) is not None]


def gap_at(backend: StorageBackend, position: int) -> Gap | None:
    """Return the gap that begins at `position`, or None if that entry exists or the log ends before it.

    Entries may be created during the listing. So it is only a gap if its first entry is still missing afterwards.
    """
    names = backend.names(LOG)
    # Names have 20 digits, so they sort by position. Only names from `position` on are parsed.
    later = (entry_position(name) for name in names[bisect_left(names, f"{position:020d}") :])
    following = next((found for found in later if found is not None), None)
    if following in (None, position) or backend.size(entry_name(position)) is not None:
        return None
    assert following is not None
    return Gap(position, following)


def near(listed: list[int], start: int) -> list[int]:
    """Return the positions from `start` up to the first long gap: the entries that are part of the log."""
    found: list[int] = []
    before = start - 1
    for position in listed[bisect_left(listed, start) :]:
        if Gap(before + 1, position).is_long:
            break
        found.append(position)
        before = position
    return found
