"""The events and effects of a planned restart (E11)."""

from typing import Annotated

import msgspec

from strobe.names import Name
from strobe.protocol.values.bounds import Count, Digest, shorten_reason
from strobe.protocol.values.log_entries import EntryRef

HAND_OVER_PATTERN = r"\A[0-9a-f]{16}-[0-9]{6,18}-[0-9a-f]{16}\Z"
HandOverName = Annotated[str, msgspec.Meta(pattern=HAND_OVER_PATTERN)]
"""The name of a hand-over: a hash of its process, its epoch, and a random part. It is also a file name."""


class HandOverRef(msgspec.Struct, frozen=True):
    """A complete hand-over in the store: its name, and the BLAKE3 and size of its bytes."""

    name: HandOverName
    blake3: Digest
    bytes: Count


class RestartWanted(msgspec.Struct, frozen=True):
    """A process shall hand over to its successor and end: an operator wants it, or its program is ending."""

    process: Name


class HandedOver(msgspec.Struct, frozen=True):
    """A process has stopped for good in this epoch, and its hand-over is durable. It waits for `Relieve`."""

    process: Name
    epoch: Count
    hand_over: HandOverRef


class CannotHandOver(msgspec.Struct, frozen=True):
    """A process has refused to hand over, and continues."""

    process: Name
    reason: str

    def __post_init__(self) -> None:
        shorten_reason(self)


class CannotResume(msgspec.Struct, frozen=True):
    """A successor cannot use this hand-over, and no other one can: it was used, or it is damaged."""

    process: Name
    name: HandOverName
    reason: str

    def __post_init__(self) -> None:
        shorten_reason(self)


class HandOver(msgspec.Struct, frozen=True):
    """Order `process` to stop between two events, and to hand over."""

    process: Name


class Relieve(msgspec.Struct, frozen=True):
    """Inform `process` that its hand-over `name` is known: it may exit."""

    process: Name
    name: HandOverName


class Resume(msgspec.Struct, frozen=True):
    """Order the successor of `process` to go on in `epoch` from this hand-over. `newest` is the newest log entry."""

    process: Name
    epoch: Count
    hand_over: HandOverRef
    newest: EntryRef | None = None
