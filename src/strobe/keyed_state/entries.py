"""Entries in shards, when each was last changed, and what is needed to see them as they were at a freeze.

Freezing switches to a new generation and does nothing else. From then on, the first change of a key puts what was there
before aside for the frozen view (copy-on-write by the entry), so that a write costs the same however many entries there
are; the view is the entries with what was put aside laid over them. Once a view has passed a shard, nothing more is put
aside for it there.

For deltas, each changed key has the number of the generation that changed it last. Nothing here is one large dict:
growing one would stop the process for as long as it takes to copy it. And no dict of entries holds anything that the
garbage collector follows, so it never walks through them.
"""

import itertools
from typing import Any

from strobe.keyed_state.segments import Key
from strobe.keyed_state.values import Stored

SHARDS = 4096
_MASK = SHARDS - 1

ABSENT: Any = object()
"""Put aside where there was no entry."""

_NUMBERS_BITS = 40
_serials = itertools.count(1)

DELETIONS_KEPT_MIN = 64


def shard_of(key: Key) -> int:
    # Integers are their own hashes, and could all end in the same bits.
    return (hash(key) if type(key) is not int else hash(str(key))) & _MASK


class FrozenView:
    """The entries as they were when generation `number` ended. Changes since `known_since` and up to it are known."""

    __slots__ = ("_numbers", "_values", "known_since", "next_shard", "number")

    def __init__(self, number: int, known_since: int) -> None:
        self.number = number
        self.known_since = known_since
        self.next_shard = 0
        self._values: dict[int, dict[Key, Stored]] = {}
        self._numbers: dict[int, dict[Key, int]] = {}

    def put_aside(self, index: int, key: Key, value: Stored, changed: int) -> None:
        """Remember what `key` was at the freeze, unless it is known already."""
        values = self._values.get(index)
        if values is None:
            values = self._values[index] = {}
            self._numbers[index] = {}
        if key not in values:
            values[key] = value
            self._numbers[index][key] = changed

    def entries(self, shard: dict[Key, Stored], index: int) -> dict[Key, Stored]:
        """Return all entries of a shard as they were."""
        # A copy also where nothing was put aside: making it fetches all entries from memory in one go, which together
        # with encoding it takes two thirds of the time of encoding what has to be fetched one by one.
        as_it_was = shard.copy()
        for key, value in self._values.get(index, {}).items():
            if value is ABSENT:
                as_it_was.pop(key, None)
            else:
                as_it_was[key] = value
        return as_it_was

    def changes(
        self, shard: dict[Key, Stored], changed: dict[Key, int], index: int, since: int
    ) -> tuple[dict[Key, Stored], list[Key]]:
        """Return the entries of a shard that were changed since freeze `since`, and the keys deleted since."""
        values, numbers = self._values.get(index, {}), self._numbers.get(index, {})
        found = {key: shard.get(key, ABSENT) for key, at in changed.items() if at > since and key not in values}
        found.update((key, values[key]) for key, at in numbers.items() if at > since)
        gone = [key for key, value in found.items() if value is ABSENT]
        for key in gone:
            del found[key]
        return found, gone

    def pass_shard(self, index: int) -> None:
        """This shard is not looked at again."""
        self.next_shard = index + 1
        self._values.pop(index, None)
        self._numbers.pop(index, None)

    def pass_all(self) -> None:
        """Nothing is looked at again. This may come from any thread: it is where the last reference was dropped."""
        self.next_shard = SHARDS
        self._values.clear()
        self._numbers.clear()


class Entries:
    """All entries. Numbers of generations never occur in two of these: a number from elsewhere is just not known."""

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
        """Whether anything was ever frozen; before that, no delta can be asked for."""
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
        """Put nothing more aside for `view`."""
        view.pass_all()
        if view in self.views:
            self.views.remove(view)

    def forget(self, before: int) -> None:
        """Nobody will ask for changes since a freeze before this one."""
        self.known_since = max(self.known_since, min(before, self.generation - 1))

    def drop_stale(self, index: int) -> None:
        """Let go of changes in a shard that nobody can ask for any more."""
        changed = self.changed[index]
        if changed and not self._is_awaited(index):
            known_since = self.known_since
            fresh = {key: at for key, at in changed.items() if at > known_since}
            if len(fresh) < len(changed):
                self.changed[index] = fresh

    def _note(self, index: int, shard: dict[Key, Stored], key: Key) -> None:
        changed = self.changed[index]
        for view in self.views:
            if view.next_shard <= index:
                view.put_aside(index, key, shard.get(key, ABSENT), changed.get(key, 0))
        changed[key] = self.generation

    def _bound(self, index: int) -> None:
        """Keep the memory of deleted keys from growing where no snapshot ever commits."""
        self.drop_stale(index)
        if len(self.changed[index]) > 2 * len(self.shards[index]) and not self._is_awaited(index):
            # More is gone than is there: writing all of it again is about as good as a delta.
            self.known_since = self.generation
            self.changed[index] = {}

    def _is_awaited(self, index: int) -> bool:
        return any(view.next_shard <= index for view in self.views)
