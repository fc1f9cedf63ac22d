"""Programs with their own loop: when they are in an event, what a rollback does to them, and how they end."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from tests.runtime.fake_coordinator import FakeCoordinator, Link, coordinating
from tests.runtime.link_ends import EPOCH, Source, run, until
from tests.runtime.scripted import Scripted, pair, scripted
from tests.support.listening import listening

from strobe.declarations import Declared, Waits
from strobe.errors import TransportError, UsageError
from strobe.process import Channel, Process, System
from strobe.protocol import SnapshotId, View
from strobe.protocol.coordinator.messages import (
    AskToRecord,
    Dismiss,
    Drained,
    RecordingFailed,
    SnapshotStarted,
    TellView,
)
from strobe.runtime.connectors.file_source import FileSource
from strobe.runtime.links.codec import Hello
from strobe.runtime.messages.control import Failed, ProcessRecorded, Stop
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
    """Node b, run by the test itself, and a source of what comes on a->b."""

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
        """Have b record, as soon as it may."""
        begun = self.coordinator.log_begin("b", snapshot=SnapshotId(EPOCH, counter, "a"))
        self.link.send(begun, AskToRecord("b", begun.snapshot, 1))
        return begun.snapshot

    async def heard(self) -> None:
        """Let b hear all that was said to it. Addresses are taken in at once, also in the middle of an event."""
        addresses = self.node._host.addresses
        self.coordinator._tell_addresses()
        await until(lambda: self.node._host.addresses is not addresses)

    def roll_back(self, epoch: int = EPOCH + 1) -> None:
        self.source.outgoing_link.close()
        self.coordinator.restore(self.link, epoch)


def connect(coordinator: FakeCoordinator, adder: Adder, **how: Any) -> Node:
    host, port = coordinator.address
    where = f"{host}:{port}"
    how = {"capture": adder.capture, "restore": adder.restore, "coordinator": where, "name": "b"} | how
    return Node.connect(how.pop("system", coordinator.system), **how)


@asynccontextmanager
async def own_loop(directory: Path, system: System | None = None, **settings: Any) -> AsyncIterator[Own]:
    """Connect b, alive in epoch 3."""
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
    """Cancel `waiting` when messages have been given to it, and before it could take them."""
    hand_over = program._hand_over

    def hand_over_and_cancel(delivery: Any) -> None:
        program._hand_over = hand_over  # type: ignore[method-assign]
        hand_over(delivery)
        waiting.cancel()

    program._hand_over = hand_over_and_cancel  # type: ignore[method-assign]


def test_messages_come_frame_by_frame_and_the_loop_ends_when_the_system_is_stopped(tmp_path: Path) -> None:
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


def test_a_program_that_captures_nothing_is_told_so_when_it_begins_and_at_a_cut(tmp_path: Path) -> None:
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


def test_a_program_may_exit_whenever_a_signal_bids_it_to(tmp_path: Path) -> None:
    """The signal may come in the middle of what Strobe does on the program's loop: that is no failure of the node."""

    def bid() -> None:
        raise SystemExit(7)

    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            with pytest.raises(SystemExit, match="7"):
                own.timeline.attempt(bid)
            assert own.node._host.problem is None
            own.node.send("b->a", 1)

    run(scenario())


def test_who_emits_and_has_no_sink_is_told_so_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            with pytest.raises(UsageError, match=r'process b emits, and has no sink.*; name one with process="b"'):
                own.node.emit(1)

    run(scenario())


def test_whoever_waits_by_other_means_is_told_of_the_end_too(tmp_path: Path) -> None:
    """StopAsyncIteration passes through tasks and timeouts as it is."""

    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            waiting = asyncio.create_task(own.node.__anext__())
            timed = asyncio.create_task(asyncio.wait_for(asyncio.shield(waiting), 20))
            own.link.send(Stop("enough"))
            with pytest.raises(StopAsyncIteration):
                await timed

    run(scenario())


def test_a_failure_is_raised_where_the_program_waits_with_its_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            own.link.send(Stop("a crashes again and again", 1))
            with pytest.raises(TransportError, match="a crashes again and again"):
                await own.node.__anext__()
            with pytest.raises(TransportError, match="a crashes again and again"):
                own.node.send("b->a", 1)

    run(scenario())


def test_no_cut_is_made_from_a_delivery_until_the_next_is_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            own.source.send(1, 2)
            _, messages = await own.node.__anext__()
            first = own.record(1)
            own.source.mark(2)
            own.source.send(5)
            await own.heard()
            await asyncio.sleep(0)
            own.adder.sum.total += sum(messages)
            own.node.send("b->a", "half")
            await asyncio.sleep(0)
            assert not own.link.said(ProcessRecorded)
            _, messages = await own.node.__anext__()
            assert messages == [5]
            recorded = [(await own.link.handle(ProcessRecorded)).snapshot for _ in range(2)]
            assert recorded == [first, SnapshotId(EPOCH, 2, "a")]
            timeline = own.program.timeline
            assert timeline is not None
            capture = timeline.captures.open[first]
            assert capture.captured.position == 2
            assert msgspec.msgpack.decode(capture.data, type=Sum) == Sum(3)
            assert timeline.protocol.open[first].sent["b->a"].count == 1
            assert timeline.protocol.open[first].received["a->b"].count == 2

    run(scenario())


def test_an_atomic_stretch_is_not_cut_and_several_snapshots_in_it_have_names_of_their_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            timeline = own.program.timeline
            assert timeline is not None
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


def test_who_awaits_inside_an_atomic_stretch_is_told_and_no_cut_falls_into_it(tmp_path: Path) -> None:
    """Whoever asks for messages has ended its event, and may be given a frame that brings a cut with it."""

    async def let_ask(own: Own) -> None:
        with own.node.atomic():
            with pytest.raises(UsageError, match="asked for messages while a stretch of `atomic` is open"):
                await asyncio.create_task(own.node.__anext__())
            own.record(1)
            await own.heard()
            assert not own.timeline.captures.open

    async def let_come(own: Own) -> None:
        with own.node.atomic():
            own.source.send(2)
            await until(lambda: own.timeline.inbox)
            own.record(2)
            await own.heard()
            assert len(own.timeline.captures.open) == 1

    async def scenario() -> None:
        async with own_loop(tmp_path, pair("lai-yang")) as own:
            own.source.send(1)
            await own.node.__anext__()
            with pytest.raises(UsageError, match="node b: something was awaited inside `atomic`"):
                await let_ask(own)
            # The event of the message goes on.
            assert not own.timeline.captures.open
            asking = asyncio.create_task(own.node.__anext__())
            await own.link.handle(ProcessRecorded)
            with pytest.raises(UsageError, match="node b: something was awaited inside `atomic`"):
                await let_come(own)
            assert len(own.timeline.captures.open) == 2
            assert await asking == ("a->b", [2])

    run(scenario())


def test_send_is_not_awaited_inside_an_atomic_stretch_whether_or_not_there_is_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            with pytest.raises(UsageError, match="node b: `send` is awaited inside `atomic`"), own.node.atomic():
                await own.node.send("b->a", 1)
            with own.node.atomic():
                room = own.node.send("b->a", 2)
            await room

    run(scenario())


def test_stretches_of_two_tasks_that_await_inside_are_over_when_both_are(tmp_path: Path) -> None:
    async def stretch(own: Own, end: asyncio.Event) -> None:
        with own.node.atomic():
            await end.wait()

    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            ends = [asyncio.Event(), asyncio.Event()]
            stretches = [asyncio.create_task(stretch(own, end)) for end in ends]
            await asyncio.sleep(0)
            # A stretch that awaits nothing is in order, also inside of theirs; and so is one in each turn.
            with own.node.atomic():
                own.node.send("b->a", 1)
            for end, waiting in zip(ends, stretches, strict=True):
                assert not own.program.quiet
                end.set()
                with pytest.raises(UsageError, match="awaited inside `atomic`"):
                    await waiting
            assert own.program.quiet
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


def test_an_atomic_stretch_that_fails_is_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            with pytest.raises(ZeroDivisionError), own.node.atomic():
                raise ZeroDivisionError
            assert own.program.quiet

    run(scenario())


def test_whoever_is_cancelled_has_not_asked_and_misses_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(own.node.__anext__(), 0.001)
            own.source.send(1)
            timeline = own.program.timeline
            assert timeline is not None
            await until(lambda: timeline.inbox)  # it is kept, and the program is in no event
            assert own.program.quiet
            own.record(1)
            await own.link.handle(ProcessRecorded)
            # Cancelled when the messages were handed over already: they come the next time.
            waiting = asyncio.create_task(own.node.__anext__())
            cancel_when_handed_over(own.program, waiting)
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await own.node.__anext__() == ("a->b", [1])

    run(scenario())


def test_two_tasks_that_ask_at_once_would_get_the_same_messages_and_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            first = asyncio.create_task(own.node.__anext__())
            await until(lambda: own.program.ready)
            with pytest.raises(UsageError, match="two tasks ask node b"):
                await own.node.__anext__()
            own.source.send(1)
            assert await first == ("a->b", [1])

    run(scenario())


def test_R1_a_rollback_waits_for_the_event_under_way_whose_messages_go_nowhere(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            own.source.send(1)
            _, messages = await own.node.__anext__()
            old = own.program.timeline
            own.adder.sum.total += sum(messages)
            own.roll_back()
            await until(lambda: own.program.timeline is None)
            assert own.adder.restored == 0
            own.node.send("b->a", "nowhere")
            own.node.emit("nowhere")
            assert own.node.snapshot() is None
            asking = asyncio.create_task(own.node.__anext__())
            while (await own.link.handle(Drained)).view != 1:
                pass
            await until(lambda: own.program.timeline is not None)
            assert own.adder.sum == Sum(0)
            assert own.adder.restored == 1
            assert old is not own.program.timeline
            assert own.program.timeline.protocol.outgoing["b->a"].count == 0  # type: ignore[union-attr]
            own.source = own._source(EPOCH + 1)
            own.source.send(7)
            assert await asking == ("a->b", [7])

    run(scenario())


def test_R1_a_rollback_does_not_wait_for_messages_that_nobody_has_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            waiting = asyncio.create_task(own.node.__anext__())
            cancel_when_handed_over(own.program, waiting)
            own.source.send(1)
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not own.program.quiet
            own.roll_back()
            await until(lambda: own.adder.restored == 1)
            own.source = own._source(EPOCH + 1)
            own.source.send(2)
            assert await own.node.__anext__() == ("a->b", [2])

    run(scenario())


def test_whoever_waits_for_room_goes_on_when_the_epoch_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path, backlog_bytes_max=100, frame_messages_max=1) as own:
            for _ in range(2):
                own.node.send("b->a", bytes(100))
            waiting = asyncio.ensure_future(own.node.send("b->a", bytes(100)))  # type: ignore[arg-type]
            cancelled = asyncio.ensure_future(own.node.until_room())
            await asyncio.sleep(0)
            assert not waiting.done()
            cancelled.cancel()
            own.roll_back()
            await waiting
            await until(lambda: own.adder.restored == 1)
            await own.node.send("b->a", 1)

    run(scenario())


@pytest.mark.parametrize("argument", ["capture", "restore"])
def test_an_async_capture_or_restore_is_refused_at_once(tmp_path: Path, argument: str) -> None:
    async def wrong(*_: Any) -> None:
        pass

    async def scenario() -> None:
        async with coordinating(tmp_path, pair()) as coordinator:
            with pytest.raises(UsageError, match=f"node b: `{argument}` is async .*test_own_loop.py:"):
                connect(coordinator, Adder(), **{argument: wrong})
            with pytest.raises(UsageError, match=rf"node b: `{argument}` takes \(one, two\).*Strobe calls {argument}"):
                connect(coordinator, Adder(), **{argument: lambda one, two: None})

    run(scenario())


def test_a_restore_that_returns_a_coroutine_ends_the_node_with_the_reason(tmp_path: Path) -> None:
    async def later() -> None:
        pass

    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            own.program._restore = lambda state: later()
            own.roll_back()
            failed = await own.link.handle(Failed)
            assert failed.reason.startswith("the `restore` of node b returned a coroutine of ")

    run(scenario())


def test_a_restore_that_fails_ends_the_node_with_the_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:

            def restore(state: Sum) -> None:
                raise KeyError("total")

            own.program._restore = restore
            own.roll_back()
            with pytest.raises(TransportError, match=r"KeyError: 'total' \(.*in restore\(\)\)"):
                await own.node.__anext__()
            assert "KeyError: 'total'" in (await own.link.handle(Failed)).reason

    run(scenario())


def test_E3_a_capture_that_fails_costs_the_snapshot_and_not_the_program(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            own.program._capture = lambda: 1 // 0
            own.record(1)
            assert "ZeroDivisionError" in (await own.link.handle(RecordingFailed)).reason
            own.source.send(1)
            assert await own.node.__anext__() == ("a->b", [1])

    run(scenario())


def test_R2_a_program_gets_the_records_of_a_source_as_one_list(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "in.jsonl").write_text("1\n2\n3\n")
        system = pair(sources={"in": FileSource(tmp_path / "in.jsonl", process="b")})
        async with own_loop(tmp_path, system) as own:
            assert await own.node.__anext__() == ("in", [1, 2, 3])
            with (tmp_path / "in.jsonl").open("a") as file:
                file.write("4\n")
            assert await own.node.__anext__() == ("in", [4])
            assert own.program.position == 4

    run(scenario())


def test_E7_what_is_held_is_freed_also_where_the_program_is_in_an_event_that_does_not_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path, patience_s=0.05) as own:
            asking = asyncio.create_task(own.node.__anext__())
            own.record(1)
            await own.link.handle(ProcessRecorded)
            own.source.send(1)
            await asking  # from now on it is in an event
            await until(lambda: not own.program.timeline.captures.open)  # type: ignore[union-attr]
            assert (await own.link.handle(RecordingFailed)).reason == "no outcome for 0.05 s"

    run(scenario())


def test_R4_the_trace_of_a_program_says_by_which_event_each_message_was_sent(tmp_path: Path) -> None:
    tracers: list[Any] = []

    async def scenario() -> None:
        async with own_loop(tmp_path, trace="ordinals") as own:
            tracers.append(own.program.timeline.tracer)
            own.node.send("b->a", "on its own")
            own.source.send(1, 2)
            await own.node.__anext__()
            own.node.send("b->a", "by the second")
            with own.node.atomic():
                own.node.send("b->a", "and so is this")
            own.record(1)
            asking = asyncio.create_task(own.node.__anext__())
            await own.link.handle(ProcessRecorded)
            own.node.send("b->a", "behind the cut")
            with own.node.atomic():
                own.node.send("b->a", "with the next")
                own.node.send("b->a", "one")
            asking.cancel()

    run(scenario())
    tracers[0]._thread.shutdown()  # when all is written
    lines = lines_of(tmp_path / "store" / "run" / "trace" / "epoch-000003" / "b")
    assert [line for line in lines if line[1] == "send"] == [
        (1, "send", 1),
        (3, "send", 2),
        (3, "send", 3),
        (4, "send", 4),
        (5, "send", 5),
        (5, "send", 6),
    ]
    assert [line for line in lines if line[1] in ("receive", "record")] == [
        (2, "receive", 1),
        (3, "receive", 2),
        (3, "record", None),
    ]


def lines_of(segments: Path) -> list[tuple[int, str, int | None]]:
    """Return position, kind and ordinal of every line of a trace."""
    found = []
    for path in sorted(segments.glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            for number in range(row["count"]):
                ordinal = None if row["ordinal"] is None else row["ordinal"] + number
                found.append((row["position"] + number * row["step"], row["kind"], ordinal))
    return found


def test_E2_a_program_that_was_asked_to_leave_hands_over_what_it_holds(tmp_path: Path) -> None:
    async def scenario() -> None:
        names = ("a", "b", "c")
        channels = [Channel(p, q) for p in names for q in names if p != q]
        system = System({name: Scripted() for name in names}, channels)
        async with coordinating(tmp_path, system) as coordinator:
            adder = Adder()

            async def program() -> bool:
                async with connect(coordinator, adder) as node:
                    async for _, messages in node:
                        adder.sum.total += sum(messages)
                    left = node.leaving
                    await node.send("b->a", adder.sum.total)
                return left

            running = asyncio.create_task(program())
            a, _ = [coordinator.run(name) for name in ("a", "c")]
            await coordinator.begin(names)
            a.application.context.send("a->b", 40)  # type: ignore[attr-defined]
            a.application.context.send("a->b", 2)  # type: ignore[attr-defined]
            rest = tuple(spec for spec in coordinator.view.channels if "b" not in (spec.source, spec.target))
            for name in names:
                coordinator.links[name].send(TellView(name, View(2, ("a", "c"), rest)))
            for name in names:
                while (await coordinator.links[name].handle(Drained)).view != 2:
                    pass
            assert scripted(system, "a").messages == [42]
            assert not running.done()
            coordinator.links["b"].send(Dismiss("b"))
            assert await running is True

    run(scenario())


def test_E2_a_program_whose_leaving_is_undone_by_a_rollback_ends_and_has_to_be_started_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path, pair()) as coordinator:
            adder = Adder()
            gone = asyncio.Event()

            async def program() -> None:
                async with connect(coordinator, adder) as node:
                    async for _ in node:
                        pass
                    gone.set()

            running = asyncio.create_task(program())
            a = coordinator.run("a")
            await coordinator.begin(("a", "b"))
            coordinator.links["b"].send(TellView("b", View(2, ("a",), ())))
            coordinator.links["a"].send(TellView("a", View(2, ("a",), ())))
            await gone.wait()
            coordinator.restore(coordinator.links["b"], 2)
            await running
            await until(coordinator.links["b"].ended.is_set)
            assert a.problem is None

    run(scenario())


def test_whoever_gives_up_connecting_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path, pair()) as coordinator:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(connect(coordinator, Adder()).__aenter__(), 0.05)
            link = await coordinator.registered("b")
            await until(link.ended.is_set)

    run(scenario())


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            async with coordinating(tmp_path, pair()) as coordinator:
                with pytest.raises(TransportError, match=f"cannot listen at 127.0.0.1:{port}"):
                    await connect(coordinator, Adder(), listen=f"127.0.0.1:{port}").__aenter__()

    run(scenario())


def test_it_listens_on_loopback_unless_told_otherwise(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            place = ("127.0.0.1", own.link.register.address[1])
            assert place in listening(os.getpid())

    run(scenario())


def test_a_system_file_says_where_everything_is_and_its_modules_lie_beside_it(tmp_path: Path) -> None:
    (tmp_path / "own_loop_messages.py").write_text("import msgspec\nclass Tick(msgspec.Struct): n: int\n")
    (tmp_path / "system.toml").write_text(
        'messages = ["own_loop_messages:Tick"]\n[coordinator]\nlisten = "127.0.0.1:7999"\n'
        '[process.a]\nlisten = "127.0.0.1:7998"\n[process.b]\n[[channel]]\nfrom = "a"\nto = "b"\n'
    )

    async def scenario() -> None:
        adder = Adder()
        node = Node.connect(tmp_path / "system.toml", name="a", capture=adder.capture, restore=adder.restore)
        host = node._host
        assert host._link.address == ("127.0.0.1", 7999)
        assert host._listen == ("127.0.0.1", 7998)
        assert node.name == "a"
        with pytest.raises(UsageError, match="no process 'c'; there are: a, b"):
            Node.connect(tmp_path / "system.toml", name="c", capture=adder.capture, restore=adder.restore)

    run(scenario())


def test_G2_a_program_declares_by_an_object_that_is_asked_at_each_cut() -> None:
    class Waiting(Process):
        def waits_for(self) -> Waits | None:
            return Waits.all("a") if adder.sum.total else None

    adder = Adder()
    program = OwnLoopApplication("b", System({}, []), adder.capture, adder.restore, Waiting())
    assert program.capture().declared is None
    adder.sum.total = 1
    assert program.capture().declared == Declared(Waits.all("a"))
    assert OwnLoopApplication("b", System({}, []), adder.capture, adder.restore).capture().declared is None


@pytest.mark.parametrize("protocol", ["unaligned", "aligned-then-unaligned"])
def test_V4_what_a_barrier_has_overtaken_counts_once_also_where_it_comes_before_the_event_has_ended(
    tmp_path: Path, protocol: str
) -> None:
    one_way = System({"a": Scripted(), "b": Scripted()}, [Channel("a", "b")], protocol=protocol)

    async def scenario() -> None:
        async with own_loop(tmp_path, one_way, window_bytes=400, frame_messages_max=1) as own:
            begun = own.coordinator.log_begin("a", snapshot=SnapshotId(EPOCH, 1, "a"))
            own.link.send(begun)
            await until(lambda: own.source.outgoing_link.connected)
            for number in range(30):
                own.source.send(number)
            assert await own.program.ask() == ("a->b", [0])  # and now the program is in an event
            own.source.overtake(1)
            await until(lambda: own.timeline._orders)
            waiting = len(own.timeline.inbox)
            await until(lambda: len(own.timeline.inbox) > waiting)  # the credit of the first lets another come
            asking = asyncio.create_task(own.program.ask())
            await until(lambda: begun.snapshot in own.timeline.captures.open)
            fragment = await own.timeline.captures.open[begun.snapshot].fragment
            assert fragment.received["a->b"].count == 1
            in_flight = own.timeline.captures.open[begun.snapshot].in_flight["a->b"]
            assert [item.frame.first_ordinal for item in in_flight] == list(range(2, 31))
            assert await asking == ("a->b", [1])

    run(scenario())
