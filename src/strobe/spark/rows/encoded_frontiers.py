"""Frontiers parsed from the bytes of a manifest, all at once, if their layout is that of an earlier manifest.

The frontiers of a process are one JSON object, in which only the counts and the hashes change from one snapshot to the
next:

    {"a->b":{"count":17,"hash":"0c1f..."},"a->c":{"count":3,"hash":"77b2..."}}

A `Layout` knows the names in their order. It finds the closing brackets, and then compares every other byte with the
expected one, so its result is that of a decoder. If anything differs, it returns None, and the caller decodes.
"""

from binascii import unhexlify
from collections.abc import Mapping, Sequence
from itertools import chain

import msgspec
import numpy as np
import numpy.typing as npt

from strobe.protocol.values.log_entries import FrontierRecord

Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_COUNT, _HASH = b':{"count":', b',"hash":"'
_OPEN, _CLOSE, _COMMA, _QUOTE, _ZERO = b'{},"0'
_DIGITS_MAX = 18
"""Any number of this many digits fits an int64."""


class Layout:
    """The layout of the frontiers of some processes, one part for each process."""

    def __init__(self, parts: Sequence[Mapping[str, FrontierRecord]]) -> None:
        prefixes = [msgspec.json.encode(name) + _COUNT for name in chain.from_iterable(parts)]
        self._lengths: Numbers = np.array([len(prefix) for prefix in prefixes], np.int64)
        self._longest = int(self._lengths.max(initial=0))
        padded = b"".join(prefix.ljust(self._longest, b"\0") for prefix in prefixes)
        self._prefixes: Bytes = np.frombuffer(padded, np.uint8).reshape(len(prefixes), self._longest)
        self._is_padding = np.arange(self._longest) >= self._lengths[:, None]
        # Each frontier has one closing bracket, and each part has one more.
        self._sizes = [len(part) for part in parts]
        sizes = np.array([size for size in self._sizes if size], np.int64)
        self._part_closes: Numbers = np.cumsum(sizes + 1) - 1
        self._closes: Numbers = np.delete(np.arange(len(prefixes) + len(sizes)), self._part_closes)
        self._first: Numbers = np.cumsum(sizes) - sizes
        self._after: Bytes = np.full(len(prefixes), _COMMA, np.uint8)
        self._after[self._first + sizes - 1] = _CLOSE

    def read(self, parts: Sequence[bytes]) -> tuple[Numbers, Bytes] | None:
        """Return the counts and the hashes, or None if `parts` do not have this layout."""
        if len(parts) != len(self._sizes) or not len(self._prefixes):
            return None
        if any(part != b"{}" for part, size in zip(parts, self._sizes, strict=True) if not size):
            return None
        full = [part for part, size in zip(parts, self._sizes, strict=True) if size]
        raw: Bytes = np.frombuffer(b"".join((*full, bytes(self._longest))), np.uint8)
        limits = np.cumsum([len(part) for part in full])
        closes = np.flatnonzero(raw == _CLOSE)
        if len(closes) != len(self._closes) + len(full) or (closes[self._part_closes] != limits - 1).any():
            return None
        begins = np.concatenate(([0], limits[:-1]))
        return self._take(raw, begins, closes[self._closes])

    def _take(self, raw: Bytes, begins: Numbers, ends: Numbers) -> tuple[Numbers, Bytes] | None:
        """Read the frontiers before `ends`, their closing brackets; `begins` are the opening brackets of the parts."""
        starts = np.empty_like(ends)
        starts[1:] = ends[:-1] + len(b"},")
        starts[self._first] = begins + len(b"{")
        counts = starts + self._lengths
        # All hashes must be as long as the first.
        hash_length = _length_of_string(raw[: ends[0] - len(b'"')].tobytes())
        if not hash_length:
            return None
        hashes = ends - len(b'"') - hash_length
        counts_end = hashes - len(_HASH)
        # A count of impossible length means a different name: stop before reading beyond it.
        if (counts_end <= counts).any() or (counts_end - counts > _DIGITS_MAX).any():
            return None
        written_so = (
            (raw[begins] == _OPEN).all()
            and (raw[ends + 1] == self._after).all()
            and ((_pieces(raw, starts, self._longest) == self._prefixes) | self._is_padding).all()
            and (_pieces(raw, counts_end, len(_HASH)) == np.frombuffer(_HASH, np.uint8)).all()
            and (raw[ends - 1] == _QUOTE).all()
        )
        numbers = _numbers(raw, counts, counts_end) if written_so else None
        if numbers is None:
            return None
        try:
            joined = unhexlify(_pieces(raw, hashes, hash_length).tobytes())
        except ValueError:
            return None
        return numbers, np.frombuffer(joined, np.uint8).reshape(len(ends), -1)


def _pieces(raw: Bytes, begins: Numbers, length: int) -> Bytes:
    """Return `length` bytes from each of `begins`, one row each, copied in pieces instead of byte by byte."""
    everywhere: npt.NDArray[np.void] = np.ndarray((len(raw) - length + 1,), f"V{length}", raw, strides=(1,))
    return everywhere[begins].view(np.uint8).reshape(len(begins), length)


def _length_of_string(text: bytes) -> int:
    """Return the length of the string at the end of `text`, which lacks its closing quotation mark."""
    return len(text) - 1 - text.rfind(b'"')


def _numbers(raw: Bytes, begins: Numbers, ends: Numbers) -> Numbers | None:
    """Return the whole numbers between `begins` and `ends`, or None if anything else is there."""
    lengths = ends - begins
    numbers = np.zeros(len(begins), np.int64)
    for place in range(int(lengths.max())):
        digits = (raw[ends - 1 - place] - np.uint8(_ZERO)) * (lengths > place)
        if digits.max() > 9:
            return None
        numbers += digits * np.int64(10**place)
    leading_zero = (raw[begins] == _ZERO) & (lengths > 1)
    return None if leading_zero.any() else numbers
