"""How a value is stored: an immutable value as it is, any other value encoded (E4).

Stored as they are: str, bytes, int, float, bool and None. Everything else is encoded on write and decoded on each read,
so changing it in place has no effect. This includes frozen structs: only encoding one proves that it is immutable all
the way down and that a snapshot can hold it. Python's garbage collector tracks neither form, so it never blocks the
process to visit millions of entries.
"""

from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from strobe.encodable import UNENCODABLE, refusal
from strobe.errors import UsageError
from strobe.keyed_state.segments import Key
from strobe.known_fields import finder_of, require_known

Stored = str | bytes | int | float | bool | None | msgspec.Raw

_KEPT = frozenset((str, bytes, int, float, bool, NoneType))
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1

_encode = msgspec.msgpack.Encoder().encode


class Values:
    """How values of one type are stored.

    `kept` are the types that are stored as they are. Only types that `value_type` allows are kept, so that a value
    reads the same before and after a restore.
    """

    def __init__(self, value_type: Any) -> None:
        self.value_type = value_type
        self.kept = _KEPT if value_type is Any else _KEPT & {*_members(value_type)}
        self.unchecked = self.kept & {bytes, float, bool, NoneType}
        """The kept types whose values can all be encoded."""
        try:
            self.decode = msgspec.msgpack.Decoder(value_type).decode
            self._has_fields = finder_of(value_type) is not None
        except TypeError as error:
            raise UsageError(f"a keyed state cannot have values of the type {value_type}: {error}") from error

    def store(self, key: Key, value: Any) -> Stored:
        """Return the stored form of `value`; raise UsageError if a snapshot could not hold it."""
        kind = type(value)
        if kind in self.kept:
            if kind is int and not _INT_MIN <= value <= _INT_MAX:
                raise UsageError(f"key {key!r}: {value} does not fit into 64 bits; keep large numbers as text")
            if kind is str and not value.isascii():
                check_text(value, f"the value of key {key!r}")
            return value  # type: ignore[no-any-return]
        try:
            stored = msgspec.Raw(_encode(value))
            if (self.value_type is not Any and kind is not self.value_type) or kind is msgspec.Raw:
                self.decode(stored)
        except UNENCODABLE as error:
            if not isinstance(error, msgspec.ValidationError) and kind is not msgspec.Raw:
                raise refusal(f"key {key!r}: a {kind.__name__}", value, error) from error
            expected = getattr(self.value_type, "__name__", self.value_type)
            raise UsageError(f"key {key!r}: a {kind.__name__} cannot be kept as {expected}: {error}") from error
        return stored

    def admit(self, raw: msgspec.Raw) -> Stored:
        """Return the stored form of a value from a segment, without keeping a reference to the segment's bytes."""
        if self.value_type is Any and _is_container(memoryview(raw)[0]):
            return raw.copy()
        value = self.decode(raw)  # even if only the bytes are kept: bytes of another version are rejected here (E9)
        if self._has_fields:
            require_known(raw, self.value_type)
        return value if type(value) in self.kept else raw.copy()


def check_key(key: Any) -> None:
    """Raise UsageError if `key` is not a valid key."""
    if type(key) is str:
        check_text(key, "a key")
    elif type(key) is int:
        if not _INT_MIN <= key <= _INT_MAX:
            raise UsageError(f"the key {key} does not fit into 64 bits; use its text")
    elif type(key) is not bytes:
        raise UsageError(f"{key!r} is a {type(key).__name__}; the keys of a keyed state are str, int or bytes")


def check_text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} is text that UTF-8 cannot hold: {error}; use bytes") from error


def _members(value_type: Any) -> tuple[Any, ...]:
    return get_args(value_type) if get_origin(value_type) in (Union, UnionType) else (value_type,)


def _is_container(code: int) -> bool:
    """Return whether a MessagePack value with this first byte is an array, a map or an extension."""
    return 0x80 <= code <= 0x9F or 0xDC <= code <= 0xDF or 0xC7 <= code <= 0xC9 or 0xD4 <= code <= 0xD8
