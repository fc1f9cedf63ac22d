"""Checksummed files: one line of JSON whose first member is the checksum of the whole file (S2).

    {"blake3":"<64 hexadecimal digits>", ... }\\n

The checksum is the BLAKE3 of all bytes of the file with those 64 digits replaced by zeros. It covers every byte, and
the file is still plain JSON. The header of the store and the log entries have this form.
"""

from blake3 import blake3

from strobe.errors import StoreCorrupt

DIGITS = 64
UNSEALED = "0" * DIGITS
"""The value of the member `blake3` while the checksum is computed."""

_START = b'{"blake3":"'
_DIGITS_END = len(_START) + DIGITS
_ZEROED = _START + UNSEALED.encode()


def seal(document: bytes) -> tuple[bytes, str]:
    """Return `document` with its checksum in place of the zeros, and the checksum."""
    assert document.startswith(_ZEROED), "the member blake3 comes first, and is UNSEALED"
    checksum = blake3(document).hexdigest()
    return b"".join((_START, checksum.encode(), document[_DIGITS_END:])), checksum


def stated_checksum(raw: bytes) -> str:
    """Return the checksum stored in the file, without checking it."""
    return raw[len(_START) : _DIGITS_END].decode("ascii", "replace")


def check_seal(raw: bytes, url: str, place: str) -> str:
    """Return the checksum of the file `place`; raise StoreCorrupt if it does not match the bytes."""
    if not raw:
        raise StoreCorrupt(url, place, "is empty; restore it from a copy of the store")
    if not raw.startswith(_START) or len(raw) <= _DIGITS_END:
        raise StoreCorrupt(
            url,
            place,
            "does not begin with a checksum: it was overwritten or cut short; restore it from a copy of the store",
        )
    checksum = blake3(_ZEROED).update(memoryview(raw)[_DIGITS_END:]).hexdigest()
    if raw[len(_START) : _DIGITS_END] != checksum.encode():
        cut = "" if raw.endswith(b"}\n") else " (its end is missing)"
        raise StoreCorrupt(url, place, f"its bytes do not match its checksum{cut}; restore it from a copy of the store")
    return checksum
