"""A node's listening socket: accepts links and hands each complete frame to the node, once and in order.

Any error on a connection is counted and logged, and ends only that connection.
"""

import asyncio
from collections import Counter

from strobe.errors import TransportError
from strobe.runtime.addresses import print_address
from strobe.runtime.file_descriptors import BACKLOG, UNKNOWN_LINKS_MAX, at_most
from strobe.runtime.links.handshake import Gate, Rejections
from strobe.runtime.links.incoming_connection import IncomingConnection
from strobe.runtime.links.receive_buffers import BUFFER_BYTES, ReceiveBuffers

HELLO_TIMEOUT_S = 10.0
KEPT_BYTES_MAX = 8 << 20


class Listener:
    """Listens for the sources of a node's incoming channels."""

    def __init__(
        self,
        gate: Gate,
        *,
        rejections: Rejections | None = None,
        hello_timeout_s: float = HELLO_TIMEOUT_S,
        unknown_max: int | None = None,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self.gate = gate
        self.rejections = rejections or Rejections()
        self.hello_timeout_s = hello_timeout_s
        self.unknown_max = at_most(UNKNOWN_LINKS_MAX) if unknown_max is None else unknown_max
        self.port = 0
        self.buffers = ReceiveBuffers(KEPT_BYTES_MAX, buffer_bytes)
        # Connections without a valid HELLO so far, oldest first; and all open connections.
        self.unknown: dict[IncomingConnection, None] = {}
        self.connections: set[IncomingConnection] = set()
        self._server: asyncio.Server | None = None

    @property
    def rejected(self) -> Counter[str]:
        """Number of rejections by reason."""
        return self.rejections.counts

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        gate: Gate,
        rejections: Rejections | None = None,
        hello_timeout_s: float = HELLO_TIMEOUT_S,
        unknown_max: int | None = None,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> "Listener":
        """Return a listener at `host`:`port`; port 0 takes any free port (see `port`)."""
        listener = cls(
            gate,
            rejections=rejections,
            hello_timeout_s=hello_timeout_s,
            unknown_max=unknown_max,
            buffer_bytes=buffer_bytes,
        )
        loop = asyncio.get_running_loop()
        listener._server = await loop.create_server(listener.accept, host, port, backlog=at_most(BACKLOG))
        listener.port = listener._server.sockets[0].getsockname()[1]
        return listener

    def accept(self) -> IncomingConnection:
        """Return the protocol of a new connection."""
        return IncomingConnection(self)

    async def close(self) -> None:
        """Stop listening and drop every connection."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.drop()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None


async def open_listener(process: str, listen: tuple[str, int], gate: Gate, buffer_bytes: int) -> Listener:
    """Return the listener of a process; TransportError if the address cannot be had."""
    try:
        return await Listener.open(*listen, gate=gate, buffer_bytes=buffer_bytes)
    except OSError as error:
        problem = f"cannot listen at {print_address(*listen)}: {error.strerror or error}"
        raise TransportError(f"process {process} {problem}; free it, or choose another: --listen") from error
