"""The bound on channel recordings (E3): first memory, then disk, then the snapshot is aborted."""

import errno
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.link_ends import run, until
from tests.runtime.lone_node import LoneNode, lone_node

from strobe.protocol.coordinator.messages import RecordingFailed
from strobe.protocol.values.log_entries import Manifest
from strobe.runtime.node import recording_memory
from strobe.storage.content.manifests import to_snapshot

LOAD = bytes(1600)  # about 2,000 bytes per frame, with its overhead
SMALL = {"recording_bytes_max": 40_000, "spill_bytes_max": 60_000, "frame_messages_max": 1}


class SlowDisk:
    """A disk whose writes block until `go_on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self._free, write = threading.Event(), threading.Event(), recording_memory._write

        def slow(*arguments: Any) -> Any:
            self.asked.set()
            assert self._free.wait(20)
            return write(*arguments)

        monkeypatch.setattr(recording_memory, "_write", slow)

    def go_on(self) -> None:
        self._free.set()


async def send_while_recording(node: LoneNode, count: int) -> None:
    before = len(node.process.messages)
    for _ in range(count):
        node.source.send(LOAD)
    await until(lambda: len(node.process.messages) == before + count)


def test_E3_beyond_its_memory_bound_a_recording_goes_to_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, **SMALL) as node:
            begun = await node.recorded()
            await send_while_recording(node, 12)
            await until(lambda: node.timeline.recordings.spills == 1)
            await send_while_recording(node, 12)
            await until(lambda: node.timeline.recordings.spills == 2)
            assert node.timeline.recordings.bytes <= 20_000 < node.timeline.recordings.spilled_bytes
            node.source.mark(1)
            part = await node.coordinator.stored("b", begun.snapshot)
            manifest = Manifest("chandy-lamport", (), node.coordinator.view, 3, 1, 2, {"b": part.record})
            fragment = to_snapshot(str(begun.snapshot), manifest, node.coordinator.store.read_blob).fragments["b"]
            frames = [item.frame for item in fragment.in_flight["a->b"]]
            assert [frame.first_ordinal for frame in frames] == list(range(1, 25))
            assert all(LOAD in bytes(frame.body) for frame in frames)
            assert node.timeline.recordings.spilled_bytes == 0
            assert list((tmp_path / "store" / "run" / "spill").iterdir()) == []

    run(scenario())


def test_E3_beyond_the_disk_bound_only_the_snapshot_is_aborted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, **SMALL) as node:
            begun = await node.recorded()
            while not node.link.said(RecordingFailed):
                await send_while_recording(node, 4)
                await until(lambda: not node.timeline.recordings.is_spilling)
            assert node.timeline.recordings.spills >= 2
            failed = await node.link.handle(RecordingFailed)
            assert failed.snapshot == begun.snapshot
            assert "more than 40,000 bytes of memory and 60,000 bytes of disk" in failed.reason
            assert not node.timeline.protocol.open
            assert not node.timeline.captures.open
            await send_while_recording(node, 1)
            second = await node.recorded(2)
            node.source.mark(2)
            await node.coordinator.stored("b", second.snapshot)

    run(scenario())


def test_E3_the_memory_bound_holds_while_the_disk_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)

    async def scenario() -> None:
        async with lone_node(tmp_path, **SMALL) as node:
            await node.recorded()
            await send_while_recording(node, 18)
            assert disk.asked.wait(20)
            assert 30_000 < node.timeline.recordings.bytes <= 40_000
            await send_while_recording(node, 5)
            failed = await node.link.handle(RecordingFailed)
            assert "more than 40,000 bytes of memory, faster than the disk takes it" in failed.reason
            assert node.timeline.recordings.bytes == 0
            disk.go_on()
            await send_while_recording(node, 1)

    run(scenario())


def test_E3_the_overhead_of_small_frames_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, **SMALL) as node:
            await node.recorded()
            for _ in range(110):
                node.source.send(None)
            failed = await node.link.handle(RecordingFailed)
            assert "40,000 bytes of memory" in failed.reason

    run(scenario())


def test_E3_a_recording_waiting_to_be_stored_counts_in_the_bound(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, **SMALL) as node:
            disk = threading.Event()
            node.host.writer.submit(disk.wait, 20)  # blocks the storing of states, and so of frames
            first = await node.recorded(1)
            await send_while_recording(node, 8)
            node.source.mark(1)
            await until(lambda: not node.timeline.protocol.open)
            assert node.timeline.recordings.bytes > 8 * len(LOAD)
            second = await node.recorded(2)
            await send_while_recording(node, 4)
            await until(lambda: node.timeline.recordings.spills == 1)
            assert node.timeline.recordings.spilled_bytes > 9 * len(LOAD)
            node.source.mark(2)
            disk.set()
            for begun, count in ((first, 8), (second, 4)):
                part = await node.coordinator.stored("b", begun.snapshot)
                assert part.record.in_flight["a->b"].messages == count
            await until(lambda: node.timeline.recordings.bytes == 0)
            assert node.timeline.recordings.spilled_bytes == 0

    run(scenario())


def test_E3_with_too_many_unstored_recordings_one_is_aborted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, **{**SMALL, "spill_bytes_max": 0}) as node:
            disk = threading.Event()
            node.host.writer.submit(disk.wait, 20)
            first = await node.recorded(1)
            await send_while_recording(node, 12)
            node.source.mark(1)
            await until(lambda: not node.timeline.protocol.open)
            second = await node.recorded(2)
            await send_while_recording(node, 9)
            failed = await node.link.handle(RecordingFailed)
            assert failed.snapshot == first.snapshot
            node.source.mark(2)
            disk.set()
            await node.coordinator.stored("b", second.snapshot)

    run(scenario())


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("can't start new thread")]
)
def test_E3_a_full_disk_fails_only_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(*_: Any) -> None:
        raise error

    monkeypatch.setattr(recording_memory, "_write", full)

    async def scenario() -> None:
        async with lone_node(tmp_path, **SMALL) as node:
            await node.recorded()
            await send_while_recording(node, 12)
            failed = await node.link.handle(RecordingFailed)
            assert failed.reason.endswith(error.args[-1])
            await send_while_recording(node, 12)
            assert not node.timeline.recordings.is_spilling
            assert node.host.problem is None

    run(scenario())


def test_the_snapshot_that_holds_the_most_is_aborted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, **SMALL) as node:
            first = await node.recorded(1)
            await send_while_recording(node, 20)
            second = await node.recorded(2)
            while not node.link.said(RecordingFailed):
                await send_while_recording(node, 4)
                await until(lambda: not node.timeline.recordings.is_spilling)
            assert (await node.link.handle(RecordingFailed)).snapshot == first.snapshot
            node.source.mark(1)
            node.source.mark(2)
            await node.coordinator.stored("b", second.snapshot)

    run(scenario())


def test_a_rollback_drops_a_spill_in_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)

    async def scenario() -> None:
        async with lone_node(tmp_path, **SMALL) as node:
            await node.recorded()
            await send_while_recording(node, 12)
            old = node.timeline
            node.source.outgoing_link.close()
            node.coordinator.restore(node.link, 4)
            await until(lambda: old.scheduler.closed)
            disk.go_on()
            await until(lambda: node.host.timeline is not None)
            assert old.recordings.spills == 0
            assert node.host.problem is None

    run(scenario())
