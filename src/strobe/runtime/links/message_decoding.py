"""Decodes the messages of a frame, and checks them against the count in its header."""

from collections.abc import Callable
from typing import Any

import msgspec

from strobe.errors import UNREADABLE, ProtocolViolation
from strobe.protocol import Frame
from strobe.runtime.links.codec import FrameRejected

Decode = Callable[[Any], list[Any]]
"""Decodes the body of a frame into its messages."""


def decode_frame(decode: Decode, process: str, channel: str, frame: Frame) -> list[Any]:
    """Return the messages of `frame`; raise ProtocolViolation if they cannot be decoded or their count is wrong."""
    try:
        messages = decode(frame.body)
    except UNREADABLE as error:
        place = f"the frame of message {frame.first_ordinal}"
        raise ProtocolViolation(process, channel, f"{place} cannot be decoded: {error}") from error
    if len(messages) != frame.count:
        problem = f"the frame of message {frame.first_ordinal} has {len(messages)} messages instead of {frame.count}"
        raise ProtocolViolation(process, channel, problem)
    return messages


def unpack_frame(decode: Decode, process: str, channel: str, frame: Frame) -> list[Any]:
    """Return the messages of a frame from the wire; raise FrameRejected if it is garbage.

    Readable messages of a type that the process does not accept are the peer's mistake: ProtocolViolation.
    """
    try:
        return decode_frame(decode, process, channel, frame)
    except ProtocolViolation as violation:
        if isinstance(violation.__cause__, msgspec.ValidationError) and _can_be_read(frame):
            raise
        raise FrameRejected("wrong body", f"{channel}: {violation.problem}") from violation


def _can_be_read(frame: Frame) -> bool:
    """Return whether `frame` has the number of messages in its header, of any type."""
    try:
        return len(msgspec.msgpack.decode(frame.body)) == frame.count
    except (*UNREADABLE, TypeError):
        return False
