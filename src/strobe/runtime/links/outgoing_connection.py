"""One connection of an `OutgoingLink`: sends the HELLO, and reads the target's answer and credit."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from strobe.runtime.links.codec import (
    CREDIT,
    HEADER,
    HEADER_BYTES,
    KINDS,
    REFUSED,
    WELCOME,
    FrameRejected,
    check_header,
    handshake_frame,
    read_control,
)
from strobe.runtime.links.handshake import set_socket

if TYPE_CHECKING:
    from strobe.runtime.links.outgoing_link import OutgoingLink

WELCOME_TIMEOUT_S = 10.0

Connect = Callable[[Callable[[], asyncio.Protocol], str, int], Awaitable[object]]
"""Opens a connection to a host and port, for the protocol that the callable returns."""


class OutgoingConnection(asyncio.Protocol):
    """Passes the target's frames to its `OutgoingLink`. `gone` is set when the connection has ended."""

    transport: asyncio.Transport

    def __init__(self, outgoing_link: "OutgoingLink") -> None:
        self.gone = asyncio.Event()
        self.was_welcome = False
        self.was_refused = False
        self._link = outgoing_link
        self._open = False
        self._dropped = False
        self._received = bytearray()
        self._welcome_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports lack the base class
        if self._dropped:  # the address changed, or the link was closed, while connecting
            self.transport.abort()
            return
        self._open = True
        set_socket(transport.get_extra_info("socket"))
        loop = asyncio.get_running_loop()
        self._welcome_timer = loop.call_later(WELCOME_TIMEOUT_S, self.drop)
        self.transport.write(handshake_frame(self._link.hello))

    def data_received(self, data: bytes) -> None:
        if not self._open:
            return
        self._received += data
        try:
            self._take_frames()
        except FrameRejected as rejected:
            place = self.transport.get_extra_info("peername")
            self._link.rejections.note(rejected.reason, rejected.detail, place)
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()

    def drop(self) -> None:
        """Close the connection at once."""
        self._dropped = True
        if self._open:
            self._forget()
            self.transport.abort()

    def _take_frames(self) -> None:
        received = self._received
        while self._open and len(received) >= HEADER_BYTES:
            length, magic, kind, _, _, sequence, consumed_bytes, _ = HEADER.unpack_from(received)
            check_header(magic, kind, length)
            if kind != (CREDIT if self.was_welcome else kind) or kind not in (WELCOME, REFUSED, CREDIT):
                raise FrameRejected("unexpected kind", f"a {KINDS[kind]} frame from the target")
            if len(received) < HEADER_BYTES + length:
                return
            body = bytes(received[HEADER_BYTES : HEADER_BYTES + length])
            del received[: HEADER_BYTES + length]
            if self.was_welcome:
                self._link.credited(sequence, consumed_bytes)
            else:
                self._take_answer(kind, body)

    def _take_answer(self, kind: int, body: bytes) -> None:
        if kind == CREDIT:
            raise FrameRejected("unexpected kind", "a CREDIT frame before WELCOME")
        answer = read_control(kind, body)
        if self._welcome_timer is not None:
            self._welcome_timer.cancel()
            self._welcome_timer = None
        if kind == WELCOME:
            self.was_welcome = True
            self._link.welcomed(self, answer)
        else:
            self.was_refused = True
            self._link.refused(answer)
            self.drop()

    def _forget(self) -> None:
        self._open = False
        self.gone.set()
        if self._welcome_timer is not None:
            self._welcome_timer.cancel()
            self._welcome_timer = None
        self._link.disconnected(self)
