"""Invalid frames of a peer that knows the system and its channels: they end its connection, and nothing else."""

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.runtime.link_ends import HELLO, NoNetwork, Target, marker, run, until
from tests.runtime.lone_node import LoneNode, lone_node
from tests.runtime.scripted import Scripted, pair

from strobe.process import Channel, System
from strobe.protocol.coordinator.messages import RecordingFailed
from strobe.runtime.links import codec
from strobe.runtime.links.codec import ARRAY32, ARRAY_HEADER, HEADER, HEADER_BYTES, MAGIC, LinkWelcome
from strobe.runtime.links.incoming_connection import IncomingConnection
from strobe.runtime.links.listener import Listener
from strobe.runtime.node.heartbeat import measure

NEVER_USED = b"\xc1"  # by MessagePack: a value that begins with it is invalid
SEEDS = range(40)


def messages_frame(body: bytes, count: int, sequence: int, first_ordinal: int) -> bytes:
    return HEADER.pack(len(body), MAGIC, codec.MESSAGES, count, 1, sequence, first_ordinal, 0) + body


def garbage(random: Random) -> tuple[int, bytes]:
    """Return a message count, and a body that begins with that count but cannot be decoded to its end."""
    count = random.randrange(1, 300)
    good = [msgspec.msgpack.encode(random.randrange(1 << 30)) for _ in range(random.randrange(count))]
    bad = random.choice([NEVER_USED, b"", b"\xd9\x02\xff\xff", b"\x91" * 100_000, random.randbytes(30) + NEVER_USED])
    if bad.startswith(b"\xd9"):
        good = good[: count - 1]
    return count, ARRAY_HEADER.pack(ARRAY32, count) + b"".join(good) + bad


class Hostile:
    """A connection for a->b that can send any bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, welcome: LinkWelcome) -> None:
        self.reader, self.writer, self.welcome = reader, writer, welcome

    @classmethod
    async def connect(cls, node: LoneNode) -> "Hostile":
        host, port = node.link.register.address
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(codec.handshake_frame(node.source.outgoing_link.hello))
        length, _, kind, *_ = HEADER.unpack(await reader.readexactly(HEADER_BYTES))
        assert kind == codec.WELCOME
        return cls(reader, writer, codec.read_control(kind, await reader.readexactly(length)))

    async def send(self, frame: bytes) -> None:
        """Send `frame`, and wait until the node has closed the connection."""
        self.writer.write(frame)
        while await self.reader.read(1 << 16):
            pass
        self.writer.close()


@pytest.mark.parametrize("kind", [Any, int, str | int, None])
def test_an_unreadable_body_ends_only_its_connection(tmp_path: Path, kind: Any) -> None:
    """For every message type: a body with a value of a wrong type before the invalid bytes is still unreadable."""

    async def scenario() -> None:
        system = pair()
        system.decoder = msgspec.msgpack.Decoder(list[int | kind])  # type: ignore[valid-type]
        async with lone_node(tmp_path, system) as node:
            sent = []
            for seed in SEEDS:
                hostile = await Hostile.connect(node)
                count, body = garbage(Random(seed))
                await hostile.send(messages_frame(body, count, hostile.welcome.last_sequence + 1, len(sent) + 1))
                node.source.send(seed)
                sent.append(seed)
                await node.received(*sent)
            assert node.host.rejected["wrong body"] == len(SEEDS)
            assert node.host.problem is None

    run(scenario())


def test_a_repeatedly_unreadable_frame_is_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            node.source.send("readable")
            await node.received("readable")
            assert not measure(node.host).unreadable
            node.source.outgoing_link.write(
                bytearray(messages_frame(ARRAY_HEADER.pack(ARRAY32, 1) + NEVER_USED, 1, 0, 2))
            )
            await until(lambda: measure(node.host).unreadable)
            problem = measure(node.host).unreadable["a->b"]
            assert problem.startswith("a->b: the frame of message 2 cannot be decoded")
            assert node.host.problem is None

    run(scenario())


def test_an_unreadable_body_is_detected_under_back_pressure(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            node.timeline.outbox.full = True
            node.source.send("waits")
            await until(lambda: node.timeline.inbox)
            hostile = await Hostile.connect(node)
            body = ARRAY_HEADER.pack(ARRAY32, 1) + NEVER_USED
            await hostile.send(messages_frame(body, 1, hostile.welcome.last_sequence + 1, 2))
            node.source.send("follows")
            node.timeline.outbox.full = False
            node.timeline.scheduler.pump_soon()
            await node.received("waits", "follows")

    run(scenario())


# Barriers


def numbered(frames: list[bytearray], first_sequence: int = 1) -> bytes:
    for sequence, frame in enumerate(frames, first_sequence):
        codec.number(frame, sequence)
    return b"".join(frames)


def barrier(count: int, sent_count: int = 0) -> bytearray:
    body = msgspec.msgpack.encode((msgspec.structs.replace(marker(1), sent_count=sent_count), count))
    return bytearray(HEADER.pack(len(body), MAGIC, codec.BARRIER, 0, 0, 0, 0, 0) + body)


def overtaken(ordinal: int, size: int = 10) -> bytearray:
    return together([messages_frame(msgspec.msgpack.encode([bytes(size)]), 1, 0, ordinal)])


def together(copies: list[bytes], count: int | None = None) -> bytearray:
    """Return an OVERTAKEN frame of these copies, with `count` in its header."""
    body = b"".join(copies)
    count = len(copies) if count is None else count
    return bytearray(HEADER.pack(len(body), MAGIC, codec.OVERTAKEN, count, 0, 0, 0, 0) + body)


def plain(ordinal: int) -> bytearray:
    return bytearray(messages_frame(msgspec.msgpack.encode(["late"]), 1, 0, ordinal))


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([barrier(-1)], "wrong body"),
        ([overtaken(1)], "unexpected kind"),
        ([barrier(2), overtaken(1), plain(3)], "unexpected kind"),
        ([barrier(2), barrier(2)], "unexpected kind"),
        ([barrier(1), codec.marker_frame(marker(2))], "unexpected kind"),
        ([barrier(0), overtaken(1)], "unexpected kind"),
        ([barrier(1), together([bytes(plain(1)), bytes(plain(2))])], "unexpected kind"),
        ([barrier(1), together([])], "wrong body"),
        ([barrier(1), together([bytes(plain(1))], count=2)], "wrong body"),
        ([barrier(1), together([bytes(plain(1)), b"rest"], count=1)], "wrong body"),
        ([barrier(1), together([bytes(plain(1))[:-1]], count=1)], "wrong body"),
        ([barrier(1), together([bytes(overtaken(1))], count=1)], "wrong body"),
        ([barrier(1), together([messages_frame(b"\x92\x01", 1, 0, 1)])], "wrong body"),
    ],
)
def test_V4_a_barrier_that_breaks_the_rules_ends_its_connection(frames: list[bytearray], reason: str) -> None:
    async def scenario() -> None:
        target = Target()
        listener, transport = Listener(target), NoNetwork()
        connection = IncomingConnection(listener)
        connection.connection_made(transport)
        data = bytes(codec.handshake_frame(HELLO)) + numbered([bytearray(frame) for frame in frames])
        room = connection.get_buffer(-1)
        room[: len(data)] = data
        connection.buffer_updated(len(data))
        assert transport.ended
        assert listener.rejections.counts[reason] == 1
        assert not target.heard
        target.incoming_link.close()

    run(scenario())


def test_E3_copies_beyond_the_recording_bound_are_not_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        one_way = System({"a": Scripted(), "b": Scripted()}, [Channel("a", "b")], protocol="unaligned")
        async with lone_node(tmp_path, one_way, recording_bytes_max=10_000) as node:
            begun = node.begin_snapshot()
            node.link.send(begun)
            hostile = await Hostile.connect(node)
            first = hostile.welcome.last_sequence + 1
            frames = [barrier(30, 30), *(overtaken(ordinal, 1000) for ordinal in range(1, 31))]
            hostile.writer.write(numbered(frames, first))
            failed = await node.link.handle(RecordingFailed)
            assert failed.snapshot == begun.snapshot
            assert "a barrier on a->b has overtaken more than recording_bytes_max allows" in failed.reason
            assert node.timeline.recordings.bytes == 0
            assert node.host.problem is None
            hostile.writer.close()

    run(scenario())
