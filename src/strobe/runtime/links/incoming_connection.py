"""One connection to a `Listener`: a HELLO, then the frames of its channel, each handed over once and in order.

Any error is counted and logged, and ends only this connection.
"""

import asyncio
from typing import TYPE_CHECKING, Any, cast

from strobe.protocol.values.frames import Frame
from strobe.runtime.addresses import print_address
from strobe.runtime.links.codec import (
    ARRAY32,
    ARRAY_HEADER,
    ARRAY_HEADER_BYTES,
    BARRIER,
    CREDIT,
    HANDSHAKE_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    HELLO,
    KINDS,
    MAGIC,
    MARKER,
    MESSAGES,
    OVERTAKEN,
    REFUSED,
    WELCOME,
    BrokenRule,
    FrameRejected,
    Refusal,
    check_header,
    check_messages,
    handshake_frame,
    read_control,
    read_overtaken,
)
from strobe.runtime.links.handshake import set_socket
from strobe.runtime.links.incoming_link import IncomingLink

if TYPE_CHECKING:
    from strobe.runtime.links.listener import Listener

# With less room than an eighth of a buffer, the next read would be short, so the connection takes another one.
ROOM_SHARE = 8


class IncomingConnection(asyncio.BufferedProtocol):
    """Parses frames in place, in its receive buffer.

    The bytes of `_buffer` from `_position` to `_end` are an incomplete frame. If the frame does not fit, it moves to
    another buffer. The bytes before it stay in place as long as a frame refers to them.
    """

    __slots__ = (
        "_bodies",
        "_buffer",
        "_end",
        "_hello_timer",
        "_link",
        "_listener",
        "_open",
        "_peer",
        "_position",
        "_room_bytes_min",
        "_transport",
        "_view",
    )

    _transport: asyncio.Transport

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._link: IncomingLink | None = None
        self._open = False
        self._peer: object = "a closed connection"
        self._hello_timer: asyncio.TimerHandle | None = None
        self._buffer = bytearray(HEADER_BYTES + HANDSHAKE_BYTES_MAX)
        self._view = memoryview(self._buffer)
        self._bodies = self._view.toreadonly()
        self._room_bytes_min = listener.buffers.buffer_bytes // ROOM_SHARE
        self._position = 0
        self._end = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        listener = self._listener
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports lack the base class
        self._open = True
        place = transport.get_extra_info("peername")
        self._peer = print_address(*place[:2]) if isinstance(place, tuple) else place
        listener.connections.add(self)
        if len(listener.unknown) >= listener.unknown_max:
            # Drop the oldest: peers send their HELLO at once, so idle connections must not keep them out.
            oldest = next(iter(listener.unknown))
            oldest._reject("too many unknown connections", f"{listener.unknown_max} connected after it")
        listener.unknown[self] = None
        set_socket(transport.get_extra_info("socket"))
        loop = asyncio.get_running_loop()
        self._hello_timer = loop.call_later(listener.hello_timeout_s, self._hello_missed)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._end and self in self._listener.unknown:
            self._listener.rejections.note("no hello", f"{self._end} bytes, then it disconnected", self._peer)
        self._forget()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if not self._open:
            return
        self._end += nbytes
        try:
            needed_bytes = self._take_frames() if self._link is not None else self._take_hello()
        except FrameRejected as rejected:
            self._reject(rejected.reason, rejected.detail)
        else:
            room_bytes_min = self._room_bytes_min
            if needed_bytes > room_bytes_min or len(self._buffer) - self._end < room_bytes_min:
                self._make_room(needed_bytes)
        if not self._listener.gate.taken() and self._open:
            # Otherwise up to 32 buffers could be read in one event-loop iteration.
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._open:
            self._transport.resume_reading()

    def write(self, data: bytes | bytearray) -> None:
        self._transport.write(data)

    def drop(self) -> None:
        """Close the connection at once; no more frames come from it."""
        if self._open:
            self._forget()
            self._transport.abort()

    def _take_hello(self) -> int:
        """Admit or refuse the peer. Return the size of the incomplete frame, as far as known."""
        if self._end < HEADER_BYTES:
            return HEADER_BYTES
        header: tuple[int, ...] = HEADER.unpack_from(self._buffer)
        length, magic, kind = header[:3]
        check_header(magic, kind, length)
        if kind != HELLO:
            raise FrameRejected("frame before hello", f"a {KINDS[kind]} frame")
        frame_end = HEADER_BYTES + length
        if frame_end > self._end:
            return frame_end
        hello = read_control(HELLO, self._view[HEADER_BYTES:frame_end])
        answer = self._listener.gate.admit(hello)
        if isinstance(answer, Refusal):
            self._refuse(answer, f"{hello.source!r} for channel {hello.channel!r} in epoch {hello.epoch}")
            return HEADER_BYTES
        self._position = frame_end
        self._peer = f"process {hello.source} at {self._peer}"
        self._admit(answer)
        return self._take_frames()

    def _take_frames(self) -> int:
        """Hand over every complete frame. Return the size of the incomplete frame, as far as known."""
        buffer, bodies, position, end = self._buffer, self._bodies, self._position, self._end
        take_frame, unpack_from, unpack_array = (
            self._listener.gate.take_frame,
            HEADER.unpack_from,
            ARRAY_HEADER.unpack_from,
        )
        incoming_link = self._link
        assert incoming_link is not None
        bytes_max = incoming_link.messages_bytes_max
        while end - position >= HEADER_BYTES:
            header: tuple[int, ...] = unpack_from(buffer, position)
            length, magic, kind, count, view_number, sequence, first, index = header
            if magic != MAGIC or kind != MESSAGES or length > bytes_max:
                check_header(magic, kind, length, bytes_max)
            wire_bytes = HEADER_BYTES + length
            if end - position < wire_bytes:
                self._position = position
                return wire_bytes
            body: Any = bodies[position + HEADER_BYTES : position + wire_bytes]
            position += wire_bytes
            if sequence != incoming_link.last_sequence + 1:
                self._check_duplicate(incoming_link, kind, sequence)
            elif kind == MESSAGES:
                # Nodes always begin a body like this; anything else is checked in full.
                if length < ARRAY_HEADER_BYTES or unpack_array(body) != (ARRAY32, count) or not count:
                    check_messages(count, body)
                incoming_link.note_messages(wire_bytes)
                incoming_link.last_sequence = sequence
                try:
                    take_frame(incoming_link, Frame(first, count, body, index, view_number), wire_bytes)
                except FrameRejected as rejected:
                    self._take_back(incoming_link, rejected, header, body, wire_bytes)
                    raise
                if self._link is None:  # the node has dropped this connection
                    break
            else:
                try:
                    self._take_control(incoming_link, kind, sequence, Frame(first, count, body, index, view_number))
                except BrokenRule as broken:
                    self._take_back(incoming_link, broken, header, body)
                    raise
                if self._link is None:
                    break
        self._position = position
        return HEADER_BYTES

    def _check_duplicate(self, incoming_link: IncomingLink, kind: int, sequence: int) -> None:
        """Skip a frame that arrived before, and was sent again because its acknowledgement was lost."""
        if kind in (HELLO, WELCOME, REFUSED, CREDIT):
            raise FrameRejected("unexpected kind", f"a {KINDS[kind]} frame from the source of {incoming_link.channel}")
        if not 0 < sequence <= incoming_link.last_sequence:
            raise FrameRejected(
                "gap",
                f"frame {sequence} arrived on {incoming_link.channel}, "
                f"but {incoming_link.last_sequence + 1} was expected",
            )
        incoming_link.duplicates += 1

    def _take_control(self, incoming_link: IncomingLink, kind: int, sequence: int, frame: Frame) -> None:
        if kind in (HELLO, WELCOME, REFUSED, CREDIT):
            raise FrameRejected("unexpected kind", f"a {KINDS[kind]} frame from the source of {incoming_link.channel}")
        if kind != OVERTAKEN:
            incoming_link.refuse_within_barrier(KINDS[kind])
        if kind in (BARRIER, OVERTAKEN):
            self._take_barrier(incoming_link, kind, sequence, frame)
            return
        content = read_control(kind, frame.body)
        incoming_link.last_sequence = sequence
        incoming_link.acknowledge_soon()
        if kind == MARKER:
            self._listener.gate.take_marker(incoming_link, content)
        else:
            view, sent_count = content
            self._listener.gate.take_view(incoming_link, view, sent_count)

    def _take_barrier(self, incoming_link: IncomingLink, kind: int, sequence: int, frame: Frame) -> None:
        """Collect a barrier and the copies of overtaken frames; hand it over when it is complete."""
        if kind == BARRIER:
            incoming_link.begin_barrier(*read_control(kind, frame.body))
        else:
            incoming_link.add_overtaken(
                read_overtaken(frame.count, cast(memoryview, frame.body), incoming_link.messages_bytes_max)
            )
        incoming_link.last_sequence = sequence
        incoming_link.acknowledge_soon()
        barrier = incoming_link.take_barrier()
        if barrier is not None:
            self._listener.gate.take_barrier(incoming_link, *barrier)

    def _take_back(
        self,
        incoming_link: IncomingLink,
        rejected: FrameRejected,
        header: tuple[int, ...],
        body: bytes,
        wire_bytes: int = 0,
    ) -> None:
        """Undo the arrival of the newest frame; if its source keeps sending it, report that to the node."""
        incoming_link.take_back(rejected.detail, wire_bytes)
        if header[2] == OVERTAKEN:
            incoming_link.ignores_copies = True
        if isinstance(rejected, BrokenRule) and incoming_link.is_repeated(
            incoming_link.last_sequence + 1, hash((header, bytes(body)))
        ):
            self._listener.gate.disagree(rejected.violation)

    def _make_room(self, needed_bytes: int) -> None:
        """Take another buffer if this one has no room for the incomplete frame or for a read of useful size."""
        if self._link is None:
            return
        size, rest, room_bytes_min = len(self._buffer), self._end - self._position, self._room_bytes_min
        # A long frame stays in the buffer made for it: a longer read is not worth copying it.
        if size - self._position >= needed_bytes and (size - self._end >= room_bytes_min or rest >= room_bytes_min):
            return
        buffer = self._listener.buffers.take(needed_bytes)
        buffer[:rest] = self._view[self._position : self._end]
        self._view.release()
        self._bodies.release()
        self._listener.buffers.give_back(self._buffer)
        self._buffer, self._view, self._position, self._end = buffer, memoryview(buffer), 0, rest
        self._bodies = self._view.toreadonly()

    def _admit(self, incoming_link: IncomingLink) -> None:
        self._listener.unknown.pop(self, None)
        if self._hello_timer is not None:
            self._hello_timer.cancel()
            self._hello_timer = None
        welcome = incoming_link.attach(self)
        self._link = incoming_link
        self.write(handshake_frame(welcome))

    def _refuse(self, refusal: Refusal, who: str) -> None:
        # A temporary refusal, such as for a peer in a newer epoch, is normal.
        self._listener.rejections.note(refusal.reason, who, self._peer, quiet=not refusal.final)
        self.write(handshake_frame(refusal))
        self._forget()
        self._transport.close()  # unlike abort, sends the answer

    def _reject(self, reason: str, detail: str) -> None:
        self._listener.rejections.note(reason, detail, self._peer)
        self.drop()

    def _hello_missed(self) -> None:
        self._reject("no hello in time", f"nothing valid within {self._listener.hello_timeout_s} s")

    def _forget(self) -> None:
        self._open = False
        self._listener.connections.discard(self)
        self._listener.unknown.pop(self, None)
        if self._hello_timer is not None:
            self._hello_timer.cancel()
            self._hello_timer = None
        if self._link is not None:
            self._link.detach(self)
            self._link = None
