"""Builds the frame under construction on one channel: each message is encoded into it when sent, and never copied.

The buffer begins with room for the wire header and the array header. The message count is filled in when the frame is
sealed. The protocol hashes the body in place (`codec.messages_frame` finds the buffer again).
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from strobe.encodable import array_body
from strobe.errors import UsageError
from strobe.runtime.links.codec import ARRAY32, ARRAY_HEADER, ARRAY_HEADER_BYTES, BODY_START, HEADER_BYTES
from strobe.runtime.settings import NodeSettings

SHORT_BYTES = 512
"""A shorter frame is not worth reserving memory for."""

_encode_into = msgspec.msgpack.Encoder().encode_into


def empty_buffer(bytes_expected: int) -> bytearray:
    """Return a buffer with room for the headers, and memory reserved for a frame of the expected size.

    A buffer that grows message by message would be copied repeatedly. `encode_into` truncates a bytearray after the
    bytes that it writes, but keeps its memory. Here it writes the last header byte, which is 0 until the frame is
    sealed.
    """
    if bytes_expected < SHORT_BYTES:
        return bytearray(BODY_START)
    buffer = bytearray(bytes_expected)
    _encode_into(0, buffer, BODY_START - 1)
    return buffer


def messages_bytes_max(settings: NodeSettings) -> int:
    """Return the maximum body size of an `OpenFrame`: a nearly full frame plus one more message."""
    return ARRAY_HEADER_BYTES + settings.frame_bytes_max + settings.message_bytes_max


class OpenFrame:
    """The open frame of one outgoing channel; empty again after `seal`.

    `Outbox.send` fills the frame without calling `append`. At message number `due` it has to do more than encode.

    For a trace, `events` has, for each event that sent some of the messages, its position and the number of messages
    before; `position` is that of the last event.

    `kind` is the class of the last message, if messages of that class may be sent.
    """

    __slots__ = (
        "_encode_into",
        "buffer",
        "bytes_max",
        "channel",
        "count",
        "due",
        "events",
        "kind",
        "message_bytes_max",
        "messages_max",
        "position",
        "size",
    )

    def __init__(self, channel: str, encoder: msgspec.msgpack.Encoder, settings: NodeSettings) -> None:
        self.channel = channel
        self.messages_max = settings.frame_messages_max
        self.bytes_max = BODY_START + min(settings.frame_bytes_max, settings.message_bytes_max)
        self.message_bytes_max = settings.message_bytes_max
        self._encode_into = encoder.encode_into
        self.buffer = empty_buffer(BODY_START)
        self.size = BODY_START
        self.count = 0
        self.due = 1
        self.position = 0
        self.events: list[int] = []
        self.kind: type | None = None

    def append(self, message: Any) -> bool:
        """Add `message`, or raise and change nothing; return whether the frame must be sealed now."""
        # Runs for every sent message: all other work is left until the frame is full.
        buffer = self.buffer
        try:
            self._encode_into(message, buffer, -1)
        except BaseException:
            del buffer[self.size :]
            raise
        size = len(buffer)
        if size >= self.bytes_max and size - self.size > self.message_bytes_max:
            self.refuse(message)
        self.size = size
        self.count += 1
        return self.is_full

    @property
    def is_full(self) -> bool:
        """Whether the frame must be sealed now."""
        return self.count >= self.messages_max or self.size >= self.bytes_max

    def encode_parts(self, messages: Sequence[Any]) -> list[tuple[int, memoryview]] | None:
        """Return `messages` encoded, as one part for each frame that they go into, with their numbers.

        None if a frame is full, by its bytes, before the last message of its part: then add them one by one.
        """
        parts = []
        place, room, size = 0, self.messages_max - self.count, self.size
        while place < len(messages):
            some = messages[place : place + room] if place or room < len(messages) else messages
            body = array_body(some)
            if size + len(body) > self.bytes_max:
                return None
            parts.append((len(some), body))
            place, room, size = place + room, self.messages_max, BODY_START
        return parts

    def append_encoded(self, count: int, body: bytes | memoryview) -> bool:
        """Add `count` encoded messages, which fit; return whether the frame must be sealed now."""
        self.buffer += body
        self.size = len(self.buffer)
        self.count += count
        return self.is_full

    def note_event(self, position: int, before: int) -> None:
        """Note that event number `position` sends the messages after the first `before`."""
        self.position = position
        self.events += (position, before)

    def take_events(self) -> list[int]:
        """Return the events of the frame just sealed."""
        events, self.events, self.position = self.events, [], 0
        return events

    def remove_first(self) -> None:
        """Remove the first message, which is the only one."""
        del self.buffer[BODY_START:]
        self.size, self.count, self.due = BODY_START, 0, 1

    def seal(self) -> tuple[int, memoryview]:
        """Return the number of messages and the finished body, and begin the next frame."""
        buffer, count = self.buffer, self.count
        assert count > 0, "an empty frame is never sealed"
        ARRAY_HEADER.pack_into(buffer, HEADER_BYTES, ARRAY32, count)
        # The next frame is probably as long, unless this one held a single long message.
        self.buffer = empty_buffer(min(len(buffer), self.bytes_max))
        self.size = BODY_START
        self.count = 0
        self.due = 1
        return count, memoryview(buffer)[HEADER_BYTES:].toreadonly()

    @property
    def body_bytes(self) -> int:
        """The size of the body if sealed now."""
        return len(self.buffer) - HEADER_BYTES

    def refuse(self, message: Any) -> NoReturn:
        """Remove the newest message, which is too long, and raise UsageError."""
        size = len(self.buffer) - self.size
        del self.buffer[self.size :]
        raise self.too_long(message, size)

    def too_long(self, message: Any, size: int) -> UsageError:
        """Return the error to raise for a message whose `size` is above the maximum."""
        return UsageError(
            f"a {type(message).__name__} of {size} bytes was sent on {self.channel}, longer than the maximum "
            f"of {self.message_bytes_max}; send it in parts, or raise message_bytes_max"
        )
