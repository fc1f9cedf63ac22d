"""A program with its own event loop: rollbacks, failures, leaving, settings."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.runtime.fake_coordinator import coordinating
from tests.runtime.link_ends import EPOCH, run, until
from tests.runtime.node.sockets.own_loop_programs import (
    Adder,
    Sum,
    cancel_when_handed_over,
    connect,
    own_loop,
)
from tests.runtime.scripted import Scripted, acting, pair, scripted
from tests.support.listening import listening

from strobe.declarations import Declared, Waits
from strobe.errors import TransportError, UsageError
from strobe.process import Channel, Process, System
from strobe.protocol import SnapshotId, View
from strobe.protocol.coordinator.messages import (
    Dismiss,
    Drained,
    InstallView,
    RecordingFailed,
)
from strobe.protocol.coordinator.restart_messages import RestartWanted
from strobe.runtime.connectors.file_source import FileSource
from strobe.runtime.messages.control import Failed, ProcessRecorded
from strobe.runtime.node.own_loop import Node
from strobe.runtime.node.own_loop_application import OwnLoopApplication


def test_R1_a_rollback_waits_for_the_event_and_drops_its_messages(tmp_path: Path) -> None:
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
            request = asyncio.create_task(own.node.__anext__())
            while (await own.link.handle(Drained)).view != 1:
                pass
            await until(lambda: own.program.timeline is not None)
            assert own.adder.sum == Sum(0)
            assert own.adder.restored == 1
            assert old is not own.program.timeline
            assert own.timeline.protocol.outgoing["b->a"].count == 0
            own.source = own._source(EPOCH + 1)
            own.source.send(7)
            assert await request == ("a->b", [7])

    run(scenario())


def test_R1_a_rollback_does_not_wait_for_undelivered_messages(tmp_path: Path) -> None:
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


def test_E11_a_program_that_has_not_taken_its_last_messages_does_not_hand_over(tmp_path: Path) -> None:
    """They count as received, and its state does not have them: its successor would never see them."""

    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            waiting = asyncio.create_task(own.node.__anext__())
            cancel_when_handed_over(own.program, waiting)
            own.source.send(1)
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await own.node.__aexit__(None)
            assert own.link.said(RestartWanted) == []

    run(scenario())


def test_waiting_for_room_ends_with_the_epoch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path, backlog_bytes_max=100, frame_messages_max=1) as own:
            for _ in range(2):
                own.node.send("b->a", bytes(100))
            waiting = asyncio.ensure_future(own.node.send("b->a", bytes(100)))  # type: ignore[arg-type]
            cancelled = asyncio.ensure_future(own.node.wait_for_room())
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
            with pytest.raises(UsageError, match=f"node b: `{argument}` is async .*test_own_loop_faults.py:"):
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


def test_E3_a_failing_capture_fails_the_snapshot_not_the_program(tmp_path: Path) -> None:
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


def test_E7_captures_expire_during_an_endless_event(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path, patience_s=0.05) as own:
            request = asyncio.create_task(own.node.__anext__())
            own.record(1)
            await own.link.handle(ProcessRecorded)
            own.source.send(1)
            await request  # from now on it is in an event
            await until(lambda: not own.timeline.captures.open)
            assert (await own.link.handle(RecordingFailed)).reason == "no outcome for 0.05 s"

    run(scenario())


def test_R4_the_trace_of_a_program_assigns_messages_to_events(tmp_path: Path) -> None:
    tracers: list[Any] = []

    async def scenario() -> None:
        async with own_loop(tmp_path, trace="ordinals") as own:
            tracers.append(own.timeline.tracer)
            own.node.send("b->a", "on its own")
            own.source.send(1, 2)
            await own.node.__anext__()
            own.node.send("b->a", "by the second")
            with own.node.atomic():
                own.node.send("b->a", "and so is this")
            own.record(1)
            request = asyncio.create_task(own.node.__anext__())
            await own.link.handle(ProcessRecorded)
            own.node.send("b->a", "behind the cut")
            with own.node.atomic():
                own.node.send("b->a", "with the next")
                own.node.send("b->a", "one")
            request.cancel()

    run(scenario())
    tracers[0]._thread.shutdown()  # waits until everything is written
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


def test_E2_a_leaving_program_sends_its_last_messages(tmp_path: Path) -> None:
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
            acting(a).send("a->b", 40)
            acting(a).send("a->b", 2)
            rest = tuple(spec for spec in coordinator.view.channels if "b" not in (spec.source, spec.target))
            for name in names:
                coordinator.links[name].send(InstallView(name, View(2, ("a", "c"), rest)))
            for name in names:
                while (await coordinator.links[name].handle(Drained)).view != 2:
                    pass
            assert scripted(system, "a").messages == [42]
            assert not running.done()
            coordinator.links["b"].send(Dismiss("b"))
            assert await running is True

    run(scenario())


def test_E2_a_rollback_of_a_departure_ends_the_program(tmp_path: Path) -> None:
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
            coordinator.links["b"].send(InstallView("b", View(2, ("a",), ())))
            coordinator.links["a"].send(InstallView("a", View(2, ("a",), ())))
            await gone.wait()
            coordinator.restore(coordinator.links["b"], 2)
            await running
            await until(coordinator.links["b"].ended.is_set)
            assert a.problem is None

    run(scenario())


def test_a_cancelled_connect_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path, pair()) as coordinator:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(connect(coordinator, Adder()).__aenter__(), 0.05)
            link = await coordinator.registered("b")
            await until(link.ended.is_set)

    run(scenario())


def test_a_port_in_use_is_named_in_the_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            async with coordinating(tmp_path, pair()) as coordinator:
                with pytest.raises(TransportError, match=f"cannot listen at 127.0.0.1:{port}"):
                    await connect(coordinator, Adder(), listen=f"127.0.0.1:{port}").__aenter__()

    run(scenario())


def test_a_node_listens_on_loopback_by_default(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with own_loop(tmp_path) as own:
            place = ("127.0.0.1", own.link.register.address[1])
            assert place in listening(os.getpid())

    run(scenario())


def test_connect_takes_addresses_and_modules_from_the_system_file(tmp_path: Path) -> None:
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


def test_G2_the_declarations_of_a_program_are_read_at_each_cut() -> None:
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
def test_V4_overtaken_frames_arriving_during_an_event_count_once(tmp_path: Path, protocol: str) -> None:
    one_way = System({"a": Scripted(), "b": Scripted()}, [Channel("a", "b")], protocol=protocol)

    async def scenario() -> None:
        async with own_loop(tmp_path, one_way, window_bytes=400, frame_messages_max=1) as own:
            begun = own.coordinator.log_begin("a", snapshot=SnapshotId(EPOCH, 1, "a"))
            own.link.send(begun)
            await until(lambda: own.source.outgoing_link.connected)
            for number in range(30):
                own.source.send(number)
            assert await own.program.next_delivery() == ("a->b", [0])  # and now the program is in an event
            own.source.overtake(1)
            await until(lambda: own.timeline.scheduler._orders)
            waiting = len(own.timeline.inbox)
            await until(lambda: len(own.timeline.inbox) > waiting)  # the credit of the first frame lets another one in
            request = asyncio.create_task(own.program.next_delivery())
            await until(lambda: begun.snapshot in own.timeline.captures.open)
            fragment = await own.timeline.captures.open[begun.snapshot].fragment
            assert fragment.received["a->b"].count == 1
            in_flight = own.timeline.captures.open[begun.snapshot].in_flight["a->b"]
            assert [item.frame.first_ordinal for item in in_flight] == list(range(2, 31))
            assert await request == ("a->b", [1])

    run(scenario())
