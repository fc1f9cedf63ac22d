"""What a running process gets and can use: messages, timers, time, random numbers, and errors for wrong use."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.runtime.fake_coordinator import coordinating
from tests.runtime.link_ends import run, until
from tests.runtime.lone_node import lone_node
from tests.runtime.scripted import Scripted, pair, scripted

from strobe.errors import ProtocolViolation, UsageError
from strobe.process import Channel, System
from strobe.protocol import Frame
from strobe.runtime.links.message_decoding import decode_frame
from strobe.runtime.messages.control import Failed
from strobe.runtime.node import scheduling


class Transfer(msgspec.Struct, tag=True):
    amount: int


def test_a_decoding_error_names_the_channel_and_the_message() -> None:
    decode = msgspec.msgpack.Decoder(list[Transfer]).decode
    body = msgspec.msgpack.encode([5])
    with pytest.raises(ProtocolViolation, match=r"channel a->b, at b: the frame of message 7 cannot be decoded"):
        decode_frame(decode, "b", "a->b", Frame(7, 1, body, 0, 1))
    body = msgspec.msgpack.encode([Transfer(1), Transfer(2)])
    with pytest.raises(ProtocolViolation, match=r"the frame of message 7 has 2 messages instead of 3"):
        decode_frame(decode, "b", "a->b", Frame(7, 3, body, 0, 1))


@pytest.mark.parametrize("protocol", ["chandy-lamport", "unaligned"])
def test_a_wrong_message_type_ends_the_node_and_names_the_sender(
    tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "BURST_MAX", 0)  # if barriers overtake, all frames are queued

    async def scenario() -> None:
        channels = [Channel("a", "b")]
        system = System({"a": Scripted(), "b": Scripted()}, channels, protocol=protocol)
        system.decoder = msgspec.msgpack.Decoder(list[Transfer])
        async with lone_node(tmp_path, system) as node:
            node.source.send("no transfer")
            failed = await node.link.handle(Failed)
            assert failed.reason.startswith(
                "channel a->b, at b: a message from a is not one of the types in `messages`: Expected `object`"
            )
            assert failed.reason.endswith("; find where a sends it")
            assert await node.coordinator.ended("b") == 1

    run(scenario())


def test_a_message_too_long_or_without_a_channel_is_refused(tmp_path: Path) -> None:
    refused: list[str] = []

    def answer(ctx: Any, channel: str, message: Any) -> None:
        for target, load in (("b->c", 1), ("b->a", bytes(2000)), ("b->a", object())):
            with pytest.raises((UsageError, TypeError)) as error:
                ctx.send(target, load)
            refused.append(str(error.value))
        ctx.send("b->a", "fine")

    async def scenario() -> None:
        async with lone_node(tmp_path, message_bytes_max=1000) as node:
            node.process.on_receive = answer
            node.source.send(1)
            await node.received(1)
            await until(lambda: node.timeline.protocol.outgoing["b->a"].count == 1)
            assert "'b->c', which is not an output of it; outputs: b->a" in refused[0]
            assert "raise message_bytes_max" in refused[1]
            assert "object" in refused[2]
            assert node.host.problem is None

    run(scenario())


def test_a_handler_that_returns_a_coroutine_ends_the_node(tmp_path: Path) -> None:
    async def later() -> None:
        pass

    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            node.process.receive = lambda ctx, channel, message: later()  # type: ignore[method-assign, assignment]
            node.source.send(1)
            failed = await node.link.handle(Failed)
            assert failed.reason.startswith("Scripted.receive returned a coroutine of ")
            assert "later (tests/runtime/node/sockets/test_application.py:" in failed.reason

    run(scenario())


def test_time_is_constant_during_an_event(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            times: list[float] = []
            node.process.on_receive = lambda ctx, channel, message: times.extend((ctx.now(), ctx.now()))
            node.source.send(1)
            await node.received(1)
            assert times[0] == times[1]

    run(scenario())


@pytest.mark.parametrize("after_s", [-1, float("nan")])
def test_a_timer_with_an_invalid_delay_is_refused(tmp_path: Path, after_s: float) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            with pytest.raises(UsageError, match="it must be 0 or more"):
                node.context.set_timer("never", after_s)

    run(scenario())


def test_a_rollback_restores_the_timers_pending_at_the_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        system, loop = pair(), asyncio.get_running_loop()
        set_after_s = []

        def fire_at_once(after_s: float, *call: Any, **options: Any) -> asyncio.TimerHandle:
            """Note the delays of the process's long timers, and fire these timers at once."""
            if after_s > 1000:
                set_after_s.append(after_s)
            return call_later(0 if after_s > 1000 else after_s, *call, **options)

        async with coordinating(tmp_path, system) as coordinator:
            _, host = await coordinator.started("a", "b")
            application: Any = host.application
            application.set_timer("cancelled later", 7200)
            application.set_timer("pending", 3600)
            taken = await coordinator.photograph("a")
            application.cancel_timer("cancelled later")
            application.set_timer("set later", 5000)
            call_later = loop.call_later
            monkeypatch.setattr(loop, "call_later", fire_at_once)
            await coordinator.begin(("a", "b"), taken, epoch=2)
            fired = scripted(system, "b").memory.fired
            await until(lambda: len(fired) == 2)
            assert sorted(fired) == ["cancelled later", "pending"]
            assert sorted(set_after_s) == sorted(left_s for _, left_s in coordinator.record_of(taken, "b").timers)
            assert sorted(set_after_s) == [pytest.approx(3600, abs=60), pytest.approx(7200, abs=60)]

    run(scenario())


def test_timers_are_replaced_cancelled_and_end_with_the_epoch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            node.context.set_timer("replaced", 0)
            node.context.set_timer("replaced", 3600)
            node.context.set_timer("cancelled", 0)
            node.context.cancel_timer("cancelled")
            node.context.cancel_timer("never set")
            node.context.set_timer("fires", 0)
            await until(lambda: node.process.memory.fired)
            assert node.process.memory.fired == ["fires"]
            begun = await node.recorded()
            ((name, left_s),) = node.timeline.captures.open[begun.snapshot].captured.timers
            assert name == "replaced"
            assert 3590 < left_s <= 3600
            node.context.set_timer("of an epoch that is over", 0)
            node.source.outgoing_link.close()
            await node.coordinator.begin(["b"], epoch=4)
            assert node.host.application.timers == {}  # type: ignore[attr-defined]

    run(scenario())


def test_a_restart_repeats_the_random_numbers(tmp_path: Path) -> None:
    """R4: the generator is part of the state, so a restart from the beginning repeats its numbers."""

    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            begun = await node.recorded()
            drawn = [node.context.random.random() for _ in range(3)]
            captured = node.timeline.captures.open[begun.snapshot].captured
            node.source.outgoing_link.close()
            await node.coordinator.begin(["b"], epoch=4)
            assert node.context.random.state == captured.random  # type: ignore[attr-defined]
            assert [node.context.random.random() for _ in range(3)] == drawn

    run(scenario())
