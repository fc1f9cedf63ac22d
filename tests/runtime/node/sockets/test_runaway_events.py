"""An event that sends without end is stopped by an error that names its handler. Messages already sent stay sent."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.link_ends import run, until
from tests.runtime.lone_node import lone_node
from tests.runtime.node.sockets.own_loop_programs import own_loop
from tests.runtime.scripted import pair

from strobe.errors import UsageError
from strobe.process import Context
from strobe.runtime.connectors.file_sink import FileSink
from strobe.runtime.messages.control import Failed

BOUND = 1 << 20
LOAD = b"x" * 1000
TOO_MUCH = "more than 1,048,576 bytes in one event"
ROUNDS = 200_000
"""Far more rounds than the bound allows, but finite, so that a test also ends if the bound fails."""


def sends(ctx: Context) -> None:
    for _ in range(ROUNDS):
        ctx.send("b->a", LOAD)


def sends_small_messages(ctx: Context) -> None:
    for _ in range(20 * ROUNDS):
        ctx.send("b->a", 0)


def emits(ctx: Context) -> None:
    for _ in range(ROUNDS):
        ctx.emit(1)


def emits_large_records(ctx: Context) -> None:
    for _ in range(ROUNDS):
        ctx.emit("x" * 10_000)


def sets_timers(ctx: Context) -> None:
    for number in range(ROUNDS):
        ctx.set_timer(f"timer {number}", 100.0)


def sets_one_timer(ctx: Context) -> None:
    for _ in range(ROUNDS):
        ctx.set_timer("timer", 100.0)


def asks_for_snapshots(ctx: Context) -> None:
    for _ in range(ROUNDS):
        ctx.snapshot()


RUNAWAYS = [sends, sends_small_messages, emits, emits_large_records, sets_timers, sets_one_timer, asks_for_snapshots]


@pytest.mark.parametrize("runaway", RUNAWAYS, ids=lambda function: function.__name__)
def test_a_runaway_handler_ends_its_node_and_is_named(tmp_path: Path, runaway: Callable[[Context], None]) -> None:
    def receive(ctx: Context, channel: str, message: Any) -> None:
        runaway(ctx)

    async def scenario() -> str:
        system = pair(sinks={"out": FileSink(tmp_path / "out", process="b")})
        async with lone_node(tmp_path, system, event_bytes_max=BOUND) as node:
            node.process.receive = receive  # type: ignore[method-assign]
            node.source.send(1)
            failed = await node.link.handle(Failed)
            assert await node.coordinator.ended("b") == 1
            return failed.reason

    reason = run(scenario())
    assert TOO_MUCH in reason
    assert f"in receive() at {Path(__file__).relative_to(Path.cwd())}:{receive.__code__.co_firstlineno}" in reason
    line = runaway.__code__.co_firstlineno + 2
    assert reason.endswith(f"({Path(__file__).relative_to(Path.cwd())}:{line}, in {runaway.__name__}())")


def test_the_bound_counts_each_event_separately(tmp_path: Path) -> None:
    """Each event stays below the bound. Together they exceed it, and no frame leaves, since a is not connected."""

    def receive(ctx: Context, channel: str, message: Any) -> None:
        for _ in range(900):
            ctx.send("b->a", LOAD)

    async def scenario() -> None:
        async with lone_node(tmp_path, event_bytes_max=BOUND, backlog_bytes_max=1 << 30) as node:
            node.process.on_receive = receive
            for number in range(20):
                node.source.send(number)
            await node.received(*range(20))
            assert node.host.problem is None

    run(scenario())


def test_a_handler_may_catch_the_error_and_its_next_event_sends_again(tmp_path: Path) -> None:
    sent: list[int] = []

    def receive(ctx: Context, channel: str, message: Any) -> None:
        count = 0
        try:
            for _ in range(3 if message else ROUNDS):
                ctx.send("b->a", LOAD)
                count += 1
        except UsageError:
            with pytest.raises(UsageError, match="event_bytes_max"):
                ctx.send("b->a", 1)
        sent.append(count)

    async def scenario() -> None:
        async with lone_node(tmp_path, event_bytes_max=BOUND, backlog_bytes_max=1 << 30) as node:
            node.process.on_receive = receive
            node.source.send(0, 1)
            await node.received(0, 1)
            await until(lambda: node.timeline.protocol.outgoing["b->a"].count == sum(sent))
            assert BOUND < 1000 * sent[0] < 2 * BOUND
            assert sent[1] == 3
            assert node.host.problem is None

    run(scenario())


@pytest.mark.parametrize("stretch", [False, True], ids=["own", "atomic"])
def test_a_program_that_sends_without_an_await_is_stopped(tmp_path: Path, stretch: bool) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path, event_bytes_max=BOUND) as own:

            def flood() -> None:
                for _ in range(ROUNDS):
                    own.node.send("b->a", LOAD)

            def flood_in_one_stretch() -> None:
                with own.node.atomic():
                    flood()

            with pytest.raises(UsageError, match=TOO_MUCH):
                (flood_in_one_stretch if stretch else flood)()
            await asyncio.sleep(0)  # one event-loop iteration, in which frames can leave
            own.node.send("b->a", 1)

    run(scenario())


def test_a_program_that_awaits_room_is_not_stopped(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path, event_bytes_max=1 << 16, backlog_bytes_max=1 << 14) as own:
            for _ in range(40):
                sending = own.node.send("b->a", LOAD)
                own.timeline.outbox.has_room("b->a")  # as if a peer had taken it
                await sending
                await asyncio.sleep(0)

    run(scenario())
