"""From MessagePack to VARIANT (S3), without JSON in between, so that SQL can query values by field.

Spark's binary form of a variant is two byte strings. `metadata` has the names of all fields; `value` has the value, in
which objects refer to their fields by number. Integers, floats, text, byte strings and times keep their types. An
integer beyond 64 bits becomes a decimal. Keys of maps become text: an integer is printed in decimal.

A value that a variant cannot express stays as bytes: extension types, keys that are neither text nor numbers, two keys
with the same text, values that are larger or nested deeper than Spark allows, and malformed encodings.
"""

import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any

import msgspec
import pyarrow as pa

DEPTH_MAX = 200
"""Spark processes a variant recursively; deeper ones could overflow its stack."""
SIZE_MAX = (1 << 24) - 1
"""Spark refuses larger variants."""

_NULL, _TRUE, _FALSE = b"\x00", b"\x04", b"\x08"
_INT1, _INT2, _INT4, _INT8 = (struct.Struct(f"<B{kind}") for kind in "bhiq")
_DOUBLE = struct.Struct("<Bd")
_LENGTH = struct.Struct("<BI")
_SHORT_MAX = 63
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NO_NAMES = b"\x01\x00\x00"
_RECORD_FIELDS_MAX = 32
_METADATA_KEPT = 1024
_SMALL_INTEGERS = [_INT1.pack(12, value) for value in range(128)]

_decode = msgspec.msgpack.Decoder().decode

Variant = tuple[bytes, bytes]
"""`value` and `metadata`."""


class NoVariant(Exception):
    """A variant cannot express this value."""


def to_variant(data: bytes | memoryview) -> Variant | None:
    """Return one MessagePack value as a variant, or None if it is malformed or a variant cannot express it."""
    try:
        return variant_of(_decode(data))
    except (msgspec.MsgspecError, NoVariant, TypeError, ValueError, RecursionError):
        return None


def variant_of(value: Any) -> Variant:
    """Return a decoded value as a variant; raise NoVariant if there is none."""
    if type(value) is dict:
        record = _record(value)
        if record is not None:
            return record
        names: dict[str, int] = {}
        encoded = _object(value, names, 1)
        metadata = _known_metadata(tuple(names))
    elif type(value) is list:
        names = {}
        encoded = _array(value, names, 1)
        metadata = _known_metadata(tuple(names))
    else:
        encoded, metadata = _scalar(value), _NO_NAMES
    if len(encoded) > SIZE_MAX or len(metadata) > SIZE_MAX:
        raise NoVariant
    return encoded, metadata


def variant_array(kind: pa.DataType, variants: Sequence[Variant | None]) -> pa.Array:
    """Return variants in Spark's Arrow form: a struct of two columns, of the type `kind`."""
    mask = None
    if None in variants:
        mask = pa.array([variant is None for variant in variants])
        variants = [(b"", b"") if variant is None else variant for variant in variants]
    values, metadata = zip(*variants, strict=True) if variants else ((), ())
    columns = {"value": pa.array(values, pa.binary()), "metadata": pa.array(metadata, pa.binary())}
    return pa.StructArray.from_arrays([columns[field.name] for field in kind], fields=list(kind), mask=mask)


def to_variants(values: Sequence[bytes], decoded: Sequence[Any] | None = None) -> list[Variant | None]:
    """Return each MessagePack value as a variant, or None; `decoded` values, if known, save time."""
    if decoded is None:
        return [to_variant(value) for value in values]
    variants: list[Variant | None] = []
    for value in decoded:
        try:
            variants.append(variant_of(value))
        except (NoVariant, TypeError, ValueError, RecursionError):
            variants.append(None)
    return variants


class _Plan:
    """The common part of all small records with the same names: the order of their fields, and their first bytes."""

    __slots__ = ("begin", "metadata", "names")

    def __init__(self, names: tuple[Any, ...]) -> None:
        self.names = sorted(names)
        count = len(names)
        self.begin = bytes((2, count, *range(count)))
        self.metadata = _metadata_of(tuple(self.names))


_plans: dict[tuple[Any, ...], _Plan | None] = {}


def _record(value: dict[Any, Any]) -> Variant | None:
    """Return a small flat record in one step, as most states and messages are. None if it is not one."""
    keys = tuple(value)
    plan = _plans.get(keys)
    if plan is None:
        plan = _plan(keys)
        if plan is None:
            return None
    encoded = []
    for name in plan.names:
        item = value[name]
        kind = type(item)
        if kind is dict or kind is list:
            return None
        encoded.append(_SMALL_INTEGERS[item] if kind is int and 0 <= item < 128 else _scalar(item))
    try:
        offsets = bytes(accumulate(map(len, encoded), initial=0))
    except ValueError:
        return None  # too large for one-byte offsets
    return b"".join((plan.begin, offsets, *encoded)), plan.metadata


def _plan(keys: tuple[Any, ...]) -> _Plan | None:
    if len(keys) > _RECORD_FIELDS_MAX or not all(type(key) is str and key.isascii() for key in keys):
        return None
    if len(_plans) >= _METADATA_KEPT:
        _plans.clear()
    plan = _plans[keys] = _Plan(keys)
    return plan


def _encode(value: Any, names: dict[str, int], depth: int) -> bytes:
    kind = type(value)
    if kind is dict:
        return _object(value, names, depth + 1)
    if kind is list:
        return _array(value, names, depth + 1)
    return _scalar(value)


def _scalar(value: Any) -> bytes:
    kind = type(value)
    if kind is int:
        return _SMALL_INTEGERS[value] if 0 <= value < 128 else _integer(value)
    if kind is str:
        text = value.encode()
        length = len(text)
        return bytes((1 | length << 2,)) + text if length <= _SHORT_MAX else _sized(16, text)
    if value is None:
        return _NULL
    if kind is bool:
        return _TRUE if value else _FALSE
    if kind is float:
        return _DOUBLE.pack(7 << 2, value)
    if kind is bytes:
        return _sized(15, value)
    if kind is datetime:
        return _INT8.pack(12 << 2, (value - _EPOCH) // _MICROSECOND)
    raise NoVariant


def _integer(value: int) -> bytes:
    if -0x80 <= value < 0x80:
        return _INT1.pack(3 << 2, value)
    if -0x8000 <= value < 0x8000:
        return _INT2.pack(4 << 2, value)
    if -0x80000000 <= value < 0x80000000:
        return _INT4.pack(5 << 2, value)
    if -(1 << 63) <= value < 1 << 63:
        return _INT8.pack(6 << 2, value)
    # A 16-byte decimal without fraction digits; it holds every MessagePack integer.
    return bytes((10 << 2, 0)) + value.to_bytes(16, "little", signed=True)


def _sized(kind: int, data: bytes) -> bytes:
    return _LENGTH.pack(kind << 2, len(data)) + data


def _object(value: dict[Any, Any], names: dict[str, int], depth: int) -> bytes:
    if depth > DEPTH_MAX:
        raise NoVariant
    fields = value if all(type(key) is str for key in value) else _printed(value)
    ids, encoded = [], []
    # Spark searches fields by bisection, in Java's order of strings.
    order = sorted(fields) if all(map(str.isascii, fields)) else sorted(fields, key=_java_order)
    for name in order:
        ids.append(names.setdefault(name, len(names)))
        encoded.append(_encode(fields[name], names, depth))
    return _composed(2, 6, ids, encoded)


def _array(value: list[Any], names: dict[str, int], depth: int) -> bytes:
    if depth > DEPTH_MAX:
        raise NoVariant
    return _composed(3, 4, None, [_encode(item, names, depth) for item in value])


def _composed(basic: int, large_bit: int, ids: list[int] | None, encoded: list[bytes]) -> bytes:
    """Return an object or an array: header, count, field numbers, offsets of the values, the values."""
    count = len(encoded)
    body = b"".join(encoded)
    offsets = [0]
    at = 0
    for one in encoded:
        at += len(one)
        offsets.append(at)
    large = count > 0xFF
    id_width = 1 if ids is None else _width(max(ids, default=0))
    offset_width = _width(at)
    header = basic | (offset_width - 1) << 2 | large << large_bit
    if ids is not None:
        header |= (id_width - 1) << 4
    head = bytes((header,)) + count.to_bytes(4 if large else 1, "little")
    return b"".join((head, _numbers(ids or (), id_width), _numbers(offsets, offset_width), body))


def _printed(value: dict[Any, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, item in value.items():
        if type(key) not in (str, int, float):
            raise NoVariant
        fields[str(key)] = item
    if len(fields) != len(value):
        raise NoVariant
    return fields


def _java_order(name: str) -> bytes:
    return name.encode("utf-16-be")


def _numbers(numbers: Sequence[int], width: int) -> bytes:
    return bytes(numbers) if width == 1 else b"".join(number.to_bytes(width, "little") for number in numbers)


def _width(largest: int) -> int:
    return 1 if largest <= 0xFF else 2 if largest <= 0xFFFF else 3 if largest <= 0xFFFFFF else 4


_metadata: dict[tuple[str, ...], bytes] = {(): _NO_NAMES}


def _known_metadata(names: tuple[str, ...]) -> bytes:
    """Return the metadata of these names, cached: most values of a system use a few sets of names."""
    known = _metadata.get(names)
    if known is None:
        if len(_metadata) >= _METADATA_KEPT:
            _metadata.clear()
        known = _metadata[names] = _metadata_of(names)
    return known


def _metadata_of(names: tuple[str, ...]) -> bytes:
    texts = [name.encode() for name in names]
    offsets = [0]
    for text in texts:
        offsets.append(offsets[-1] + len(text))
    width = _width(max(offsets[-1], len(texts)))
    head = bytes((1 | (width - 1) << 6,)) + len(texts).to_bytes(width, "little")
    return b"".join((head, _numbers(offsets, width), *texts))
