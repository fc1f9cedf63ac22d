"""Two ends of a link over real TCP: reconnects and retries."""

import asyncio
import logging
import socket
from random import Random

import pytest
from tests.runtime.link_ends import (
    CuttingProxy,
    Source,
    Target,
    run,
    until,
)

from strobe.runtime.links import outgoing_link
from strobe.runtime.links.listener import Listener
from strobe.runtime.settings import NodeSettings

LOCAL = "127.0.0.1"

pytestmark = pytest.mark.usefixtures("short_back_off")


@pytest.mark.parametrize("seed", range(6))
def test_M2_reconnects_neither_lose_nor_repeat_a_frame(seed: int) -> None:
    """Connections are cut at random bytes: in handshakes, headers, bodies and credit. The window is small."""

    async def scenario() -> None:
        random = Random(seed)
        settings = NodeSettings(window_bytes=20_000, backlog_bytes_max=50_000)
        target, source = Target(settings, consumes=seed % 3 == 0), Source(settings)
        listener = await Listener.open(LOCAL, 0, gate=target)
        # Some cuts must be far enough apart for a whole frame: a cut frame is sent again from its start.
        bytes_max, message_bytes_max = ((4_000, 600), (60_000, 9_000))[seed % 2]
        proxy = CuttingProxy(listener.port, random, bytes_max)
        await proxy.open()
        source.outgoing_link.reach((LOCAL, proxy.port))
        for number in range(2000):
            size = message_bytes_max if number % 100 == 0 else 100
            messages = [bytes(random.randrange(size)) for _ in range(random.randint(1, 3))]
            source.send(*messages, now=random.random() < 0.5)
            if random.random() < 0.05:
                source.mark(number)
            target.consume(random.randint(0, 8))
            while source.outgoing_link.full:
                source.outgoing_link.flush()
                target.consume(8)
                await asyncio.sleep(0)
            if random.random() < 0.1:
                await asyncio.sleep(0)
        source.outgoing_link.flush()
        await _until_cut(proxy, 150, source, target)
        proxy.cutting = False
        while len(target.heard) < len(source.said):
            target.consume(8)
            await asyncio.sleep(0)
        assert target.heard == source.said
        assert target.incoming.frontier() == source.outgoing.frontier()
        assert source.outgoing_link.reconnects >= 50
        assert set(listener.rejected) <= {"no hello"}  # the connection was cut within its HELLO
        source.outgoing_link.close()
        await proxy.close()
        await listener.close()

    run(scenario())


async def _until_cut(proxy: CuttingProxy, cuts: int, source: Source, target: Target) -> None:
    """Keep sending until the proxy has made this many `cuts`."""
    while proxy.cuts < cuts:
        target.consume(8)
        if not source.outgoing_link.full:
            source.send(bytes(500))
        await asyncio.sleep(0)


def test_the_source_follows_a_moved_target() -> None:
    async def scenario() -> None:
        target, source = Target(), Source()
        first = await Listener.open(LOCAL, 0, gate=target)
        second = await Listener.open(LOCAL, 0, gate=target)
        source.outgoing_link.reach(None)
        source.send(1)
        source.outgoing_link.reach((LOCAL, first.port))
        await until(lambda: target.heard)
        source.outgoing_link.reach(None)
        assert not source.outgoing_link.connected
        source.send(2)
        source.outgoing_link.reach((LOCAL, second.port))
        await until(lambda: len(target.heard) == 2)
        assert target.heard == source.said
        assert source.outgoing_link.reconnects == 1
        source.outgoing_link.close()
        await first.close()
        await second.close()

    run(scenario())


def test_unsent_frames_go_on_the_next_connection() -> None:
    async def scenario() -> None:
        target, source = Target(), Source()
        listener = await Listener.open(LOCAL, 0, gate=target)
        source.outgoing_link.reach((LOCAL, listener.port))
        await until(lambda: source.outgoing_link.connected)
        source.send(1, now=False)
        source.outgoing_link.reach(None)
        source.send(2, now=False)
        source.outgoing_link.flush()
        source.outgoing_link.reach((LOCAL, listener.port))
        await until(lambda: target.heard == source.said)
        assert target.incoming_link.duplicates == 0
        source.outgoing_link.close()
        await listener.close()

    run(scenario())


def test_a_source_finds_a_target_started_later(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(port: int) -> None:
        target, source = Target(), Source()
        source.outgoing_link.reach((LOCAL, port))
        source.send(1)
        await until(lambda: f"{LOCAL}:{port} cannot be reached" in caplog.text)
        listener = await Listener.open(LOCAL, port, gate=target)
        await until(lambda: target.heard)
        source.outgoing_link.close()
        await listener.close()

    caplog.set_level(logging.DEBUG, "strobe")
    with socket.socket() as held:  # reserves the port, and accepts no connections
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((LOCAL, 0))
        run(scenario(held.getsockname()[1]))


def test_a_link_retries_after_any_error(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Not only after network errors: a name lookup also fails if no thread can be started."""

    async def scenario() -> None:
        target, source = Target(), Source()
        listener = await Listener.open(LOCAL, 0, gate=target)
        with monkeypatch.context() as broken:
            broken.setattr(outgoing_link, "CONNECT_TIMEOUT_S", "no number")
            source.outgoing_link.reach((LOCAL, listener.port))
            await until(lambda: "cannot be reached" in caplog.text)
        source.send(1)
        await until(lambda: target.heard)
        source.outgoing_link.close()
        await listener.close()

    caplog.set_level(logging.DEBUG, "strobe")
    run(scenario())


def test_a_target_with_invalid_answers_is_retried() -> None:
    async def scenario() -> None:
        answers = iter((b"\xff" * 200, bytes(40)))
        real, source = Target(), Source()
        listener = await Listener.open(LOCAL, 0, gate=real)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(next(answers, b""))
            await writer.drain()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(answer, LOCAL, 0)
        source.outgoing_link.reach((LOCAL, server.sockets[0].getsockname()[1]))
        await until(lambda: source.outgoing_link.rejections.counts["garbage"] == 2)
        source.outgoing_link.reach((LOCAL, listener.port))
        source.send(1)
        await until(lambda: real.heard)
        source.outgoing_link.close()
        server.close()
        await server.wait_closed()
        await listener.close()

    run(scenario())
