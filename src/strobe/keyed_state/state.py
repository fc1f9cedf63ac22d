"""`KeyedState`: a mapping for process state that is too large to copy (E4, E5)."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import islice
from typing import Any, TypeVar, overload

import msgspec

from strobe.errors import UNREADABLE, UsageError
from strobe.keyed_state import segments as seg
from strobe.keyed_state.entries import Entries, shard_of
from strobe.keyed_state.frozen import Frozen
from strobe.keyed_state.segments import Key, Segment
from strobe.keyed_state.values import Stored, Values, check_key

V = TypeVar("V")


class KeyedState(MutableMapping[Any, V]):
    """A mapping that freezes at a cut in constant time, however large it is. Keys are str, int or bytes.

    Values are of `value_type`, or anything that msgspec encodes. Immutable values (str, bytes, numbers, None) are kept
    as they are. Everything else is encoded when it is set, and each read decodes a new copy. Changing a value in place
    therefore has no effect, neither here nor in a snapshot. Set it again:

        account = accounts["ada"]
        account.balance += 5
        accounts["ada"] = account

    Without a `value_type`, a struct is read back as a dict and a tuple as a list.

    Iteration is in key order, the same in every run and after every restore. It sorts the keys first, which takes
    seconds for millions of keys. A `KeyedState` must be used in one thread.
    """

    @overload
    def __init__(self, value_type: type[V]) -> None: ...
    @overload
    def __init__(self, value_type: Any = Any) -> None: ...
    def __init__(self, value_type: Any = Any) -> None:
        self._values = Values(value_type)
        self._entries = Entries()
        self._unchecked = self._values.unchecked

    @classmethod
    def from_segments(cls, segments: Sequence[Segment], value_type: Any = Any) -> "KeyedState[Any]":
        """Return the state written as a base and deltas; raise ValueError if a segment is damaged."""
        state = cls(value_type)
        for number, segment in enumerate(segments):
            for part in seg.read_parts(segment, seg.DELTA if number else seg.BASE):
                if seg.is_deletions(part):
                    state._drop(seg.read_deletions(part))
                else:
                    state._load(seg.read_entries(part))
        return state

    @property
    def value_type(self) -> Any:
        return self._values.value_type

    def freeze(self) -> Frozen:
        """Return a frozen copy of the current state. Several may be open at once."""
        return Frozen(self._entries)

    def forget_changes(self, before: int) -> None:
        """Discard the changes needed for deltas from freezes before this one."""
        self._entries.forget(before)

    def encode(self) -> bytes:
        """Return everything as one base segment, the same bytes for the same entries. This blocks until it is done."""
        pieces = [seg.pack_header(seg.BASE)]
        keys = iter(self)
        while some := {key: self._stored(key) for key in islice(keys, seg.PART_KEYS_MAX)}:
            pieces += seg.pack_part(some)
        return b"".join(pieces)

    def __getitem__(self, key: Any) -> V:
        stored = self._entries.shards[shard_of(key)][key]
        return self._values.decode(stored) if type(stored) is msgspec.Raw else stored  # type: ignore[return-value]

    def __setitem__(self, key: Any, value: V) -> None:
        if type(key) is not str or not key.isascii():
            check_key(key)
        stored: Any = value if type(value) in self._unchecked else self._values.store(key, value)
        self._entries.put(key, stored)

    def __delitem__(self, key: Any) -> None:
        self._entries.remove(key)

    def __contains__(self, key: object) -> bool:
        return key in self._entries.shards[shard_of(key)]  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        keys = [key for shard in self._entries.shards if shard for key in shard]
        try:
            keys.sort()
        except TypeError:  # keys of several types
            keys.sort(key=lambda key: (type(key).__name__, key))
        return iter(keys)

    def __len__(self) -> int:
        return sum(map(len, self._entries.shards))

    def __bool__(self) -> bool:
        return any(self._entries.shards)

    def clear(self) -> None:
        for key in self:
            self._entries.remove(key)

    def __repr__(self) -> str:
        return f"<KeyedState of {len(self)} entries>"

    def _stored(self, key: Key) -> Stored:
        return self._entries.shards[shard_of(key)][key]

    def _load(self, entries: Mapping[Key, msgspec.Raw]) -> None:
        admit, shards = self._values.admit, self._entries.shards
        try:
            for key, raw in entries.items():
                shards[shard_of(key)][key] = admit(raw)
        except UNREADABLE as error:
            raise UsageError(
                f"the value of key {key!r} is no {self.value_type}: {error}. It was written by another version of the"
                " process"
            ) from error

    def _drop(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._entries.shards[shard_of(key)].pop(key, None)
