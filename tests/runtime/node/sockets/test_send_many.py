"""`send_many` is the same as `send` for each message, but all or none of the messages are sent."""

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.runtime.link_ends import HELLO, SPEC, VIEW, run
from tests.runtime.node.sockets.own_loop_programs import own_loop

from strobe.errors import UsageError
from strobe.event_bound import EventBound
from strobe.message_types import MessageTypes
from strobe.protocol import ChandyLamport
from strobe.runtime.links import frame_builder
from strobe.runtime.links.frame_builder import OpenFrame
from strobe.runtime.links.outgoing_link import OutgoingLink
from strobe.runtime.node.outbox import Outbox
from strobe.runtime.settings import NodeSettings


class Coin(msgspec.Struct, tag=True):
    amount: int


class RareCoin(Coin, tag=True):
    year: int = 0


class Sender:
    """The outgoing end of a->b, with the frames that it sealed and what a trace would note."""

    def __init__(self, *types: Any, position: int = 1, **settings: Any) -> None:
        node = NodeSettings(**settings)
        self.position = position
        self.notes: list[Any] = []
        self.protocol = ChandyLamport("a", VIEW, 3)
        self.bound = EventBound("a", node.event_bytes_max, lambda: self.position)
        self.outbox = Outbox("a", self.protocol, node, MessageTypes(types), self.bound)
        self.outbox.trace(lambda: self.position, lambda *note: self.notes.append((*note[:4], bytes(note[4]))))
        self.link = OutgoingLink(HELLO, node)
        self.outbox.add(SPEC.id, self.link)
        self.outbox.begin_event()

    def frames(self) -> list[bytes]:
        """Return the sealed frames as they would be on the wire."""
        return [bytes(frame) for frame, _ in self.link._backlog]

    def everything(self) -> Any:
        """Return all that a peer, a proof or a trace could see."""
        self.outbox.flush()
        return self.frames(), self.protocol.outgoing[SPEC.id].frontier(), self.notes

    def next_event(self) -> None:
        self.outbox.end_event()
        self.outbox.next_event()
        self.position += 1
        self.outbox.begin_event()


Step = tuple[str, int, int]
"""What to do, with how many messages, of how many bytes."""


def differs(steps: list[Step], limits: dict[str, int]) -> bool:
    """Return whether sending batches differs in anything from sending their messages one by one."""
    single, batched = Sender(**limits), Sender(**limits)
    for step, count, size in steps:
        messages: list[Any] = [0 if size == 1 else bytes(size - 2) for _ in range(count)]
        for sender in (single, batched):
            if step == "flush":
                sender.outbox.flush()
            elif step == "event":
                sender.next_event()
            elif step == "batch" and sender is batched:
                sender.outbox.send_many(SPEC.id, messages)
            else:
                for message in messages:
                    sender.outbox.send(SPEC.id, message)
    same: bool = single.everything() == batched.everything()
    return not same


async def differing(seeds: range) -> list[int]:
    """Return the seeds of random steps and limits with which batches differ from single sends."""
    found = []
    for seed in seeds:
        draw = random.Random(seed).choice
        limits = {
            "frame_messages_max": draw([1, 2, 15, 16, 18, 40]),
            "frame_bytes_max": draw([1, 20, 46, 150, 10_000]),
            "message_bytes_max": draw([10, 60]),
        }
        kinds = ("batch", "batch", "one by one", "flush", "event")
        steps = [(draw(kinds), draw([0, 1, 7, 15, 16, 17, 30]), draw([1, 2, 5, 10])) for _ in range(6)]
        if differs(steps, limits):
            found.append(seed)
    return found


def test_P1_a_batch_gives_the_frames_ordinals_and_hashes_of_single_sends() -> None:
    """P1, R4: byte for byte the same frames, the same frontier of the proof, and the same trace."""
    assert run(differing(range(150))) == []


@pytest.mark.parametrize("count", [15, 16, 17, 65535, 65536])
def test_batches_of_any_size_are_encoded_without_their_array_header(count: int) -> None:
    """The header of an array has one, three or five bytes."""
    limits = {"frame_messages_max": 100_000, "frame_bytes_max": 1 << 20, "message_bytes_max": 1 << 20}

    async def scenario() -> bool:
        return differs([("batch", count, 3)], limits)

    assert not run(scenario())


def one_too_many(self: OpenFrame, messages: list[Any]) -> Any:
    self.messages_max += 1
    try:
        return encode_parts(self, messages)
    finally:
        self.messages_max -= 1


def whole_batch_again(self: OpenFrame, messages: list[Any]) -> Any:
    parts = encode_parts(self, messages)
    return parts and [parts[0], *((len(messages), frame_builder.array_body(messages)) for _ in parts[1:])]


def one_byte_too_many(self: OpenFrame, messages: list[Any]) -> Any:
    self.bytes_max += 1
    try:
        return encode_parts(self, messages)
    finally:
        self.bytes_max -= 1


def unfilled_frame_first(self: OpenFrame, messages: list[Any]) -> Any:
    self.count, before = 0, self.count
    try:
        return encode_parts(self, messages)
    finally:
        self.count = before


def header_left_in(messages: list[Any]) -> memoryview:
    return memoryview(msgspec.msgpack.encode(messages))[1:]


encode_parts = OpenFrame.encode_parts


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (OpenFrame, "encode_parts", one_too_many),
        (OpenFrame, "encode_parts", one_byte_too_many),
        (OpenFrame, "encode_parts", whole_batch_again),
        (OpenFrame, "encode_parts", unfilled_frame_first),
        (frame_builder, "array_body", header_left_in),
    ],
)
def test_batches_that_fill_a_frame_differently_are_noticed(
    owner: Any, name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison above finds batches that are off by one message or one byte."""
    monkeypatch.setattr(owner, name, mutant)
    assert run(differing(range(150)))


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (object(), "cannot be encoded: object"),
        (Coin(1 << 80), r"cannot be encoded: Coin.amount: int"),
        (
            RareCoin(1),
            "sends a message of type RareCoin on 'a->b', which is not one of the system's message types: Coin",
        ),
        ({"type": "Coin", "amount": [0] * 1000}, "Expected `int`"),
    ],
    ids=["an object", "a large number", "a subclass", "a wrong dict"],
)
@pytest.mark.parametrize("count", [2, 50], ids=["one frame", "several frames"])
def test_E13_if_one_message_is_refused_none_of_its_batch_is_sent(wrong: Any, problem: str, count: int) -> None:
    """E13: the error names the message; those before it and those behind it are not sent."""

    async def scenario() -> None:
        sender = Sender(Coin, frame_messages_max=8)
        sender.outbox.send(SPEC.id, Coin(7))
        with pytest.raises(UsageError, match=problem):
            sender.outbox.send_many(SPEC.id, [Coin(1)] * count + [wrong] + [Coin(1)] * count)
        sender.outbox.send_many(SPEC.id, [Coin(8), {"type": "Coin", "amount": 9}])
        sender.outbox.flush()
        (frame,) = sender.frames()
        assert msgspec.msgpack.decode(frame[frame_builder.HEADER_BYTES :], type=list[Coin]) == [*map(Coin, (7, 8, 9))]

    run(scenario())


def test_a_message_that_is_too_long_is_refused_with_its_batch() -> None:
    async def scenario() -> None:
        sender = Sender(message_bytes_max=1000, frame_bytes_max=100)
        with pytest.raises(UsageError, match=r"a bytes of 1003 bytes was sent on a->b.*raise message_bytes_max"):
            sender.outbox.send_many(SPEC.id, [bytes(90), bytes(1000), bytes(90)])
        sender.outbox.send_many(SPEC.id, [bytes(997)])
        frames, frontier, _ = sender.everything()
        assert (len(frames), frontier.count) == (1, 1)

    run(scenario())


@pytest.mark.parametrize("messages", ["text", b"bytes", {"a": 1}, 7, Coin(1)])
def test_E13_something_that_is_not_a_list_of_messages_is_refused(messages: Any) -> None:
    async def scenario() -> None:
        sender = Sender()
        with pytest.raises(UsageError, match=r"process 'a' calls send_many on 'a->b' with a .*; give it a list"):
            sender.outbox.send_many(SPEC.id, messages)
        assert sender.everything()[1].count == 0

    run(scenario())


def test_any_iterable_of_messages_may_be_sent_and_none_too() -> None:
    async def scenario() -> None:
        sender = Sender()
        for messages in ((1, 2), (number for number in (3, 4)), [], {5: "five"}.keys()):
            sender.outbox.send_many(SPEC.id, messages)
        (frame,), frontier, _ = sender.everything()
        assert msgspec.msgpack.decode(frame[frame_builder.HEADER_BYTES :]) == [1, 2, 3, 4, 5]
        assert frontier.count == 5

    run(scenario())


def test_a_batch_is_refused_outside_of_events_and_in_other_threads() -> None:
    async def scenario() -> None:
        sender = Sender()
        problems: list[BaseException] = []

        def send() -> None:
            try:
                sender.outbox.send_many(SPEC.id, [1, 2])
            except UsageError as error:
                problems.append(error)

        await asyncio.to_thread(send)
        sender.outbox.end_event()
        send()
        sender.outbox.begin_event()
        with pytest.raises(UsageError, match="sends on 'a->c', which is not an output of it; outputs: a->b"):
            sender.outbox.send_many("a->c", [])
        assert sender.everything()[1].count == 0
        assert [str(problem).partition(" while")[0] for problem in problems] == ["process 'a' sends on 'a->b'"] * 2

    run(scenario())


def test_a_batch_counts_towards_the_bound_of_its_event() -> None:
    """A batch is sent as a whole, and the next one is refused."""

    async def scenario() -> None:
        sender = Sender(event_bytes_max=1 << 16)
        for _ in range(21):
            sender.outbox.send_many(SPEC.id, [bytes(100)] * 50)
        with pytest.raises(UsageError, match="more than 65,536 bytes in one event"):
            sender.outbox.send_many(SPEC.id, [bytes(100)] * 50)
        assert sender.everything()[1].count == 21 * 50  # four full frames, and some more

    run(scenario())


def test_a_program_with_its_own_loop_sends_a_batch_and_waits_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            await own.node.send_many("b->a", range(300))
            assert own.timeline.application.position == 1
            with own.node.atomic():
                room = own.node.send_many("b->a", [300])
            await room
            own.timeline.outbox.flush()
            assert own.timeline.protocol.outgoing["b->a"].count == 301

    run(scenario())
