"""A process's fragment of each open snapshot: frozen at the cut, written in the background, reported (E4, E5).

    record ──► write the state ──┐
               (waits for begun) ├──► write the frames ──► make all durable ──► FragmentStored, kept until the outcome
    finish ──────────────────────┘

The event loop encodes and hashes one small slice at a time. Writing and syncing happen in the node's writer thread.
Hashing a slice is short and releases the GIL. In the writer thread, reacquiring the GIL took five times as long as the
hash; on the event loop, the hash lets the writer thread get the GIL. A large value is a single slice and would block
the event loop, so it is hashed in the writer thread.
"""

import asyncio
import logging
import time
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from strobe.declarations import require_small
from strobe.errors import StrobeError
from strobe.keyed_state import Frozen, KeyedState
from strobe.protocol import Fragment, SnapshotId
from strobe.protocol.coordinator.messages import RecordingFailed, SnapshotStarted
from strobe.protocol.process.events import SnapshotAborted
from strobe.protocol.values.log_entries import BlobRef, ProcessRecord, Section
from strobe.runtime.messages.control import FragmentStored, ProcessRecorded, SnapshotBegun
from strobe.runtime.node.capture import Base, Capture
from strobe.runtime.node.gil_yield import GilYield
from strobe.runtime.recovery.fragment_loader import Restored
from strobe.storage.content.blobs import Blobs, BlobWriter
from strobe.storage.content.frames_blob import pack_frames
from strobe.storage.content.keyed_state_blobs import takes_delta
from strobe.storage.content.manifests import frontier_records
from strobe.storage.content.state_codec import encode_captured
from strobe.user_code import RAISED, explain, is_failure

if TYPE_CHECKING:
    from strobe.runtime.node.timeline import Timeline

logger = logging.getLogger("strobe.node")

WRITING_MAX = 128
"""Maximum number of slices queued for the disk: 32 MB."""
UNBEGUN_MAX = 64
"""Maximum number of captures kept for snapshots that the coordinator has not begun."""
HASHED_ON_LOOP_MAX = 1 << 20
"""Maximum slice hashed on the event loop: half a millisecond. Only a single large value makes a larger slice."""


class Captures:
    """All open snapshots of one process."""

    def __init__(self, timeline: "Timeline", restored: Restored | None) -> None:
        self.open: dict[SnapshotId, Capture] = {}
        self._timeline = timeline
        self._host = timeline.host
        self._way = GilYield()
        self._begun: dict[SnapshotId, SnapshotBegun] = {}
        # Recently committed parts by printed id: the parent of the next snapshot is one of them.
        self._bases: dict[str, Base] = {}
        if restored is not None:
            self._bases[restored.snapshot] = Base(restored.record, restored.frozen_number)

    # From the protocol

    def record(self, snapshot: SnapshotId) -> None:
        """Freeze the state now; it is written in the background."""
        started = time.perf_counter_ns()
        try:
            capture = self._freeze(snapshot)
        except RAISED as error:  # a snapshot never ends a process (E3)
            if not is_failure(error, may_exit=self._timeline.application.may_exit):
                raise
            self._give_up(snapshot, f"its state cannot be captured: {explain(error)}")
            return
        self.open[snapshot] = capture
        if snapshot in self._begun:
            capture.begun.set_result(self._begun[snapshot])
        else:
            self._bound_unbegun()
        loop = asyncio.get_running_loop()
        capture.task = loop.create_task(self._store(capture))
        expire = partial(self._expire, snapshot)
        capture.retry = loop.call_later(self._host.settings.patience_s, self._timeline.attempt, expire)
        if self._timeline.tracer is not None:
            self._timeline.tracer.recorded(str(snapshot), capture.captured.position)
        capture.pause_us = (time.perf_counter_ns() - started) // 1000
        self._host.send(ProcessRecorded(snapshot, self._host.name, capture.pause_us))

    def _freeze(self, snapshot: SnapshotId) -> Capture:
        capture = Capture(snapshot, self._timeline.application.capture(), time.time_ns() // 1000)
        capture.sources, capture.sinks = self._timeline.boundary.positions()
        state, capture.captured.state = capture.captured.state, None
        if isinstance(state, KeyedState):
            capture.keyed, capture.frozen = state, state.freeze()
        else:
            capture.encoding, capture.data = encode_captured(self._host.name, state)
        return capture

    def _bound_unbegun(self) -> None:
        """Give up the oldest capture if too many have not begun: a peer may send markers of unknown snapshots."""
        unbegun = [snapshot for snapshot, capture in self.open.items() if not capture.begun.done()]
        if len(unbegun) > UNBEGUN_MAX:
            self.drop(unbegun[0])
            self._give_up(unbegun[0], f"{UNBEGUN_MAX} later ones were recorded before the coordinator began it")

    def _give_up(self, snapshot: SnapshotId, reason: str) -> None:
        logger.warning("snapshot %s: %s", snapshot, reason)
        self._host.send(RecordingFailed(snapshot, self._host.name, reason))
        # Not now: the current effects are still being carried out, and their markers must be sent.
        abort = partial(self._timeline.dispatch, SnapshotAborted(snapshot))
        asyncio.get_running_loop().call_soon(self._timeline.run_between, partial(self._timeline.attempt, abort))

    def initiated(self, started: SnapshotStarted) -> None:
        """Keep `started` for a retry: the coordinator may not have received it."""
        capture = self.open.get(started.snapshot)
        if capture is not None:
            capture.started = started

    def finish(self, fragment: Fragment) -> None:
        """Take the complete fragment: all incoming channels are recorded."""
        capture = self.open.get(fragment.snapshot)
        if capture is not None:
            if capture.answer is None:  # otherwise storing has failed
                capture.in_flight = {channel: list(items) for channel, items in fragment.in_flight.items()}
            capture.fragment.set_result(msgspec.structs.replace(fragment, in_flight={}))
        self._timeline.recordings.changed()

    def abandon(self, snapshot: SnapshotId, reason: str) -> None:
        """Give up `snapshot`, report it, and free its memory. Safe at any time, since it takes no cut."""
        logger.warning("snapshot %s is given up: %s", snapshot, reason)
        self._host.send(RecordingFailed(snapshot, self._host.name, reason))
        capture = self.open.get(snapshot)
        if capture is not None and capture.fragment.done():
            self.drop(snapshot)  # the protocol has done its part
        else:
            self._timeline.dispatch(SnapshotAborted(snapshot))

    def drop(self, snapshot: SnapshotId) -> None:
        """Free all resources of `snapshot`."""
        capture = self.open.pop(snapshot, None)
        if capture is not None:
            if capture.task is not None:
                capture.task.cancel()
            if capture.retry is not None:
                capture.retry.cancel()
            if capture.frozen is not None:
                capture.frozen.close()
        self._timeline.recordings.changed()

    # From the coordinator

    def begun(self, begun: SnapshotBegun) -> None:
        """The begin of this snapshot is in the log: its blobs can be written."""
        self._begun[begun.snapshot] = begun
        capture = self.open.get(begun.snapshot)
        if capture is not None and not capture.begun.done():
            capture.begun.set_result(begun)

    def start_again(self) -> None:
        """Resend `SnapshotStarted` for snapshots missing in the log: the message may have been lost."""
        for capture in self.open.values():
            self._say_started(capture)

    def _say_started(self, capture: Capture) -> None:
        if capture.started is not None and not capture.begun.done():
            self._host.send(capture.started)

    def resend(self, snapshot: SnapshotId) -> bool:
        """Resend the report of `snapshot`, if any; return whether the protocol is done with it."""
        capture = self.open.get(snapshot)
        if capture is None:
            return False
        if capture.answer is not None:
            self._host.send(capture.answer)
        return capture.fragment.done()

    def outcome(self, snapshot: SnapshotId, committed: bool) -> None:
        self._begun.pop(snapshot, None)
        capture = self.open.get(snapshot)
        if capture is not None and committed and isinstance(capture.answer, FragmentStored):
            self._committed(capture, capture.answer.record)
        if capture is not None and (committed or capture.fragment.done()):
            self.drop(snapshot)

    def settled(self, counter: int) -> None:
        """Free all complete captures below `counter`: those snapshots have an outcome.

        A snapshot of this process that the coordinator does not know yet is reported again. Then it gets an outcome
        too, which is sent to all processes that recorded for it.
        """
        for snapshot, capture in self.open.items():
            if snapshot.counter < counter:
                self._say_started(capture)
        self._begun = {known: begun for known, begun in self._begun.items() if known.counter >= counter}
        for snapshot in [known for known, capture in self.open.items() if known.counter < counter]:
            if self.open[snapshot].fragment.done():
                self.drop(snapshot)

    def close(self) -> None:
        for snapshot in list(self.open):
            self.drop(snapshot)

    def _committed(self, capture: Capture, record: ProcessRecord) -> None:
        number = capture.frozen_number
        self._bases[str(capture.snapshot)] = Base(record, number)
        while len(self._bases) > 4:
            oldest = next(iter(self._bases))
            del self._bases[oldest]
        if capture.keyed is not None:
            kept = [base.frozen_number for base in self._bases.values() if base.frozen_number is not None]
            capture.keyed.forget_changes(min(kept))
        self._timeline.boundary.release(capture.sinks)

    def _expire(self, snapshot: SnapshotId) -> None:
        """Time out without an outcome: the coordinator may never return (E7)."""
        capture, reason = self.open.get(snapshot), f"no outcome for {self._host.settings.patience_s:g} s"
        if capture is not None and isinstance(capture.answer, FragmentStored):
            logger.warning("snapshot %s: %s, freeing it", snapshot, reason)  # it may still be committed
            self.drop(snapshot)
        elif capture is not None:
            self.abandon(snapshot, reason)

    # In the background

    async def _store(self, capture: Capture) -> None:
        """Write the fragment, then report it. A failure fails only this snapshot."""
        try:
            begun = await capture.begun
            state, deltas = await self._write_state(capture, begun)
            fragment = await capture.fragment
            await self._hand_over(capture, begun, state, deltas, fragment)
        except RAISED as error:  # a snapshot never ends a process (E3)
            if not is_failure(error, awaited=True):
                raise
            strange = not isinstance(error, (StrobeError, OSError))
            logger.warning("snapshot %s cannot be stored: %s", capture.snapshot, error, exc_info=strange)
            capture.answer = RecordingFailed(capture.snapshot, self._host.name, explain(error))
            self._host.send(capture.answer)

    async def _write_state(self, capture: Capture, begun: SnapshotBegun) -> tuple[BlobRef, tuple[BlobRef, ...]]:
        """Write the state, or only the changes since the parent."""
        base = self._bases.get(begun.parent or "")
        if capture.frozen is None:
            reusable = {ref.blake3: ref for ref in (base.record.state,)} if base is not None else {}
            data = capture.data
            with self._way:
                write = partial(_write_blob, begin=begun.position, data=data, reusable=reusable)
                return await self._host.writer.with_blobs(write), ()
        since = self._delta_since(capture.frozen, base)
        with self._way:
            written = await self._write_frozen(capture.frozen, begun.position, since)
        if base is None or since is None:
            return written, ()
        return base.record.state, (*base.record.deltas, written)

    def _delta_since(self, frozen: Frozen, base: Base | None) -> int | None:
        """Return the freeze to write a delta against; None: write the full state. Delta chains are bounded (E5)."""
        since = base.frozen_number if base is not None else None
        if base is None or since is None or not frozen.can_delta(since):
            return None
        return since if takes_delta(base.record, self._host.settings.delta_chain_max) else None

    async def _write_frozen(self, frozen: Frozen, begin: int, since: int | None) -> BlobRef:
        thread = self._host.writer
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

    async def _hand_over(
        self, capture: Capture, begun: SnapshotBegun, state: BlobRef, deltas: tuple[BlobRef, ...], fragment: Fragment
    ) -> None:
        capture.writes_frames = True

        def write(blobs: Blobs) -> tuple[BlobRef | None, dict[str, Section]]:
            pieces, sections = pack_frames(capture.in_flight)
            frames = blobs.write(begun.position, pieces, {}) if pieces else None
            blobs.sync(begun.position)
            return frames, sections

        with self._way:
            frames, sections = await self._host.writer.with_blobs(write)
            capture.in_flight = {}
            self._timeline.recordings.changed()
            await self._timeline.boundary.prepare(capture.sinks)
        captured = capture.captured
        require_small(self._host.name, captured.declared)
        record = ProcessRecord(
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
            recorded_us=capture.recorded_us,
            pause_us=capture.pause_us,
            duration_us=max(0, time.time_ns() // 1000 - capture.recorded_us),
        )
        record = self._host.sign(str(capture.snapshot), self._timeline.protocol.view, record)
        capture.answer = FragmentStored(capture.snapshot, self._host.name, fragment.view, record)
        self._host.send(capture.answer)


def _write_blob(blobs: Blobs, begin: int, data: bytes, reusable: dict[str, BlobRef]) -> BlobRef:
    return blobs.write(begin, [data], reusable)


def _abandon(opening: "Future[BlobWriter]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().abandon()
