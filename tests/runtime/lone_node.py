"""Process b of a pair on a real host. Its peer a is only a source of frames, which the test controls."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.runtime.fake_coordinator import FakeCoordinator, Link, coordinating
from tests.runtime.link_ends import EPOCH, Source, until
from tests.runtime.scripted import Scripted, acting, pair, scripted

from strobe.process import Context, System
from strobe.protocol import SnapshotId
from strobe.protocol.coordinator.messages import Drained, InstallView, ReportOutcome, RequestRecording
from strobe.runtime.links.codec import Hello
from strobe.runtime.messages.control import FragmentStored, SnapshotBegun
from strobe.runtime.node.application import Application
from strobe.runtime.node.host import Host
from strobe.runtime.node.timeline import Timeline
from strobe.runtime.settings import NodeSettings


class LoneNode:
    """b, running in epoch 3; what it sends to a stays in its backlog."""

    def __init__(self, coordinator: FakeCoordinator, host: Host, source: Source) -> None:
        self.coordinator = coordinator
        self.host = host
        self.source = source

    @property
    def link(self) -> Link:
        return self.coordinator.links["b"]

    @property
    def timeline(self) -> Timeline:
        assert self.host.timeline is not None
        return self.host.timeline

    @property
    def process(self) -> Scripted:
        return scripted(self.coordinator.system, "b")

    @property
    def context(self) -> Context:
        """The context of b, for use as if one of its handlers ran."""
        return acting(self.host)

    def begin_snapshot(self, counter: int = 1) -> SnapshotBegun:
        """Log the begin of snapshot `counter`; `source.mark(counter)` sends its marker."""
        return self.coordinator.log_begin("b", snapshot=SnapshotId(EPOCH, counter, "a"))

    def ask(self, counter: int = 1, **_: Any) -> SnapshotBegun:
        """Have b record."""
        begun = self.begin_snapshot(counter)
        self.link.send(begun, RequestRecording("b", begun.snapshot, 1))
        return begun

    async def recorded(self, counter: int = 1) -> SnapshotBegun:
        """Have b record, and wait until it has."""
        begun = self.ask(counter)
        await until(lambda: begun.snapshot in self.timeline.captures.open)
        return begun

    async def received(self, *messages: Any) -> None:
        """Wait until b has received exactly these messages."""
        await until(lambda: len(self.process.messages) >= len(messages))
        assert self.process.messages == list(messages)


async def until_handled(node: LoneNode) -> None:
    """Wait until the node has handled all orders so far."""
    node.link.send(InstallView("b", node.coordinator.view))
    await node.link.handle(Drained)


def abort(node: LoneNode, snapshot: SnapshotId) -> None:
    node.link.send(ReportOutcome("b", snapshot, False, "a test says so"))


async def committed(node: LoneNode, counter: int) -> FragmentStored:
    """Have b store snapshot `counter`, and report to b that it is committed."""
    begun = await node.recorded(counter)
    node.source.mark(counter)
    part = await node.coordinator.stored("b", begun.snapshot)
    node.link.send(ReportOutcome("b", begun.snapshot, True))
    node.coordinator.newest = str(begun.snapshot)
    await until_handled(node)
    return part


@asynccontextmanager
async def lone_node(
    directory: Path, system: System | None = None, application: Application | None = None, **settings: Any
) -> AsyncIterator[LoneNode]:
    """Run b from its initial state, with the source of a->b connected."""
    async with coordinating(directory, system or pair(), **settings) as coordinator:
        host = coordinator.run("b", application)
        await coordinator.begin(["b"], epoch=EPOCH)
        identity = coordinator.store.header.store
        hello = Hello(system=identity, epoch=EPOCH, source="a", channel="a->b", incarnation=1)
        source = Source(NodeSettings(**settings), hello)
        source.outgoing_link.reach(tuple(coordinator.links["b"].register.address))  # type: ignore[arg-type]
        await until(lambda: source.outgoing_link.connected)
        try:
            yield LoneNode(coordinator, host, source)
        finally:
            source.outgoing_link.close()
