"""How a node ends: it first reports the error of its handler, or the state that it cannot restore."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.fake_coordinator import coordinating
from tests.runtime.link_ends import run
from tests.runtime.scripted import acting, pair, scripted

from strobe.process import Context
from strobe.protocol import View
from strobe.protocol.coordinator.messages import (
    CannotRestore,
    InstallView,
)
from strobe.runtime.messages.control import Failed


def test_a_handler_that_raises_ends_the_node_with_its_location(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(ctx: Context, channel: str, message: Any) -> None:
        ctx.send("b->a", "half of it")
        raise KeyError("amount")

    async def scenario() -> None:
        system = pair()
        scripted(system, "b").on_receive = fail
        async with coordinating(tmp_path, system) as coordinator:
            a, _ = await coordinator.started("a", "b")
            acting(a).send("a->b", 1)
            failed = await coordinator.links["b"].handle(Failed)
            assert await coordinator.ended("b") == 1
            assert "KeyError: 'amount'" in failed.reason
            assert f"{Path(__file__).name}:" in failed.reason
            assert "in fail()" in failed.reason
            assert f"process b ends: {failed.reason}" in caplog.messages

    run(scenario())


@pytest.mark.parametrize("text", ["caf\udce9", 7], ids=["no text for others", "no text at all"])
def test_an_error_that_cannot_be_sent_still_ends_the_node(tmp_path: Path, text: Any) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            return text  # type: ignore[no-any-return]

    def restore(state: Any) -> None:
        raise Odd

    async def scenario() -> None:
        system = pair()
        async with coordinating(tmp_path, system) as coordinator:
            await coordinator.started("a", "b")
            taken = await coordinator.photograph("a")
            scripted(system, "b").restore = restore  # type: ignore[method-assign]
            coordinator.restore(coordinator.links["b"], 2, taken)
            assert (await coordinator.links["b"].handle(CannotRestore)).epoch == 2
            assert await coordinator.ended("b") == 1

    run(scenario())


def cancelled(*_: Any) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    future.result()


def exiting(*_: Any) -> None:
    sys.exit(0)


def too_deep(*_: Any) -> None:
    too_deep()


class LibraryExit(BaseException):
    """An error of a library that `except Exception` does not catch."""


ODD_FAILURES = [GeneratorExit(), KeyboardInterrupt(), StopIteration(1), MemoryError("no room"), LibraryExit("stop")]


def raising(error: BaseException) -> Callable[..., None]:
    def raise_it(*_: Any) -> None:
        raise error

    return raise_it


ODD_HANDLERS = [cancelled, exiting, too_deep, *map(raising, ODD_FAILURES)]
ODD_REASONS = ["CancelledError", "SystemExit: 0", "RecursionError", *(type(error).__name__ for error in ODD_FAILURES)]


@pytest.mark.parametrize("event", ["receive", "timer", "start", "leave"])
@pytest.mark.parametrize(("handler", "expected"), list(zip(ODD_HANDLERS, ODD_REASONS, strict=True)), ids=ODD_REASONS)
def test_any_error_of_a_handler_ends_the_node_with_its_reason(
    tmp_path: Path, event: str, handler: Callable[..., None], expected: str
) -> None:
    """A half-finished event must not count as done. A SystemExit or CancelledError is an error of the handler, too."""

    async def scenario() -> None:
        system = pair()
        process = scripted(system, "b")
        setattr(process, event, handler)
        async with coordinating(tmp_path, system) as coordinator:
            if event == "start":
                coordinator.run("b")
                coordinator.restore(await coordinator.registered("b"), 1, None)
            else:
                a, b = await coordinator.started("a", "b")
                acting(a).send("a->b", 1)
                acting(b).set_timer("soon", 0.0)
                if event == "leave":
                    for name in ("a", "b"):
                        coordinator.links[name].send(InstallView(name, View(2, ("a",), ())))
            failed = await coordinator.links["b"].handle(Failed)
            assert await coordinator.ended("b") == 1
            assert failed.reason.startswith(expected)
            assert f"in {handler.__name__}()" in failed.reason

    run(scenario())


def test_a_state_that_cannot_be_restored_ends_the_node_with_the_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        system = pair()
        async with coordinating(tmp_path, system) as coordinator:
            await coordinator.started("a", "b")
            taken = await coordinator.photograph("a")
            scripted(system, "a").capture = lambda: 5  # type: ignore[method-assign]
            coordinator.restore(coordinator.links["a"], 2, taken)
            refused = await coordinator.links["a"].handle(CannotRestore)
            failed = await coordinator.links["a"].handle(Failed)
            assert await coordinator.ended("a") == 1
            assert (refused.epoch, refused.reason) == (2, failed.reason)
            assert f"snapshot {taken}" in failed.reason
            assert "process 'a'" in failed.reason
            assert "Expected `int`" in failed.reason

    run(scenario())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyError("balance"), "KeyError: 'balance'"),
        (SystemExit(3), "SystemExit: 3"),
        (GeneratorExit(), "GeneratorExit"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
)
def test_E9_a_restore_that_raises_ends_the_node_for_good(tmp_path: Path, error: BaseException, expected: str) -> None:
    def fail(state: Any) -> None:
        raise error

    async def scenario() -> None:
        system = pair()
        async with coordinating(tmp_path, system) as coordinator:
            await coordinator.started("a", "b")
            taken = await coordinator.photograph("a")
            scripted(system, "a").restore = fail  # type: ignore[method-assign]
            coordinator.restore(coordinator.links["a"], 2, taken)
            refused = await coordinator.links["a"].handle(CannotRestore)
            assert await coordinator.ended("a") == 1
            assert f"snapshot {taken}: restore() of process 'a' fails: {expected}" in refused.reason
            assert "in fail()" in refused.reason

    run(scenario())


def test_a_snapshot_that_does_not_exist_ends_the_node_with_the_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path, pair()) as coordinator:
            coordinator.run("a")
            coordinator.restore(await coordinator.registered("a"), 1, "000001-00000009-coordinator")
            assert "000001-00000009-coordinator" in (await coordinator.links["a"].handle(Failed)).reason
            assert await coordinator.ended("a") == 1

    run(scenario())
