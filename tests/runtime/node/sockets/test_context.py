"""A context is for the handlers of its process, in their thread; what it sends has a declared type."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.runtime.link_ends import run
from tests.runtime.lone_node import lone_node
from tests.runtime.scripted import pair

from strobe.errors import UsageError
from strobe.process import Context
from strobe.runtime.messages.control import Failed


class Greeting(msgspec.Struct):
    text: str


USES: dict[str, Callable[[Context], object]] = {
    "sends on 'b->a'": lambda ctx: ctx.send("b->a", 1),
    "sets the timer 't'": lambda ctx: ctx.set_timer("t", 1.0),
    "cancels the timer 't'": lambda ctx: ctx.cancel_timer("t"),
    "emits a record": lambda ctx: ctx.emit(1),
    "requests a snapshot": lambda ctx: ctx.snapshot(),
}


@pytest.mark.parametrize(("action", "use"), USES.items(), ids=USES.keys())
def test_a_context_is_refused_outside_of_its_handlers(
    tmp_path: Path, action: str, use: Callable[[Context], object]
) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            node.source.send(1)
            await node.received(1)
            with pytest.raises(UsageError, match=f"process 'b' {action} while none of its handlers runs"):
                use(node.host.application.context)  # type: ignore[attr-defined]

    run(scenario())


@pytest.mark.parametrize(("action", "use"), USES.items(), ids=USES.keys())
def test_a_context_is_refused_in_another_thread(tmp_path: Path, action: str, use: Callable[[Context], object]) -> None:
    async def scenario() -> str:
        async with lone_node(tmp_path) as node:

            def receive(ctx: Context, channel: str, message: Any) -> None:
                with ThreadPoolExecutor() as threads:
                    threads.submit(use, ctx).result()

            node.process.on_receive = receive
            node.source.send(1)
            return (await node.link.handle(Failed)).reason

    assert f"process 'b' {action} while none of its handlers runs, or in another thread" in run(scenario())


def test_a_message_of_an_undeclared_type_fails_its_sender_with_the_line(tmp_path: Path) -> None:
    """E13: it would fail the receiver otherwise."""

    def receive(ctx: Context, channel: str, message: Any) -> None:
        ctx.send("b->a", 1)
        ctx.send("b->a", Greeting("hello"))

    async def scenario() -> str:
        async with lone_node(tmp_path, pair(messages=[int])) as node:
            node.process.on_receive = receive
            node.source.send(1)
            return (await node.link.handle(Failed)).reason

    reason = run(scenario())
    assert (
        "process 'b' sends a message of type Greeting on 'b->a', which is not one of the system's message types: int"
        in reason
    )
    assert f"{Path(__file__).name}:{receive.__code__.co_firstlineno + 2}" in reason


def test_nothing_of_a_refused_message_is_sent(tmp_path: Path) -> None:
    def receive(ctx: Context, channel: str, message: Any) -> None:
        ctx.send("b->a", 1)
        with pytest.raises(UsageError):
            ctx.send("b->a", Greeting("hello"))
        ctx.send("b->a", 2)

    async def scenario() -> int:
        async with lone_node(tmp_path, pair(messages=[int])) as node:
            node.process.on_receive = receive
            node.source.send(1)
            await node.received(1)
            return node.timeline.protocol.outgoing["b->a"].count

    assert run(scenario()) == 2
