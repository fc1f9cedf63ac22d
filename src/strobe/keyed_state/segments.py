"""The format of segments: a base has all entries of a keyed state, a delta the changes since an earlier segment.

A segment is a sequence of MessagePack values, so that it is readable without Strobe (docs/format.md). Before each value
is its length in bytes, as a MessagePack integer that always takes five bytes, so a reader can skip a value without
decoding it. The first value is the header, ["strobe-keyed", 1, "base" or "delta"]. Each further value is a part: a map
of entries to set, or an array of keys to delete. No key occurs twice in a segment.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from strobe.errors import UNREADABLE, UsageError

Key = str | int | bytes
Segment = bytes | memoryview

FORMAT = "strobe-keyed"
VERSION = 1
BASE, DELTA = "base", "delta"

PART_KEYS_MAX = 4096
"""Maximum for a part with sorted keys. If entries are written shard by shard, a part is a shard or a piece of one."""

_LENGTH = struct.Struct(">BI")
_UINT32 = 0xCE
_LENGTH_MAX = (1 << 32) - 1

_encode = msgspec.msgpack.Encoder().encode
_header = msgspec.msgpack.Decoder(tuple[str, int, str])
_entries = msgspec.msgpack.Decoder(dict[Any, msgspec.Raw])
_keys = msgspec.msgpack.Decoder(list[Any])


def pack_header(kind: str) -> bytes:
    """Return the header of a segment."""
    return b"".join(pack_part((FORMAT, VERSION, kind)))


def pack_part(part: Mapping[Key, Any] | Sequence[Any]) -> tuple[bytes, bytes]:
    """Return the length of a part and the part: entries to set, or keys to delete, which need not exist."""
    body = _encode(part)
    if len(body) > _LENGTH_MAX:
        raise UsageError(f"a part of a keyed state has {len(body)} bytes; store values of gigabytes in files")
    return _LENGTH.pack(_UINT32, len(body)), body


def read_parts(segment: Segment, kind: str) -> Iterator[memoryview]:
    """Yield the parts of `segment`, as views into it; raise ValueError if it is not a whole segment of this kind."""
    values = _values(memoryview(segment))
    try:
        header = _header.decode(next(values, b""))
    except UNREADABLE as error:
        raise ValueError(f"it does not begin as a segment of a keyed state: {error}") from error
    if header != (FORMAT, VERSION, kind):
        raise ValueError(f"it begins as {header}, and {(FORMAT, VERSION, kind)} was expected")
    yield from values


def is_deletions(part: memoryview) -> bool:
    """Return whether a part is an array of keys, not a map of entries."""
    return part[0] & 0xF0 == 0x90 or part[0] in (0xDC, 0xDD)


def read_entries(part: memoryview) -> dict[Key, msgspec.Raw]:
    """Return the entries of a part; their values are views into it."""
    entries: dict[Key, msgspec.Raw] = _decode(_entries, part)
    _check_keys(entries)
    return entries


def read_deletions(part: memoryview) -> dict[Key, None]:
    """Return the keys that a part deletes."""
    keys: list[Key] = _decode(_keys, part)
    _check_keys(keys)
    return dict.fromkeys(keys)


def merged_entries(segments: Sequence[Segment]) -> Iterator[tuple[Key, msgspec.Raw]]:
    """Yield each key once, with its value in MessagePack, after applying the deltas to the base in their order.

    Memory grows with the deltas, not with the base. Raises ValueError if a segment is damaged.
    """
    for entries in merged_parts(segments):
        yield from entries.items()


def merged_parts(segments: Sequence[Segment]) -> Iterator[dict[Key, msgspec.Raw]]:
    """Yield the same as `merged_entries`, part by part."""
    settled: dict[Key, None] = {}
    for number in reversed(range(len(segments))):
        # The newest segment wins. Within a segment a key occurs once.
        for part in read_parts(segments[number], DELTA if number else BASE):
            if is_deletions(part):
                settled.update(read_deletions(part))
                continue
            entries = read_entries(part)
            yield {key: value for key, value in entries.items() if key not in settled} if settled else entries
            if number:
                settled.update(dict.fromkeys(entries))


def _values(rest: memoryview) -> Iterator[memoryview]:
    offset, end = 0, len(rest)
    while offset < end:
        if offset + _LENGTH.size > end:
            raise ValueError("it ends in the middle of a length")
        code, length = _LENGTH.unpack_from(rest, offset)
        offset += _LENGTH.size
        if code != _UINT32 or not 0 < length <= end - offset:
            raise ValueError(f"at byte {offset - _LENGTH.size}, a length is missing")
        yield rest[offset : offset + length]
        offset += length


def _decode(decoder: "msgspec.msgpack.Decoder[Any]", part: memoryview) -> Any:
    try:
        return decoder.decode(part)
    except (*UNREADABLE, TypeError) as error:
        raise ValueError(f"a part of it cannot be read: {error}") from error


def _check_keys(keys: Iterable[Key]) -> None:
    strange = set(map(type, keys)) - {str, int, bytes}
    if strange:
        raise ValueError(f"a key is of the type {strange.pop().__name__}; keys are str, int or bytes")
