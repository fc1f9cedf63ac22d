"""A handler, source or sink that does not return is named in the log of its node, and to the coordinator."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runtime.link_ends import run, until
from tests.runtime.lone_node import lone_node
from tests.runtime.node.sockets.own_loop_programs import own_loop
from tests.runtime.scripted import pair

from strobe.process import Context
from strobe.runtime.connectors.file_sink import FileSink
from strobe.runtime.node.heartbeat import measure
from strobe.watchdog import STACK

PATIENCE_S = 20.0


class Reports(logging.Handler):
    """Keeps warnings of the node, and sets an event at each report of a call that still runs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []
        self.reported = threading.Event()

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self.records]

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        if hasattr(record, STACK):
            self.reported.set()

    def wait(self) -> None:
        assert self.reported.wait(PATIENCE_S)


@pytest.fixture
def reports() -> Iterator[Reports]:
    handler = Reports()
    logging.getLogger("strobe.node").addHandler(handler)
    yield handler
    logging.getLogger("strobe.node").removeHandler(handler)


def settle(reports: Reports) -> None:
    reports.wait()


def test_a_handler_that_does_not_return_is_named_with_its_stack(tmp_path: Path, reports: Reports) -> None:
    """E13: the log has the stack; the coordinator learns it although the event loop is blocked."""

    def blocks(ctx: Context, channel: str, message: object) -> None:
        settle(reports)

    async def scenario() -> None:
        async with lone_node(tmp_path, pair(), blocked_s=0.05) as node:
            node.process.on_receive = blocks
            node.source.send(1)
            await until(lambda: node.coordinator.blocked)
            await until(lambda: len(reports.records) == 2)
            [blocked] = node.coordinator.blocked
            assert (blocked.process, blocked.instance) == ("b", node.link.register.instance)
            assert blocked.system == node.coordinator.store.header.store
            call = "Scripted.receive() of b at tests/runtime/node/sockets/test_node_watchdog.py:"
            assert blocked.call.startswith(call)
            assert blocked.call.endswith(" in Reports.wait()")
            assert 0.05 <= blocked.running_s < PATIENCE_S
            begun, ended = reports.records
            running = f"{blocked.call} has been running for {blocked.running_s:.1f} s"
            assert begun.getMessage() == f"{running}; nothing else of this process runs"
            assert all(f"in {name}" in getattr(begun, STACK) for name in ("receive", "blocks", "settle", "wait"))
            assert ended.getMessage().startswith(call)
            assert "has ended, after " in ended.getMessage()

    run(scenario())


class BlockingSink(FileSink):
    """Its `prepare` returns when the test allows it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, process="b")
        self.allowed = threading.Event()

    def prepare(self, position: int) -> None:
        assert self.allowed.wait(PATIENCE_S)
        super().prepare(position)


def test_a_sink_that_does_not_return_is_in_the_heartbeats(tmp_path: Path, reports: Reports) -> None:
    sink = BlockingSink(tmp_path / "out.jsonl")

    async def scenario() -> None:
        async with lone_node(tmp_path, pair(sinks={"out": sink}), blocked_s=0.05) as node:
            node.context.emit(1)
            await node.recorded()
            node.source.mark(1)
            await until(lambda: measure(node.host).blocked)
            assert measure(node.host).blocked.startswith("BlockingSink.prepare() of b at tests/runtime/node/sockets/")
            assert " has been running for 0." in measure(node.host).blocked
            assert reports.lines[0].endswith("; its input, output and snapshots wait")
            sink.allowed.set()
            await until(lambda: not measure(node.host).blocked)
            assert node.coordinator.blocked == []

    run(scenario())


def test_a_program_with_its_own_loop_that_blocks_it_is_named(tmp_path: Path, reports: Reports) -> None:
    async def step() -> None:
        settle(reports)

    async def scenario() -> None:
        async with own_loop(tmp_path, blocked_s=0.05) as own:
            await asyncio.create_task(step())
            await until(lambda: own.coordinator.blocked)
            [blocked] = own.coordinator.blocked
            assert blocked.call.startswith("step() of b at tests/runtime/node/sockets/test_node_watchdog.py:")
            assert "in settle" in getattr(reports.records[0], STACK)

    run(scenario())
