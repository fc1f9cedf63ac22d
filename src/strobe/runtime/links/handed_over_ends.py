"""The two ends of a link as a process hands them over to its successor in the same epoch (E11).

The peer notices a broken connection and a new one, as after any reconnect: link sequences go on, and frames that were
not acknowledged are sent again, byte for byte.
"""

import msgspec

from strobe.names import Name
from strobe.protocol.values.bounds import Count
from strobe.protocol.values.view import View


class SendingEnd(msgspec.Struct, frozen=True):
    """An `OutgoingLink`: `unacknowledged` frames have numbers up to `sequence`; those of the `backlog` have none."""

    sequence: Count
    acknowledged: Count
    sent_bytes: Count
    consumed_bytes: Count
    unacknowledged: list[bytearray]
    backlog: list[bytearray]

    def __post_init__(self) -> None:
        if self.sequence - self.acknowledged != len(self.unacknowledged) or self.consumed_bytes > self.sent_bytes:
            raise ValueError("the frames of a link are not those that its counts say")


class ReceivingEnd(msgspec.Struct, frozen=True):
    """An `IncomingLink`. `next_ordinal` and `view` include what is queued; a channel that has ended has no next one."""

    channel: Name
    incarnation: Count
    next_ordinal: int
    view: View | None
    last_sequence: Count
    received_bytes: Count
    consumed_bytes: Count
    ignores_copies: bool
