"""The port for nodes: accepts connections, reads their messages in order, and rejects everything else.

The first message must be `Register`, within `REGISTER_S_MAX`; `Blocked` may come alone. Garbage, strangers, messages
that are too long, and those that `Lifecycle` refuses (UsageError) end only their own connection. Any other exception
is a bug in the coordinator and ends it. Outgoing messages wait in a bounded buffer: a node that does not read is
disconnected, and receives what it missed when it reconnects.
"""

import asyncio
from typing import Any, Protocol

from strobe.errors import TransportError, UsageError
from strobe.protocol.coordinator.messages import SnapshotStarted
from strobe.runtime.addresses import print_address
from strobe.runtime.coordinator.node_registry import Member
from strobe.runtime.file_descriptors import BACKLOG, STRANGERS_MAX, at_most
from strobe.runtime.messages.control import (
    FROM_NODE,
    LENGTH,
    MESSAGE_BYTES_MAX,
    Blocked,
    Heartbeat,
    HeartbeatHeard,
    Refused,
    Register,
    hang_up,
    pack,
    unpack,
)

REGISTER_S_MAX = 5.0
REGISTER_BYTES_MAX = 1 << 20
BUFFER_BYTES_MAX = 16 << 20


class NodeMessageHandler(Protocol):
    """Handles what nodes send."""

    def registered(self, register: Register, connection: "Connection") -> "Member | Refused": ...
    def received(self, member: Member, message: Any) -> None: ...
    def lost(self, member: Member, connection: "Connection", reason: str) -> None: ...
    def blocked(self, blocked: Blocked) -> None: ...
    def rejected(self, peer: str, reason: str) -> None: ...
    def answer(self, member: Member) -> HeartbeatHeard: ...
    def fail(self, error: BaseException) -> None: ...


class Connection:
    """The connection to one node."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        name = writer.get_extra_info("peername")
        self.peer = print_address(*name[:2]) if name else "unknown"
        self.trouble = ""

    def send(self, message: Any) -> None:
        """Queue `message` behind everything sent before; never waits."""
        if self._writer.is_closing():
            return
        if self._writer.transport.get_write_buffer_size() > BUFFER_BYTES_MAX:
            self.abort(f"it does not read: {BUFFER_BYTES_MAX >> 20} MiB are queued for it")
            return
        self._writer.write(pack(message))

    def close(self) -> None:
        """Close after the buffered messages are sent."""
        self._writer.close()

    def abort(self, reason: str) -> None:
        """Close now."""
        self.trouble = self.trouble or reason
        self._writer.transport.abort()

    async def flushed(self) -> None:
        """Close, and wait until it is closed."""
        await hang_up(self._writer)


class ControlServer:
    """Accepts connections from nodes."""

    def __init__(self, handler: NodeMessageHandler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # Connections that have not registered yet, oldest first.
        self._strangers: dict[Connection, None] = {}
        self._strangers_max = at_most(STRANGERS_MAX)

    async def bind(self, host: str, port: int) -> int:
        """Bind the address and return the port. No connection is accepted before `start`."""
        try:
            backlog = at_most(BACKLOG)
            self._server = await asyncio.start_server(self._serve, host, port, backlog=backlog, start_serving=False)
        except OSError as error:
            place = print_address(host, port)
            raise TransportError(
                f"cannot listen for nodes at {place}: {error.strerror or error}; free it, or choose another: --listen"
            ) from error
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def start(self) -> None:
        """Accept connections."""
        assert self._server is not None, "an address is taken first"
        await self._server.start_serving()

    async def close(self) -> None:
        """Stop listening, and end every connection."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        self._tasks.add(task)
        connection = Connection(writer)
        try:
            await self._attend(reader, connection)
        except asyncio.CancelledError:
            pass  # the server is closing, and only `close` waits for this task
        except Exception as error:  # noqa: BLE001 -- a bug of ours: `fail` ends the coordinator with it
            self._handler.fail(error)
        finally:
            self._tasks.discard(task)
            await connection.flushed()

    async def _attend(self, reader: asyncio.StreamReader, connection: Connection) -> None:
        if len(self._strangers) >= self._strangers_max:
            # Drop the oldest, not the newest: nodes register at once, and idle connections must not keep them out.
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.abort(f"{self._strangers_max} others connected after it, and it had not registered")
        self._strangers[connection] = None
        try:
            register = await self._first(reader, connection)
        finally:
            self._strangers.pop(connection, None)
        if isinstance(register, Blocked):
            self._handler.blocked(register)
        if not isinstance(register, Register):
            return
        member = self._register(register, connection)
        if isinstance(member, Refused):
            connection.send(member)
            return
        reason = await self._listen(reader, connection, member)
        self._handler.lost(member, connection, connection.trouble or reason)

    def _register(self, register: Register, connection: Connection) -> Member | Refused:
        try:
            return self._handler.registered(register, connection)
        except UsageError as error:
            self._handler.rejected(connection.peer, f"process {register.process} cannot register: {error}")
            return Refused(f"process {register.process} cannot register: {error}", True)

    async def _first(self, reader: asyncio.StreamReader, connection: Connection) -> Register | Blocked | None:
        try:
            async with asyncio.timeout(REGISTER_S_MAX):
                message = await _message(reader, REGISTER_BYTES_MAX)
            if isinstance(message, Register | Blocked) and not connection.trouble:
                return message
            problem = f"the first message was {type(message).__name__}, not Register"
        except TransportError as error:
            problem = str(error)
        except TimeoutError:
            problem = f"sent no complete message for {REGISTER_S_MAX:g} s"
        except (OSError, asyncio.IncompleteReadError):
            problem = "closed the connection before it had registered"
        problem = connection.trouble or problem
        self._handler.rejected(connection.peer, problem)
        connection.send(Refused(f"{problem}; this is the control port of a Strobe coordinator", True))
        return None

    async def _listen(self, reader: asyncio.StreamReader, connection: Connection, member: Member) -> str:
        """Handle messages until the connection ends; return why it ended."""
        while True:
            try:
                message = await _message(reader, MESSAGE_BYTES_MAX)
                if not _may_send(member.process, message):
                    raise TransportError(f"a {type(message).__name__} that {member.process} may not send")
                if member.connection is not connection:
                    return "another connection took its place"
                self._handle(member, message)
            except TransportError as error:
                self._handler.rejected(connection.peer, f"process {member.process} sent {error}")
                return f"it sent {error}"
            except (OSError, asyncio.IncompleteReadError):
                return "its connection was lost"
            if isinstance(message, Heartbeat):
                connection.send(self._handler.answer(member))

    def _handle(self, member: Member, message: Any) -> None:
        try:
            self._handler.received(member, message)
        except UsageError as error:  # nothing was done: the fault is the node's, not the coordinator's
            raise TransportError(f"a {type(message).__name__} that is not valid now: {error}") from error


def _may_send(process: str, message: Any) -> bool:
    """Return whether this process may send the message. An initiator's snapshot carries the initiator's own name."""
    if isinstance(message, Register | Blocked) or getattr(message, "process", process) != process:
        return False
    return not isinstance(message, SnapshotStarted) or message.snapshot.initiator == process


async def _message(reader: asyncio.StreamReader, bytes_max: int) -> Any:
    (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if size > bytes_max:
        raise TransportError(f"a control message of {size} bytes; the maximum is {bytes_max}")
    return unpack(await reader.readexactly(size), FROM_NODE)
