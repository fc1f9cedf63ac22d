"""A program with its own event loop: messages, cuts and atomic stretches."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.runtime.fake_coordinator import coordinating
from tests.runtime.link_ends import EPOCH, run, until
from tests.runtime.node.sockets.own_loop_programs import (
    Adder,
    Own,
    Sum,
    cancel_when_handed_over,
    connect,
    own_loop,
)
from tests.runtime.scripted import pair

from strobe.errors import TransportError, UsageError
from strobe.protocol import SnapshotId
from strobe.protocol.coordinator.messages import (
    RecordingFailed,
    SnapshotStarted,
)
from strobe.runtime.messages.control import ProcessRecorded, Stop


def test_messages_arrive_frame_by_frame_until_stop(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            own.source.send(1, 2)
            own.source.send(3)
            frames = []
            async for channel, messages in own.node:
                frames.append((channel, messages))
                if messages == [3]:
                    own.link.send(Stop("enough"))
            assert frames == [("a->b", [1, 2]), ("a->b", [3])]
            with pytest.raises(StopAsyncIteration):
                await asyncio.create_task(own.node.__anext__())
            with pytest.raises(TransportError, match="node b has ended"):
                await own.node.send("b->a", 1)
            with pytest.raises(TransportError, match="node b has ended"):
                own.node.emit(1)
            assert own.node.snapshot() is None

    run(scenario())


def test_a_capture_that_returns_none_fails_the_start_or_snapshot(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path, pair()) as coordinator:
            entering = asyncio.create_task(connect(coordinator, Adder(), capture=lambda: None).__aenter__())
            await coordinator.registered("b")
            coordinator.restore(coordinator.links["b"], EPOCH)
            with pytest.raises(TransportError, match=r"capture\(\) of process b returned None; return its state"):
                await entering
        async with own_loop(tmp_path / "other") as own:
            own.adder.sum = None  # type: ignore[assignment]
            own.record(1)
            failed = await own.link.handle(RecordingFailed)
            assert "its state cannot be captured: capture() of process b returned None" in failed.reason

    run(scenario())


def test_a_signal_may_end_the_program_at_any_time(tmp_path: Path) -> None:
    """The signal may arrive while a callback of Strobe runs on the program's loop. That is no failure of the node."""

    def exit_on_signal() -> None:
        raise SystemExit(7)

    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            with pytest.raises(SystemExit, match="7"):
                own.timeline.scheduler.attempt(exit_on_signal)
            assert own.node._host.problem is None
            own.node.send("b->a", 1)

    run(scenario())


def test_emitting_without_a_sink_raises_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            with pytest.raises(UsageError, match=r'process b emits, and has no sink.*; name one with process="b"'):
                own.node.emit(1)

    run(scenario())


def test_a_request_in_a_task_with_a_timeout_ends_on_stop(tmp_path: Path) -> None:
    """StopAsyncIteration passes through tasks and timeouts unchanged."""

    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            waiting = asyncio.create_task(own.node.__anext__())
            timed = asyncio.create_task(asyncio.wait_for(asyncio.shield(waiting), 20))
            own.link.send(Stop("enough"))
            with pytest.raises(StopAsyncIteration):
                await timed

    run(scenario())


def test_a_waiting_program_gets_the_reason_of_a_failure(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            own.link.send(Stop("a crashes again and again", 1))
            with pytest.raises(TransportError, match="a crashes again and again"):
                await own.node.__anext__()
            with pytest.raises(TransportError, match="a crashes again and again"):
                own.node.send("b->a", 1)

    run(scenario())


def test_no_cut_falls_between_a_delivery_and_the_next_request(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            own.source.send(1, 2)
            _, messages = await own.node.__anext__()
            first = own.record(1)
            own.source.mark(2)
            own.source.send(5)
            await own.until_received()
            await asyncio.sleep(0)
            own.adder.sum.total += sum(messages)
            own.node.send("b->a", "half")
            await asyncio.sleep(0)
            assert not own.link.said(ProcessRecorded)
            _, messages = await own.node.__anext__()
            assert messages == [5]
            recorded = [(await own.link.handle(ProcessRecorded)).snapshot for _ in range(2)]
            assert recorded == [first, SnapshotId(EPOCH, 2, "a")]
            timeline = own.timeline
            capture = timeline.captures.open[first]
            assert capture.captured.position == 2
            assert msgspec.msgpack.decode(capture.data, type=Sum) == Sum(3)
            assert timeline.protocol.open[first].sent["b->a"].count == 1
            assert timeline.protocol.open[first].received["a->b"].count == 2

    run(scenario())


def test_snapshots_inside_atomic_wait_and_have_different_names(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            timeline = own.timeline
            with own.node.atomic():
                own.adder.sum.total = -5
                first, second = own.node.snapshot(), own.node.snapshot()
                assert not timeline.captures.open
                with own.node.atomic():
                    own.node.send("b->a", 5)
                assert not timeline.captures.open
                own.adder.sum.total = 5
            assert [str(snapshot) for snapshot in timeline.captures.open] == [first, second]
            assert len({first, second}) == 2
            for capture in timeline.captures.open.values():
                assert msgspec.msgpack.decode(capture.data, type=Sum) == Sum(5)
            assert (await own.link.handle(SnapshotStarted)).process == "b"
            assert own.node.snapshot() not in (first, second)

    run(scenario())


def test_an_await_inside_atomic_is_refused_and_no_cut_falls_there(tmp_path: Path) -> None:
    """A requested frame may cause a cut, so no frame is delivered inside a stretch, not even to another task."""

    async def request_inside(own: Own) -> None:
        with own.node.atomic():
            with pytest.raises(UsageError, match="messages are requested from node b inside `atomic`"):
                await asyncio.create_task(own.node.__anext__())
            own.record(1)
            await own.until_received()
            assert not own.timeline.captures.open

    async def receive_inside(own: Own) -> None:
        with own.node.atomic():
            own.source.send(2)
            await until(lambda: own.timeline.inbox)
            own.record(2)
            await own.until_received()
            assert len(own.timeline.captures.open) == 1

    async def scenario() -> None:
        async with own_loop(tmp_path, pair("lai-yang")) as own:
            own.source.send(1)
            await own.node.__anext__()
            with pytest.raises(UsageError, match="node b: something was awaited inside `atomic`"):
                await request_inside(own)
            # The event of the received message continues.
            assert not own.timeline.captures.open
            request = asyncio.create_task(own.node.__anext__())
            await own.link.handle(ProcessRecorded)
            with pytest.raises(UsageError, match="node b: something was awaited inside `atomic`"):
                await receive_inside(own)
            assert len(own.timeline.captures.open) == 2
            assert await request == ("a->b", [2])

    run(scenario())


def test_send_must_not_be_awaited_inside_atomic_even_with_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            with pytest.raises(UsageError, match="node b: `send` is awaited inside `atomic`"), own.node.atomic():
                await own.node.send("b->a", 1)
            with own.node.atomic():
                room = own.node.send("b->a", 2)
            await room

    run(scenario())


def test_overlapping_stretches_end_when_both_tasks_leave_them(tmp_path: Path) -> None:
    async def stretch(own: Own, end: asyncio.Event) -> None:
        with own.node.atomic():
            await end.wait()

    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            ends = [asyncio.Event(), asyncio.Event()]
            stretches = [asyncio.create_task(stretch(own, end)) for end in ends]
            await asyncio.sleep(0)
            # A stretch without an await is allowed, also while others are open.
            with own.node.atomic():
                own.node.send("b->a", 1)
            for end, waiting in zip(ends, stretches, strict=True):
                assert not own.program.quiet
                end.set()
                with pytest.raises(UsageError, match="awaited inside `atomic`"):
                    await waiting
            assert own.program.quiet
            # So is one in each event-loop iteration.
            for _ in range(3):
                await asyncio.sleep(0)
                with own.node.atomic(), own.node.atomic():
                    own.node.send("b->a", 1)
            cancelled = asyncio.create_task(stretch(own, asyncio.Event()))
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert own.program.quiet

    run(scenario())


def test_an_exception_ends_an_atomic_stretch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            with pytest.raises(ZeroDivisionError), own.node.atomic():
                raise ZeroDivisionError
            assert own.program.quiet

    run(scenario())


def test_a_cancelled_request_loses_no_messages(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(own.node.__anext__(), 0.001)
            own.source.send(1)
            timeline = own.timeline
            await until(lambda: timeline.inbox)  # it is queued, and the program is between events
            assert own.program.quiet
            own.record(1)
            await own.link.handle(ProcessRecorded)
            # Cancelled after the messages were handed over: the next request returns them.
            waiting = asyncio.create_task(own.node.__anext__())
            cancel_when_handed_over(own.program, waiting)
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await own.node.__anext__() == ("a->b", [1])

    run(scenario())


def test_two_concurrent_requests_for_messages_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            first = asyncio.create_task(own.node.__anext__())
            await until(lambda: own.program.ready)
            with pytest.raises(UsageError, match="two tasks request messages from node b"):
                await own.node.__anext__()
            own.source.send(1)
            assert await first == ("a->b", [1])

    run(scenario())
