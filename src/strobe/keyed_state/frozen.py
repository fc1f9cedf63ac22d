"""Writes a frozen keyed state once, in slices short enough not to block the event loop (E4)."""

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
"""A slice has about SLICE_BYTES bytes, or ends after SLICE_KEYS keys were examined."""
_SHARE_MAX = 1.25
"""A slice may exceed SLICE_BYTES by this factor before it is split, because splitting takes time too."""
_MALLOC_BYTES = 24 << 20
_SHARD_KEYS = 8
"""Examining a shard, even an empty one, costs as much as this number of keys."""


class Frozen:
    """The result of `KeyedState.freeze`. It does not contain later writes.

    It must be used in the thread of its state; the slices may be passed to another thread. While it is open, the first
    change of each key costs a little time and memory. That ends with the last slice, with `close`, or when it is
    dropped.
    """

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._view = entries.freeze()
        self._begun = False
        self._closed = False
        # Estimated size of an entry, from the last part written.
        self._entry_bytes = SLICE_BYTES

    @property
    def number(self) -> int:
        """The number to pass as `since` to a later freeze for a delta."""
        return self._view.number

    def can_delta(self, since: int) -> bool:
        """Return whether the changes after the earlier freeze `since` are known."""
        return self._view.known_since <= since < self._view.number

    def slices(self, since: int | None = None) -> Iterator[bytes]:
        """Yield a segment in slices: all entries, or a delta of the changes and deletions after freeze `since`.

        Making a slice takes about as long as copying its bytes. A slice may be empty if many keys were examined and
        none had changed. The last slice closes this freeze.
        """
        if since is not None and not self.can_delta(since):
            raise UsageError(f"the changes from freeze {since} to freeze {self.number} are not known; write everything")
        if self._begun or self._closed:
            raise UsageError(f"freeze {self.number} was written or closed already; freeze again")
        self._begun = True
        return self._slices(since)

    def close(self) -> None:
        """Release the freeze. Parts that were not written yet are lost."""
        self._closed = True
        self._entries.release(self._view)

    def __enter__(self) -> "Frozen":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Not `close`: this may run in another thread while a write iterates over the list of views.
        self._view.finish_all()

    def _slices(self, since: int | None) -> Iterator[bytes]:
        # Freeing one large block makes malloc keep blocks of such sizes for reuse. Otherwise it would return the memory
        # of every slice to the system, which would clear it again for the next slice.
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
                if isinstance(part, dict):  # deleted keys do not show the size of an entry
                    self._entry_bytes = len(body) // len(part)
            looked_at += looked_here
            if looked_at >= SLICE_KEYS:
                yield b"".join(pieces)
                pieces, size, looked_at = [], 0, 0
        self.close()
        yield b"".join(pieces)

    def _take(self, index: int, since: int | None) -> Iterator[dict[Key, Stored] | list[Key]]:
        """Yield the parts of one shard: one part, or several if it is too large. The shard is not read again."""
        entries, view = self._entries, self._view
        gone: list[Key] = []
        if since is None:
            found = view.entries(entries.shards[index], index)
        else:
            found, gone = view.changes(entries.shards[index], entries.changed[index], index, since)
        view.finish_shard(index)
        entries.drop_stale(index)
        yield from self._divided(found)
        if gone:
            yield gone

    def _divided(self, found: dict[Key, Stored]) -> Iterator[dict[Key, Stored]]:
        """Split the entries of a shard into parts of about equal length that fit into a slice."""
        items, left = iter(found.items()), len(found)
        while left:
            share = left * self._entry_bytes / SLICE_BYTES
            count = left if share <= _SHARE_MAX else ceil(left / ceil(share))
            yield found if count == len(found) else dict(islice(items, count))
            left -= count
