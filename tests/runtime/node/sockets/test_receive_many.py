"""`receive_many`: the messages of a frame are one event, and no cut falls inside it."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from tests.runtime.link_ends import run, until
from tests.runtime.lone_node import LoneNode, lone_node
from tests.runtime.scripted import Scripted

from strobe.process import Channel, Context, System
from strobe.protocol import Frame, SnapshotId
from strobe.protocol.coordinator.messages import SnapshotStarted
from strobe.runtime.messages.control import Failed
from strobe.runtime.node import application as application_module


class Batched(Scripted):
    """Remembers what it received at once; `on_receive` is called with it. It has no `receive` of its own."""

    def receive_many(self, ctx: Context, channel: str, messages: list[Any]) -> None:
        self.memory.received.append((channel, messages))
        self.on_receive(ctx, channel, messages)


def batched() -> System:
    return System({"a": Batched(), "b": Batched()}, [Channel("a", "b"), Channel("b", "a")])


def test_a_frame_is_one_event_and_so_is_the_rest_of_a_restored_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, batched()) as node:
            application: Any = node.host.application
            before = application.position
            node.source.send(1, 2, 3)
            node.source.send(4)
            await node.received([1, 2, 3], [4])
            assert application.position == before + 2
            application.deliver("a->b", Frame(5, 4, msgspec.msgpack.encode([5, 6, 7, 8])), 2)
            assert node.process.messages[-1] == [7, 8]
            assert application.position == before + 3

    run(scenario())


@pytest.mark.parametrize("messages", [(1,), (1, 2, 3)])
def test_a_snapshot_requested_in_a_batch_comes_after_all_its_messages(
    tmp_path: Path, messages: tuple[int, ...]
) -> None:
    """Nothing of the frame is in flight; what the event sent before and after the request is before the cut."""

    def snapshot(ctx: Context, channel: str, messages: list[int]) -> None:
        ctx.send_many("b->a", messages)
        requested.append(ctx.snapshot())
        ctx.send("b->a", 0)

    requested: list[str] = []

    async def scenario() -> None:
        async with lone_node(tmp_path, batched()) as node:
            node.process.on_receive = snapshot
            node.source.send(*messages)
            started = await node.link.handle(SnapshotStarted)
            assert requested == [str(started.snapshot)]
            recording = node.timeline.protocol.open[SnapshotId.parse(requested[0])]
            assert recording.received["a->b"].count == len(messages)
            assert recording.sent["b->a"].count == len(messages) + 1
            assert recording.frames["a->b"] == []

    run(scenario())


def test_a_long_batch_is_not_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Single messages are: the event loop runs between them, and only cuts wait."""
    monkeypatch.setattr(application_module, "SLICE_S", -1)

    async def took(node: LoneNode) -> int:
        turns = 0
        node.source.send(*range(40))
        while not node.process.messages:
            await asyncio.sleep(0)
        while node.process.messages[-1] not in (39, list(range(40))):
            await asyncio.sleep(0)
            turns += 1
        assert node.host.application.quiet
        return turns

    async def scenario(directory: Path, system: System | None) -> int:
        async with lone_node(directory, system, frame_messages_max=40) as node:
            return await took(node)

    assert run(scenario(tmp_path / "single", None)) > 0
    assert run(scenario(tmp_path / "batched", batched())) == 0


def test_a_record_of_a_source_comes_as_a_list_of_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, batched()) as node:
            application: Any = node.host.application
            before = application.position
            application.take("orders", [{"item": "tea"}])
            assert node.process.memory.received == [("orders", [{"item": "tea"}])]
            assert application.position == before + 1

    run(scenario())


def test_a_batch_handler_that_returns_a_coroutine_ends_the_node(tmp_path: Path) -> None:
    async def later() -> None:
        pass

    async def scenario() -> None:
        async with lone_node(tmp_path, batched()) as node:
            node.process.receive_many = lambda ctx, channel, messages: later()  # type: ignore[attr-defined]
            node.source.send(1)
            failed = await node.link.handle(Failed)
            assert failed.reason.startswith("Batched.receive_many returned a coroutine of ")

    run(scenario())


def test_a_batch_sees_one_time_and_may_send_only_while_it_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, batched()) as node:
            contexts: list[Context] = []
            times: list[float] = []

            def look(ctx: Context, channel: str, messages: list[int]) -> None:
                contexts.append(ctx)
                times.extend(ctx.now() for _ in messages)

            node.process.on_receive = look
            node.source.send(1, 2)
            await until(lambda: contexts)
            assert times[0] == times[1]
            with pytest.raises(Exception, match="sends on 'b->a' while none of its handlers runs"):
                contexts[0].send_many("b->a", [1])

    run(scenario())


def test_C4_frames_behind_the_cut_are_recorded_whole_and_then_received(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, batched()) as node:
            node.source.send(1, 2)
            await node.received([1, 2])
            begun = await node.recorded()
            node.source.send(3, 4)
            await node.received([1, 2], [3, 4])
            (item,) = node.timeline.protocol.open[begun.snapshot].frames["a->b"]
            assert (item.frame.first_ordinal, item.frame.count, item.consumed) == (3, 2, 0)

    run(scenario())


def test_R4_a_live_trace_has_one_event_with_all_receives_of_a_batch(tmp_path: Path) -> None:
    def answer(ctx: Context, channel: str, messages: list[int]) -> None:
        ctx.send_many("b->a", messages)

    tracers: list[Any] = []

    async def scenario() -> None:
        async with lone_node(tmp_path, batched(), trace="full") as node:
            tracers.append(node.timeline.tracer)
            node.process.on_receive = answer
            node.source.send(1, 2, 3)
            node.source.send(4)
            await node.received([1, 2, 3], [4])

    run(scenario())
    tracers[0]._thread.shutdown()  # waits until everything is written
    (directory,) = tmp_path.rglob("epoch-*")
    rows = [row for file in sorted(directory.rglob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    assert [(row["kind"], row["position"], row["ordinal"], row["count"], row["step"]) for row in rows] == [
        ("internal", 1, None, 1, 1),
        ("receive", 2, 1, 3, 0),
        ("send", 2, 1, 1, 0),
        ("send", 2, 2, 1, 0),
        ("send", 2, 3, 1, 0),
        ("receive", 3, 4, 1, 0),
        ("send", 3, 4, 1, 0),
    ]
