"""The entries of a keyed state in shards, with copy-on-write for frozen views and change tracking for deltas.

Freezing only switches to a new generation. From then on, the first change of a key saves its old value for the frozen
view (copy-on-write per entry), so the cost of a write does not depend on the number of entries. The view is the current
entries overlaid with the saved values. After a view has passed a shard, no more old values are saved for it there.

For deltas, each changed key has the number of the generation that last changed it. There is no single large dict:
resizing it would block the process while it is copied. No dict of entries contains objects that Python's garbage
collector tracks, so the collector never traverses them.
"""

import itertools
from typing import Any

from strobe.keyed_state.segments import Key
from strobe.keyed_state.values import Stored

SHARDS = 4096
_MASK = SHARDS - 1

ABSENT: Any = object()
"""Saved for a key that had no entry."""

_NUMBERS_BITS = 40
_serials = itertools.count(1)

DELETIONS_KEPT_MIN = 64


def shard_of(key: Key) -> int:
    # An integer is its own hash, and all integer keys could end in the same bits.
    return (hash(key) if type(key) is not int else hash(str(key))) & _MASK


class FrozenView:
    """The entries at the end of generation `number`. It knows the changes after `known_since`, up to `number`."""

    __slots__ = ("_numbers", "_values", "known_since", "next_shard", "number")

    def __init__(self, number: int, known_since: int) -> None:
        self.number = number
        self.known_since = known_since
        self.next_shard = 0
        self._values: dict[int, dict[Key, Stored]] = {}
        self._numbers: dict[int, dict[Key, int]] = {}

    def save_old(self, index: int, key: Key, value: Stored, changed: int) -> None:
        """Save the value that `key` had at the freeze, unless it is saved already."""
        values = self._values.get(index)
        if values is None:
            values = self._values[index] = {}
            self._numbers[index] = {}
        if key not in values:
            values[key] = value
            self._numbers[index][key] = changed

    def entries(self, shard: dict[Key, Stored], index: int) -> dict[Key, Stored]:
        """Return all entries of a shard at the freeze."""
        # Copy even if no values were saved: the copy reads all entries from memory in one pass. Copying and then
        # encoding takes two thirds of the time of encoding the original.
        at_freeze = shard.copy()
        for key, value in self._values.get(index, {}).items():
            if value is ABSENT:
                at_freeze.pop(key, None)
            else:
                at_freeze[key] = value
        return at_freeze

    def changes(
        self, shard: dict[Key, Stored], changed: dict[Key, int], index: int, since: int
    ) -> tuple[dict[Key, Stored], list[Key]]:
        """Return the entries of a shard that were changed after freeze `since`, and the keys that were deleted."""
        values, numbers = self._values.get(index, {}), self._numbers.get(index, {})
        found = {key: shard.get(key, ABSENT) for key, at in changed.items() if at > since and key not in values}
        found.update((key, values[key]) for key, at in numbers.items() if at > since)
        gone = [key for key, value in found.items() if value is ABSENT]
        for key in gone:
            del found[key]
        return found, gone

    def finish_shard(self, index: int) -> None:
        """Record that this shard is not read again."""
        self.next_shard = index + 1
        self._values.pop(index, None)
        self._numbers.pop(index, None)

    def finish_all(self) -> None:
        """Record that no shard is read again. This may run in any thread, when it drops the last reference."""
        self.next_shard = SHARDS
        self._values.clear()
        self._numbers.clear()


class Entries:
    """All entries. Generation numbers are unique across instances, so a foreign number is simply unknown."""

    __slots__ = ("_first", "changed", "generation", "known_since", "shards", "views")

    def __init__(self) -> None:
        self._first = next(_serials) << _NUMBERS_BITS
        self.generation = self._first
        self.known_since = self._first
        self.shards: list[dict[Key, Stored]] = [{} for _ in range(SHARDS)]
        self.changed: list[dict[Key, int]] = [{} for _ in range(SHARDS)]
        self.views: list[FrozenView] = []

    @property
    def tracking(self) -> bool:
        """Whether there was a freeze; before the first one, no delta is possible."""
        return self.generation != self._first

    def put(self, key: Key, value: Stored) -> None:
        index = shard_of(key)
        shard = self.shards[index]
        if self.generation != self._first:
            self._note(index, shard, key)
        shard[key] = value

    def remove(self, key: Key) -> None:
        index = shard_of(key)
        shard = self.shards[index]
        if key not in shard:
            raise KeyError(key)
        if self.generation != self._first:
            self._note(index, shard, key)
            if len(self.changed[index]) > 2 * len(shard) + DELETIONS_KEPT_MIN:
                self._bound(index)
        del shard[key]

    def freeze(self) -> FrozenView:
        view = FrozenView(self.generation, self.known_since)
        self.views = [*(one for one in self.views if one.next_shard < SHARDS), view]
        self.generation += 1
        return view

    def release(self, view: FrozenView) -> None:
        """Save no more old values for `view`."""
        view.finish_all()
        if view in self.views:
            self.views.remove(view)

    def forget(self, before: int) -> None:
        """Declare that no delta will start from a freeze before this one."""
        self.known_since = max(self.known_since, min(before, self.generation - 1))

    def drop_stale(self, index: int) -> None:
        """Discard the changes of a shard that no delta can need any more."""
        changed = self.changed[index]
        if changed and not self._is_being_read(index):
            known_since = self.known_since
            fresh = {key: at for key, at in changed.items() if at > known_since}
            if len(fresh) < len(changed):
                self.changed[index] = fresh

    def _note(self, index: int, shard: dict[Key, Stored], key: Key) -> None:
        changed = self.changed[index]
        for view in self.views:
            if view.next_shard <= index:
                view.save_old(index, key, shard.get(key, ABSENT), changed.get(key, 0))
        changed[key] = self.generation

    def _bound(self, index: int) -> None:
        """Limit the memory for deleted keys in case no snapshot ever commits."""
        self.drop_stale(index)
        if len(self.changed[index]) > 2 * len(self.shards[index]) and not self._is_being_read(index):
            # There are more deletions than entries: writing everything costs about as much as a delta.
            self.known_since = self.generation
            self.changed[index] = {}

    def _is_being_read(self, index: int) -> bool:
        return any(view.next_shard <= index for view in self.views)
