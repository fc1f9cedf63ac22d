"""The file format of an ingress log (R2). Integers are little-endian.

    header   16 bytes "strobe-ingress-1", then the end of the durable part: u64, and u64 xxh3-64 of that; 32 bytes in
    all
    record   u32 length, u64 xxh3-64 of (u64 offset of the record, payload), payload: one MessagePack value

The offset in the checksum distinguishes a record from stale data that an earlier file left on the disk.
"""

import os
import struct
from collections.abc import Iterator

import xxhash

MAGIC = b"strobe-ingress-1"
RECORD_BYTES_MAX = 64 << 20

_MARK = struct.Struct("<QQ")
_RECORD = struct.Struct("<IQ")
_OFFSET = struct.Struct("<Q")
_CHUNK_BYTES = 256 << 10

BEGIN = len(MAGIC) + _MARK.size
"""The offset of the first record."""


def records(file: int, offset: int, limit: int) -> Iterator[tuple[bytes, int]]:
    """Yield (payload, end offset) of the records from `offset`, up to the first incomplete one."""
    buffer, begin = b"", offset
    while True:
        length = _whole_length(buffer, offset - begin)
        if length is None:
            wanted = max(_CHUNK_BYTES, _announced(buffer, offset - begin))
            buffer, begin = os.pread(file, min(wanted, limit - offset), offset), offset
            length = _whole_length(buffer, 0)
            if length is None:
                return
        place = offset - begin
        _, checksum = _RECORD.unpack_from(buffer, place)
        payload = buffer[place + _RECORD.size : place + _RECORD.size + length]
        if _checksum(offset, payload) != checksum:
            return
        offset += _RECORD.size + length
        yield payload, offset


def _announced(buffer: bytes, place: int) -> int:
    """Return the length of the record at `place`, as far as it is known yet."""
    if len(buffer) < place + _RECORD.size:
        return 0
    return min(_RECORD.size + int(_RECORD.unpack_from(buffer, place)[0]), _RECORD.size + RECORD_BYTES_MAX)


def _whole_length(buffer: bytes, place: int) -> int | None:
    """Return the length of the payload at `place`, if all of it is in `buffer`."""
    if len(buffer) < place + _RECORD.size:
        return None
    length = int(_RECORD.unpack_from(buffer, place)[0])
    return length if 0 < length <= len(buffer) - place - _RECORD.size else None


def framed(offset: int, payload: bytes) -> bytes:
    """Return `payload` as the record at `offset`."""
    return _RECORD.pack(len(payload), _checksum(offset, payload)) + payload


def _checksum(offset: int, payload: bytes) -> int:
    return xxhash.xxh3_64_intdigest(_OFFSET.pack(offset) + payload)


def marked(durable: int) -> bytes:
    """Return the header field with the end of the durable part."""
    return _MARK.pack(durable, xxhash.xxh3_64_intdigest(_OFFSET.pack(durable)))


def read_mark(file: int) -> int | None:
    """Return the end of the durable part, or None if the field is half written."""
    durable, checksum = _MARK.unpack(os.pread(file, _MARK.size, len(MAGIC)))
    return int(durable) if xxhash.xxh3_64_intdigest(_OFFSET.pack(durable)) == checksum else None


def write_mark(file: int, durable: int) -> None:
    """Allow readers to read up to `durable`."""
    # Not synced: after a power cut it may be behind the data on the disk, never ahead.
    write_all(file, marked(durable), len(MAGIC))


def write_all(file: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(file, rest, offset)
        rest, offset = rest[written:], offset + written
