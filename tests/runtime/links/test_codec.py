"""Frames on the wire: decoding undoes encoding, and invalid frames are rejected."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.names import is_name
from strobe.protocol import ChannelSpec, Frame, SnapshotId, View
from strobe.protocol.process.channels import Outgoing
from strobe.protocol.process.events import Marker
from strobe.protocol.values.frames import body_count
from strobe.runtime.links import codec
from strobe.runtime.links.codec import HEADER, HEADER_BYTES, FrameRejected, Hello, LinkWelcome, Refusal

NAMES = st.text(min_size=1, max_size=20).filter(is_name)
COUNTS = st.integers(0, 2**63 - 1)
NUMBERS = st.integers(0, 2**32 - 1)
VIEWS = st.builds(
    lambda number, process, channel, incarnation: View(
        number, (process,), (ChannelSpec(channel, process, process, "fifo", incarnation),)
    ),
    NUMBERS,
    NAMES,
    NAMES,
    COUNTS,
)
MARKERS = st.builds(Marker, COUNTS, NUMBERS, st.builds(SnapshotId, COUNTS, COUNTS, NAMES))


def split(frame: bytes | bytearray) -> tuple[tuple[int, ...], bytes]:
    header = HEADER.unpack_from(frame)
    codec.check_header(header[1], header[2], header[0], 1 << 20)
    assert header[0] == len(frame) - HEADER_BYTES
    return header, bytes(frame[HEADER_BYTES:])


@given(MARKERS)
def test_markers_survive_a_round_trip(marker: Marker) -> None:
    header, body = split(codec.marker_frame(marker))
    assert header[2] == codec.MARKER
    assert codec.read_control(codec.MARKER, body) == marker


@given(VIEWS, COUNTS)
def test_views_survive_a_round_trip(view: View, sent_count: int) -> None:
    header, body = split(codec.view_frame(view, sent_count))
    assert header[2] == codec.VIEW
    assert codec.read_control(codec.VIEW, body) == (view, sent_count)


@given(
    st.one_of(
        st.builds(Hello, system=NAMES, epoch=COUNTS, source=NAMES, channel=NAMES, incarnation=COUNTS),
        st.builds(LinkWelcome, COUNTS, COUNTS, COUNTS),
        st.builds(Refusal, NAMES, st.booleans()),
    )
)
def test_handshakes_survive_a_round_trip(message: Hello | LinkWelcome | Refusal) -> None:
    header, body = split(codec.handshake_frame(message))
    assert codec.read_control(header[2], body) == message


@given(st.lists(st.integers(), min_size=1, max_size=300), st.integers(1, 2**63), st.integers(0, 2**32 - 1))
def test_a_frame_of_messages_has_its_fields_in_the_header(messages: list[int], first: int, small: int) -> None:
    messages = [message % 2**62 for message in messages]
    frame = Frame(first, len(messages), msgspec.msgpack.encode(messages), first, small)
    finished = codec.messages_frame(frame)
    codec.number(finished, 77)
    header, body = split(finished)
    assert header == (len(body), codec.MAGIC, codec.MESSAGES, len(messages), small, 77, first, first)
    assert body == frame.body
    codec.check_messages(len(messages), body)


def test_credit_has_no_body() -> None:
    header, body = split(codec.credit_frame(7, 1 << 40))
    assert header[2] == codec.CREDIT
    assert header[5:7] == (7, 1 << 40)
    assert body == b""


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_an_invalid_header_is_rejected_with_a_reason(noise: bytes) -> None:
    length, magic, kind, *_ = HEADER.unpack(noise)
    if magic == codec.MAGIC and kind in codec.KINDS and length <= 1 << 10:
        codec.check_header(magic, kind, length, 1 << 10)
        return
    with pytest.raises(FrameRejected) as caught:
        codec.check_header(magic, kind, length, 1 << 10)
    assert caught.value.reason in ("garbage", "unknown kind", "oversize")


@pytest.mark.parametrize(
    ("kind", "length", "reason"),
    [
        (codec.MESSAGES, 1025, "oversize"),
        (codec.MARKER, codec.HANDSHAKE_BYTES_MAX + 1, "oversize"),
        (codec.VIEW, codec.VIEW_BYTES_MAX + 1, "oversize"),
        (codec.CREDIT, 1, "oversize"),
        (0, 0, "unknown kind"),
        (99, 0, "unknown kind"),
    ],
)
def test_oversized_frames_and_unknown_kinds_are_rejected(kind: int, length: int, reason: str) -> None:
    with pytest.raises(FrameRejected) as caught:
        codec.check_header(codec.MAGIC, kind, length, 1024)
    assert caught.value.reason == reason
    assert reason in str(caught.value)


@given(st.sampled_from((codec.HELLO, codec.WELCOME, codec.REFUSED, codec.MARKER, codec.VIEW)), st.binary(max_size=200))
def test_a_body_is_either_of_its_own_type_or_rejected(kind: int, body: bytes) -> None:
    try:
        content = codec.read_control(kind, body)
    except FrameRejected:
        return
    assert isinstance(content, Hello | LinkWelcome | Refusal | Marker | tuple)


def test_a_deeply_nested_body_is_rejected() -> None:
    with pytest.raises(FrameRejected):
        codec.read_control(codec.MARKER, b"\x81\xa1x" + b"\x91" * 4000)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_body_with_a_wrong_message_count_is_rejected(count: int) -> None:
    with pytest.raises(FrameRejected):
        codec.check_messages(count, msgspec.msgpack.encode([1, 2]))


def test_a_frame_built_in_place_is_the_same_on_the_wire() -> None:
    spec = ChannelSpec("a->b", "a", "b")
    body = msgspec.msgpack.encode([1, 2, 3])
    buffer = bytearray(HEADER_BYTES) + body
    in_place = memoryview(buffer)[HEADER_BYTES:].toreadonly()
    built = codec.messages_frame(Outgoing(spec).seal(3, in_place, 0, 1))  # type: ignore[arg-type]
    assert built is buffer
    assert built == codec.messages_frame(Outgoing(spec).seal(3, body, 0, 1))
    assert body_count(in_place) == 3
