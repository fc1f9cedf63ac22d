"""The API's web server: uvicorn, with limits on connections, headers and time."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from strobe.errors import TransportError
from strobe.runtime.addresses import print_address
from strobe.runtime.api.http_connection import HEADER_BYTES_MAX, IDLE_S_MAX, BoundedConnection, OpenConnections
from strobe.runtime.file_descriptors import API_CONNECTIONS_MAX, at_most

_AT_ONCE_SHARE = 4


class HttpServer(uvicorn.Server):
    """Uvicorn without its own signal handling and logging, which belong to the host program."""

    def __init__(self, application: ASGIApp, address: tuple[str, int]) -> None:
        host, port = address
        count_max = at_most(API_CONNECTIONS_MAX)
        self.open_connections = OpenConnections(count_max)
        # Few connections may be accepted at once, or they close each other before any was read.
        backlog = max(1, count_max // _AT_ONCE_SHARE)
        config = uvicorn.Config(
            application,
            interface="asgi3",
            # Uvicorn calls this like the class of its connections.
            http=cast(type[asyncio.Protocol], partial(BoundedConnection, self.open_connections)),
            h11_max_incomplete_event_size=HEADER_BYTES_MAX,
            timeout_keep_alive=IDLE_S_MAX,
            backlog=backlog,
            log_config=None,
            log_level="critical",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        super().__init__(config)
        self._socket = _bind(host, port, backlog)
        self.address = print_address(host, self._socket.getsockname()[1])

    def close(self) -> None:
        """Release the address of a server that was never started."""
        self._socket.close()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await super().serve(sockets or [self._socket])

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bind(host: str, port: int, backlog: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        place = print_address(host, port)
        raise TransportError(
            f"the API cannot listen at {place}: {error.strerror or error}; free it, or choose another: --api"
        ) from error
