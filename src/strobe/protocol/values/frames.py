"""Frames, and the running hash that makes a snapshot its own proof (P1).

Messages travel in frames: many messages, one header, one hash. The body is a MessagePack array of the messages; the
header has their number and the ordinal of the first. Frames are kept and hashed byte for byte, and never re-encoded.

For a channel c of incarnation k, with H = xxh3-128 or BLAKE3 and integers little-endian (u64, u64, u32):

    fifo       h(0) = H(c, 0x00, k)      h(i) = H(h(i-1), first_ordinal, count, body)
    unordered  h(0) = H(c, 0x00, k)      h(i) = h(i-1) + H(h(0), first_ordinal, count, body)   modulo 2^128

The chain depends on the order of the frames, the sum does not. The epoch, the view and the cut index are not hashed, so
that a frame has the same hash wherever it is replayed.

xxh3 and sums guard against accidents only: an attacker can construct a collision for either. BLAKE3 chains guard
against attackers too. There are no BLAKE3 sums: they would look secure without being so.
"""

import struct
from collections.abc import Callable, Iterable
from functools import lru_cache

import msgspec
import xxhash
from blake3 import blake3

FIFO = "fifo"
UNORDERED = "unordered"
XXH3 = "xxh3"
BLAKE3 = "blake3"
HASH_BYTES = 16
"""The size of an xxh3-128, and so of every sum."""

Extend = Callable[[bytes, int, int, bytes | memoryview], bytes]

_HEADER = struct.Struct("<QI")
_MODULUS = 1 << 128
_COPY_BYTES_MAX = 4096  # for shorter bodies, concatenating is faster than two hash updates


class Frame(msgspec.Struct, frozen=True, gc=False):
    """Some consecutive messages of one channel.

    `index` is the sender's cut index (V1) and `view` the number of its view (E2). `body` is a MessagePack array of
    `count` messages; the first has the ordinal `first_ordinal`.
    """

    first_ordinal: int
    count: int
    body: bytes
    index: int = 0
    view: int = 0

    @property
    def last_ordinal(self) -> int:
        return self.first_ordinal + self.count - 1

    @property
    def ordinals(self) -> range:
        return range(self.first_ordinal, self.first_ordinal + self.count)


class InFlight(msgspec.Struct, frozen=True, gc=False):
    """A frame that is channel state. `consumed` of its messages came before the cut (0 except for breakpoints)."""

    frame: Frame
    consumed: int = 0


class Frontier(msgspec.Struct, frozen=True, gc=False):
    """The progress of one end of a channel: messages counted, and the running hash over their frames."""

    count: int
    hash: bytes


def seed_hash(channel: str, incarnation: int, hashed_by: str = XXH3) -> bytes:
    """Return h(0), the hash of a channel on which nothing has been sent yet."""
    name = channel.encode() + b"\0" + incarnation.to_bytes(8, "little")
    return blake3(name).digest() if hashed_by == BLAKE3 else xxhash.xxh3_128_digest(name)


def extend_fifo(previous: bytes, first_ordinal: int, count: int, body: bytes | memoryview) -> bytes:
    """Return the xxh3 chain extended by one frame."""
    header = previous + _HEADER.pack(first_ordinal, count)
    if len(body) <= _COPY_BYTES_MAX:
        return xxhash.xxh3_128_digest(header + body)
    digest = xxhash.xxh3_128(header)
    digest.update(body)
    return digest.digest()


def extend_blake3(previous: bytes, first_ordinal: int, count: int, body: bytes | memoryview) -> bytes:
    """Return the BLAKE3 chain extended by one frame."""
    header = previous + _HEADER.pack(first_ordinal, count)
    if len(body) <= _COPY_BYTES_MAX:
        return blake3(header + body).digest()
    return blake3(header).update(body).digest()


CHAINS: dict[str, Extend] = {XXH3: extend_fifo, BLAKE3: extend_blake3}
"""The function that extends the hash of a FIFO channel by a frame, by the name of the hash."""


def can_hash(kind: str, hashed_by: str) -> bool:
    """Return whether channels of this kind can have this hash."""
    return hashed_by in CHAINS and (kind == FIFO or hashed_by == XXH3)


def extend_unordered(previous: bytes, seed: bytes, first_ordinal: int, count: int, body: bytes | memoryview) -> bytes:
    """Return the order-independent sum extended by one frame."""
    term = extend_fifo(seed, first_ordinal, count, body)
    total = (int.from_bytes(previous, "big") + int.from_bytes(term, "big")) % _MODULUS
    return total.to_bytes(HASH_BYTES, "big")


def extend_all(
    kind: str,
    seed: bytes,
    received: bytes,
    frames: Iterable[tuple[int, int, bytes | memoryview]],
    hashed_by: str = XXH3,
) -> bytes:
    """Return `received` extended by every (first_ordinal, count, body) of `frames`."""
    if kind == FIFO:
        extend = CHAINS[hashed_by]
        for first_ordinal, count, body in frames:
            received = extend(received, first_ordinal, count, body)
    else:
        for first_ordinal, count, body in frames:
            received = extend_unordered(received, seed, first_ordinal, count, body)
    return received


def body_count(body: bytes | memoryview) -> int | None:
    """Return the number of messages in the array header of `body`; None if `body` is not a MessagePack array."""
    if len(body) == 0:
        return None
    first = body[0]
    if 0x90 <= first <= 0x9F:
        return first & 0x0F
    if first == 0xDC and len(body) >= 3:
        return int.from_bytes(body[1:3], "big")
    if first == 0xDD and len(body) >= 5:
        return int.from_bytes(body[1:5], "big")
    return None


@lru_cache(maxsize=4096)
def array_headers(count: int) -> tuple[bytes, ...]:
    """Return the possible headers of a MessagePack array of `count` items; empty if there is no such array."""
    if not 0 <= count < 1 << 32:
        return ()
    headers = [b"\xdd" + count.to_bytes(4, "big")]
    if count < 1 << 16:
        headers.append(b"\xdc" + count.to_bytes(2, "big"))
    if count < 16:
        headers.append(bytes((0x90 | count,)))
    return tuple(headers)
