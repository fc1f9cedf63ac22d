"""A node's connection to the coordinator, with reconnects.

A connection can fail silently. So the coordinator answers each heartbeat, and after several unanswered heartbeats the
node reconnects. It counts heartbeats instead of time: a node that was itself paused has sent none. If the coordinator
was only slow, the new connection of the same instance replaces the old one, with no other effect. On a connection
without any answer so far the node waits longer, so that a paused coordinator does not wake up to many connections.

Until a coordinator has answered once, the address itself may be wrong. If something else answers there, or nothing for
that longer time, the node ends instead of trying again.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from strobe.backoff import Backoff
from strobe.errors import NotACoordinator, TransportError
from strobe.runtime.addresses import print_address
from strobe.runtime.messages.control import (
    FROM_COORDINATOR,
    LENGTH,
    MESSAGE_BYTES_MAX,
    Refused,
    Welcome,
    hang_up,
    pack,
    unpack,
)

logger = logging.getLogger("strobe.node")

RETRY_S_MIN = 0.05
RETRY_S_MAX = 1.0
CONNECT_S_MAX = 5.0
UNANSWERED_MAX = 6
"""Maximum number of unanswered heartbeats, until the coordinator has sent its timeout."""
FIRST_ANSWER_FACTOR = 10
"""Factor on that maximum while nothing has been received on the connection."""
UNREAD_BYTES_MAX = 64 << 20
"""Maximum number of bytes that the coordinator may leave unread; beyond that the node reconnects."""


class CoordinatorLink:
    """Sends `greeting()` first on each new connection, then passes all received messages to `handle`, in order.

    Messages sent without a connection are dropped: the coordinator repeats its requests. `fail` is called with an
    error that a retry cannot fix. A `patient` link waits for a silent coordinator for any time.
    """

    def __init__(
        self,
        address: tuple[str, int],
        greeting: Callable[[], Any],
        handle: Callable[[Any], None],
        fail: Callable[[BaseException], None],
        *,
        patient: bool = False,
    ) -> None:
        self.address = address
        self.connected = False
        # Maximum number of consecutive unanswered heartbeats.
        self.unanswered_max = UNANSWERED_MAX
        self._unanswered = 0
        self._has_received = False
        # Whether a coordinator has answered on any connection.
        self._is_known = False
        self._patient = patient
        self._greeting = greeting
        self._handle = handle
        self._fail = fail
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._logged = False
        self._backoff = Backoff(RETRY_S_MIN, RETRY_S_MAX)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def send(self, message: Any) -> bool:
        """Send `message`; return whether there was a connection."""
        if self._writer is None or self._writer.is_closing():
            return False
        if self._writer.transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            self._writer.transport.abort()
            return False
        self._writer.write(pack(message))
        return True

    def send_heartbeat(self, heartbeat: Any) -> bool:
        """Send a heartbeat, or drop the connection after too many unanswered ones; return whether it was sent."""
        allowed = self.unanswered_max * (1 if self._has_received else FIRST_ANSWER_FACTOR)
        if self._writer is not None and self._unanswered >= allowed:
            if not self._is_known and not self._patient:
                self._fail(self._not_a_coordinator(f"it has answered none of {self._unanswered} heartbeats"))
                return False
            self._log_problem(f"it has answered none of {self._unanswered} heartbeats")
            self._writer.transport.abort()
            return False
        sent = self.send(heartbeat)
        self._unanswered += sent
        return sent

    async def close(self) -> None:
        """Send all buffered messages, then close."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def reconnect(self) -> None:
        """Drop the connection and open a new one, with a new greeting."""
        if self._writer is not None:
            self._writer.close()

    async def _run(self) -> None:
        while not self._closed:
            try:
                reader, self._writer = await self._connect()
                self._unanswered, self._has_received = 0, False
                self._writer.write(pack(self._greeting()))
                self.connected = True
                await self._listen(reader, self._writer)
            except NotACoordinator as error:
                self._fail(error)
                return
            except asyncio.IncompleteReadError:
                self._log_problem("it closed the connection")
            except (OSError, ValueError, TransportError) as error:  # ValueError: an invalid host name
                self._log_problem(error)
            except Exception as error:  # noqa: BLE001 -- our own bug: without this link it would go unnoticed
                self._fail(error)
                return
            finally:
                await self._hang_up()
            await asyncio.sleep(self._backoff.next())

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                return await asyncio.open_connection(*self.address)
        except TimeoutError:
            raise TransportError(f"no answer within {CONNECT_S_MAX:g} s") from None
        except RuntimeError as error:  # for example no thread for the name lookup
            raise TransportError(str(error)) from error

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():  # messages after that are for our previous instance
            try:
                message = await _message(reader)
            except TransportError as error:
                if self._is_known:
                    raise
                raise self._not_a_coordinator(str(error)) from error
            self._is_known = True
            # Reset the back-off only after a real order. An accepted connection may be a proxy without a coordinator,
            # and the first message may be a refusal or come from another system's coordinator.
            if not isinstance(message, Welcome | Refused):
                self._logged = False
                self._backoff.reset()
            self._unanswered, self._has_received = 0, True
            self._handle(message)

    def _not_a_coordinator(self, problem: str) -> NotACoordinator:
        return NotACoordinator(print_address(*self.address), f"{problem}; give the coordinator's address for nodes")

    async def _hang_up(self) -> None:
        writer, self._writer, self.connected = self._writer, None, False
        if writer is not None:
            await hang_up(writer)

    def _log_problem(self, problem: object) -> None:
        if not self._logged:
            host, port = self.address
            logger.warning("no connection to the coordinator at %s:%d (%s); trying again", host, port, problem)
            self._logged = True


async def _message(reader: asyncio.StreamReader) -> Any:
    """Return the next message; raise TransportError if it is none of a coordinator's."""
    length = await reader.readexactly(LENGTH.size)
    if length == b"HTTP":
        raise TransportError("it is a web server; a coordinator has one port for nodes, and another one for its API")
    (size,) = LENGTH.unpack(length)
    if size > MESSAGE_BYTES_MAX:
        raise TransportError(f"it sent a message of {size} bytes")
    body = await reader.readexactly(size)
    try:
        return unpack(body, FROM_COORDINATOR)
    except TransportError as error:
        raise TransportError(f"it sent {error}") from error
