"""A node's connection to the coordinator: opened again whenever it is lost, for as long as the node lives.

A connection can be lost without a word: what is sent into it goes nowhere, and nothing comes. So the coordinator
answers each sign of life, and one that answers none of several is greeted anew on another connection. They are counted,
and not the time: a node that was itself stopped for a while has said nothing that could have been answered. Where the
coordinator was only slow, the new connection of the same instance takes the place of the old one, and nothing else
happens. One that is stopped shall not find many when it goes on: where nothing at all has been heard, more is waited.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from strobe.errors import TransportError
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
"""Until the coordinator has said how long a silence counts."""
FIRST_WORD_PATIENCE = 10
"""So many times as many signs of life may go unanswered on a connection on which nothing has been heard yet."""
UNREAD_BYTES_MAX = 64 << 20
"""A coordinator that leaves so much unread hears nothing any more: it is greeted anew when it does."""


class ControlLink:
    """Says `greeting()` first on each new connection, then hands everything that comes to `handle`, in order.

    What is said while there is no connection is dropped: the coordinator asks again for what it needs. `fail` is told
    of an error that no further attempt would mend.
    """

    def __init__(
        self,
        address: tuple[str, int],
        greeting: Callable[[], Any],
        hear: Callable[[Any], None],
        broke: Callable[[BaseException], None],
    ) -> None:
        self.address = address
        self.connected = False
        # So many signs of life in a row may go unanswered.
        self.unanswered_max = UNANSWERED_MAX
        self._unanswered = 0
        self._has_heard = False
        self._greeting = greeting
        self._hear = hear
        self._broke = broke
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._complained = False
        self._wait_s = RETRY_S_MIN

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def send(self, message: Any) -> bool:
        """Send `message`; tell whether there was a connection to send it on."""
        if self._writer is None or self._writer.is_closing():
            return False
        if self._writer.transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            self._writer.transport.abort()
            return False
        self._writer.write(pack(message))
        return True

    def beat(self, sign: Any) -> bool:
        """Send a sign of life, or give up a connection on which none has been answered for long; tell which."""
        allowed = self.unanswered_max * (1 if self._has_heard else FIRST_WORD_PATIENCE)
        if self._writer is not None and self._unanswered >= allowed:
            self._complain(f"it has answered none of {self._unanswered} signs of life")
            self._writer.transport.abort()
            return False
        said = self.send(sign)
        self._unanswered += said
        return said

    async def close(self) -> None:
        """Send what was said, then end."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def reconnect(self) -> None:
        """Drop the connection, so that the greeting is said again."""
        if self._writer is not None:
            self._writer.close()

    async def _run(self) -> None:
        while not self._closed:
            try:
                reader, self._writer = await self._connect()
                self._unanswered, self._has_heard = 0, False
                self._writer.write(pack(self._greeting()))
                self.connected = True
                await self._listen(reader, self._writer)
            except asyncio.IncompleteReadError:
                self._complain("it hung up")
            except (OSError, ValueError, TransportError) as error:  # ValueError: a host that cannot be a name
                self._complain(error)
            except Exception as error:  # noqa: BLE001 -- a bug of ours: without this link nobody would hear of it
                self._broke(error)
                return
            finally:
                await self._hang_up()
            await asyncio.sleep(self._wait_s)
            self._wait_s = min(RETRY_S_MAX, self._wait_s * 2)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                return await asyncio.open_connection(*self.address)
        except TimeoutError:
            raise TransportError(f"no answer within {CONNECT_S_MAX:g} s") from None
        except RuntimeError as error:  # such as no thread to look up a name
            raise TransportError(str(error)) from error

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():  # what is still there to be read then was said to the one that we were
            (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
            if size > MESSAGE_BYTES_MAX:
                raise TransportError(f"the coordinator sent a message of {size} bytes")
            message = unpack(await reader.readexactly(size), FROM_COORDINATOR)
            # Whoever only lets us in, and says nothing, may be something that stands before a coordinator that is gone.
            # What is said first may turn us away, or come from that of another system; ours says more.
            if not isinstance(message, Welcome | Refused):
                self._complained, self._wait_s = False, RETRY_S_MIN
            self._unanswered, self._has_heard = 0, True
            self._hear(message)

    async def _hang_up(self) -> None:
        writer, self._writer, self.connected = self._writer, None, False
        if writer is not None:
            await hang_up(writer)

    def _complain(self, problem: object) -> None:
        if not self._complained:
            host, port = self.address
            logger.warning("no connection to the coordinator at %s:%d (%s); trying again", host, port, problem)
            self._complained = True
