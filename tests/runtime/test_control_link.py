"""A node's connection to the coordinator: patient, and brief about it."""

import asyncio
import logging

import pytest
import uvloop

from strobe.runtime import control_link
from strobe.runtime.control import Stop, pack
from strobe.runtime.control_link import ControlLink


def test_who_lets_in_and_hangs_up_without_a_word_is_complained_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Something may stand before a coordinator that is gone: what it lets in counts for nothing."""

    async def meet() -> None:
        met = asyncio.Semaphore(0)

        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()
            met.release()

        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
            link = ControlLink(server.sockets[0].getsockname()[:2], lambda: Stop("hello"), lambda _: None)
            link.start()
            for _ in range(4):
                await met.acquire()
            await link.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(meet())
    assert len(caplog.records) == 1


def test_a_connection_that_is_lost_after_a_word_is_told_of_again(caplog: pytest.LogCaptureFixture) -> None:
    async def meet() -> None:
        met = asyncio.Semaphore(0)

        async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(pack(Stop("enough")))
            await writer.drain()
            writer.close()
            met.release()

        async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
            heard: list[object] = []
            link = ControlLink(server.sockets[0].getsockname()[:2], lambda: Stop("hello"), heard.append)
            link.start()
            for _ in range(4):
                await met.acquire()
            await link.close()
            assert heard[:3] == [Stop("enough")] * 3

    with caplog.at_level(logging.WARNING):
        asyncio.run(meet())
    assert len(caplog.records) >= 3


def test_it_ends_also_where_the_coordinator_hangs_up_in_the_same_moment() -> None:
    """The task is cancelled while it waits for the end of a connection that ends just then: it must not go on."""

    async def meet() -> None:
        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
            for turns in range(60):
                link = ControlLink(server.sockets[0].getsockname()[:2], lambda: Stop("hello"), lambda _: None)
                link.start()
                for _ in range(turns % 12):
                    await asyncio.sleep(0)
                async with asyncio.timeout(10):
                    await link.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(meet())


def test_a_coordinator_that_reads_nothing_costs_its_nodes_a_bounded_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_link, "UNREAD_BYTES_MAX", 1 << 20)

    async def meet() -> None:
        met, over = asyncio.Semaphore(0), asyncio.Event()

        async def read_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            met.release()
            await over.wait()
            writer.close()

        async with await asyncio.start_server(read_nothing, "127.0.0.1", 0) as server:
            link = ControlLink(server.sockets[0].getsockname()[:2], lambda: Stop("hello"), lambda _: None)
            link.start()
            await met.acquire()
            said = 0
            while link.say(Stop(100_000 * "x")):
                said += 1
                await asyncio.sleep(0)
            assert said > 10
            await met.acquire()  # it comes again
            over.set()
            await link.close()

    asyncio.run(meet())
