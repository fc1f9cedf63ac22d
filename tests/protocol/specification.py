"""The definition of channel state, deliberately naive: no counters, no hashes, no protocol.

A message is sent by an event and received by an event. A cut says how many events of each process are in it.

Channel state of a cut: sent by the sender's included events, not received by the receiver's included events.

Consistent: every message that an included event received was sent by an included event.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Sent(NamedTuple):
    process: str
    position: int
    channel: str
    message: int


class Received(NamedTuple):
    process: str
    position: int
    channel: str
    message: int


History = Iterable[Sent | Received]
Cut = Mapping[str, int]


def included(history: History, cut: Cut) -> list[Sent | Received]:
    return [happened for happened in history if happened.position <= cut[happened.process]]


def channel_state(history: History, cut: Cut, channel: str) -> list[int]:
    """Return the messages in the channel at the cut, in the order in which they were sent."""
    inside = included(history, cut)
    received = [happened.message for happened in inside if isinstance(happened, Received)]
    return [
        happened.message
        for happened in inside
        if isinstance(happened, Sent) and happened.channel == channel and happened.message not in received
    ]


def is_consistent(history: History, cut: Cut) -> bool:
    inside = included(history, cut)
    sent = [happened.message for happened in inside if isinstance(happened, Sent)]
    return all(happened.message in sent for happened in inside if isinstance(happened, Received))
