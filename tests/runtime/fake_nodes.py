"""Fake nodes: they use the real control protocol with a real coordinator, and run no process."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from strobe.process import Channel, Process, System
from strobe.protocol import ChannelSpec, SnapshotId, View
from strobe.protocol.coordinator.messages import Drained, ReportOutcome, RestoreState, SnapshotWanted
from strobe.protocol.process.first_view import first_view
from strobe.protocol.values.frames import seed_hash
from strobe.protocol.values.log_entries import FrontierRecord, ProcessRecord, Section
from strobe.runtime.api.service import CoordinatorService
from strobe.runtime.coordinator.coordinator import Coordinator
from strobe.runtime.event_log import EventLog
from strobe.runtime.messages.control import (
    FROM_COORDINATOR,
    LENGTH,
    VERSION,
    ChannelReport,
    FragmentStored,
    Heartbeat,
    Refused,
    Register,
    SnapshotBegun,
    pack,
    unpack,
)
from strobe.runtime.settings import CoordinatorSettings, NodeSettings, RetentionSettings
from strobe.storage import Store

PATIENCE_S = 20.0


class Quiet(Process):
    def __init__(self) -> None:
        self.state = b""

    def capture(self) -> bytes:
        return self.state

    def restore(self, state: bytes) -> None:
        self.state = state


def system_of(*names: str, protocol: str = "chandy-lamport") -> System:
    """A ring of processes that send nothing."""
    channels = [Channel(name, names[(at + 1) % len(names)]) for at, name in enumerate(names)]
    return System({name: Quiet() for name in names}, channels, protocol=protocol)


class Running:
    """A coordinator under test."""

    def __init__(self, service: CoordinatorService, events: io.StringIO) -> None:
        self.service = service
        self.coordinator = service.coordinator
        # Kept alive here, and closed in the end: the event loop itself holds tasks only weakly.
        self.nodes: list[FakeNode] = []
        self._events = events

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events that it has logged."""
        return [json.loads(line) for line in self._events.getvalue().splitlines()]

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.events if line["event"] == event]

    async def node(self, process: str, **how: Any) -> "FakeNode":
        """Connect a node, which registers unless `silent` is set."""
        node = FakeNode(self, process)
        self.nodes.append(node)
        await node.connect(**how)
        return node

    async def start_node(self, process: str, **how: Any) -> "FakeNode":
        """Connect a node without state; it starts as ordered, and reports that."""
        node = await self.node(process, **how)
        await node.start_as_ordered()
        return node

    async def until(self, what: Any) -> None:
        """Wait until `what()` is true. The coordinator has no event to wait for, so this polls."""
        async with asyncio.timeout(PATIENCE_S):
            while not what():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def running(
    store: Path,
    system: System | None = None,
    retention: RetentionSettings | None = None,
    http: bool = False,
    node: NodeSettings | None = None,
    judge: Sequence[str] = (),
    **settings: Any,
) -> AsyncIterator[Running]:
    """Run a coordinator on free ports. By default, snapshots are taken on demand, and nothing times out."""
    events = io.StringIO()
    usual = {"listen": "127.0.0.1:0", "api": "127.0.0.1:0", "interval_s": 0.0, "silence_s": 600.0, "timeout_s": 600.0}
    how = CoordinatorSettings(**(usual | settings))
    Store.open_or_create(store)
    coordinator = Coordinator(
        system or system_of("a", "b"), str(store), how, node, retention, log=EventLog(events, as_json=True)
    )
    service = CoordinatorService(coordinator, http=http, judge=judge)
    task = asyncio.create_task(service.run())
    ready = asyncio.create_task(service.ready.wait())
    await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    if task.done():
        await task
    coordinated = Running(service, events)
    try:
        yield coordinated
    finally:
        service.end(0)
        await task
        for node in coordinated.nodes:
            await node.close()


class FakeNode:
    """One connection of a node; the messages that it receives are kept in order."""

    def __init__(self, running: Running, process: str) -> None:
        self.running = running
        self.process = process
        self.received: list[Any] = []
        self.ended = asyncio.Event()
        self._news = asyncio.Condition()
        self._taken = 0

    async def connect(self, **how: Any) -> None:
        host, port = self.running.service.listen.rsplit(":", 1)
        self._reader, self.writer = await asyncio.open_connection(host, int(port))
        self._listening = asyncio.create_task(self._listen())
        if how.pop("silent", False):
            return
        view = first_view(self.running.coordinator.system)
        channels = tuple(c for c in view.channels if self.process in (c.source, c.target))
        fields = {
            "version": VERSION,
            "process": self.process,
            "instance": f"{self.process}-{id(self)}",
            "epoch": 0,
            "address": ("127.0.0.1", 1),
            "channels": channels,
            "protocol": self.running.coordinator.system.protocol,
            "pid": 42,
            "host": "here",
        }
        self.send(Register(**(fields | how)))

    def send(self, message: Any) -> None:
        self.writer.write(pack(message))

    def beat(self, position: int = 0, epoch: int = 1, claims: int = 0, **waiting_s: float) -> None:
        """Send a heartbeat. It waits for credit from the processes in `waiting_s`, and consumes nothing from them."""
        outgoing = {f"{self.process}->{to}": ChannelReport(0, 0, wait, full=True) for to, wait in waiting_s.items()}
        waiting = dict.fromkeys((f"{to}->{self.process}" for to in waiting_s), 500)
        beat = Heartbeat(self.process, epoch, position, 0.5, 1000, outgoing, {}, {"garbage": 1}, waiting_bytes=waiting)
        self.send(msgspec.structs.replace(beat, claims=claims))

    async def handle(self, kind: Any) -> Any:
        """Return the next message of this kind, skipping others; fail if the connection ends first."""
        async with asyncio.timeout(PATIENCE_S), self._news:
            while True:
                while self._taken < len(self.received):
                    self._taken += 1
                    if isinstance(self.received[self._taken - 1], kind):
                        return self.received[self._taken - 1]
                assert not self.ended.is_set(), f"{self.process} was cut off after {self.received}"
                await self._news.wait()

    def forget(self) -> None:
        """Skip all messages received so far."""
        self._taken = len(self.received)

    async def start_as_ordered(self) -> RestoreState:
        order = await self.handle(RestoreState)
        self.send(Drained(self.process, order.view.number))
        return order

    async def take_part(self, data: bytes = b"state", **changes: Any) -> tuple[SnapshotBegun, ReportOutcome]:
        """Store this node's part of the next snapshot; return its begin and its outcome."""
        begun = await self.handle(SnapshotBegun)
        self.store_part(begun, data, **changes)
        return begun, await self.outcome(begun.snapshot)

    def store_part(self, begun: SnapshotBegun, data: bytes = b"state", **changes: Any) -> None:
        view = self.running.coordinator.lifecycle.view
        record = record_of(Store.open(self.running.coordinator.store_url), view, self.process, begun.position, data)
        record = msgspec.structs.replace(record, **changes)
        self.send(FragmentStored(begun.snapshot, self.process, view.number, record))

    async def outcome(self, snapshot: SnapshotId) -> ReportOutcome:
        while True:
            report = await self.handle(ReportOutcome)
            if report.snapshot == snapshot:
                return report

    async def refused(self) -> Refused:
        """Return the refusal, after which the connection ends."""
        refused = await self.handle(Refused)
        async with asyncio.timeout(PATIENCE_S):
            await self.ended.wait()
        return refused

    async def close(self) -> None:
        self.writer.close()
        async with asyncio.timeout(PATIENCE_S):
            await self.ended.wait()

    async def _listen(self) -> None:
        try:
            while True:
                (size,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
                message = unpack(await self._reader.readexactly(size), FROM_COORDINATOR)
                async with self._news:
                    self.received.append(message)
                    self._news.notify_all()
        except (OSError, asyncio.IncompleteReadError):
            self.writer.close()
        self.ended.set()
        async with self._news:
            self._news.notify_all()


def record_of(store: Store, view: View, process: str, position: int, data: bytes) -> ProcessRecord:
    """The part of a process whose channels were never used; its state is a real blob."""
    ref = store.blobs.write(position, [data], {})
    store.blobs.sync(position)
    return ProcessRecord(
        position=7,
        encoding="bytes",
        state=ref,
        sent={channel.id: _unused(channel) for channel in view.outgoing(process)},
        received={channel.id: _unused(channel) for channel in view.incoming(process)},
        in_flight={channel.id: Section(0, 0, 0, 0) for channel in view.incoming(process)},
        recorded_us=1,
        pause_us=2,
        duration_us=3,
    )


def _unused(channel: ChannelSpec) -> FrontierRecord:
    return FrontierRecord(0, seed_hash(channel.id, channel.incarnation).hex())


async def both_alive(running: Running) -> tuple[FakeNode, FakeNode]:
    """Return the nodes of a and b, started, with the view settled."""
    a, b = await running.start_node("a"), await running.start_node("b")
    await running.until(lambda: running.coordinator.lifecycle.settled)
    return a, b


async def committed(running: Running, *nodes: FakeNode, data: bytes = b"state", **changes: Any) -> str:
    """Have these nodes take a snapshot together, and return its id."""
    running.coordinator.handle(SnapshotWanted())
    outcomes = await asyncio.gather(*(node.take_part(data, **changes) for node in nodes))
    assert all(report.committed for _, report in outcomes), outcomes
    return str(outcomes[0][0].snapshot)
