"""A listener hands over whole frames, once and in order. It rejects and counts everything else."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from itertools import cycle, repeat
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.link_ends import EPOCH, HELLO, SPEC, VIEW, NoNetwork, Source, Target, marker, run, until

from strobe.protocol import Frame
from strobe.protocol.process.channels import Outgoing
from strobe.runtime.links import codec
from strobe.runtime.links.codec import HEADER, HEADER_BYTES, MAGIC, Hello, Refusal
from strobe.runtime.links.incoming_connection import IncomingConnection
from strobe.runtime.links.incoming_link import IncomingLink
from strobe.runtime.links.listener import Listener
from strobe.runtime.settings import NodeSettings

LOCAL = "127.0.0.1"


class UncheckedTarget(Target):
    """A node that accepts every frame, without checking its content."""

    def take_frame(self, incoming_link: IncomingLink, frame: Frame, wire_bytes: int) -> None:
        self.frames.append(frame)
        incoming_link.consumed(wire_bytes)


class CountingTarget(UncheckedTarget):
    """A node that allows further reads in the same event-loop iteration, or not. It counts the reads per iteration."""

    def __init__(self, reads_on: bool) -> None:
        super().__init__()
        self.reads: list[int] = []
        self._reads_on = reads_on
        self._begin_iteration()

    def _begin_iteration(self) -> None:
        self.reads.append(0)

    def taken(self) -> bool:
        if not self.reads[-1]:
            asyncio.get_running_loop().call_soon(self._begin_iteration)
        self.reads[-1] += 1
        return self._reads_on


class Peer:
    """A peer that feeds bytes to a listener, without a network."""

    def __init__(self, listener: Listener) -> None:
        self.transport = NoNetwork()
        self.connection = IncomingConnection(listener)
        self.connection.connection_made(self.transport)

    def feed(self, data: bytes | bytearray, sizes: Iterator[int] | None = None) -> None:
        """Feed `data` in pieces of these `sizes`, until the listener ends the connection."""
        rest = memoryview(data)
        while rest and not self.transport.ended:
            room = self.connection.get_buffer(-1)
            size = min(len(room), len(rest), next(sizes) if sizes else len(rest))
            room[:size] = rest[:size]
            self.connection.buffer_updated(size)
            rest = rest[size:]

    def answers(self) -> list[int]:
        """Return the kinds of the frames that the listener has sent."""
        kinds, position = [], 0
        while position < len(self.transport.written):
            length, _, kind, *_ = HEADER.unpack_from(self.transport.written, position)
            kinds.append(kind)
            position += HEADER_BYTES + length
        return kinds


def stream(bodies: list[object], hello: Hello = HELLO, first_sequence: int = 1) -> list[bytes]:
    """Return a hello, a frame of messages for each body, and a marker and a view at the end."""
    outgoing, frames = Outgoing(SPEC), [bytes(codec.handshake_frame(hello))]
    for sequence, body in enumerate(bodies, first_sequence):
        frame = codec.messages_frame(outgoing.seal(1, msgspec.msgpack.encode([body]), 0, 1))
        codec.number(frame, sequence)
        frames.append(bytes(frame))
    for offset, frame in enumerate((codec.marker_frame(marker(1)), codec.view_frame(VIEW, outgoing.count))):
        codec.number(frame, first_sequence + len(bodies) + offset)
        frames.append(bytes(frame))
    return frames


def messages_of(count: int, sequence: int, body: bytes) -> bytes:
    return HEADER.pack(len(body), MAGIC, codec.MESSAGES, count, 1, sequence, sequence, 0) + body


@given(st.lists(st.binary(max_size=300), max_size=20), st.lists(st.integers(1, 400), min_size=1, max_size=10))
def test_frames_are_the_same_however_the_bytes_are_split(bodies: list[object], sizes: list[int]) -> None:
    async def scenario() -> None:
        target = Target()
        peer = Peer(Listener(target))
        peer.feed(b"".join(stream(bodies)), cycle(sizes))
        assert target.heard == [*([body] for body in bodies), marker(1), (VIEW, len(bodies))]
        assert [bytes(frame.body) for frame in target.frames] == [msgspec.msgpack.encode([body]) for body in bodies]
        assert peer.answers()[0] == codec.WELCOME
        target.incoming_link.close()

    run(scenario())


def test_long_and_short_frames_are_received_whole() -> None:
    async def scenario() -> None:
        target = Target()
        sizes = (5, 300_000, 10, 260_000, 1_000_000, 1, 262_100, 262_144, 70_000, 70_000, 70_000, 70_000, 3)
        bodies: list[object] = [bytes((number,)) * size for number, size in enumerate(sizes)]
        peer = Peer(Listener(target))
        peer.feed(b"".join(stream(bodies)), cycle((65_536, 1, 40, 262_144, 33_333)))
        assert target.heard[:-2] == [[body] for body in bodies]
        assert [msgspec.msgpack.decode(frame.body) for frame in target.frames] == target.heard[:-2]
        target.incoming_link.close()

    run(scenario())


def test_M2_repeated_frames_are_skipped_and_a_gap_ends_the_connection() -> None:
    async def scenario() -> None:
        target = Target()
        listener = Listener(target)
        hello, *frames = stream(["one", "two", "three"])
        first = Peer(listener)
        first.feed(hello + frames[0] + frames[1] + frames[0] + frames[1])
        assert target.heard == [["one"], ["two"]]
        assert target.incoming_link.duplicates == 2
        first.feed(frames[3])
        assert first.transport.ended
        assert listener.rejected == {"gap": 1}
        again = Peer(listener)
        again.feed(hello)
        welcome = codec.read_control(codec.WELCOME, again.transport.written[HEADER_BYTES:])
        assert welcome == codec.LinkWelcome(2, target.incoming_link.consumed_bytes, target.settings.window_bytes)
        again.feed(b"".join(frames))
        assert target.heard == [["one"], ["two"], ["three"], marker(1), (VIEW, 3)]
        assert target.incoming_link.duplicates == 4
        target.incoming_link.close()

    run(scenario())


def test_a_newer_connection_of_a_channel_replaces_the_older() -> None:
    async def scenario() -> None:
        target = Target()
        listener = Listener(target)
        hello, *frames = stream(["one", "two"])
        older, newer = Peer(listener), Peer(listener)
        older.feed(hello + frames[0] + frames[1][:50])
        newer.feed(hello)
        assert older.transport.ended
        older.connection.connection_lost(None)
        assert target.incoming_link.connected
        newer.feed(frames[1])
        assert target.heard == [["one"], ["two"]]
        assert listener.connections == {newer.connection}
        target.incoming_link.close()
        assert newer.transport.ended

    run(scenario())


def test_a_channel_dropped_while_taking_a_frame_delivers_nothing_more() -> None:
    class Dropping(Target):
        def take_frame(self, incoming_link: IncomingLink, frame: Frame, wire_bytes: int) -> None:
            super().take_frame(incoming_link, frame, wire_bytes)
            incoming_link.close()

    async def scenario() -> None:
        target = Dropping()
        peer = Peer(Listener(target))
        peer.feed(b"".join(stream(["one", "two"])))
        assert target.heard == [["one"]]
        assert peer.transport.ended

    run(scenario())


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: a.example.org\r\n\r\n......", "garbage"),
        (stream([])[1], "frame before hello"),
        (codec.credit_frame(0, 0), "frame before hello"),
        (HEADER.pack(codec.HANDSHAKE_BYTES_MAX + 1, MAGIC, codec.HELLO, 0, 0, 0, 0, 0), "oversize"),
        (HEADER.pack(5, MAGIC, codec.HELLO, 0, 0, 0, 0, 0) + b"\xc0\xc0\xc0\xc0\xc0", "wrong body"),
        (HEADER.pack(0, MAGIC, 77, 0, 0, 0, 0, 0), "unknown kind"),
        (stream([])[0] * 2, "unexpected kind"),
        (stream([])[0] + codec.credit_frame(1, 1), "unexpected kind"),
        (stream([])[0] + messages_of(1, 3, b"\x91\x01"), "gap"),
        (stream([])[0] + messages_of(2, 1, b"\x91\x01"), "wrong body"),
        (stream([])[0] + messages_of(0, 1, b"\x90"), "wrong body"),
        (stream([])[0] + messages_of(0, 1, b""), "wrong body"),
        (stream([])[0] + messages_of(0, 1, b"\xdd\x00\x00\x00\x00"), "wrong body"),
        (stream([])[0] + messages_of(2, 1, b"\xdd\x00\x00\x00\x01\x01"), "wrong body"),
        (stream([])[0] + HEADER.pack(1 << 31, MAGIC, codec.MESSAGES, 1, 1, 1, 1, 0), "oversize"),
        (stream([])[0] + HEADER.pack(3, MAGIC, codec.MARKER, 0, 0, 1, 0, 0) + b"\x93\x01\x02", "wrong body"),
        (stream([])[0] + HEADER.pack(3, MAGIC, codec.VIEW, 0, 0, 1, 0, 0) + b"\x92\xc0\x02", "wrong body"),
        (stream([], Hello(system="x", epoch=EPOCH, source="a", channel=SPEC.id, incarnation=1))[0], "stranger"),
        (stream([], Hello(system="shop", epoch=1, source="a", channel=SPEC.id, incarnation=1))[0], "older epoch"),
        (stream([], Hello(system="shop", epoch=9, source="a", channel=SPEC.id, incarnation=1))[0], "newer epoch"),
    ],
)
def test_a_wrong_frame_is_counted_and_ends_only_its_connection(sent: bytes, reason: str) -> None:
    async def scenario() -> None:
        target = Target()
        listener = Listener(target)
        for sizes in (None, repeat(1)):
            bad = Peer(listener)
            bad.feed(sent, sizes)
            assert bad.transport.ended
        assert listener.rejected == {reason: 2}
        assert not listener.connections
        assert not listener.unknown
        assert not target.heard
        good = Peer(listener)
        good.feed(b"".join(stream(["fine"])))
        assert target.heard[0] == ["fine"]
        target.incoming_link.close()

    run(scenario())


def test_a_source_beyond_its_credit_is_disconnected() -> None:
    async def scenario() -> None:
        target = Target(NodeSettings(window_bytes=1_000), consumes=False)
        listener = Listener(target)
        peer = Peer(listener)
        peer.feed(b"".join(stream([bytes(400), bytes(400), bytes(400)])))
        assert target.heard == [[bytes(400)], [bytes(400)]]
        assert listener.rejected == {"beyond credit": 1}
        assert target.incoming_link.waiting_bytes <= 1_000

    run(scenario())


def test_a_connection_without_a_hello_is_closed() -> None:
    async def scenario() -> None:
        listener = await Listener.open(LOCAL, 0, gate=Target(), hello_timeout_s=0.02)
        silent = await asyncio.open_connection(LOCAL, listener.port)
        slow = await asyncio.open_connection(LOCAL, listener.port)
        slow[1].write(stream([])[0][:-1])  # all but the last byte
        for reader, writer in (silent, slow):
            with contextlib.suppress(ConnectionResetError):  # if it closes with written bytes unread
                assert await reader.read() == b""
            writer.close()
        assert listener.rejected == {"no hello in time": 2}
        assert not listener.connections
        await listener.close()

    run(scenario())


def test_many_unknown_connections_do_not_keep_a_peer_out() -> None:
    async def scenario() -> None:
        target = Target()
        listener = Listener(target, unknown_max=3)
        unknown = [Peer(listener) for _ in range(5)]
        assert [peer.transport.ended for peer in unknown] == [True, True, False, False, False]
        assert listener.rejected == {"too many unknown connections": 2}
        newest = Peer(listener)
        newest.feed(b"".join(stream(["fine"])))
        assert target.heard[0] == ["fine"]
        assert unknown[2].transport.ended
        assert len(listener.unknown) == 2
        for _ in range(5):
            Peer(listener)
        assert not newest.transport.ended, "who has said who it is stays"
        for connection in list(listener.connections):
            connection.drop()
        target.incoming_link.close()

    run(scenario())


MUTATIONS = st.lists(
    st.tuples(st.sampled_from(("flip", "delete", "insert", "double")), st.integers(0, 1 << 20), st.binary(max_size=60)),
    min_size=1,
    max_size=4,
)


def mutated(data: bytes, mutations: list[tuple[str, int, bytes]]) -> bytes:
    for kind, place, noise in mutations:
        at = place % (len(data) + 1)
        if kind == "flip":
            data = data[:at] + bytes(byte ^ 0xFF for byte in data[at : at + 1]) + data[at + 1 :]
        elif kind == "delete":
            data = data[:at] + data[at + len(noise) :]
        elif kind == "insert":
            data = data[:at] + noise + data[at:]
        else:
            data = data[:at] + data[at : at + 200] + data[at:]
    return data


@settings(max_examples=400)
@given(st.lists(st.binary(max_size=100), max_size=6), MUTATIONS, st.integers(1, 300))
def test_mutated_streams_never_break_the_listener(bodies: list[object], mutations: list, size: int) -> None:
    async def scenario() -> None:
        target = UncheckedTarget()
        listener = Listener(target)
        bad = Peer(listener)
        bad.feed(mutated(b"".join(stream(bodies)), mutations), repeat(size))
        assert bad.transport.ended == bool(listener.rejected)
        bad.connection.connection_lost(None)
        assert not listener.connections
        last = target.incoming_links[SPEC.id].last_sequence if target.incoming_links else 0
        assert len(target.frames) + len(target.heard) == last
        Peer(listener).feed(b"".join(stream(["fine"], first_sequence=last + 1)))
        assert target.frames[-1].body == msgspec.msgpack.encode(["fine"])
        target.incoming_link.close()

    run(scenario())


@settings(max_examples=200)
@given(st.binary(max_size=3000), st.booleans(), st.integers(1, 3000))
def test_noise_never_breaks_the_listener(noise: bytes, after_hello: bool, size: int) -> None:
    async def scenario() -> None:
        listener = Listener(UncheckedTarget())
        peer = Peer(listener)
        peer.feed((stream([])[0] if after_hello else b"") + noise, repeat(size))
        assert peer.transport.ended == (len(noise) >= HEADER_BYTES)
        assert sum(listener.rejected.values()) == peer.transport.ended
        peer.connection.drop()

    run(scenario())


def test_a_good_peer_works_while_others_send_noise_over_tcp() -> None:
    async def scenario() -> None:
        random = Random(11)
        target, source = Target(), Source()
        listener = await Listener.open(LOCAL, 0, gate=target)

        async def send_noise() -> None:
            reader, writer = await asyncio.open_connection(LOCAL, listener.port)
            hello = Hello(system="shop", epoch=random.randint(0, 5), source="x", channel="x", incarnation=1)
            greeting = random.choice((b"", bytes(codec.handshake_frame(hello))))
            writer.write(greeting + random.randbytes(random.randint(40, 9000)))
            with contextlib.suppress(ConnectionError):
                await reader.read()  # until the node disconnects
            writer.transport.abort()

        source.outgoing_link.reach((LOCAL, listener.port))
        for number in range(30):
            source.send(number)
            await asyncio.gather(*(send_noise() for _ in range(8)))
            assert sum(listener.rejected.values()) == 8 * (number + 1)
        await until(lambda: len(target.heard) == 30)
        assert target.heard == source.said
        assert source.outgoing_link.reconnects == 0
        source.outgoing_link.close()
        await listener.close()

    run(scenario())


@pytest.mark.parametrize("reads_on", [True, False])
def test_a_busy_node_gets_one_buffer_per_event_loop_iteration(reads_on: bool) -> None:
    """A node that is not busy reads several in one iteration."""

    async def scenario() -> None:
        target, count = CountingTarget(reads_on), 30
        listener = await Listener.open(LOCAL, 0, gate=target)
        sent = b"".join(stream([bytes(100_000)] * count))
        with socket.create_connection((LOCAL, listener.port)) as peer:
            peer.setblocking(False)
            first = peer.send(sent)  # sent before the listener reads, so that there is more than one buffer to read
            assert first > 600_000
            peer.setblocking(True)
            rest = asyncio.to_thread(peer.sendall, sent[first:])
            await asyncio.gather(rest, until(lambda: len(target.frames) == count))
        assert (max(target.reads) > 1) == reads_on
        await listener.close()

    run(scenario())


def test_refusals_are_answered_before_the_connection_ends() -> None:
    async def scenario() -> None:
        listener = Listener(Target())
        peer = Peer(listener)
        peer.feed(stream([], Hello(system="x", epoch=EPOCH, source="a", channel=SPEC.id, incarnation=1))[0])
        assert peer.answers() == [codec.REFUSED]
        refusal = codec.read_control(codec.REFUSED, peer.transport.written[HEADER_BYTES:])
        assert refusal == Refusal("stranger", final=True)

    run(scenario())
