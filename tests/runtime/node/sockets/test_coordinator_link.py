"""A node's connection to the coordinator: patient, and brief about it."""

import asyncio
import logging
import socket

import pytest
import uvloop

from strobe.runtime.messages.control import HeartbeatHeard, Refused, Stop, pack
from strobe.runtime.node import coordinator_link
from strobe.runtime.node.coordinator_link import ControlLink


def fail(error: BaseException) -> None:
    raise AssertionError from error


def test_an_error_that_no_retry_can_fix_is_reported() -> None:
    async def meet() -> None:
        told: asyncio.Queue[BaseException] = asyncio.Queue()
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
            address = server.sockets[0].getsockname()[:2]
            link = ControlLink(address, lambda: {}["greeting"], lambda _: None, told.put_nowait)
            link.start()
            assert isinstance(await told.get(), KeyError)
            await link.close()

    uvloop.run(meet())


def test_a_coordinator_that_accepts_and_disconnects_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Something may stand before a coordinator that is gone: what it lets in counts for nothing."""

    async def meet() -> None:
        met = asyncio.Semaphore(0)

        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()
            met.release()

        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
            link = ControlLink(server.sockets[0].getsockname()[:2], lambda: Stop("hello"), lambda _: None, fail)
            link.start()
            for _ in range(4):
                await met.acquire()
            await link.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(meet())
    assert len(caplog.records) == 1


def test_a_refused_node_backs_off_and_logs_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_link, "RETRY_S_MAX", 0.2)

    async def meet() -> None:
        met = asyncio.Semaphore(0)

        async def turn_away(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(pack(Refused("not yet", False)))
            await writer.drain()
            writer.close()
            met.release()

        async with await asyncio.start_server(turn_away, "127.0.0.1", 0) as server:
            link = ControlLink(server.sockets[0].getsockname()[:2], lambda: Stop("hello"), lambda _: None, fail)
            link.start()
            for _ in range(4):
                await met.acquire()
            assert link._backoff.failures >= 3
            await link.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(meet())
    assert len(caplog.records) == 1


def test_a_connection_lost_after_an_order_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    async def meet() -> None:
        met = asyncio.Semaphore(0)

        async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(pack(Stop("enough")))
            await writer.drain()
            writer.close()
            met.release()

        async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
            heard: list[object] = []
            link = ControlLink(server.sockets[0].getsockname()[:2], lambda: Stop("hello"), heard.append, fail)
            link.start()
            for _ in range(4):
                await met.acquire()
            await link.close()
            assert heard[:3] == [Stop("enough")] * 3

    with caplog.at_level(logging.WARNING):
        asyncio.run(meet())
    assert len(caplog.records) >= 3


def test_it_ends_even_if_the_coordinator_disconnects_meanwhile() -> None:
    """The task is cancelled while it waits for the end of a connection that ends just then: it must not go on."""

    async def meet() -> None:
        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
            for turns in range(60):
                link = ControlLink(server.sockets[0].getsockname()[:2], lambda: Stop("hello"), lambda _: None, fail)
                link.start()
                for _ in range(turns % 12):
                    await asyncio.sleep(0)
                async with asyncio.timeout(10):
                    await link.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(meet())


def test_a_coordinator_that_reads_nothing_costs_its_nodes_a_bounded_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_link, "UNREAD_BYTES_MAX", 1 << 20)

    async def meet() -> None:
        met, over = asyncio.Semaphore(0), asyncio.Event()

        async def read_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            met.release()
            await over.wait()
            writer.close()

        async with await asyncio.start_server(read_nothing, "127.0.0.1", 0) as server:
            link = ControlLink(server.sockets[0].getsockname()[:2], lambda: Stop("hello"), lambda _: None, fail)
            link.start()
            await met.acquire()
            said = 0
            while link.send(Stop(100_000 * "x")):
                said += 1
                await asyncio.sleep(0)
            assert said > 10
            await met.acquire()  # it comes again
            over.set()
            await link.close()

    asyncio.run(meet())


def test_a_coordinator_that_answers_no_heartbeat_gets_a_new_greeting(caplog: pytest.LogCaptureFixture) -> None:
    """A connection may lead nowhere without an end or a reset: only that nothing comes tells."""

    async def meet() -> None:
        met, over = asyncio.Semaphore(0), asyncio.Event()
        words: list[Stop] = [Stop("welcome")]
        heard: list[object] = []

        async def say_one_thing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if words:
                writer.write(pack(words.pop()))
            met.release()
            await over.wait()
            writer.close()

        async with await asyncio.start_server(say_one_thing, "127.0.0.1", 0) as server:
            link = ControlLink(server.sockets[0].getsockname()[:2], lambda: Stop("hello"), heard.append, fail)
            link.unanswered_max = 3
            link.start()
            # One that lets in and says nothing at all may be stopped: it shall not find many when it goes on.
            for allowed in (3, 30, 30):
                async with asyncio.timeout(10):
                    await met.acquire()
                    while not link.connected or not heard:
                        await asyncio.sleep(0)
                assert [link.send_heartbeat(Stop("alive")) for _ in range(allowed + 1)] == [True] * allowed + [False]
            over.set()
            await link.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(meet())
    assert [record.getMessage().partition("(")[2] for record in caplog.records] == [
        "it has answered none of 3 heartbeats); trying again"
    ]


def test_any_message_of_the_coordinator_answers_earlier_heartbeats() -> None:
    async def meet() -> None:
        heard, over = asyncio.Queue[object](), asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.read(1000):
                writer.write(pack(HeartbeatHeard()))
            writer.close()
            await writer.wait_closed()
            over.set()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            link = ControlLink(server.sockets[0].getsockname()[:2], lambda: Stop("hello"), heard.put_nowait, fail)
            link.unanswered_max = 1
            link.start()
            async with asyncio.timeout(10):
                for _ in range(10):
                    assert await heard.get() == HeartbeatHeard()
                    assert link.send_heartbeat(Stop("alive"))
                await link.close()
                await over.wait()

    asyncio.run(meet())


def test_a_connection_that_does_not_come_about_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(coordinator_link, "CONNECT_S_MAX", 0.05)

    async def meet() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
            # Where so many wait to be let in, the system answers nobody else.
            waiting = [socket.socket() for _ in range(4)]
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(server.getsockname())
            link = ControlLink(server.getsockname(), lambda: Stop("hello"), lambda _: None, fail)
            link.start()
            async with asyncio.timeout(10):
                while not caplog.records:
                    await asyncio.sleep(0.01)
            await link.close()
            for one in waiting:
                one.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(meet())
    assert "(no answer within 0.05 s); trying again" in caplog.text
