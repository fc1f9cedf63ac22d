"""In-memory connections between processes of one program: a pair of transports inside one event loop.

A channel between two such processes has the same two ends, frames, credit and handshake as over TCP. So ordinals,
running hashes, markers and proofs are the same code and the same bytes; only the system calls are missing.

Rules, as for the event loop's own transports: a write never calls the other end's protocol, which gets the bytes in a
later callback, at most `READ_BYTES_MAX` at a time; bytes arrive once and in order; `close` still delivers what was
written before, `abort` does not; each protocol is told once that its connection is lost.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

from strobe.runtime.links.incoming_connection import IncomingConnection

READ_BYTES_MAX = 64 << 10
"""Maximum number of bytes per callback: the loop also reads its sockets, and hundreds of processes take turns."""
PLACE = "this program"


class Accepting(Protocol):
    """What is used of a listener."""

    def accept(self) -> IncomingConnection:
        """Return the protocol of a new connection."""


class MemoryConnections:
    """The listeners of one program by address; a connection to one of them is made in memory, any other by TCP."""

    def __init__(self) -> None:
        self._listeners: dict[tuple[str, int], Accepting] = {}

    def add(self, address: tuple[str, int], listener: Accepting) -> None:
        self._listeners[address] = listener

    def remove(self, address: tuple[str, int]) -> None:
        self._listeners.pop(address, None)

    async def connect(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> None:
        """Open a connection. Its protocol is called before this returns, as with `loop.create_connection`."""
        listener = self._listeners.get((host, port))
        if listener is None:
            await asyncio.get_running_loop().create_connection(factory, host, port)
            return
        await asyncio.sleep(0)  # so that a caller that keeps trying does not keep the loop from its other work
        join(factory(), listener.accept())


class MemoryTransport(asyncio.Transport):
    """One end of an in-memory connection. `_unread` has what the other end has written for this one's protocol."""

    _peer: "MemoryTransport"

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__({"peername": PLACE})
        self._protocol = protocol
        self._unread: deque[memoryview] = deque()
        self._unread_bytes = 0
        self._call_soon = asyncio.get_running_loop().call_soon
        self._scheduled = False
        self._paused = False
        self._closing = False
        # Whether the other end has closed: it writes nothing more.
        self._peer_closed = False
        self._lost = False

    def write(self, data: Any) -> None:
        if not self._closing and data:
            self._peer._take(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        return self._peer._unread_bytes

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._schedule()

    def is_reading(self) -> bool:
        return not (self._paused or self._closing)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Read nothing more; the other end still gets what was written."""
        if not self._closing:
            self._end(None)

    def abort(self) -> None:
        """Close at once: neither end gets anything more."""
        if not self._lost:
            self._peer._discard()
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self._closing:
            self._closing = True
            self._call_soon(self._lose, error)
        self._discard()
        self._peer._peer_closed = True
        self._peer._schedule()

    def _take(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:  # bytes for a closed end are lost, as on a closed socket
            self._unread.append(memoryview(data))
            self._unread_bytes += len(data)
            self._schedule()

    def _discard(self) -> None:
        self._unread.clear()
        self._unread_bytes = 0

    def _schedule(self) -> None:
        if not (self._scheduled or self._paused or self._closing) and (self._unread or self._peer_closed):
            self._scheduled = True
            self._call_soon(self._read)

    def _read(self) -> None:
        self._scheduled = False
        if self._paused or self._closing:
            return
        try:
            if self._unread:
                self._pass_on()
            else:
                cast(asyncio.Protocol, self._protocol).eof_received()
                self.close()  # neither protocol goes on with half a connection
        except Exception as error:
            self._end(error)
            raise  # to the exception handler of the event loop
        self._schedule()

    def _pass_on(self) -> None:
        """Give the protocol the next bytes."""
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            buffer = cast(memoryview, self._protocol.get_buffer(-1))
            filled = self._fill(buffer, min(len(buffer), READ_BYTES_MAX))
            self._protocol.buffer_updated(filled)
        else:
            data = bytearray(min(self._unread_bytes, READ_BYTES_MAX))
            self._fill(memoryview(data), len(data))
            cast(asyncio.Protocol, self._protocol).data_received(bytes(data))

    def _fill(self, buffer: Any, room_bytes: int) -> int:
        """Move up to `room_bytes` of the unread bytes into `buffer`; return how many."""
        filled, unread = 0, self._unread
        while unread and filled < room_bytes:
            piece = unread.popleft()
            size = min(len(piece), room_bytes - filled)
            buffer[filled : filled + size] = piece[:size]
            filled += size
            if size < len(piece):
                unread.appendleft(piece[size:])
        self._unread_bytes -= filled
        return filled

    def _lose(self, error: Exception | None) -> None:
        self._lost = True
        self._protocol.connection_lost(error)


def join(first: asyncio.BaseProtocol, second: asyncio.BaseProtocol) -> tuple[MemoryTransport, MemoryTransport]:
    """Connect two protocols in memory; return their transports."""
    ends = MemoryTransport(first), MemoryTransport(second)
    ends[0]._peer, ends[1]._peer = ends[1], ends[0]
    second.connection_made(ends[1])
    first.connection_made(ends[0])
    return ends
