"""The wire format between nodes: one TCP connection per directed channel, opened by the channel's source.

Every frame has a header of 40 bytes, little-endian, and a body:

    u32 body length · u16 magic · u8 kind · pad · u32 message count · u32 view · u64 link sequence · u64 first ordinal
    · u64 cut index

    kind       direction  body
    HELLO      to target  the source and its channel (`Hello`)
    WELCOME    to source  the sequence number to continue from (`LinkWelcome`)
    REFUSED    to source  the reason for refusing the connection (`Refusal`)
    MESSAGES   to target  a MessagePack array of messages: the body of a `protocol.Frame`, hashed byte for byte
    MARKER     to target  a `Marker`
    VIEW       to target  a `View`, and the number of messages sent before it
    CREDIT     to source  empty; link sequence: the last one received; first ordinal: the bytes consumed
    BARRIER    to target  a `Marker` that overtakes, and the number of MESSAGES frames that it has overtaken
    OVERTAKEN  to target  complete copies of these frames, concatenated; the originals follow later

The link sequence numbers all frames to the target except HELLO, from 1, in wire order. Numbering continues across
connections. Other frames have link sequence 0. Incoming bodies are decoded only into the types named here.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec

from strobe.errors import UNREADABLE, ProtocolViolation, TransportError, UsageError
from strobe.names import Name, in_words
from strobe.protocol.process.events import Marker
from strobe.protocol.values.bounds import Count, Word
from strobe.protocol.values.frames import Frame, body_count
from strobe.protocol.values.view import View

VERSION = 1

HELLO, WELCOME, REFUSED, MESSAGES, MARKER, VIEW, CREDIT, BARRIER, OVERTAKEN = range(1, 10)
KINDS = {HELLO: "HELLO", WELCOME: "WELCOME", REFUSED: "REFUSED", MESSAGES: "MESSAGES", MARKER: "MARKER", VIEW: "VIEW"}
KINDS |= {CREDIT: "CREDIT", BARRIER: "BARRIER", OVERTAKEN: "OVERTAKEN"}

MAGIC = int.from_bytes(b"St", "little")
HEADER = struct.Struct("<IHBxIIQQQ")
HEADER_BYTES = HEADER.size
_FRAME_BYTES = 400  # memory overhead of the objects around a frame's body
SEQUENCE = struct.Struct("<Q")
SEQUENCE_AT = 16
KIND_AT = 6

HANDSHAKE_BYTES_MAX = 4 << 10
VIEW_BYTES_MAX = 4 << 20
CONTROL_BYTES_MAX = {
    HELLO: HANDSHAKE_BYTES_MAX,
    WELCOME: HANDSHAKE_BYTES_MAX,
    REFUSED: HANDSHAKE_BYTES_MAX,
    MARKER: HANDSHAKE_BYTES_MAX,
    BARRIER: HANDSHAKE_BYTES_MAX,
    VIEW: VIEW_BYTES_MAX,
    CREDIT: 0,
}

OVERTAKEN_BYTES = 16 << 10
"""Maximum size of an OVERTAKEN frame with several copies. A longer frame is copied into its own OVERTAKEN frame."""

# Always the long array header, so that its size is fixed before the number of messages is known.
ARRAY32 = 0xDD
ARRAY_HEADER_BYTES = 5
BODY_START = HEADER_BYTES + ARRAY_HEADER_BYTES
ARRAY_HEADER = struct.Struct(">BI")


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame of a connection. `system` is the identity of the store, known only to its nodes."""

    version: Count = VERSION
    system: Word
    epoch: Count
    source: Name
    channel: Name
    incarnation: Count


class LinkWelcome(msgspec.Struct, frozen=True):
    """Accepts a `Hello`. Frames up to `last_sequence` have arrived; the process has consumed `consumed_bytes` of them.

    The source may have at most `window_bytes` in flight that are not consumed.
    """

    last_sequence: Count
    consumed_bytes: Count
    window_bytes: Count


class Refusal(msgspec.Struct, frozen=True):
    """Refuses a `Hello`. `final`: it will never be accepted; otherwise the source retries."""

    reason: str
    final: bool


class FrameRejected(TransportError):
    """A peer sent an invalid frame. `reason` is one of a few fixed texts, for counting; `detail` is for people."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


class BrokenRule(FrameRejected):
    """A readable frame breaks a rule of its channel: `violation`."""

    def __init__(self, violation: ProtocolViolation) -> None:
        super().__init__("broken rule", str(violation))
        self.violation = violation


_encode = msgspec.msgpack.Encoder().encode
_decoders: dict[int, msgspec.msgpack.Decoder[Any]] = {
    HELLO: msgspec.msgpack.Decoder(Hello),
    WELCOME: msgspec.msgpack.Decoder(LinkWelcome),
    REFUSED: msgspec.msgpack.Decoder(Refusal),
    MARKER: msgspec.msgpack.Decoder(Marker),
    BARRIER: msgspec.msgpack.Decoder(tuple[Marker, Count]),
    VIEW: msgspec.msgpack.Decoder(tuple[View, Count]),
}


def handshake_frame(message: Hello | LinkWelcome | Refusal) -> bytearray:
    """Return a handshake message as a frame."""
    kind = {Hello: HELLO, LinkWelcome: WELCOME, Refusal: REFUSED}[type(message)]
    return _control_frame(kind, message)


def marker_frame(marker: Marker) -> bytearray:
    return _control_frame(MARKER, marker)


def barrier_frames(marker: Marker, waiting: Sequence[bytearray]) -> list[bytearray]:
    """Return the frame of a barrier that overtakes `waiting`, and copies of the waiting frames before its cut."""
    assert marker.sent_count is not None
    count = len(waiting)
    while count and HEADER.unpack_from(waiting[count - 1])[-2] > marker.sent_count:
        count -= 1
    return [_control_frame(BARRIER, (marker, count)), *_copies(waiting[:count])]


def _copies(frames: Sequence[bytearray]) -> Iterator[bytearray]:
    """Yield OVERTAKEN frames with copies of `frames`. Small frames are batched, since each frame costs both ends."""
    together: list[bytearray] = []
    size = 0
    for frame in frames:
        if together and size + len(frame) > OVERTAKEN_BYTES:
            yield _overtaken(together, size)
            together, size = [], 0
        together.append(frame)
        size += len(frame)
    if together:
        yield _overtaken(together, size)


def _overtaken(frames: list[bytearray], size: int) -> bytearray:
    header = HEADER.pack(size, MAGIC, OVERTAKEN, len(frames), 0, 0, 0, 0)
    return bytearray().join((header, *frames))


def view_frame(view: View, sent_count: int) -> bytearray:
    return _control_frame(VIEW, (view, sent_count))


def credit_frame(last_sequence: int, consumed_bytes: int) -> bytes:
    return HEADER.pack(0, MAGIC, CREDIT, 0, 0, last_sequence, consumed_bytes, 0)


def messages_frame(frame: Frame) -> bytearray:
    """Return `frame` in its wire format, without a copy if its body lies in a buffer of `OpenFrame`."""
    body = cast("bytes | memoryview", frame.body)
    buffer = body.obj if isinstance(body, memoryview) else None
    if not isinstance(buffer, bytearray) or len(buffer) != HEADER_BYTES + len(body):
        buffer = bytearray(HEADER_BYTES)
        buffer += body
    return finish_messages(buffer, frame.count, frame.view, frame.first_ordinal, frame.index)


def finish_messages(buffer: bytearray, count: int, view: int, first_ordinal: int, index: int) -> bytearray:
    """Write the header into `buffer`, before the messages, and return the buffer."""
    HEADER.pack_into(buffer, 0, len(buffer) - HEADER_BYTES, MAGIC, MESSAGES, count, view, 0, first_ordinal, index)
    return buffer


def number(buffer: bytearray, sequence: int) -> None:
    """Write the link sequence into a finished frame."""
    SEQUENCE.pack_into(buffer, SEQUENCE_AT, sequence)


def read_control(kind: int, body: bytes | bytearray | memoryview) -> Any:
    """Decode the body of a frame other than MESSAGES, OVERTAKEN and CREDIT."""
    try:
        found = _decoders[kind].decode(body)
        if kind == VIEW:
            found[0].check()
        return found
    except (*UNREADABLE, UsageError) as error:
        raise FrameRejected("wrong body", f"a {KINDS[kind]} frame that cannot be read: {in_words(error)}") from error


def check_header(magic: int, kind: int, length: int, messages_bytes_max: int = 0) -> None:
    """Raise FrameRejected if the header of a frame is invalid."""
    if magic != MAGIC:
        raise FrameRejected("garbage", f"the bytes are not a frame: the magic number is {magic:#06x}")
    bytes_max = CONTROL_BYTES_MAX.get(kind)
    if kind == MESSAGES:
        bytes_max = messages_bytes_max
    elif kind == OVERTAKEN:
        bytes_max = max(OVERTAKEN_BYTES, HEADER_BYTES + messages_bytes_max)
    if bytes_max is None:
        raise FrameRejected("unknown kind", f"a frame of kind {kind}")
    if length > bytes_max:
        raise FrameRejected("oversize", f"a {KINDS[kind]} frame of {length} bytes; the maximum is {bytes_max}")


def read_overtaken(count: int, body: memoryview, messages_bytes_max: int) -> list[Frame]:
    """Return the `count` frames copied into an OVERTAKEN frame."""
    frames: list[Frame] = []
    position, end, unpack_from = 0, len(body), HEADER.unpack_from
    while end - position >= HEADER_BYTES:
        length, magic, kind, messages, view, _, first, index = unpack_from(body, position)
        if magic != MAGIC or kind != MESSAGES or length > messages_bytes_max:
            break
        start, position = position + HEADER_BYTES, position + HEADER_BYTES + length
        copied = body[start:position]
        check_messages(messages, copied)
        frames.append(Frame(first, messages, cast(bytes, copied), index, view))
    if position != end or len(frames) != count or not frames:
        raise FrameRejected("wrong body", f"an OVERTAKEN frame of {end} bytes that is not {count} frames of messages")
    return frames


def check_messages(count: int, body: bytes | memoryview) -> None:
    """Raise FrameRejected unless `body` has `count` messages, and at least one."""
    if count == 0 or body_count(body) != count:
        raise FrameRejected("wrong body", f"a MESSAGES frame of {count} messages whose body has {body_count(body)}")


def _control_frame(kind: int, message: Any) -> bytearray:
    body = _encode(message)
    assert len(body) <= CONTROL_BYTES_MAX[kind], f"a {KINDS[kind]} frame of {len(body)} bytes"
    frame = bytearray(HEADER.pack(len(body), MAGIC, kind, 0, 0, 0, 0, 0))
    frame += body
    return frame


def held_bytes(frame: Frame) -> int:
    """Return the memory that a recorded frame takes: its body and the objects around it."""
    return len(frame.body) + _FRAME_BYTES
