"""Writes one process's fragment of a snapshot in the background: its state, then its frames in flight (E5).

The event loop encodes and hashes one small slice at a time. Writing and syncing happen in the node's writer thread.
Hashing a slice is short and releases the GIL. In the writer thread, reacquiring the GIL took five times as long as the
hash; on the event loop, the hash lets the writer thread get the GIL. A large value is a single slice and would block
the event loop, so it is hashed in the writer thread.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import msgspec

from strobe.declarations import Declared, require_small
from strobe.keyed_state import Frozen, KeyedState
from strobe.protocol import Fragment, InFlight, SnapshotId
from strobe.protocol.coordinator.messages import RecordingFailed, SnapshotStarted
from strobe.protocol.values.fragment import KEYED
from strobe.protocol.values.log_entries import BlobRef, ProcessRecord, Section
from strobe.runtime.messages.control import FragmentStored, SnapshotBegun
from strobe.runtime.program.writer_thread import WriterThread
from strobe.storage.content.blobs import Blobs, BlobWriter
from strobe.storage.content.frames_blob import pack_frames
from strobe.storage.content.keyed_state_blobs import takes_delta
from strobe.storage.content.manifests import frontier_records

WRITING_MAX = 128
"""Maximum number of slices queued for the disk: 32 MB."""
HASHED_ON_LOOP_MAX = 1 << 20
"""Maximum slice hashed on the event loop: half a millisecond. Only a single large value makes a larger slice."""


class Captured(msgspec.Struct):
    """A process at its cut: its captured state, the host's additions, and its declarations (G2)."""

    state: Any
    position: int
    timers: tuple[tuple[str, float], ...] = ()
    random: int | None = None
    declared: Declared | None = None


class Base(msgspec.Struct):
    """A committed part, as a base for later ones: its record, and the number of its frozen state."""

    record: ProcessRecord
    frozen_number: int | None


class Capture:
    """One snapshot at this process, from its cut to its outcome."""

    def __init__(self, snapshot: SnapshotId, captured: Captured, recorded_us: int) -> None:
        self.snapshot = snapshot
        self.captured = captured
        self.recorded_us = recorded_us
        self.pause_us = 0
        self.sinks: dict[str, int] = {}
        self.sources: dict[str, int] = {}
        self.keyed: KeyedState[Any] | None = None
        self.frozen: Frozen | None = None
        self.encoding = KEYED
        self.data = b""
        self.version = 1
        # The message sent to the coordinator, if this process has initiated the snapshot.
        self.started: SnapshotStarted | None = None
        self.begun: asyncio.Future[SnapshotBegun] = asyncio.get_running_loop().create_future()
        self.fragment: asyncio.Future[Fragment] = asyncio.get_running_loop().create_future()
        # The recorded channel state, from the end of the recording until it is stored.
        self.in_flight: dict[str, list[InFlight]] = {}
        self.writes_frames = False
        self.answer: FragmentStored | RecordingFailed | None = None
        self.task: asyncio.Task[None] | None = None
        self.retry: asyncio.TimerHandle | None = None

    @property
    def frozen_number(self) -> int | None:
        return self.frozen.number if self.frozen is not None else None


class FragmentWriter:
    """Writes the fragments of process `name`. `prepare_output` makes its output durable up to the positions of a cut.

    `frames_stored` is called when the frames of a capture need no memory any more.
    """

    def __init__(
        self,
        name: str,
        writer: WriterThread,
        delta_chain_max: int,
        prepare_output: Callable[[dict[str, int]], Awaitable[None]],
        frames_stored: Callable[[], None],
    ) -> None:
        self._name = name
        self._writer = writer
        self._delta_chain_max = delta_chain_max
        self._prepare_output = prepare_output
        self._frames_stored = frames_stored

    async def write(self, capture: Capture, begun: SnapshotBegun, base: Base | None) -> ProcessRecord:
        """Write everything durably, the state as a delta on `base` if possible. Return the record of the process."""
        state, deltas = await self._write_state(capture, begun.position, base)
        fragment = await capture.fragment
        with self._writer.gil_yield:
            frames, sections = await self._write_frames(capture, begun.position)
            await self._prepare_output(capture.sinks)
        captured = capture.captured
        require_small(self._name, captured.declared)
        return ProcessRecord(
            position=captured.position,
            encoding=capture.encoding,
            state=state,
            sent=frontier_records(fragment.sent),
            received=frontier_records(fragment.received),
            in_flight=sections,
            frames=frames,
            timers=captured.timers,
            random=captured.random,
            deltas=deltas,
            sources=capture.sources,
            sinks=capture.sinks,
            declared=captured.declared,
            state_version=capture.version,
            recorded_us=capture.recorded_us,
            pause_us=capture.pause_us,
            duration_us=max(0, time.time_ns() // 1000 - capture.recorded_us),
        )

    async def _write_state(
        self, capture: Capture, begin: int, base: Base | None
    ) -> tuple[BlobRef, tuple[BlobRef, ...]]:
        """Write the state, or only the changes since the parent."""
        if capture.frozen is None:
            reusable = {ref.blake3: ref for ref in (base.record.state,)} if base is not None else {}
            write = partial(_write_blob, begin=begin, data=capture.data, reusable=reusable)
            with self._writer.gil_yield:
                return await self._writer.with_blobs(write), ()
        since = self._delta_since(capture.frozen, base)
        with self._writer.gil_yield:
            written = await self._write_frozen(capture.frozen, begin, since)
        if base is None or since is None:
            return written, ()
        return base.record.state, (*base.record.deltas, written)

    def _delta_since(self, frozen: Frozen, base: Base | None) -> int | None:
        """Return the freeze to write a delta against; None: write the full state. Delta chains are bounded (E5)."""
        since = base.frozen_number if base is not None else None
        if base is None or since is None or not frozen.can_delta(since):
            return None
        return since if takes_delta(base.record, self._delta_chain_max) else None

    async def _write_frozen(self, frozen: Frozen, begin: int, since: int | None) -> BlobRef:
        thread = self._writer
        opening = thread.submit(thread.open_blob, begin)
        writing: deque[Future[None]] = deque()
        try:
            blob = await asyncio.wrap_future(opening)
            for piece in frozen.slices(since):
                if len(piece) > HASHED_ON_LOOP_MAX:
                    # Awaited, so that slices are hashed in order and large pieces do not queue up.
                    await asyncio.wrap_future(thread.submit(blob.write, piece))
                elif piece:
                    blob.hash(piece)
                    writing.append(thread.submit(blob.append, piece))
                while writing and writing[0].done():
                    writing.popleft().result()
                # Make the next slice while the disk writes the earlier ones, within a bound.
                await (asyncio.sleep(0) if len(writing) < WRITING_MAX else asyncio.wrap_future(writing.popleft()))
            for written in writing:
                await asyncio.wrap_future(written)
            return await thread.run(blob.finish)
        except BaseException:
            for unwritten in writing:
                unwritten.cancel()
            thread.submit(_abandon, opening)  # after the pending writes of the thread
            raise

    async def _write_frames(self, capture: Capture, begin: int) -> tuple[BlobRef | None, dict[str, Section]]:
        capture.writes_frames = True

        def write(blobs: Blobs) -> tuple[BlobRef | None, dict[str, Section]]:
            pieces, sections = pack_frames(capture.in_flight)
            frames = blobs.write(begin, pieces, {}) if pieces else None
            blobs.sync(begin)
            return frames, sections

        written = await self._writer.with_blobs(write)
        capture.in_flight = {}
        self._frames_stored()
        return written


def _write_blob(blobs: Blobs, begin: int, data: bytes, reusable: dict[str, BlobRef]) -> BlobRef:
    return blobs.write(begin, [data], reusable)


def _abandon(opening: "Future[BlobWriter]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().abandon()
