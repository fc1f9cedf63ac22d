"""Programs with their own event loop, for tests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from tests.runtime.fake_coordinator import FakeCoordinator, Link, coordinating
from tests.runtime.link_ends import EPOCH, Source, until
from tests.runtime.scripted import pair

from strobe.process import System
from strobe.protocol import SnapshotId
from strobe.protocol.coordinator.messages import (
    RequestRecording,
)
from strobe.runtime.links.codec import Hello
from strobe.runtime.node.own_loop import Node
from strobe.runtime.node.own_loop_application import OwnLoopApplication
from strobe.runtime.node.timeline import Timeline


class Sum(msgspec.Struct):
    total: int = 0


class Adder:
    """A program's state."""

    def __init__(self) -> None:
        self.sum = Sum()
        self.restored = 0

    def capture(self) -> Sum:
        return self.sum

    def restore(self, state: Sum) -> None:
        self.sum = state
        self.restored += 1


class Own:
    """Node b, run by the test itself, and a source that sends on a->b."""

    def __init__(self, coordinator: FakeCoordinator, node: Node, adder: Adder) -> None:
        self.coordinator = coordinator
        self.node = node
        self.adder = adder
        self.source = self._source(EPOCH)

    def _source(self, epoch: int) -> Source:
        identity = self.coordinator.store.header.store
        hello = Hello(system=identity, epoch=epoch, source="a", channel="a->b", incarnation=1)
        source = Source(self.coordinator.settings, hello)
        source.outgoing_link.reach(tuple(self.link.register.address))  # type: ignore[arg-type]
        return source

    @property
    def link(self) -> Link:
        return self.coordinator.links["b"]

    @property
    def program(self) -> OwnLoopApplication:
        return self.node._program

    @property
    def timeline(self) -> Timeline:
        timeline = self.node._host.timeline
        assert timeline is not None
        return timeline

    def record(self, counter: int) -> SnapshotId:
        """Request a recording from b, which records as soon as it may."""
        begun = self.coordinator.log_begin("b", snapshot=SnapshotId(EPOCH, counter, "a"))
        self.link.send(begun, RequestRecording("b", begun.snapshot, 1))
        return begun.snapshot

    async def until_received(self) -> None:
        """Wait until b has received all orders so far. It takes new addresses at once, even during an event."""
        addresses = self.node._host.addresses
        self.coordinator._send_addresses()
        await until(lambda: self.node._host.addresses is not addresses)

    def roll_back(self, epoch: int = EPOCH + 1) -> None:
        self.source.outgoing_link.close()
        self.coordinator.restore(self.link, epoch)


def connect(coordinator: FakeCoordinator, adder: Adder, **options: Any) -> Node:
    host, port = coordinator.address
    address = f"{host}:{port}"
    options = {"capture": adder.capture, "restore": adder.restore, "coordinator": address, "name": "b"} | options
    return Node.connect(options.pop("system", coordinator.system), **options)


@asynccontextmanager
async def own_loop(directory: Path, system: System | None = None, **settings: Any) -> AsyncIterator[Own]:
    """Connect b, and begin epoch 3."""
    async with coordinating(directory, system or pair(), **settings) as coordinator:
        adder = Adder()
        entering = asyncio.create_task(connect(coordinator, adder).__aenter__())
        await coordinator.begin(["b"], epoch=EPOCH)
        own = Own(coordinator, await entering, adder)
        try:
            yield own
        finally:
            own.source.outgoing_link.close()
            await own.node.__aexit__(None)


def cancel_when_handed_over(program: OwnLoopApplication, waiting: "asyncio.Task[Any]") -> None:
    """Cancel `waiting` after messages were handed over to it, and before it can take them."""
    hand_over = program._hand_over

    def hand_over_and_cancel(delivery: Any) -> None:
        program._hand_over = hand_over  # type: ignore[method-assign]
        hand_over(delivery)
        waiting.cancel()

    program._hand_over = hand_over_and_cancel  # type: ignore[method-assign]
