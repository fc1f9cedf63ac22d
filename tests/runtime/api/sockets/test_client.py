"""The client of the API, if connections are closed before their request is read."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from strobe.errors import TransportError
from strobe.runtime.api import client as calling
from strobe.runtime.api.client import Client

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nwell"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "RETRY_S_MIN", 0.0)


@contextmanager
def closing(count: int, reset: bool) -> Iterator[tuple[str, list[int]]]:
    """Serve: close the first `count` connections, answer the others. Yield the address and the connections' numbers."""
    served: list[int] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                served.append(len(served))
                if len(served) > count:
                    connection.recv(65536)
                    connection.sendall(ANSWER)
                elif reset:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    connection.recv(65536)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}", served
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("reset", [True, False])
def test_a_query_is_sent_again_if_its_connection_is_closed(reset: bool) -> None:
    """E14: under a flood of connections, a legitimate one may be closed before its request is read."""
    with closing(calling.ATTEMPTS_MAX - 1, reset) as (api, served):
        assert Client(api).metrics() == "well"
    assert len(served) == calling.ATTEMPTS_MAX


def test_after_several_closed_connections_the_client_gives_up() -> None:
    with closing(100, reset=True) as (api, served), pytest.raises(TransportError, match="no coordinator answers at"):
        Client(api).metrics()
    assert len(served) == calling.ATTEMPTS_MAX


def test_an_order_is_never_sent_twice() -> None:
    """The coordinator may have carried it out before the connection was closed."""
    with closing(100, reset=False) as (api, served), pytest.raises(TransportError, match="no coordinator answers at"):
        Client(api).take()
    assert len(served) == 1
