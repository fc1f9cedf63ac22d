"""Shared by the tests of the links: both ends of a channel, a proxy that cuts connections, a fake transport."""

import asyncio
import warnings
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

import msgspec
import uvloop

from strobe.protocol import ChannelSpec, Frame, SnapshotId, View
from strobe.protocol.process.channels import Incoming, Outgoing
from strobe.protocol.process.events import Marker
from strobe.runtime.links.codec import Hello, Refusal, marker_frame, messages_frame, view_frame
from strobe.runtime.links.frame_builder import OpenFrame
from strobe.runtime.links.handshake import refuse_hello
from strobe.runtime.links.incoming_link import IncomingLink
from strobe.runtime.links.outgoing_connection import Connect
from strobe.runtime.links.outgoing_link import OutgoingLink
from strobe.runtime.settings import NodeSettings

SPEC = ChannelSpec("a->b", "a", "b")
VIEW = View(1, ("a", "b"), (SPEC,))
SYSTEM = "shop"
EPOCH = 3
HELLO = Hello(system=SYSTEM, epoch=EPOCH, source="a", channel=SPEC.id, incarnation=1)
SETTINGS = NodeSettings(frame_messages_max=8)
PATIENCE_S = 60.0

T = TypeVar("T")


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Run `scenario` on the event loop that nodes use."""

    async def bounded() -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await scenario

    with warnings.catch_warnings(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(bounded())
        except BaseException:
            # If its warning about an open transport were an error, closing the loop would hang and hide the failure.
            warnings.simplefilter("ignore", ResourceWarning)
            raise


async def until(condition: Callable[[], object]) -> None:
    """Let the event loop run until `condition` holds."""
    while not condition():
        await asyncio.sleep(0.001)


def marker(counter: int) -> Marker:
    return Marker(EPOCH, 1, SnapshotId(EPOCH, counter, "a"))


class Source:
    """Sends messages on the channel in frames, with ordinals and hashes, as a node does."""

    def __init__(self, settings: NodeSettings = SETTINGS, hello: Hello = HELLO, connect: Connect | None = None) -> None:
        self.outgoing = Outgoing(SPEC)
        self.said: list[object] = []
        self.rooms = 0
        self.refusals: list[tuple[str, str]] = []
        refused: Callable[[str, str], None] = lambda *why: self.refusals.append(why)  # noqa: E731
        self.outgoing_link = OutgoingLink(hello, settings, self._note_room, refused, connect=connect)
        self._open = OpenFrame(SPEC.id, msgspec.msgpack.Encoder(), settings)

    def _note_room(self) -> None:
        self.rooms += 1

    def send(self, *messages: object, now: bool = True) -> int:
        """Send `messages` in one frame, now or together with the next frame; return its size on the wire."""
        for message in messages:
            self._open.append(message)
        count, body = self._open.seal()
        wire = messages_frame(self.outgoing.seal(count, body, 0, 1))  # type: ignore[arg-type]
        (self.outgoing_link.write if now else self.outgoing_link.put)(wire)
        self.said.append(list(messages))
        return len(wire)

    def mark(self, counter: int) -> None:
        self.outgoing_link.write(marker_frame(marker(counter)))
        self.said.append(marker(counter))

    def overtake(self, counter: int) -> None:
        self.outgoing_link.overtake(msgspec.structs.replace(marker(counter), sent_count=self.outgoing.count))

    def show_view(self) -> None:
        self.outgoing_link.write(view_frame(VIEW, self.outgoing.count))
        self.said.append((VIEW, self.outgoing.count))


class Target:
    """A node that records what it receives. It consumes at once, or only when `consume` is called."""

    def __init__(self, settings: NodeSettings = SETTINGS, *, consumes: bool = True) -> None:
        self.settings = settings
        self.consumes = consumes
        self.heard: list[object] = []
        self.frames: list[Frame] = []
        self.waiting: list[int] = []
        self.incoming = Incoming(SPEC)
        self.barriers: list[tuple[Marker, list[int]]] = []
        self.counts_at_barriers: list[int] = []
        self.incoming_links: dict[str, IncomingLink] = {}
        self.admitted = 0
        self.later: set[str] = set()

    @property
    def incoming_link(self) -> IncomingLink:
        return self.incoming_links[SPEC.id]

    def admit(self, hello: Hello) -> IncomingLink | Refusal:
        refusal = refuse_hello(hello, SYSTEM, EPOCH)
        if refusal is not None:
            return refusal
        if hello.channel in self.later:
            return Refusal("not in view yet", final=False)
        if hello.channel != SPEC.id:
            return Refusal("unknown channel", final=True)
        self.admitted += 1
        return self.incoming_links.setdefault(hello.channel, IncomingLink(hello.channel, self.settings))

    def take_frame(self, incoming_link: IncomingLink, frame: Frame, wire_bytes: int) -> None:
        self.incoming.accept(frame, "b")
        self.frames.append(frame)
        self.heard.append(msgspec.msgpack.decode(frame.body))
        if self.consumes:
            incoming_link.consumed(wire_bytes)
        else:
            self.waiting.append(wire_bytes)

    def take_marker(self, incoming_link: IncomingLink, received: Marker) -> None:
        self.heard.append(received)

    def take_barrier(self, incoming_link: IncomingLink, received: Marker, overtaken: tuple[Frame, ...] | None) -> None:
        """Record the barrier, and the ordinals of the messages that it has overtaken."""
        self.barriers.append((received, [ordinal for frame in overtaken for ordinal in frame.ordinals]))
        self.counts_at_barriers.append(self.incoming.count)

    def taken(self) -> bool:
        return True

    def take_view(self, incoming_link: IncomingLink, view: View, sent_count: int) -> None:
        self.heard.append((view, sent_count))

    def consume(self, count: int) -> None:
        """The process receives the messages of the oldest `count` frames."""
        for wire_bytes in self.waiting[:count]:
            self.incoming_link.consumed(wire_bytes)
        del self.waiting[:count]


class CuttingProxy:
    """A proxy. While `cutting` is set, it aborts each connection after a random number of bytes in either direction."""

    def __init__(self, target_port: int, random: Random, bytes_max: int) -> None:
        self.target_port = target_port
        self.random = random
        self.bytes_max = bytes_max
        self.cutting = True
        self.cuts = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        ends = {writer, target_writer}
        self._writers |= ends
        await asyncio.gather(
            self._forward(reader, target_writer, self.random.randint(1, self.bytes_max)),
            self._forward(target_reader, writer, self.random.randint(1, self.bytes_max)),
        )
        for end in ends:
            end.transport.abort()
        self._writers -= ends

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget_bytes: int) -> None:
        try:
            while data := await reader.read(self.random.randint(1, 5000)):
                passed = data[:budget_bytes] if self.cutting else data
                writer.write(passed)
                await writer.drain()
                budget_bytes -= len(passed)
                if self.cutting and budget_bytes <= 0:
                    self.cuts += 1
                    break
        except ConnectionError:
            pass
        writer.close()


class NoNetwork(asyncio.Transport):
    """A transport without a network: it keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.ended = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _NoSocket() if name == "socket" else "nowhere"

    def write(self, data: Any) -> None:
        assert not self.ended
        self.written += data

    def abort(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.ended = True


class _NoSocket:
    def setsockopt(self, *option: int) -> None: ...
