"""Sources and sinks stay consistent with the state of their process (R2)."""

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.fake_coordinator import coordinating
from tests.runtime.link_ends import run, until
from tests.runtime.lone_node import LoneNode, lone_node
from tests.runtime.scripted import pair, scripted

from strobe.errors import StrobeError
from strobe.protocol.coordinator.messages import SnapshotStarted
from strobe.runtime.connectors import file_source
from strobe.runtime.connectors.file_sink import FileSink
from strobe.runtime.connectors.file_source import FileSource
from strobe.runtime.messages.control import Failed
from strobe.runtime.node import external_io
from strobe.runtime.node.heartbeat import measure

SLOW = {"backlog_bytes_max": 200, "frame_messages_max": 1}


def source_of(directory: Path, *records: int) -> FileSource:
    path = directory / "in.jsonl"
    path.write_text("".join(f"{record}\n" for record in records))
    return FileSource(path, process="b")


def offset(position: int) -> int:
    return position & ((1 << 40) - 1)


def read_so_far(node: LoneNode) -> int:
    return offset(node.timeline.external_io.positions()[0]["in"])


def test_R2_a_cut_between_two_records_of_a_poll_covers_only_the_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        system = pair(sources={"in": source_of(tmp_path)})
        async with lone_node(tmp_path, system) as node:

            def receive(ctx: Any, channel: str, record: Any) -> None:
                if record == 2:
                    ctx.snapshot()

            node.process.on_receive = receive
            source_of(tmp_path, 1, 2, 3)
            started = await node.link.handle(SnapshotStarted)
            await node.received(1, 2, 3)
            capture = node.timeline.captures.open[started.snapshot]
            assert offset(capture.sources["in"]) == len("1\n2\n")
            assert capture.captured.position == 3  # the start event and two records
            assert read_so_far(node) == len("1\n2\n3\n")

    run(scenario())


def test_R2_records_delayed_by_a_slow_peer_are_unread_in_a_cut(tmp_path: Path) -> None:
    async def scenario() -> None:
        system = pair(sources={"in": source_of(tmp_path)})
        async with lone_node(tmp_path, system, **SLOW) as node:
            node.process.on_receive = lambda ctx, channel, record: ctx.send("b->a", bytes(150))
            source_of(tmp_path, 1, 2, 3, 4, 5)
            await until(lambda: node.timeline.outbox.full)
            assert node.process.messages == [1, 2]
            begun = await node.recorded()
            assert offset(node.timeline.captures.open[begun.snapshot].sources["in"]) == len("1\n2\n")
            assert node.process.messages == [1, 2]
            node.process.on_receive = lambda ctx, channel, record: None
            node.timeline.channels.has_room("b->a")
            await node.received(1, 2, 3, 4, 5)
            assert read_so_far(node) == len("1\n2\n3\n4\n5\n")

    run(scenario())


def test_R2_emitting_without_a_sink_ends_the_node(tmp_path: Path) -> None:
    """Otherwise its output would be lost silently."""

    async def scenario() -> None:
        system = pair(sinks={"out": FileSink(tmp_path / "out.jsonl", process="a")})
        async with lone_node(tmp_path, system) as node:
            node.process.on_receive = lambda ctx, channel, message: ctx.emit(message)
            node.source.send(1)
            failed = await node.link.handle(Failed)
            assert failed.reason.startswith("process b emits, and has no sink: its output would be lost; name one")
            assert f"{Path(__file__).name}:" in failed.reason
            assert await node.coordinator.ended("b") == 1

    run(scenario())


def test_R2_a_rollback_reads_again_from_the_snapshot(tmp_path: Path) -> None:
    async def scenario() -> None:
        system = pair(
            sources={"in": source_of(tmp_path, 1, 2)}, sinks={"out": FileSink(tmp_path / "out.jsonl", process="b")}
        )
        async with coordinating(tmp_path, system) as coordinator:
            processes = system.processes
            await coordinator.started("a", "b")
            processes["b"].on_receive = lambda ctx, channel, record: ctx.emit(record)  # type: ignore[attr-defined]
            await until(lambda: processes["b"].messages == [1, 2])  # type: ignore[attr-defined]
            taken = await coordinator.photograph("a")
            with (tmp_path / "in.jsonl").open("a") as file:
                file.write("3\n")
            await until(lambda: processes["b"].messages == [1, 2, 3])  # type: ignore[attr-defined]
            await coordinator.begin(("a", "b"), taken, epoch=2)
            await until(lambda: processes["b"].messages == [1, 2, 3])  # type: ignore[attr-defined]
            coordinator.counter = 0
            await coordinator.photograph("a")
            await until(lambda: (tmp_path / "out.jsonl").read_bytes().endswith(b"3\n"))
            assert (tmp_path / "out.jsonl").read_bytes().count(b"3\n") == 1

    run(scenario())


def test_R2_output_made_durable_early_is_undone_by_a_rollback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_io, "HELD_BYTES_MAX", 1000)

    async def scenario() -> None:
        sink = FileSink(tmp_path / "out.jsonl", process="b")
        system = pair(sources={"in": source_of(tmp_path)}, sinks={"out": sink})
        async with coordinating(tmp_path, system) as coordinator:
            process = scripted(system, "b")
            await coordinator.started("a", "b")
            process.on_receive = lambda ctx, channel, record: ctx.emit(record)
            source_of(tmp_path, *range(700))
            await until(lambda: sink.position == len((tmp_path / "in.jsonl").read_bytes()))
            await until(lambda: sink.buffered_bytes < 2000)
            assert (tmp_path / "out.jsonl").read_bytes() == b"", "nothing is let out before its snapshot"
            taken = await coordinator.photograph("a")
            source_of(tmp_path, *range(1400))
            await until(lambda: process.messages[-1:] == [1399])
            await until(lambda: sink.buffered_bytes < 2000)
            await coordinator.begin(("a", "b"), taken, epoch=2)
            await until(lambda: process.messages[-1:] == [1399])
            coordinator.counter = 0
            await coordinator.photograph("a")
            whole = (tmp_path / "in.jsonl").read_bytes()
            await until(lambda: (tmp_path / "out.jsonl").read_bytes() == whole)

    run(scenario())


def test_staging_is_retried_but_not_with_each_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(external_io, "HELD_BYTES_MAX", 1000)

    async def scenario() -> None:
        sink = FileSink(tmp_path / "out.jsonl", process="b")
        async with lone_node(tmp_path, pair(sinks={"out": sink})) as node:
            tried: list[int] = []

            def prepare(position: int) -> None:
                tried.append(position)
                raise StrobeError("the disk is full")

            sink.prepare = prepare  # type: ignore[method-assign]
            for _ in range(400):
                node.timeline.external_io.emit(123456789)  # ten bytes each
            await until(lambda: len(tried) == 4)
            assert tried == [1000, 2000, 3000, 4000]
            assert "the disk is full" in caplog.text

    run(scenario())


def test_output_above_its_memory_bound_stops_delivery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_io, "HELD_BYTES_MAX", 300)
    monkeypatch.setattr(external_io, "STAGE_AGAIN_S", 0.001)

    async def scenario() -> None:
        sink = FileSink(tmp_path / "out.jsonl", process="b")
        async with lone_node(tmp_path, pair(sinks={"out": sink}), sink_bytes_max=1000) as node:
            prepare, tried = sink.prepare, []

            def fail(position: int) -> None:
                tried.append(position)
                raise StrobeError("the disk is full")

            sink.prepare = fail  # type: ignore[method-assign]
            node.process.on_receive = lambda ctx, channel, message: ctx.emit(message)
            for first in range(100_000_000, 100_000_400, 4):
                node.source.send(*range(first, first + 4))  # ten bytes each
            # It is retried, although nothing more is emitted.
            await until(lambda: len(tried) > 10)
            assert not node.timeline.scheduler.may_deliver
            assert sink.buffered_bytes == 1000
            assert measure(node.host).held_back.startswith("the disk is full")
            sink.prepare = prepare  # type: ignore[method-assign]
            await node.received(*range(100_000_000, 100_000_400))
            await until(lambda: node.timeline.scheduler.may_deliver)
            assert measure(node.host).held_back == ""
            sink.prepare(sink.position)
            sink.release(sink.position)
            lines = (tmp_path / "out.jsonl").read_text().split()
            assert lines == [str(number) for number in range(100_000_000, 100_000_400)]

    run(scenario())


def test_large_output_of_one_frame_does_not_wait_for_the_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_io, "STAGE_AGAIN_S", 3600)

    async def scenario() -> None:
        sink = FileSink(tmp_path / "out.jsonl", process="b")
        async with lone_node(tmp_path, pair(sinks={"out": sink}), sink_bytes_max=1000) as node:
            node.process.on_receive = lambda ctx, channel, message: ctx.emit("x" * 100)
            for first in range(0, 200, 40):
                node.source.send(*range(first, first + 40))
            await node.received(*range(200))
            await until(lambda: node.timeline.scheduler.may_deliver)

    run(scenario())


def test_preparing_a_snapshot_resumes_a_held_back_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_io, "STAGE_AGAIN_S", 3600.0)

    async def scenario() -> None:
        sink = FileSink(tmp_path / "out.jsonl", process="b")
        async with lone_node(tmp_path, pair(sinks={"out": sink}), sink_bytes_max=100) as node:
            prepare, failed = sink.prepare, threading.Event()

            def fail(position: int) -> None:
                failed.set()
                raise StrobeError("the disk is full")

            sink.prepare = fail  # type: ignore[method-assign]
            node.timeline.external_io.emit("x" * 200)
            await until(failed.is_set)
            assert not node.timeline.scheduler.may_deliver
            node.source.send(1)
            await until(lambda: node.timeline.inbox)
            sink.prepare = prepare  # type: ignore[method-assign]
            await node.timeline.external_io.prepare({"out": sink.position})  # as for a snapshot
            await node.received(1)

    run(scenario())


def test_a_source_that_has_skipped_records_is_polled_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_source, "LINES_MAX", 10)
    monkeypatch.setattr(external_io, "IDLE_S", 3600.0)

    async def scenario() -> None:
        source = FileSource(tmp_path / "in.jsonl", process="b", malformed="skip")
        source.path.write_text("nonsense\n" * 1000 + "7\n")
        async with lone_node(tmp_path, pair(sources={"in": source})) as node:
            await node.received(7)
            assert source.skipped == 1000

    run(scenario())


def test_a_source_that_cannot_be_read_ends_the_node_with_the_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        system = pair(sources={"in": source_of(tmp_path)})
        async with lone_node(tmp_path, system) as node:
            (tmp_path / "in.jsonl").write_text("1\nnot json\n")
            failed = await node.link.handle(Failed)
            assert "in.jsonl, line 2" in failed.reason
            assert await node.coordinator.ended("b") == 1

    run(scenario())
