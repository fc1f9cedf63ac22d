"""The libraries that Strobe's channels are compared with: pyzmq, asyncio streams, grpc.aio, and raw uvloop sockets.

Each peer is two programs, `source` and `target`, with the same work as Strobe's processes: every message is encoded,
sent, decoded into its type and counted. Singly, each message is sent to the peer by itself; batched by hand, 256 are
encoded as one. Settings are those that the peers' documentation recommends for speed:

    pyzmq            the blocking API, PUSH and PULL, small messages copied (zmq.COPY_THRESHOLD), long queues
    asyncio streams  uvloop, TCP_NODELAY (always set), write and drain, a large limit for the reader
    grpc.aio         one channel kept open, uvloop, generic methods that pass bytes; many concurrent calls with one
                     message each, or one stream for all messages

python -m bench.live.peers KIND source|target    with STROBE_BENCH naming a folder
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import uvloop

from bench.live.gauge import Gate, Gauge, given_folder
from bench.live.live_systems import BATCH, LOOK_EVERY_S, PARCEL, SMALL, Parcel, Pump
from strobe.runtime.links.codec import ARRAY_HEADER_BYTES, HEADER_BYTES

WRITTEN_EVERY = Pump.written_every
WRITTEN_EVERY_SLOW = 64
LENGTH_BYTES = 4
_CALLS = 64
_METHOD = ("bench.Sink", "Take")
_MIB = 1 << 20


class Source:
    """The sending end: encoded messages while the gate is open."""

    def __init__(self, batched: bool, written_every: int) -> None:
        self.gate, self.gauge = Gate(), Gauge("source")
        self.batched = batched
        self.messages = 0
        self._every = written_every
        self._due = 0
        self._encode = msgspec.msgpack.Encoder().encode

    def next(self) -> bytes:
        """Return the next bytes to send: one message, or a batch."""
        if not self.batched:
            self.messages += 1
            return self._encode(PARCEL)
        self.messages += BATCH
        return self._encode([PARCEL for _ in range(BATCH)])

    def may_go_on(self) -> bool:
        """Check the gate, and write the gauge when that is due."""
        is_open = bool(self.gate.number)
        if self.messages >= self._due or not is_open:
            self._due = self.messages + self._every
            self.gauge.write(self.messages)
        return is_open


class Target:
    """The receiving end: counts messages, one by one or a batch at a time."""

    def __init__(self, batched: bool, written_every: int) -> None:
        self.gauge = Gauge("target")
        self.messages = 0
        self._every = written_every
        self._due = 0
        self._batched = batched
        self._decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(list[Parcel] if batched else Parcel).decode
        self.gauge.write(0)

    def take(self, data: bytes) -> None:
        if self._batched:
            self.messages += len(self._decode(data))
        else:
            self.receive(self._decode(data))
        if self.messages >= self._due:
            self._due = self.messages + self._every
            self.gauge.write(self.messages)

    def receive(self, message: Parcel) -> None:
        self.messages += 1


# pyzmq


def zmq_source(batched: bool) -> None:
    import zmq

    source = Source(batched, WRITTEN_EVERY)
    with zmq.Context() as context, context.socket(zmq.PUSH) as sock:
        sock.set_hwm(100_000)
        sock.connect(f"tcp://127.0.0.1:{await_port()}")
        send, take = sock.send, source.next
        while True:
            while source.may_go_on():
                for _ in range(1 if batched else BATCH):
                    send(take())
            time.sleep(LOOK_EVERY_S)


def zmq_target(batched: bool) -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.PULL) as sock:
        sock.set_hwm(100_000)
        write_port(sock.bind_to_random_port("tcp://127.0.0.1"))
        target = Target(batched, WRITTEN_EVERY)
        while True:
            target.take(sock.recv())


# asyncio streams


async def streams_source(batched: bool) -> None:
    source = Source(batched, WRITTEN_EVERY)
    _, writer = await asyncio.open_connection("127.0.0.1", await_port())
    while True:
        while source.may_go_on():
            for _ in range(1 if batched else BATCH):
                data = source.next()
                writer.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
                await writer.drain()
        await asyncio.sleep(LOOK_EVERY_S)


async def streams_target(batched: bool) -> None:
    target = Target(batched, WRITTEN_EVERY)

    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        while True:
            length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
            target.take(await reader.readexactly(length))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=_MIB)
    write_port(server.sockets[0].getsockname()[1])
    await server.serve_forever()


# grpc.aio


async def grpc_calls_source(batched: bool) -> None:
    """A call for each message, many concurrently."""
    source = Source(batched, WRITTEN_EVERY_SLOW)

    async def call_on(call: Callable[[bytes], Awaitable[bytes]]) -> None:
        while source.may_go_on():
            await call(source.next())

    async with _grpc_channel() as channel:
        call = channel.unary_unary(f"/{'/'.join(_METHOD)}")
        while True:
            await asyncio.gather(*(call_on(call) for _ in range(_CALLS)))
            await asyncio.sleep(LOOK_EVERY_S)


async def grpc_stream_source(batched: bool) -> None:
    """One call, to which every message is written."""
    source = Source(batched, WRITTEN_EVERY_SLOW)
    async with _grpc_channel() as channel:
        call = channel.stream_unary(f"/{'/'.join(_METHOD)}")()
        while True:
            while source.may_go_on():
                for _ in range(1 if batched else 16):
                    await call.write(source.next())
            await asyncio.sleep(LOOK_EVERY_S)


def _grpc_channel() -> Any:
    import grpc

    return grpc.aio.insecure_channel(f"127.0.0.1:{await_port()}")


async def grpc_calls_target(batched: bool) -> None:
    import grpc

    target = Target(batched, WRITTEN_EVERY_SLOW)

    async def take(request: bytes, _: Any) -> bytes:
        target.take(request)
        return b""

    await _serve_grpc(grpc.unary_unary_rpc_method_handler(take))


async def grpc_stream_target(batched: bool) -> None:
    import grpc

    target = Target(batched, WRITTEN_EVERY_SLOW)

    async def take(requests: Any, _: Any) -> bytes:
        async for request in requests:
            target.take(request)
        return b""

    await _serve_grpc(grpc.stream_unary_rpc_method_handler(take))


async def _serve_grpc(method: Any) -> None:
    import grpc

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_METHOD[0], {_METHOD[1]: method}),))
    write_port(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await server.wait_for_termination()


# Raw sockets: a round trip of the same number of bytes as Strobe's


class RawEnd(asyncio.Protocol):
    """Sends back what it receives; the end with a gate begins, and measures."""

    transport: asyncio.Transport

    def __init__(self, gauge: Gauge, gate: Gate | None) -> None:
        self.gauge, self.gate = gauge, gate
        self.data = bytes(HEADER_BYTES + ARRAY_HEADER_BYTES + len(msgspec.msgpack.encode(SMALL)))
        self.messages = 0
        self.rounds_s: list[float] = []
        self.playing = False
        self.started_s = self.median_s = 0.0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def look(self) -> None:
        self.gauge.write(self.messages, self.median_s)
        if self.gate is not None and self.gate.number and not self.playing:
            self.playing = True
            self.send()
        asyncio.get_running_loop().call_later(LOOK_EVERY_S, self.look)

    def send(self) -> None:
        self.started_s = time.perf_counter()
        self.transport.write(self.data)

    def data_received(self, data: bytes) -> None:
        self.messages += 1
        if self.gate is None:
            self.transport.write(data)
            return
        self.rounds_s.append(time.perf_counter() - self.started_s)
        if self.gate.number:
            self.send()
        else:
            self.median_s, self.rounds_s, self.playing = statistics.median(self.rounds_s), [], False


async def raw_source(_: bool) -> None:
    end = RawEnd(Gauge("source"), Gate())
    await asyncio.get_running_loop().create_connection(lambda: end, "127.0.0.1", await_port())
    end.look()
    await asyncio.Event().wait()


async def raw_target(_: bool) -> None:
    end = RawEnd(Gauge("target"), None)
    server = await asyncio.get_running_loop().create_server(lambda: end, "127.0.0.1", 0)
    write_port(server.sockets[0].getsockname()[1])
    end.look()
    await server.serve_forever()


# Running one end


def write_port(port: int) -> None:
    path = given_folder() / "port"
    path.with_suffix(".new").write_text(str(port))
    path.with_suffix(".new").rename(path)


def await_port() -> int:
    path = given_folder() / "port"
    while not path.exists():
        time.sleep(LOOK_EVERY_S)
    return int(path.read_text())


End = Callable[[bool], Coroutine[Any, Any, None] | None]
KINDS: dict[str, tuple[End, End]] = {
    "zmq": (zmq_source, zmq_target),
    "streams": (streams_source, streams_target),
    "grpc-calls": (grpc_calls_source, grpc_calls_target),
    "grpc-stream": (grpc_stream_source, grpc_stream_target),
    "raw": (raw_source, raw_target),
}


def main(kind: str, end: str) -> None:
    name, _, how = kind.partition(":")
    run = KINDS[name][("source", "target").index(end)](how == "batched")
    if run is not None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run)


if __name__ == "__main__":
    main(*sys.argv[1:])
