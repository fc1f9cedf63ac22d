"""Fences: mark unreadable log entries as skipped (`strobe store repair`).

A log is append-only, so an entry that is damaged, missing or refused cannot be replaced. A `fence` appended later
declares that the entry has no effect. Only then do readers continue past it. A valid entry can never be fenced off,
because its effect is permanent.
"""

from typing import TypeVar

from blake3 import blake3

from strobe.errors import StoreCorrupt, StoreError, StoreFormatError
from strobe.protocol.values.log_entries import Fence
from strobe.storage.entries.gaps import Gap, near, positions
from strobe.storage.entries.log_file import decode_entry, entry_name
from strobe.storage.files.backend import StorageBackend

REMEDY = "`strobe store repair STORE` shows what can be done"
_FENCE = b'"entry":{"type":"fence",'

Error = TypeVar("Error", bound=StoreError)


def found_bytes(raw: bytes | None) -> str:
    """Return the value that a fence records for the bytes found: their hash, or empty for a missing file."""
    return "" if raw is None else blake3(raw).hexdigest()


def with_remedy(error: Error) -> Error:
    """Return `error` with a hint on how to repair an unreadable entry."""
    if REMEDY not in error.problem:
        error.problem = f"{error.problem}; {REMEDY}"
    return error


class Fences:
    """The fences of a log, searched only when an entry is unreadable."""

    def __init__(self, backend: StorageBackend) -> None:
        self._backend = backend
        self._known: set[tuple[int, str]] = set()
        self._searched = 0

    def covers(self, position: int, raw: bytes | None) -> bool:
        """Return whether a later entry fences off the bytes found at `position`."""
        wanted = position, found_bytes(raw)
        if wanted not in self._known:
            self._search(position + 1)
        return wanted in self._known

    def uncovered(self, gap: Gap) -> list[Gap]:
        """Return the parts of a gap that are not fenced off; a long gap is returned whole."""
        if gap.is_long:
            return [gap]
        self._search(gap.end)
        runs: list[Gap] = []
        for position in range(gap.first, gap.end):
            if (position, "") in self._known:
                continue
            first = runs.pop().first if runs and runs[-1].end == position else position
            runs.append(Gap(first, position + 1))
        return runs

    def _search(self, start: int) -> None:
        """Read every entry from `start` on. Each is decoded on its own, because others may be unreadable too."""
        if start <= self._searched and self._backend.size(entry_name(self._searched)) is None:
            return  # fences are appended at the end, and the log has not grown
        self._searched = max(start, self._searched)
        for position in near(positions(self._backend), self._searched):
            fence = _fence_at(self._backend, position)
            if fence is not None and fence.position < position:
                self._known.add((fence.position, fence.blake3))
            self._searched = position + 1


def _fence_at(backend: StorageBackend, position: int) -> Fence | None:
    try:
        raw = backend.read(entry_name(position))
        if raw is None or _FENCE not in raw[:400]:
            return None
        entry = decode_entry(raw, backend.url, position, None).entry
    except (StoreCorrupt, StoreFormatError):
        return None
    return entry if isinstance(entry, Fence) else None
