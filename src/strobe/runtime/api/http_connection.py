"""One connection to the HTTP API, with deadlines for the client (E14).

A request must be complete within a deadline after the connection opened or after the previous response. A response must
be read. The time for computing a response is limited by the request itself. The number of connections is bounded: a new
one closes the oldest that has no complete request, and is refused only if all others wait for their response.
"""

import asyncio
import sys
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from strobe.plain_text import json_of
from strobe.runtime.links.handshake import Rejections
from strobe.runtime.messages.api_documents import Failure

REQUEST_S_MAX = 10.0
"""For a whole request, from the opening of the connection or the end of the previous response."""
IDLE_S_MAX = 5
"""For a connection on which nothing has arrived since its last response."""
READ_S_MAX = 10.0
"""For a client to read some of a pending response."""
CLOSE_S_MAX = 1.0
HEADER_BYTES_MAX = 32 << 10
TOO_LARGE = 431


class OpenConnections:
    """All connections to the API: those that wait for their client, oldest first, and those being answered."""

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self.rejections = Rejections()
        self._all: set[BoundedConnection] = set()
        self._waiting: dict[BoundedConnection, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def admit(self, connection: "BoundedConnection") -> bool:
        """Add a connection; return False if there is no room because all others wait for their response."""
        if len(self._all) >= self.count_max:
            if not self._waiting:
                return False
            oldest = next(iter(self._waiting))
            oldest.drop(f"{self.count_max} connections are open, and this one has waited longest for its client")
        self._all.add(connection)
        return True

    def wait(self, connection: "BoundedConnection") -> None:
        """Mark it as waiting for its client."""
        if connection not in self._all:
            return
        self._waiting.pop(connection, None)
        self._waiting[connection] = None

    def answer(self, connection: "BoundedConnection") -> None:
        """Mark it as waiting for the coordinator."""
        self._waiting.pop(connection, None)

    def forget(self, connection: "BoundedConnection") -> None:
        self._all.discard(connection)
        self._waiting.pop(connection, None)


class BoundedConnection(H11Protocol):
    """Uvicorn's connection, with a deadline whenever it waits for the client."""

    def __init__(self, connections: OpenConnections, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._open = connections
        self._deadline: asyncio.TimerHandle | None = None
        self._answering = self._ending = False
        self._unread_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._open.admit(self):
            self._await_client()
        else:
            self._refuse(503, f"{self._open.count_max} connections are open, and all wait for their answers")
            transport.close()  # too many connections

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.forget(self)
        self._set_deadline(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._ending or self.transport.is_closing():
            return
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # the client keeps sending after it was refused
            self.transport.abort()
        self._take_turns()

    def on_response_complete(self) -> None:
        self._answering = False
        self._await_client()
        super().on_response_complete()
        self._take_turns()  # the next request may have arrived already

    def pause_writing(self) -> None:
        super().pause_writing()
        self._answering = False
        self._await_client()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._take_turns()

    def timeout_keep_alive_handler(self) -> None:
        self._hang_up()

    def send_400_response(self, msg: str) -> None:
        code = getattr(sys.exception(), "error_status_hint", 400)
        self._refuse(code, f"this is no HTTP request that can be read here ({sys.exception()})")

    def drop(self, reason: str) -> None:
        """Close it now."""
        self._open.rejections.note("API", reason, self.client or "a client that is gone")
        self._open.forget(self)
        self.transport.abort()

    def _take_turns(self) -> None:
        """Switch to answering if the request is complete."""
        cycle: RequestResponseCycle | None = self.cycle
        complete = cycle is not None and not cycle.more_body and not cycle.response_complete
        if complete and not self.flow.write_paused and not self._answering:
            self._answering = True
            self._set_deadline(None)
            self._open.answer(self)

    def _await_client(self) -> None:
        """Wait for the client: to read a pending response, or to send a request."""
        self._open.wait(self)
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._set_deadline(READ_S_MAX if self._unread_bytes else REQUEST_S_MAX)

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self._expire) if seconds is not None else None

    def _expire(self) -> None:
        if self._ending:
            self.transport.abort()
            return
        unread = self.transport.get_write_buffer_size()
        if unread and unread >= self._unread_bytes:
            self.drop(f"it has not read its answer for {READ_S_MAX:g} s")
        elif self._unread_bytes:
            self._await_client()
        else:
            self._refuse(408, f"no complete request came within {REQUEST_S_MAX:g} s")

    def _refuse(self, code: int, problem: str) -> None:
        """Send the reason, unless a response has begun, and close."""
        self._open.rejections.note("API", problem, self.client or "a client that is gone")
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(_refusal(code, problem))
        self._hang_up()

    def _hang_up(self) -> None:
        """Send nothing more, and close when the client does, or after `CLOSE_S_MAX`.

        Closed at once, a connection with unread input would be reset, and the client would not see the reason.
        """
        self._ending = True
        if not self.transport.is_closing():
            self.transport.write_eof()
        self._set_deadline(CLOSE_S_MAX)


def _refusal(code: int, problem: str) -> bytes:
    body = json_of(Failure(problem), str).encode()
    head = f"HTTP/1.1 {code} {HTTPStatus(code).phrase}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
