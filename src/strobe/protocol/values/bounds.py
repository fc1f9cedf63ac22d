"""The values that a field may have in whatever comes from outside: messages of peers, entries of the log, files.

The types are checked when something is decoded into a struct that has them, and only then: code of our own is trusted.
"""

from typing import Annotated

from msgspec import Meta

from strobe.names import NAME_PATTERN

COUNT_MAX = (1 << 63) - 1
"""What fits into a signed integer of 64 bits, which every reader of a store has."""
VIEW_MAX = (1 << 32) - 1
TEXT_MAX = 4096
"""A reason that somebody else gave is cut after this number of characters (`plain_text.shortened`)."""
KEYS_MAX = 100_000
IDS_MAX = 100_000
"""How many ids of snapshots that have ended a process remembers before it takes part in no more unknown ones."""
COUNTER_AHEAD_MAX = 1 << 32
"""How far the counter of a snapshot may be ahead of all that is known. Each process counts on its own, but a counter
that jumps further is wrong, and would use up the numbers of the epoch."""

Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
"""How many, how large, at which position, or when (in microseconds)."""
Port = Annotated[int, Meta(ge=0, le=65535)]
ViewNumber = Annotated[int, Meta(ge=0, le=VIEW_MAX)]
"""Frames carry it in 32 bits."""
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
"""A duration; neither infinite nor NaN."""
SecondsLeft = Annotated[float, Meta(ge=-1e12, le=1e12)]
"""Until a timer fires; it may be late."""
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
"""A BLAKE3, which is also the name of a file: nothing else can become a part of a path."""
DigestOrNothing = Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")]
ChainHash = Annotated[str, Meta(max_length=64)]
"""The hash of a frontier. Its digits are checked by the proof: there are two for every channel."""
Signature = Annotated[str, Meta(pattern=r"\A[0-9a-f]{128}\Z")]
Encoding = Annotated[str, Meta(pattern=r"\A(msgpack|keyed|bytes)\Z")]
PrintedId = Annotated[str, Meta(max_length=300)]
"""The printed id of a snapshot; `SnapshotId.parse` checks the rest."""
CheckedId = Annotated[str, Meta(max_length=300, pattern=rf"\A[0-9]{{6,18}}-[0-9]{{8,18}}-{NAME_PATTERN[2:]}")]
"""One that needs no more checks, for lists of many; nobody comes to numbers of more than 18 digits."""
RawDigest = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""A BLAKE3 as bytes."""
Word = Annotated[str, Meta(max_length=300)]
"""A short text that is compared, and not shown: an instance, an identity, the name of a protocol."""
