"""A process's fragment of a snapshot: when it is stored, what fails with it, and that it is freed (E3, E4, E7)."""

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.fake_coordinator import Link
from tests.runtime.link_ends import run, until
from tests.runtime.lone_node import LoneNode, abort, lone_node, until_handled
from tests.runtime.scripted import Memory

from strobe.keyed_state import KeyedState
from strobe.protocol import SnapshotId
from strobe.protocol.coordinator.messages import (
    Drained,
    InstallView,
    RecordingFailed,
    ReportOutcome,
    ReportSettled,
    RequestRecording,
    SnapshotStarted,
)
from strobe.runtime.messages.control import FragmentStored, ProcessRecorded
from strobe.runtime.node import fragment_writer


async def until_idle(node: LoneNode) -> None:
    """Wait until the writer thread has done all its jobs."""
    await node.host.writer.run(lambda: None)


def unfinished(node: LoneNode) -> list[Path]:
    return list((Path(node.coordinator.store.url) / "tmp").iterdir())


def test_a_fragment_is_stored_only_after_its_begin_is_logged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            node.source.mark(1)  # it arrives before the coordinator's `SnapshotBegun`
            recorded = await node.link.handle(ProcessRecorded)
            await until_handled(node)
            await until_idle(node)
            assert not node.link.said(FragmentStored)
            begun = node.begin_snapshot(1)
            node.link.send(begun)
            part = await node.coordinator.stored("b", begun.snapshot)
            assert recorded.snapshot == begun.snapshot
            assert part.record.state.begin == begun.position
            assert part.record.received["a->b"].count == 0

    run(scenario())


def test_an_initiated_snapshot_is_kept_until_it_begins_or_aborts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            node.process.on_receive = lambda ctx, channel, message: ctx.snapshot() and None
            node.source.send("first", "second")
            started = [await node.link.handle(SnapshotStarted) for _ in range(2)]
            assert [message.snapshot.initiator for message in started] == ["b", "b"]
            assert started[0].snapshot != started[1].snapshot
            # The first cut fell inside the frame.
            begun = node.coordinator.log_begin("b", snapshot=started[0].snapshot)
            node.link.send(begun)
            inside = node.timeline.protocol.open[begun.snapshot].frames["a->b"]
            assert [item.consumed for item in inside] == [1]
            # The other one is aborted: nothing is kept for it.
            abort(node, started[1].snapshot)
            await until_handled(node)
            assert list(node.timeline.captures.open) == [started[0].snapshot]

    run(scenario())


async def initiate_offline(node: LoneNode) -> tuple[SnapshotId, Link]:
    """Let b initiate a snapshot while it has no connection; return the snapshot, and b's next connection."""
    lost = node.link
    lost.writer.close()
    await until(lambda: not node.host._link.connected)
    name = node.timeline.protocol.name_snapshot(0, 0)
    node.timeline.initiate(name, None)
    return SnapshotId.parse(name), await node.coordinator.registered("b", after=lost)


def test_a_lost_initiation_is_reported_after_later_snapshots_began(tmp_path: Path) -> None:
    """Otherwise it would get no outcome, and its peers would keep their recordings until they time out."""

    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            view, (initiated, link) = node.coordinator.view, await initiate_offline(node)
            link.send(ReportSettled("b", initiated.counter + 1), InstallView("b", view))
            started = await link.handle(SnapshotStarted)
            assert started == SnapshotStarted(initiated, "b", view.number)

    run(scenario())


def test_a_snapshot_initiated_offline_is_reported_on_reconnect(tmp_path: Path) -> None:
    """Its peers have recorded, too. Without an outcome they would keep their recordings until they time out."""

    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            view, (initiated, link) = node.coordinator.view, await initiate_offline(node)
            link.send(InstallView("b", view))
            await link.handle(Drained)  # earlier, the coordinator could not accept the snapshot
            started = await link.handle(SnapshotStarted)
            assert started == SnapshotStarted(initiated, "b", view.number)
            # A snapshot that has begun is not reported again.
            begun = node.coordinator.log_begin("b", snapshot=started.snapshot)
            link.send(begun, InstallView("b", view))
            await link.handle(Drained)
            link.send(InstallView("b", view))
            await link.handle(Drained)
            assert link.said(SnapshotStarted) == [started]

    run(scenario())


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_nothing_is_left_of_an_aborted_snapshot(tmp_path: Path, keyed: bool, finished: bool, begun: bool) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            state: KeyedState[int] = KeyedState(int)
            state["a"] = 1
            if keyed:
                node.process.capture = lambda: state  # type: ignore[method-assign]
            snapshot = SnapshotId(3, 1, "a")
            if begun:
                node.link.send(node.begin_snapshot(1))
            node.link.send(RequestRecording("b", snapshot, 1))
            await until(lambda: snapshot in node.timeline.captures.open)
            if finished:
                node.source.mark(1)
                await until(lambda: not node.timeline.protocol.open)
            abort(node, snapshot)
            await until_handled(node)
            await until_idle(node)
            assert not node.timeline.captures.open
            assert not node.timeline.protocol.open
            assert not unfinished(node)
            state["a"] = 2
            assert not any(view.next_shard == 0 for view in state._entries.views)  # no old values are kept for it
            gc.collect()  # an unretrieved exception of a task is reported now, and fails the test
            assert node.host.problem is None

    run(scenario())


def test_a_blob_opened_while_its_snapshot_is_aborted_is_closed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            state: KeyedState[int] = KeyedState(int)
            node.process.capture = lambda: state  # type: ignore[method-assign]
            opening, opened = threading.Event(), threading.Event()
            open_blob = node.host.writer.open_blob

            def open_slowly(begin: int) -> Any:
                opening.set()
                assert opened.wait(20)
                return open_blob(begin)

            node.host.writer.open_blob = open_slowly  # type: ignore[method-assign]
            begun = await node.recorded()
            await until(opening.is_set)
            abort(node, begun.snapshot)
            await until_handled(node)
            opened.set()
            await until_idle(node)
            assert not unfinished(node)

    run(scenario())


def test_E7_a_capture_without_an_outcome_is_freed_after_a_timeout(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, patience_s=0.02) as node:
            first, second = node.ask(1), node.ask(2)
            node.source.mark(2)  # one recording is open, the other is finished
            await until(lambda: second.snapshot in node.timeline.protocol.closed)
            await until(lambda: not node.timeline.captures.open)
            assert not node.timeline.protocol.open
            # Late messages about them are ignored.
            node.source.mark(1)
            node.link.send(RequestRecording("b", first.snapshot, 1), ReportOutcome("b", second.snapshot, True))
            await until_handled(node)
            assert not node.timeline.captures.open

    run(scenario())


def test_settled_snapshots_are_freed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            await node.recorded(1)
            await node.recorded(2)
            third = await node.recorded(3)
            node.source.mark(2)
            await until(lambda: len(node.timeline.protocol.open) == 2)
            node.link.send(ReportSettled("b", 3))
            await until_handled(node)
            assert list(node.timeline.captures.open) == [third.snapshot]
            assert list(node.timeline.captures._begun) == [third.snapshot]

    run(scenario())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyError("balance"), "KeyError: 'balance'"),
        (OSError("caf\udce9"), r"OSError: caf\udce9"),
        (SystemExit(3), "SystemExit: 3"),
        (GeneratorExit(), "GeneratorExit"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
)
def test_E3_a_failing_capture_fails_the_snapshot_not_the_process(
    tmp_path: Path, error: BaseException, expected: str
) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:

            def capture() -> Any:
                raise error

            working = node.process.capture
            node.process.capture = capture  # type: ignore[method-assign]
            begun = node.ask(1)
            failed = await node.link.handle(RecordingFailed)
            assert failed.snapshot == begun.snapshot
            assert f"its state cannot be captured: {expected}" in failed.reason
            assert f"{Path(__file__).name}:" in failed.reason
            await until(lambda: not node.timeline.protocol.open)
            # The late marker is ignored.
            node.source.mark(1)
            node.source.send(1)
            await node.received(1)
            node.process.capture = working  # type: ignore[method-assign]
            second = await node.recorded(2)
            node.source.mark(2)
            await node.coordinator.stored("b", second.snapshot)

    run(scenario())


def test_a_capture_that_returns_none_fails_only_the_snapshot(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            node.process.capture = lambda: None  # type: ignore[method-assign]
            node.ask(1)
            failed = await node.link.handle(RecordingFailed)
            expected = "its state cannot be captured: capture() of process b returned None; return its state"
            assert expected in failed.reason
            assert not node.link.said(ProcessRecorded)

    run(scenario())


def test_a_state_that_cannot_be_encoded_fails_only_the_snapshot(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            node.process.memory = Memory(received=[("a", object())])
            node.source.mark(1)  # recorded and finished in one step
            failed = await node.link.handle(RecordingFailed)
            assert "object" in failed.reason
            node.source.send(1)
            await until(lambda: len(node.process.messages) == 2)
            assert node.host.problem is None

    run(scenario())


def test_a_storing_failure_is_reported_and_repeated_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(fragment_writer, "pack_frames", fail)

    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            begun = await node.recorded()
            node.source.mark(1)
            assert "a bug" in (await node.link.handle(RecordingFailed)).reason
            node.link.send(RequestRecording("b", begun.snapshot, 1))
            assert "a bug" in (await node.link.handle(RecordingFailed)).reason
            abort(node, begun.snapshot)
            await until_handled(node)
            gc.collect()
            assert node.host.problem is None

    run(scenario())
