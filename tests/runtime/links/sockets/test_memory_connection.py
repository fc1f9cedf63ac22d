"""Connections in memory: the rules of the event loop's transports, and links that cannot tell them from TCP."""

import asyncio
from collections.abc import Callable

import pytest
from tests.runtime.link_ends import Source, Target, run, until

from strobe.runtime.links.listener import Listener
from strobe.runtime.links.memory_connection import READ_BYTES_MAX, MemoryConnections, MemoryTransport, join
from strobe.runtime.settings import NodeSettings

HOST = "127.0.0.1"


class Ear(asyncio.Protocol):
    """Keeps what arrives, and the end of its connection."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.ends: list[Exception | None] = []
        self.on_data: Callable[[bytes], None] = lambda data: None

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)
        self.on_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends.append(exc)

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


def pair() -> tuple[Ear, Ear, MemoryTransport, MemoryTransport]:
    a, b = Ear(), Ear()
    return a, b, *join(a, b)


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_write_calls_no_protocol_before_it_returns() -> None:
    async def scenario() -> None:
        a, b, to_b, to_a = pair()
        b.on_data = lambda data: to_a.write(data.upper())  # an answer inside a callback
        to_b.write(b"one")
        to_b.writelines([b"two", bytearray(b"three")])
        assert (a.pieces, b.pieces) == ([], [])
        assert to_b.get_write_buffer_size() == 11
        await turns()
        assert (a.data, b.data) == (b"ONETWOTHREE", b"onetwothree")
        assert to_b.get_write_buffer_size() == 0

    run(scenario())


def test_large_writes_arrive_whole_in_pieces_of_bounded_size() -> None:
    async def scenario() -> None:
        _, b, to_b, _ = pair()
        sent = bytes(range(256)) * (3 * READ_BYTES_MAX // 256) + b"end"
        to_b.write(sent)
        await until(lambda: len(b.data) == len(sent))
        assert b.data == sent
        assert [len(piece) for piece in b.pieces] == [READ_BYTES_MAX] * 3 + [3]

    run(scenario())


def test_a_paused_end_gets_nothing_until_it_resumes() -> None:
    async def scenario() -> None:
        _, b, to_b, to_a = pair()
        b.on_data = lambda data: to_a.pause_reading()
        to_b.write(b"x" * READ_BYTES_MAX)
        to_b.write(b"later")
        to_b.close()
        await turns(5)
        assert len(b.data) == READ_BYTES_MAX
        assert (to_b.get_write_buffer_size(), b.ends, to_a.is_reading()) == (5, [], False)
        to_a.resume_reading()
        await turns(5)
        assert b.data.endswith(b"later")
        to_a.resume_reading()
        await turns()
        assert b.ends == [None]

    run(scenario())


@pytest.mark.parametrize("way", ["close", "abort"])
def test_only_close_delivers_what_was_written_before(way: str) -> None:
    async def scenario() -> None:
        a, b, to_b, to_a = pair()
        to_b.write(b"last words")
        getattr(to_b, way)()
        assert (a.ends, b.ends) == ([], [])
        to_b.write(b"too late")
        to_a.write(b"for a closed end")
        await turns(5)
        assert b.data == (b"last words" if way == "close" else b"")
        assert (a.ends, b.ends, a.pieces) == ([None], [None], [])
        to_a.abort()
        to_b.close()
        await turns()
        assert (a.ends, b.ends) == ([None], [None])

    run(scenario())


def test_an_error_in_a_protocol_ends_the_connection_and_reaches_the_event_loop() -> None:
    async def scenario() -> None:
        problems: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["exception"]))
        a, b, to_b, _ = pair()
        error = ValueError("cannot be read")

        def fail(data: bytes) -> None:
            raise error

        b.on_data = fail
        to_b.write(b"?")
        await turns(5)
        assert (problems, b.ends, a.ends) == ([error], [error], [None])

    run(scenario())


async def _talk(source: Source, target: Target, listener: Listener, bytes_each: int = 100) -> None:
    source.outgoing_link.reach((HOST, listener.port))
    await until(lambda: source.outgoing_link.connected)
    for number in range(60):
        source.send(number, bytes(bytes_each))
        if number % 7 == 0:
            source.mark(number)
    await until(lambda: len(target.heard) == len(source.said))
    assert target.heard == source.said
    assert target.incoming.frontier() == source.outgoing.frontier()


def test_P1_frames_in_memory_are_those_over_tcp_byte_for_byte() -> None:
    """P1: the same frames, ordinals and running hashes at both ends of a channel."""

    async def frames(in_memory: bool) -> list[bytes]:
        target, connections = Target(), MemoryConnections()
        listener = await Listener.open(HOST, 0, gate=target)
        if in_memory:
            connections.add((HOST, listener.port), listener)
        source = Source(connect=connections.connect)
        await _talk(source, target, listener)
        place = next(iter(listener.connections))._peer
        assert ("this program" in str(place)) == in_memory
        source.outgoing_link.close()
        await listener.close()
        return [bytes(frame.body) for frame in target.frames]

    async def scenario() -> None:
        assert await frames(in_memory=True) == await frames(in_memory=False)

    run(scenario())


def test_a_target_in_memory_that_consumes_nothing_gets_only_its_window() -> None:
    async def scenario() -> None:
        settings = NodeSettings(window_bytes=10_000, backlog_bytes_max=5_000)
        target, connections = Target(settings, consumes=False), MemoryConnections()
        listener = await Listener.open(HOST, 0, gate=target)
        connections.add((HOST, listener.port), listener)
        source = Source(settings, connect=connections.connect)
        source.outgoing_link.reach((HOST, listener.port))
        await until(lambda: source.outgoing_link.connected)
        for _ in range(40):
            source.send(bytes(1000))
        await turns(20)
        assert source.outgoing_link.full
        assert sum(target.waiting) <= 10_000
        while len(target.heard) < 40:
            target.consume(len(target.waiting))
            await asyncio.sleep(0.001)
        assert target.heard == source.said
        await until(lambda: source.rooms == 1)
        source.outgoing_link.close()
        await listener.close()

    run(scenario())


@pytest.mark.usefixtures("short_back_off")
def test_R1_a_cut_connection_in_memory_loses_and_doubles_no_frame() -> None:
    """R1: frames on their way when the connection ends are sent again, and counted once."""

    async def scenario() -> None:
        target, connections = Target(), MemoryConnections()
        listener = await Listener.open(HOST, 0, gate=target)
        connections.add((HOST, listener.port), listener)
        source = Source(connect=connections.connect)
        source.outgoing_link.reach((HOST, listener.port))
        for number in range(200):
            source.send(number, bytes(1000))
            if number % 20 == 10 and listener.connections:
                next(iter(listener.connections)).drop()
            if number % 5 == 0:
                await turns(2)
        await until(lambda: len(target.heard) == len(source.said))
        assert target.heard == source.said
        assert target.incoming.frontier() == source.outgoing.frontier()
        assert source.outgoing_link.reconnects > 0
        source.outgoing_link.close()
        await listener.close()

    run(scenario())
