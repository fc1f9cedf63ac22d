"""The cost of the links: CPU time per message at sender and receiver, over loopback, with and without the protocol.

python -m bench.live.live_wire
"""

import asyncio
import multiprocessing
import statistics
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import uvloop

from strobe.protocol.process.channels import Incoming, Outgoing
from strobe.protocol.process.events import Marker
from strobe.protocol.values.frames import Frame
from strobe.protocol.values.view import ChannelSpec, View
from strobe.runtime.links.codec import Hello, Refusal, messages_frame
from strobe.runtime.links.frame_builder import OpenFrame
from strobe.runtime.links.incoming_link import IncomingLink
from strobe.runtime.links.listener import Listener
from strobe.runtime.links.outgoing_link import OutgoingLink
from strobe.runtime.settings import NodeSettings

SPEC = ChannelSpec("a->b", "a", "b")
HELLO = Hello(system="bench", epoch=1, source="a", channel=SPEC.id, incarnation=1)
ROUNDS = 7


class Payload(msgspec.Struct):
    """100 bytes as MessagePack, if `memo_bytes` is 70."""

    id: int
    amount: int
    memo: str


class Receiver:
    """Decodes every frame and passes each message to a function, as a node does; sends nothing back."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, count: int, with_protocol: bool, settings: NodeSettings
    ) -> None:
        self.incoming_link = IncomingLink(SPEC.id, settings)
        self.incoming = Incoming(SPEC)
        self.with_protocol = with_protocol
        self.left = count
        self.total = 0
        self.done = loop.create_future()
        self.cpu_s_start = 0.0
        self._decode = msgspec.msgpack.Decoder(list[Payload]).decode

    def admit(self, hello: Hello) -> IncomingLink | Refusal:
        self.cpu_s_start = time.process_time()
        return self.incoming_link

    def take_frame(self, incoming_link: IncomingLink, frame: Frame, wire_bytes: int) -> None:
        if self.with_protocol:
            self.incoming.accept(frame, "b")
        receive = self.receive
        for message in self._decode(frame.body):
            receive(message)
        incoming_link.consumed(wire_bytes)
        self.left -= frame.count
        if self.left <= 0:
            self.done.set_result(time.process_time() - self.cpu_s_start)

    def receive(self, message: Payload) -> None:
        self.total += message.amount

    def take_marker(self, incoming_link: IncomingLink, marker: Marker) -> None: ...

    def take_barrier(self, incoming_link: IncomingLink, marker: Marker, overtaken: tuple[Frame, ...]) -> None: ...

    def taken(self) -> None: ...

    def take_view(self, incoming_link: IncomingLink, view: View, sent_count: int) -> None: ...


async def send(port: int, count: int, with_protocol: bool, settings: NodeSettings, memo_bytes: int) -> float:
    """Send `count` messages; return the CPU time used."""
    room = asyncio.Event()
    outgoing_link = OutgoingLink(HELLO, settings, room.set)
    outgoing_link.reach(("127.0.0.1", port))
    open_frame = OpenFrame(SPEC.id, msgspec.msgpack.Encoder(), settings)
    outgoing = Outgoing(SPEC)
    message = Payload(1234567, 100, "x" * memo_bytes)
    append = open_frame.append
    while not outgoing_link.connected:
        await asyncio.sleep(0.001)
    started_s = time.process_time()
    for _ in range(count):
        if append(message):
            sealed, body = open_frame.seal()
            frame = outgoing.seal(sealed, body, 0, 1) if with_protocol else Frame(1, sealed, body, 0, 1)
            outgoing_link.write(messages_frame(frame))
            if outgoing_link.full:
                room.clear()
                await room.wait()
    while outgoing_link.backlog_bytes:
        await asyncio.sleep(0.001)
    cpu_s = time.process_time() - started_s
    while outgoing_link.outstanding_bytes:
        await asyncio.sleep(0.001)
    outgoing_link.close()
    return cpu_s


def run_sender(pipe: Connection, *args: Any) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        pipe.send(runner.run(send(*args)))


async def measure_once(
    count: int, with_protocol: bool, settings: NodeSettings, memo_bytes: int
) -> tuple[float, float, float]:
    """Return the ns of CPU per message at the sender and the receiver, and the messages per second."""
    loop = asyncio.get_running_loop()
    receiver = Receiver(loop, count, with_protocol, settings)
    listener = await Listener.open("127.0.0.1", 0, gate=receiver)
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=run_sender, args=(theirs, listener.port, count, with_protocol, settings, memo_bytes)
    )
    process.start()
    while not receiver.incoming_link.connected:
        await asyncio.sleep(0.001)
    started_s = time.perf_counter()
    received_cpu_s = await receiver.done
    took_s = time.perf_counter() - started_s
    sent_cpu_s = await loop.run_in_executor(None, mine.recv)
    await loop.run_in_executor(None, process.join)
    await listener.close()
    return sent_cpu_s / count * 1e9, received_cpu_s / count * 1e9, count / took_s


def compare(title: str, count: int, settings: NodeSettings, memo_bytes: int, rounds: int) -> None:
    results: dict[bool, list[tuple[float, float, float]]] = {True: [], False: []}
    for _ in range(rounds):
        for with_protocol in (False, True):
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                results[with_protocol].append(runner.run(measure_once(count, with_protocol, settings, memo_bytes)))
    medians = {}
    for with_protocol, runs in results.items():
        sender, receiver, rate = (statistics.median(column) for column in zip(*runs, strict=True))
        medians[with_protocol] = sender + receiver
        name = "with ordinals and hash" if with_protocol else "framing only"
        print(f"{title:<28} {name:<24} {sender:8.0f} + {receiver:8.0f} ns CPU/message   {rate:12,.0f} messages/s")
    print(f"{title:<28} ratio {medians[True] / medians[False]:.3f}")


class Echo(Receiver):
    """Answers each message on a second channel."""

    outgoing_link: OutgoingLink
    open_frame: OpenFrame
    outgoing: Outgoing
    rounds_s: list[float]
    rounds = 0
    started_s = 0.0

    def take_frame(self, incoming_link: IncomingLink, frame: Frame, wire_bytes: int) -> None:
        self.incoming.accept(frame, "b")
        for message in self._decode(frame.body):
            self.receive(message)
            if self.rounds:
                self.rounds_s.append(time.perf_counter() - self.started_s)
                if len(self.rounds_s) == self.rounds:
                    self.done.set_result(None)
                    return
            self.send(message)
        incoming_link.consumed(wire_bytes)

    def send(self, message: Payload) -> None:
        self.started_s = time.perf_counter()
        self.open_frame.append(message)
        sealed, body = self.open_frame.seal()
        self.outgoing_link.write(messages_frame(self.outgoing.seal(sealed, body, 0, 1)))  # type: ignore[arg-type]


async def echo_end(rounds: int, ports: Connection) -> list[float]:
    loop = asyncio.get_running_loop()
    settings = NodeSettings()
    end = Echo(loop, 0, True, settings)
    end.rounds, end.rounds_s = rounds, []
    end.outgoing_link, end.outgoing = OutgoingLink(HELLO, settings), Outgoing(SPEC)
    end.open_frame = OpenFrame(SPEC.id, msgspec.msgpack.Encoder(), settings)
    listener = await Listener.open("127.0.0.1", 0, gate=end)
    ports.send(listener.port)
    end.outgoing_link.reach(("127.0.0.1", await loop.run_in_executor(None, ports.recv)))
    while not (end.outgoing_link.connected and end.incoming_link.connected):
        await asyncio.sleep(0.001)
    if rounds:
        end.send(Payload(1, 2, "x"))
        await end.done
        ports.send("done")
    else:
        await loop.run_in_executor(None, ports.recv)
    end.outgoing_link.close()
    end.incoming_link.close()
    await listener.close()
    return end.rounds_s


class RawEcho(asyncio.Protocol):
    """A round trip over the event loop's bare sockets."""

    def __init__(self, rounds: int, done: "asyncio.Future[None]") -> None:
        self.rounds, self.done, self.rounds_s, self.started_s = rounds, done, [], 0.0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        if self.rounds:
            self.started_s = time.perf_counter()
            transport.write(bytes(60))

    def data_received(self, data: bytes) -> None:
        if self.rounds:
            self.rounds_s.append(time.perf_counter() - self.started_s)
            if len(self.rounds_s) == self.rounds:
                self.transport.close()
                return
            self.started_s = time.perf_counter()
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.done.set_result(None)


async def raw_end(rounds: int, ports: Connection) -> list[float]:
    loop = asyncio.get_running_loop()
    end = RawEcho(rounds, loop.create_future())
    if rounds:
        await loop.create_connection(lambda: end, "127.0.0.1", await loop.run_in_executor(None, ports.recv))
        await end.done
    else:
        server = await loop.create_server(lambda: end, "127.0.0.1", 0)
        ports.send(server.sockets[0].getsockname()[1])
        await end.done
        server.close()
    return end.rounds_s


def run_end(end: Any, rounds: int, ports: Connection) -> list[float]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(end(rounds, ports))


def round_trips(rounds: int, times: int) -> None:
    medians: dict[str, list[float]] = {"raw sockets": [], "links": []}
    for _ in range(times):
        for name, end in (("raw sockets", raw_end), ("links", echo_end)):
            mine, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(target=run_end, args=(end, 0, theirs))
            process.start()
            medians[name].append(statistics.median(run_end(end, rounds, mine)) * 1e6)
            process.join()
    raw, links = (statistics.median(values) for values in medians.values())
    print(f"round trip of one small message: raw sockets {raw:.1f} us, links {links:.1f} us, ratio {links / raw:.2f}")


def main() -> int:
    round_trips(5000, 5)
    compare("100 bytes, 256 a frame", 256 * 4000, NodeSettings(), 70, ROUNDS)
    one = NodeSettings(frame_messages_max=1)
    compare("64 KB, 1 a frame", 10_000, one, 64 << 10, 3)
    compare("1 MB, 1 a frame", 800, one, 1 << 20, 3)
    return 0


if __name__ == "__main__":
    sys.exit(main())
