"""Open frames: messages are encoded once, in place. A message that cannot be sent leaves the frame unchanged."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.errors import UsageError
from strobe.protocol import ChannelSpec
from strobe.protocol.process.channels import Outgoing
from strobe.runtime.links.codec import HEADER_BYTES, messages_frame
from strobe.runtime.links.frame_builder import OpenFrame, messages_bytes_max
from strobe.runtime.settings import NodeSettings

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=40) | st.binary(max_size=80)
MESSAGES = st.recursive(SCALARS, st.lists, max_leaves=6)


def open_frame(**settings: Any) -> OpenFrame:
    return OpenFrame("a->b", msgspec.msgpack.Encoder(), NodeSettings(**settings))


@given(st.lists(MESSAGES, min_size=1, max_size=20))
def test_the_body_is_the_array_of_the_messages(messages: list[object]) -> None:
    frame = open_frame()
    for message in messages:
        frame.append(message)
    assert frame.body_bytes == len(frame.buffer) - HEADER_BYTES
    count, body = frame.seal()
    assert count == len(messages)
    assert msgspec.msgpack.decode(body) == msgspec.msgpack.decode(msgspec.msgpack.encode(messages))
    assert body.readonly


def test_a_sealed_frame_is_sent_in_the_buffer_it_was_built_in() -> None:
    frame = open_frame()
    frame.append({"amount": 1})
    buffer = frame.buffer
    count, body = frame.seal()
    sealed = Outgoing(ChannelSpec("a->b", "a", "b")).seal(count, body, 0, 1)  # type: ignore[arg-type]
    assert messages_frame(sealed) is buffer
    assert frame.buffer is not buffer
    assert frame.count == 0


def test_a_frame_is_full_at_its_maximum_of_messages_or_bytes() -> None:
    by_count = open_frame(frame_messages_max=3)
    assert [by_count.append(1) for _ in range(3)] == [False, False, True]
    by_bytes = open_frame(frame_bytes_max=100)
    assert [by_bytes.append(b"x" * 60) for _ in range(2)] == [False, True]


def test_a_message_that_cannot_be_encoded_leaves_the_frame_unchanged() -> None:
    frame = open_frame()
    frame.append("before")
    with pytest.raises(TypeError):
        frame.append(["half", "of", "this", object()])
    frame.append("after")
    count, body = frame.seal()
    assert (count, msgspec.msgpack.decode(body)) == (2, ["before", "after"])


def test_the_refusal_of_a_too_long_message_names_the_setting() -> None:
    frame = open_frame(message_bytes_max=1000)
    frame.append("before")
    with pytest.raises(UsageError, match="raise message_bytes_max"):
        frame.append("x" * 1000)
    assert frame.seal() == (1, b"\xdd\0\0\0\1\xa6before")


@given(st.integers(1, 300), st.integers(1, 300), st.lists(st.integers(0, 300), min_size=1, max_size=30))
def test_no_body_exceeds_the_maximum_of_the_other_end(frame_max: int, message_max: int, sizes: list[int]) -> None:
    settings = NodeSettings(frame_bytes_max=frame_max, message_bytes_max=message_max)
    frame = OpenFrame("a->b", msgspec.msgpack.Encoder(), settings)
    for size in sizes:
        try:
            full = frame.append(b"x" * size)
        except UsageError:
            continue
        if full:
            _, body = frame.seal()
            assert len(body) <= messages_bytes_max(settings)
