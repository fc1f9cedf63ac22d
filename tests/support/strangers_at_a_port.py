"""Servers that are not a coordinator, at an address where one is expected."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

ANSWERS = {
    "web": b"HTTP/1.0 501 Unsupported method ('POST')\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
    "page": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>",
    "echo": None,
    "silent": b"",
}
"""What each kind of server sends for the first bytes that it gets; None: the same bytes."""


@contextmanager
def stranger(kind: str) -> Iterator[str]:
    """Run a server of this kind in a thread, and yield its address."""
    connections: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):  # until the server is shut down
            while True:
                connection, _ = server.accept()
                connections.append(connection)
                answer = connection.recv(65536) if ANSWERS[kind] is None else ANSWERS[kind]
                if answer and ANSWERS[kind] is not None:
                    connection.recv(65536)
                with suppress(OSError):
                    connection.sendall(answer or b"")
                if answer:
                    connection.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for connection in connections:
                with suppress(OSError):  # its client has gone
                    connection.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in connections:  # the last one may have been accepted just now
                connection.close()
