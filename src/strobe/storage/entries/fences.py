"""Entries that nobody can read, and that somebody has decided to do without (`strobe store repair`).

A log is append-only, so an entry that is damaged, missing or refused stays what it is. A `fence` that is appended later
says that the entry has no effect. Only then do readers go on past it. A valid entry can never be fenced off: what a log
has said once, it says for ever.
"""

from typing import TypeVar

from blake3 import blake3

from strobe.errors import StoreCorrupt, StoreError, StoreFormatError
from strobe.protocol.values.log_entries import Fence
from strobe.storage.entries.gaps import Gap, near, positions
from strobe.storage.entries.log_file import decode_entry, entry_name
from strobe.storage.files.backend import StorageBackend

WAY_OUT = "`strobe store repair STORE` shows what can be done"
_FENCE = b'"entry":{"type":"fence",'

Error = TypeVar("Error", bound=StoreError)


def found_bytes(raw: bytes | None) -> str:
    """Return what a fence says of the bytes that were found."""
    return "" if raw is None else blake3(raw).hexdigest()


def with_way_out(error: Error) -> Error:
    """Return `error` with what to do about an entry that cannot be read."""
    if WAY_OUT not in error.problem:
        error.problem = f"{error.problem}; {WAY_OUT}"
    return error


class Fences:
    """The fences of a log, looked for only when an entry is no good."""

    def __init__(self, backend: StorageBackend) -> None:
        self._backend = backend
        self._known: set[tuple[int, str]] = set()
        self._searched = 0

    def covers(self, position: int, raw: bytes | None) -> bool:
        """Tell whether the bytes found at `position` were fenced off by a later entry."""
        wanted = position, found_bytes(raw)
        if wanted not in self._known:
            self._search(position + 1)
        return wanted in self._known

    def uncovered(self, gap: Gap) -> list[Gap]:
        """Return what of a run of missing entries nobody has fenced off, as runs; of a long one, all of it."""
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
        """Look at every entry from `start` on; each by itself, for there may be others that are no good."""
        if start <= self._searched and self._backend.size(entry_name(self._searched)) is None:
            return  # a fence comes at the end of the log, and that has no more entries than before
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
