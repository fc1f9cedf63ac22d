"""A node's connection to the coordinator: retries, heartbeats, and what is logged."""

import asyncio
import logging
import socket

import pytest
import uvloop

from strobe.runtime.messages.control import HeartbeatHeard, Refused, Stop, pack
from strobe.runtime.node import coordinator_link
from strobe.runtime.node.coordinator_link import CoordinatorLink


def fail(error: BaseException) -> None:
    raise AssertionError from error


def test_an_error_that_no_retry_can_fix_is_reported() -> None:
    async def scenario() -> None:
        errors: asyncio.Queue[BaseException] = asyncio.Queue()
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
            address = server.sockets[0].getsockname()[:2]
            link = CoordinatorLink(address, lambda: {}["greeting"], lambda _: None, errors.put_nowait)
            link.start()
            assert isinstance(await errors.get(), KeyError)
            await link.close()

    uvloop.run(scenario())


def test_a_coordinator_that_accepts_and_disconnects_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """It may be a proxy in front of a stopped coordinator, so an accepted connection alone is no success."""

    async def scenario() -> None:
        accepted = asyncio.Semaphore(0)

        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()
            accepted.release()

        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
            link = CoordinatorLink(server.sockets[0].getsockname()[:2], lambda: Stop("hello"), lambda _: None, fail)
            link.start()
            for _ in range(4):
                await accepted.acquire()
            await link.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert len(caplog.records) == 1


def test_a_refused_node_backs_off_and_logs_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_link, "RETRY_S_MAX", 0.2)

    async def scenario() -> None:
        accepted = asyncio.Semaphore(0)

        async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(pack(Refused("not yet", False)))
            await writer.drain()
            writer.close()
            accepted.release()

        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            link = CoordinatorLink(server.sockets[0].getsockname()[:2], lambda: Stop("hello"), lambda _: None, fail)
            link.start()
            for _ in range(4):
                await accepted.acquire()
            assert link._backoff.failures >= 3
            await link.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert len(caplog.records) == 1


def test_a_connection_lost_after_an_order_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        accepted = asyncio.Semaphore(0)

        async def send_stop(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(pack(Stop("enough")))
            await writer.drain()
            writer.close()
            accepted.release()

        async with await asyncio.start_server(send_stop, "127.0.0.1", 0) as server:
            received: list[object] = []
            link = CoordinatorLink(server.sockets[0].getsockname()[:2], lambda: Stop("hello"), received.append, fail)
            link.start()
            for _ in range(4):
                await accepted.acquire()
            await link.close()
            assert received[:3] == [Stop("enough")] * 3

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert len(caplog.records) >= 3


def test_close_ends_although_the_coordinator_disconnects_meanwhile() -> None:
    """The link's task may be cancelled just when its connection ends. It must not continue then."""

    async def scenario() -> None:
        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
            for turns in range(60):
                link = CoordinatorLink(server.sockets[0].getsockname()[:2], lambda: Stop("hello"), lambda _: None, fail)
                link.start()
                for _ in range(turns % 12):
                    await asyncio.sleep(0)
                async with asyncio.timeout(10):
                    await link.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


def test_unread_messages_to_the_coordinator_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_link, "UNREAD_BYTES_MAX", 1 << 20)

    async def scenario() -> None:
        accepted, finished = asyncio.Semaphore(0), asyncio.Event()

        async def read_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.release()
            await finished.wait()
            writer.close()

        async with await asyncio.start_server(read_nothing, "127.0.0.1", 0) as server:
            link = CoordinatorLink(server.sockets[0].getsockname()[:2], lambda: Stop("hello"), lambda _: None, fail)
            link.start()
            await accepted.acquire()
            sent = 0
            while link.send(Stop(100_000 * "x")):
                sent += 1
                await asyncio.sleep(0)
            assert sent > 10
            await accepted.acquire()  # it reconnects
            finished.set()
            await link.close()

    asyncio.run(scenario())


def test_unanswered_heartbeats_lead_to_a_new_connection(caplog: pytest.LogCaptureFixture) -> None:
    """A connection may be dead without being closed or reset. Only the missing answers show it."""

    async def scenario() -> None:
        accepted, finished = asyncio.Semaphore(0), asyncio.Event()
        answers: list[Stop] = [Stop("welcome")]
        received: list[object] = []

        async def send_once(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if answers:
                writer.write(pack(answers.pop()))
            accepted.release()
            await finished.wait()
            writer.close()

        async with await asyncio.start_server(send_once, "127.0.0.1", 0) as server:
            link = CoordinatorLink(server.sockets[0].getsockname()[:2], lambda: Stop("hello"), received.append, fail)
            link.unanswered_max = 3
            link.start()
            # A coordinator that accepts but sends nothing may be paused: open few connections to it meanwhile.
            for allowed in (3, 30, 30):
                async with asyncio.timeout(10):
                    await accepted.acquire()
                    while not link.connected or not received:
                        await asyncio.sleep(0)
                assert [link.send_heartbeat(Stop("alive")) for _ in range(allowed + 1)] == [True] * allowed + [False]
            finished.set()
            await link.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert [record.getMessage().partition("(")[2] for record in caplog.records] == [
        "it has answered none of 3 heartbeats); trying again"
    ]


def test_any_message_of_the_coordinator_answers_earlier_heartbeats() -> None:
    async def scenario() -> None:
        received, finished = asyncio.Queue[object](), asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.read(1000):
                writer.write(pack(HeartbeatHeard()))
            writer.close()
            await writer.wait_closed()
            finished.set()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            link = CoordinatorLink(
                server.sockets[0].getsockname()[:2], lambda: Stop("hello"), received.put_nowait, fail
            )
            link.unanswered_max = 1
            link.start()
            async with asyncio.timeout(10):
                for _ in range(10):
                    assert await received.get() == HeartbeatHeard()
                    assert link.send_heartbeat(Stop("alive"))
                await link.close()
                await finished.wait()

    asyncio.run(scenario())


def test_a_connection_attempt_times_out(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(coordinator_link, "CONNECT_S_MAX", 0.05)

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
            # With so many connections pending, the kernel does not answer further attempts.
            waiting = [socket.socket() for _ in range(4)]
            for client in waiting:
                client.setblocking(False)
                client.connect_ex(server.getsockname())
            link = CoordinatorLink(server.getsockname(), lambda: Stop("hello"), lambda _: None, fail)
            link.start()
            async with asyncio.timeout(10):
                while not caplog.records:
                    await asyncio.sleep(0.01)
            await link.close()
            for client in waiting:
                client.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "(no answer within 0.05 s); trying again" in caplog.text
