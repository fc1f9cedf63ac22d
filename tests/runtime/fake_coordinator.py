"""A fake coordinator: it uses the real control protocol with real hosts, and sends only what a test orders.

Hosts run in this process, on one event loop, with real links between them and a real store. Nothing happens by itself:
the test starts processes, takes snapshots and rolls back.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from strobe.process import System
from strobe.protocol import LocalState, SnapshotId, View
from strobe.protocol.coordinator.messages import Drained, ReportOutcome, RequestRecording, RestoreState
from strobe.protocol.coordinator.restart_messages import RestartWanted
from strobe.protocol.process.first_view import first_view
from strobe.protocol.values.log_entries import Begin, Manifest, ProcessRecord
from strobe.runtime.messages.control import (
    FROM_NODE,
    LENGTH,
    AddressBook,
    Blocked,
    FragmentStored,
    Heartbeat,
    HeartbeatHeard,
    Register,
    SnapshotBegun,
    Stop,
    Welcome,
    pack,
    unpack,
)
from strobe.runtime.node.application import Application, ProcessApplication
from strobe.runtime.node.host import Host
from strobe.runtime.node.timeline import Timeline
from strobe.runtime.settings import NodeSettings
from strobe.storage import Store

PATIENCE_S = 20.0
SILENCE_S = 3.0


class Link:
    """One connection of a node; its messages are kept in order."""

    def __init__(self, register: Register, writer: asyncio.StreamWriter) -> None:
        self.register = register
        self.heard: list[Any] = []
        self.ended = asyncio.Event()
        self.writer = writer
        self.news = asyncio.Condition()
        self._taken = 0

    def send(self, *orders: msgspec.Struct) -> None:
        """Send orders in one write, so that they arrive together."""
        self.writer.write(b"".join(pack(order) for order in orders))

    async def handle(self, kind: Any) -> Any:
        """Return the next message of this kind, skipping others; fail if the connection ends first."""
        async with asyncio.timeout(PATIENCE_S), self.news:
            while True:
                while self._taken < len(self.heard):
                    self._taken += 1
                    if isinstance(self.heard[self._taken - 1], kind):
                        return self.heard[self._taken - 1]
                assert not self.ended.is_set(), f"{self.register.process} is gone after it said {self.heard[-5:]}"
                await self.news.wait()

    def said(self, kind: Any) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]

    async def note(self, message: Any) -> None:
        async with self.news:
            if message is None:
                self.ended.set()
            else:
                self.heard.append(message)
            self.news.notify_all()


class FakeCoordinator:
    """Admits every node. `links` has the newest connection of each process."""

    def __init__(self, store: Store, system: System, settings: NodeSettings) -> None:
        self.store = store
        self.system = system
        self.settings = settings
        self.view = first_view(system)
        self.epoch = 1
        self.term = 0
        self.counter = 0
        self.position = 0
        self.newest: str | None = None
        self.address = ("127.0.0.1", 0)
        self.links: dict[str, Link] = {}
        self.blocked: list[Blocked] = []
        self.hosts: dict[str, Host] = {}
        self.running: dict[str, asyncio.Task[int]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._registered = asyncio.Condition()

    # Nodes

    def run(self, name: str, application: Application | None = None, **how: Any) -> Host:
        """Run a host for process `name` of the system."""
        application = application or application_of(self.system, name)
        host = Host(name, self.system, application, self.address, **how)
        self.hosts[name] = host
        self.running[name] = asyncio.get_running_loop().create_task(host.run())
        return host

    async def registered(self, name: str, after: Link | None = None) -> Link:
        """Return the connection of `name`, once there is one other than `after`."""
        async with asyncio.timeout(PATIENCE_S), self._registered:
            while self.links.get(name) is after:
                await self._registered.wait()
            return self.links[name]

    async def started(self, *names: str) -> list[Host]:
        """Run hosts for these processes, and begin the first epoch."""
        hosts = [self.run(name) for name in names]
        await self.begin(names)
        return hosts

    async def begin(self, names: Iterable[str], restored: str | None = None, epoch: int = 1, **how: Any) -> None:
        """Order these processes to begin an epoch, and wait until they report that they have."""
        self.epoch = epoch
        for name in names:
            self.restore(await self.registered(name), epoch, restored, **how)
        for name in names:
            await self.links[name].handle(Drained)

    def restore(
        self, link: Link, epoch: int, restored: str | None = None, view: View | None = None, **how: Any
    ) -> None:
        link.send(self.order(link.register.process, epoch, restored, view, **how))

    def order(
        self, name: str, epoch: int, restored: str | None = None, view: View | None = None, **how: Any
    ) -> RestoreState:
        return RestoreState(name, epoch, view or self.view, restored, **how)

    async def end(self, name: str, code: int = 0) -> None:
        self.hosts[name].end(code)
        await self.running.pop(name)

    async def ended(self, name: str) -> int:
        """Wait until the host ends by itself; return its exit code."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.running.pop(name)

    # Snapshots

    def log_begin(self, *initiators: str, snapshot: SnapshotId | None = None) -> SnapshotBegun:
        """Log the begin of a snapshot, and return the message about it for the nodes."""
        self.counter += 1
        snapshot = snapshot or SnapshotId(self.epoch, self.counter, "coordinator")
        begin = Begin(str(snapshot), self.view.number, self.system.protocol, initiators, 1, self.newest)
        self.store.append(begin, self.position)
        self.position += 1
        return SnapshotBegun(snapshot, self.position - 1, self.newest)

    async def photograph(self, initiator: str) -> str:
        """Take a snapshot of all processes in the view, and commit it."""
        return await self.commit(self.ask(initiator))

    def ask(self, initiator: str) -> SnapshotBegun:
        """Begin a snapshot."""
        begun = self.log_begin(initiator)
        for name in self.view.processes:
            self.links[name].send(begun)
        self.links[initiator].send(RequestRecording(initiator, begun.snapshot, self.view.number))
        return begun

    async def commit(self, begun: SnapshotBegun, *, report: bool = True) -> str:
        parts = {name: await self.stored(name, begun.snapshot) for name in self.view.processes}
        protocol, number = self.system.protocol, self.view.number
        assert all(part.view == number for part in parts.values())
        records = {name: part.record for name, part in parts.items()}
        manifest = Manifest(protocol, (), self.view, self.epoch, 1, 2, records, parent=begun.parent)
        self.store.commit(str(begun.snapshot), manifest, self.position, 2)
        self.position += 1
        self.newest = str(begun.snapshot)
        for name in self.view.processes if report else ():
            self.links[name].send(ReportOutcome(name, begun.snapshot, True))
        return self.newest

    async def stored(self, name: str, snapshot: SnapshotId) -> FragmentStored:
        while True:
            part: FragmentStored = await self.links[name].handle(FragmentStored)
            if part.snapshot == snapshot:
                return part

    def record_of(self, snapshot: str, process: str) -> ProcessRecord:
        return self.store.state().committed[snapshot].manifest.processes[process]

    # The server

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        register = await _message(reader)
        if isinstance(register, Blocked):  # the only message on its connection
            self.blocked.append(register)
            writer.close()
            self._serving.discard(task)
            return
        assert isinstance(register, Register)
        link = Link(register, writer)
        header = self.store.header
        link.send(Welcome(header.store, self.store.url, self.settings, self.epoch, SILENCE_S, self.term))
        async with self._registered:
            self.links[register.process] = link
            self._registered.notify_all()
        self._send_addresses()
        message: Any = register
        while message is not None:
            message = await _message(reader)
            if isinstance(message, Heartbeat):
                link.send(HeartbeatHeard())
            if isinstance(message, RestartWanted):
                link.send(Stop("no successor goes on here"))
            await link.note(message)
        writer.close()
        self._serving.discard(task)

    def _send_addresses(self) -> None:
        book = AddressBook({name: link.register.address for name, link in self.links.items()}, self.view.processes)
        for link in self.links.values():
            link.send(book)

    async def close(self) -> None:
        for name in list(self.running):
            if not self.running[name].done():
                await self.end(name)
        await asyncio.gather(*self._serving)


@asynccontextmanager
async def coordinating(directory: Path, system: System, **settings: Any) -> AsyncIterator[FakeCoordinator]:
    """Run a fake coordinator on a new store in `directory`; end all of its hosts afterwards."""
    store = Store.create(directory / "store")
    coordinator = FakeCoordinator(store, system, NodeSettings(**settings))
    server = await asyncio.start_server(coordinator.serve, "127.0.0.1", 0)
    coordinator.address = server.sockets[0].getsockname()
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    try:
        yield coordinator
    finally:
        await coordinator.close()
        server.close()
        await server.wait_closed()
    gc.collect()  # a task whose exception was never retrieved reports it now
    assert not unhandled, unhandled


def application_of(system: System, name: str) -> ProcessApplication:
    """Return the application that runs process `name`; it keeps `system.processes` up to date after a restore."""
    return _Shown(system, name)


class _Shown(ProcessApplication):
    def __init__(self, system: System, name: str) -> None:
        super().__init__(name, system.processes[name], system.decoder.decode)
        self._system = system

    def begin(self, timeline: Timeline, local: LocalState | None, state: Any) -> None:
        super().begin(timeline, local, state)
        self._system.processes[self.name] = self.process


async def _message(reader: asyncio.StreamReader) -> Any:
    """Return the next message; None if the node is gone."""
    try:
        (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        return unpack(await reader.readexactly(size), FROM_NODE)
    except (OSError, asyncio.IncompleteReadError):
        return None
