"""A keyed state as it was at a freeze, on its way to the store: written once, in slices that hold nobody up (E4)."""

from collections.abc import Iterator
from itertools import islice
from math import ceil
from types import TracebackType

from strobe.errors import UsageError
from strobe.keyed_state.entries import SHARDS, Entries
from strobe.keyed_state.segments import BASE, DELTA, Key, pack_header, pack_part
from strobe.keyed_state.values import Stored

SLICE_BYTES = 256 << 10
SLICE_KEYS = 4096
"""A slice has about so many bytes, or ends when so many keys were looked at."""
_SHARE_MAX = 1.25
"""It may have so many times as much before it is divided, which takes time, too."""
_MALLOC_BYTES = 24 << 20
_SHARD_KEYS = 8
"""A shard costs as much as so many keys, also where there are none in it."""


class Frozen:
    """What `KeyedState.freeze` returns. Later writes never show up in it.

    It belongs to the thread of its state; the slices may go to another. While it is open, the first change of each key
    costs a little time and memory; that ends with the last slice, with `close`, or when it is dropped.
    """

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._view = entries.freeze()
        self._begun = False
        self._closed = False
        # What an entry comes to, by the last ones.
        self._entry_bytes = SLICE_BYTES

    @property
    def number(self) -> int:
        """By this number, a later one can be told to write only what changed since."""
        return self._view.number

    def can_delta(self, since: int) -> bool:
        """Tell whether the changes since the earlier freeze of number `since` are known."""
        return self._view.known_since <= since < self._view.number

    def slices(self, since: int | None = None) -> Iterator[bytes]:
        """Yield a segment in slices: of all entries, or a delta of what was changed and deleted since freeze `since`.

        Each takes about as long to make as its bytes to copy. One may be empty: it has looked at many keys and found
        nothing changed. With the last one this is closed.
        """
        if since is not None and not self.can_delta(since):
            raise UsageError(f"the changes from freeze {since} to freeze {self.number} are not known; write everything")
        if self._begun or self._closed:
            raise UsageError(f"freeze {self.number} was written or closed already; freeze again")
        self._begun = True
        return self._slices(since)

    def close(self) -> None:
        """Let go of it. What was not written by now is lost."""
        self._closed = True
        self._entries.release(self._view)

    def __enter__(self) -> "Frozen":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Not `close`: this may run in another thread, in the middle of a write that goes through the list of views.
        self._view.pass_all()

    def _slices(self, since: int | None) -> Iterator[bytes]:
        # The C library learns from a large block that is freed to keep blocks of such sizes for the next time. Else it
        # would return the memory of every slice to the system, and have it cleared again for the next one.
        bytes(_MALLOC_BYTES)
        pieces = [pack_header(BASE if since is None else DELTA)]
        looked_through = self._entries.shards if since is None else self._entries.changed
        size = looked_at = 0
        for index in range(SHARDS):
            if self._closed:
                raise UsageError(f"freeze {self.number} was closed while it was written")
            looked_here = _SHARD_KEYS + len(looked_through[index])
            for part in self._take(index, since):
                if size and size + len(part) * self._entry_bytes > _SHARE_MAX * SLICE_BYTES:
                    yield b"".join(pieces)
                    pieces, size, looked_at = [], 0, 0
                length, body = pack_part(part)
                pieces += (length, body)
                size += len(body)
                if isinstance(part, dict):  # keys that are gone say nothing of entries
                    self._entry_bytes = len(body) // len(part)
            looked_at += looked_here
            if looked_at >= SLICE_KEYS:
                yield b"".join(pieces)
                pieces, size, looked_at = [], 0, 0
        self.close()
        yield b"".join(pieces)

    def _take(self, index: int, since: int | None) -> Iterator[dict[Key, Stored] | list[Key]]:
        """Yield the parts of one shard, which is not looked at again: one, or several where it has too much for one."""
        entries, view = self._entries, self._view
        gone: list[Key] = []
        if since is None:
            found = view.entries(entries.shards[index], index)
        else:
            found, gone = view.changes(entries.shards[index], entries.changed[index], index, since)
        view.pass_shard(index)
        entries.drop_stale(index)
        yield from self._divided(found)
        if gone:
            yield gone

    def _divided(self, found: dict[Key, Stored]) -> Iterator[dict[Key, Stored]]:
        """Yield the entries of a shard in parts of about equal length that a slice has room for."""
        items, left = iter(found.items()), len(found)
        while left:
            share = left * self._entry_bytes / SLICE_BYTES
            count = left if share <= _SHARE_MAX else ceil(left / ceil(share))
            yield found if count == len(found) else dict(islice(items, count))
            left -= count
