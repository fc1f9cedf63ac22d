"""Field types with bounds, for all data from outside: messages of peers, log entries, files.

The bounds are checked when data is decoded into a struct with such fields, and only then: our own code is trusted.
"""

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from strobe.names import NAME_PATTERN
from strobe.plain_text import shortened

COUNT_MAX = (1 << 63) - 1
"""The largest signed 64-bit integer, which every reader of a store can represent."""
VIEW_MAX = (1 << 32) - 1
TEXT_MAX = 4096
"""Maximum length, in characters, of a reason received from outside; longer ones are cut (`plain_text.shortened`)."""
KEYS_MAX = 100_000
IDS_MAX = 100_000
"""Maximum number of ended snapshot ids that a process remembers. Beyond that it takes part in no unknown snapshot."""
COUNTER_AHEAD_MAX = 1 << 32
"""How far a snapshot's counter may be ahead of the highest known one. Each process counts on its own, but a larger jump
is an error, and would use up the counters of the epoch.
"""

Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
"""A number, a size, a position, or a time in microseconds."""
Port = Annotated[int, Meta(ge=0, le=65535)]
StateVersion = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
ViewNumber = Annotated[int, Meta(ge=0, le=VIEW_MAX)]
"""Frames carry it in 32 bits."""
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
"""A duration; neither infinite nor NaN."""
SecondsLeft = Annotated[float, Meta(ge=-1e12, le=1e12)]
"""Time until a timer fires; negative if it is late."""
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
"""A BLAKE3 in hexadecimal. It is also a file name, so the pattern keeps anything else out of a path."""
DigestOrNothing = Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")]
ChainHash = Annotated[str, Meta(max_length=64)]
"""The hash of a frontier. The proof checks its digits, since there are two hashes for every channel."""
Signature = Annotated[str, Meta(pattern=r"\A[0-9a-f]{128}\Z")]
Encoding = Annotated[str, Meta(pattern=r"\A(msgpack|keyed|bytes)\Z")]
PrintedId = Annotated[str, Meta(max_length=300)]
"""The printed id of a snapshot; `SnapshotId.parse` checks the rest."""
CheckedId = Annotated[str, Meta(max_length=300, pattern=rf"\A[0-9]{{6,18}}-[0-9]{{8,18}}-{NAME_PATTERN[2:]}")]
"""A fully checked id, for long lists. Its numbers have at most 18 digits, which no counter reaches."""
RawDigest = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""A BLAKE3 as bytes."""
Word = Annotated[str, Meta(max_length=300)]
"""A short text that is compared but not shown: an instance, an identity, the name of a protocol."""


def shorten_reason(message: Struct) -> None:
    """Truncate the reason of `message`. It may be a text of any length, such as the message of a user's error."""
    force_setattr(message, "reason", shortened(message.reason, TEXT_MAX))  # type: ignore[attr-defined]
