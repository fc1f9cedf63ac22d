"""A proxy for the connections of a live system, so that tests can cut, block and slow them.

Nodes get the proxy's address as the coordinator's. The first message of a node has its address for peers. The proxy
listens at another address for this process and puts that into the message, so only the proxy knows the node's own port.
Each link begins with a hello that names its channel; tests select links by this name. The control connection of process
a is called `control a`.
"""

import asyncio
import contextlib
import socket
import struct
import threading

import msgspec

from strobe.errors import TransportError
from strobe.runtime.links.codec import HEADER, HEADER_BYTES, HELLO, read_control
from strobe.runtime.messages.control import FROM_NODE, LENGTH, pack, unpack

CHUNK_BYTES = 64 << 10
CONNECT_S_MAX = 5.0
SLICES_PER_S = 50


class Pair:
    """Two connections; what arrives on one is forwarded to the other."""

    def __init__(self, name, near, far):
        self.name = name
        self.ends = (near, far)
        self.swallowed = False

    def reset(self):
        """Cut both at once; the peers get a reset instead of an orderly end."""
        for _, writer in self.ends:
            with contextlib.suppress(OSError):
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class Proxy:
    """Runs in its own thread. It is a context manager; all its methods may be called from the tests' thread."""

    def __init__(self):
        self.resets = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._coordinator = None
        self._servers = []
        self._doors = {}
        self._addresses = {}
        self._pairs = set()
        self._blocked = set()
        self._unblocked = asyncio.Event()
        self._rates = {}

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # Called by tests

    def before(self, coordinator):
        """Stand before the coordinator at this address; return the address to which nodes should connect."""
        host, _, port = coordinator.rpartition(":")
        self._coordinator = (host, int(port))
        return f"127.0.0.1:{self._call(self._listen(self._serve_control))}"

    def names(self):
        """Return the names of the current connections."""
        return sorted(self._ask(lambda: [pair.name for pair in self._pairs]))

    def addresses(self):
        """Return the real addresses of the coordinator and the nodes."""
        return self._ask(lambda: [f"{host}:{port}" for host, port in (self._coordinator, *self._addresses.values())])

    def reset(self, *names):
        """Cut the connections with these names, or all; return how many there were. They may be opened again."""
        return self._ask(lambda: self._reset(names))

    def block(self, *names):
        """Forward nothing on the connections with these names, also on new ones."""
        self._ask(lambda: self._blocked.update(names))

    def unblock(self, *names):
        """Forward again on the connections with these names, or on all."""
        self._ask(lambda: self._unblock(names))

    def swallow(self, *names):
        """Silently forward nothing on the current connections with these names; new ones are not affected."""
        self._ask(lambda: self._swallow(names))

    def slow(self, bytes_per_s, *names):
        """Limit the connections with these names to `bytes_per_s` in each direction; None is no limit."""
        self._ask(lambda: self._rates.update(dict.fromkeys(names, bytes_per_s)))

    # In the proxy's thread

    def _ask(self, question):
        async def answer():
            return question()

        return self._call(answer())

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def _reset(self, names):
        pairs = [pair for pair in self._pairs if not names or pair.name in names]
        for pair in pairs:
            pair.reset()
        self.resets += len(pairs)
        return len(pairs)

    def _swallow(self, names):
        for pair in self._pairs:
            pair.swallowed = pair.swallowed or pair.name in names

    def _unblock(self, names):
        self._blocked.difference_update(names or set(self._blocked))
        self._unblocked.set()
        self._unblocked = asyncio.Event()

    async def _close(self):
        for server in self._servers:
            server.close()
        self._unblock(())
        self._reset(())
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await asyncio.sleep(0)  # let the transports run their callbacks

    async def _listen(self, serve):
        async def accept(reader, writer):
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError, TransportError):
                await serve(reader, writer)
            writer.transport.abort()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self._servers.append(server)
        return server.sockets[0].getsockname()[1]

    async def _serve_control(self, reader, writer):
        (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        register = unpack(await reader.readexactly(size), FROM_NODE)
        self._addresses[register.process] = register.address
        if register.process not in self._doors:
            serve = self._door(register.process)
            self._doors[register.process] = await self._listen(serve)
        door = ("127.0.0.1", self._doors[register.process])
        first = pack(msgspec.structs.replace(register, address=door))
        await self._join(f"control {register.process}", (reader, writer), self._coordinator, first)

    def _door(self, process):
        async def serve(reader, writer):
            header = await reader.readexactly(HEADER_BYTES)
            length, _, kind, *_ = HEADER.unpack(header)
            body = await reader.readexactly(length) if kind == HELLO else b""
            name = read_control(HELLO, body).channel if kind == HELLO else "stranger"
            await self._join(name, (reader, writer), self._addresses[process], header + body)

        return serve

    async def _join(self, name, near, address, first):
        await self._let_through(name)
        async with asyncio.timeout(CONNECT_S_MAX):
            far = await asyncio.open_connection(*address)
        pair = Pair(name, near, far)
        self._pairs.add(pair)
        try:
            far[1].write(first)
            pumps = [self._pump(pair, near[0], far[1]), self._pump(pair, far[0], near[1])]
            await asyncio.gather(*pumps)
        finally:
            self._pairs.discard(pair)
            pair.reset()

    async def _pump(self, pair, reader, writer):
        """Forward data until either end is closed; then both are."""
        name = pair.name
        while True:
            rate = self._rates.get(name)
            data = await reader.read(CHUNK_BYTES if rate is None else max(1, rate // SLICES_PER_S))
            if pair.swallowed:
                await asyncio.Event().wait()  # until the proxy is closed
            if not data:
                raise ConnectionError(f"{name} has ended")
            if rate is not None:
                await asyncio.sleep(len(data) / rate)
            await self._let_through(name)
            writer.write(data)
            await writer.drain()

    async def _let_through(self, name):
        while name in self._blocked:
            await self._unblocked.wait()
