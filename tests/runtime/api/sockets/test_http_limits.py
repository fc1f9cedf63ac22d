"""The HTTP API closes idle and slow connections, but not those that wait for an answer (E14)."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from starlette.types import Receive, Scope, Send
from tests.runtime.fake_nodes import PATIENCE_S, running

from strobe.runtime import file_descriptors
from strobe.runtime.addresses import parse_address
from strobe.runtime.api import http_connection
from strobe.runtime.api.http_server import HttpServer

GET = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
WAIT = b"GET /wait HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
SOON_S = 0.05


class Served:
    """A server that answers `answer`: on `/` at once, on `/wait` when `answer_now` is set."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.answer_now = asyncio.Event()
        self.waiting = 0
        self.server = HttpServer(self._application, ("127.0.0.1", 0))

    async def _application(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        if scope["path"] == "/wait":
            self.waiting += 1
            await self.answer_now.wait()
        length = str(len(self.answer)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": self.answer})

    async def connect(self, first: bytes = b"", **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*parse_address(self.server.address, "api"), **options)
        writer.write(first)
        return reader, writer

    async def exchange(self, data: bytes) -> bytes:
        """Send `data`, and return everything received until the connection is closed."""
        reader, writer = await self.connect(data)
        try:
            return await read_all(reader)
        finally:
            writer.close()


async def read_all(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not check():
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(answer: bytes = b"here") -> AsyncIterator[Served]:
    served = Served(answer)
    task = asyncio.create_task(served.server.serve())
    try:
        await until(lambda: served.server.started)
        yield served
    finally:
        served.answer_now.set()
        served.server.should_exit = True
        await task


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REQUEST_S_MAX", "READ_S_MAX", "IDLE_S_MAX", "CLOSE_S_MAX"):
        monkeypatch.setattr(http_connection, name, SOON_S)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("begun", [b"", GET[:-4], POST, POST + b"12345"])
def test_E14_an_incomplete_request_times_out(begun: bytes) -> None:
    """E14: no header, half a header, no body, half a body."""

    async def scenario() -> None:
        async with serving() as served:
            assert (await served.exchange(begun)).startswith(b"HTTP/1.1 408 Request Timeout\r\n")
            assert (await served.exchange(GET)).startswith(b"HTTP/1.1 200 OK\r\n")

    run(scenario())


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("begun", [GET[:-4], CHUNKED])
def test_E14_a_slow_trickle_of_bytes_does_not_extend_the_deadline(begun: bytes) -> None:
    """E14: the deadline is for the complete request."""

    async def scenario() -> None:
        async with serving() as served:
            reader, writer = await served.connect(begun)
            answered = asyncio.create_task(read_all(reader))
            while not answered.done() and not writer.is_closing():
                writer.write(b"1\r\n \r\n" if b"chunked" in begun else b"a")
                await asyncio.sleep(0)
            await answered
            writer.close()

    run(scenario())


@pytest.mark.usefixtures("short")
def test_E14_a_client_that_does_not_read_its_answer_is_disconnected() -> None:
    """E14: also if more requests follow on the connection."""

    async def scenario() -> None:
        async with serving(bytes(32 << 20)) as served:
            for requests in (1, 3):
                reading = socket.create_connection(parse_address(served.server.address, "api"))
                await asyncio.get_running_loop().sock_sendall(reading, GET * requests)
                await until(lambda: len(served.server.open_connections) == 1)
                await until(lambda: len(served.server.open_connections) == 0)
                reading.close()

    run(scenario())


@pytest.mark.usefixtures("short")
def test_a_complete_request_may_wait_for_its_answer_beyond_the_deadline() -> None:
    async def scenario() -> None:
        async with serving() as served:
            waiting = asyncio.create_task(served.exchange(WAIT))
            await until(lambda: served.waiting == 1)
            assert b" 408 " in await served.exchange(b"")  # a deadline has passed since
            assert not waiting.done()
            served.answer_now.set()
            assert (await waiting).endswith(b"\r\n\r\nhere")

    run(scenario())


def test_E14_at_the_connection_limit_the_oldest_without_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """E14: connections that wait for their answers stay open; if all do, a new connection is refused."""
    monkeypatch.setattr("strobe.runtime.api.http_server.API_CONNECTIONS_MAX", 3)

    async def scenario() -> None:
        async with serving() as served:
            waiting = [asyncio.create_task(served.exchange(WAIT))]
            await until(lambda: served.waiting == 1)
            oldest = await served.connect(GET[:10])
            older = await served.connect()
            await until(lambda: len(served.server.open_connections) == 3)
            waiting.append(asyncio.create_task(served.exchange(WAIT)))
            assert await read_all(oldest[0]) == b""
            await until(lambda: served.waiting == 2)
            waiting.append(asyncio.create_task(served.exchange(WAIT)))
            assert await read_all(older[0]) == b""
            await until(lambda: served.waiting == 3)
            refused = await served.exchange(GET)
            assert refused.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert b"3 connections are open" in refused
            served.answer_now.set()
            assert all([(await one).endswith(b"here") for one in waiting])
            for _, writer in (oldest, older):
                writer.close()

    run(scenario())


def test_E14_an_endless_header_is_refused() -> None:
    """E14: as soon as it exceeds the size limit."""

    async def scenario() -> None:
        async with serving() as served:
            answer = await served.exchange(GET[:-2] + b"X: " + b"a" * (4 * http_connection.HEADER_BYTES_MAX))
            assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
            assert "error" in json.loads(answer.partition(b"\r\n\r\n")[2])

    run(scenario())


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0" * 100,
        b"GET /\x01 HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ],
)
def test_E14_garbage_is_refused_without_a_logged_error(garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """E14: also if it follows a request that is being answered."""

    async def scenario() -> None:
        async with serving() as served:
            assert (await served.exchange(garbage)).startswith(b"HTTP/1.1 400 Bad Request\r\n")
            busy = asyncio.create_task(served.exchange(WAIT + garbage))
            await until(lambda: served.waiting == 1)
            served.answer_now.set()
            assert b"\r\n\r\nhere" in await busy

    run(scenario())
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_pipelined_requests_are_answered_in_order() -> None:
    async def scenario() -> None:
        async with serving() as served:
            last = GET[:-2] + b"Connection: close\r\n\r\n"
            assert (await served.exchange(GET * 4 + last)).count(b"\r\n\r\nhere") == 5

    run(scenario())


def test_E14_bodies_and_headers_that_are_too_long_are_refused(tmp_path: Path) -> None:
    """E14: a body announced as too long is not read; a client that disconnects is not a server error."""

    async def scenario() -> None:
        async with running(tmp_path / "store", http=True) as coordinator:
            place = parse_address(coordinator.service.api, "api")

            async def exchange(data: bytes) -> bytes:
                reader, writer = await asyncio.open_connection(*place)
                writer.write(data)
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
                writer.close()
                return head

            post = b"POST /v1/snapshots HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            assert b" 413 " in await exchange(post + b"Content-Length: 9999999999\r\n\r\n{")
            chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
            chunked = post + b"Transfer-Encoding: chunked\r\n\r\n"
            assert b" 413 " in await exchange(chunked + chunk * 2 + b"0\r\n\r\n")
            assert b" 413 " in await exchange(chunked + chunk * 17)  # the body does not end
            assert b" 431 " in await exchange(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 40_000 + b"\r\n\r\n")
            _, writer = await asyncio.open_connection(*place)
            writer.write(post + b"Content-Length: 10\r\n\r\n{")
            await writer.drain()
            writer.close()
            assert b" 200 " in await exchange(b"GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert coordinator.logged("request failed") == []

    run(scenario())


@pytest.mark.parametrize(
    ("soft", "wanted", "expected"), [(256, 128, 32), (20_000, 128, 128), (4, 128, 1), (-1, 128, 128)]
)
def test_a_port_uses_only_a_share_of_the_file_descriptors(
    monkeypatch: pytest.MonkeyPatch, soft: int, wanted: int, expected: int
) -> None:
    monkeypatch.setattr(file_descriptors.resource, "getrlimit", lambda _: (soft, soft))
    assert file_descriptors.at_most(wanted) == expected


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [(1024, 4096, 4096), (1024, -1, 65_536), (1024, 1 << 30, 65_536), (99_999, -1, None), (-1, -1, None)],
)
def test_the_limit_of_descriptors_is_raised_as_far_as_allowed(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None
) -> None:
    set_limits: list[tuple[int, int]] = []
    monkeypatch.setattr(file_descriptors.resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(file_descriptors.resource, "setrlimit", lambda _, limits: set_limits.append(limits))
    file_descriptors.raise_limit()
    assert set_limits == ([] if raised is None else [(raised, hard)])
