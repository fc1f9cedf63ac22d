"""A process's fragment of each open snapshot: frozen at the cut, written in the background, reported (E4, E5).

    record ──► write the state ──┐
               (waits for begun) ├──► write the frames ──► make all durable ──► FragmentStored, kept until the outcome
    finish ──────────────────────┘

`fragment_writer` does the writing.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from strobe.errors import StrobeError
from strobe.keyed_state import KeyedState
from strobe.protocol import Endpoint, Fragment, SnapshotId, View
from strobe.protocol.coordinator.messages import RecordingFailed, SnapshotStarted
from strobe.protocol.process.events import Event, SnapshotAborted
from strobe.protocol.values.log_entries import ProcessRecord
from strobe.runtime.messages.control import FragmentStored, ProcessRecorded, SnapshotBegun
from strobe.runtime.node.application import Application
from strobe.runtime.node.external_io import ExternalIO
from strobe.runtime.node.fragment_writer import Base, Capture, FragmentWriter
from strobe.runtime.node.recording_memory import Recordings
from strobe.runtime.node.scheduling import EventScheduler
from strobe.runtime.program.writer_thread import WriterThread
from strobe.runtime.recovery.fragment_loader import Restored
from strobe.runtime.settings import NodeSettings
from strobe.runtime.tracing.recorder import Tracer
from strobe.storage.content.state_codec import encode_captured, version_of
from strobe.user_code import RAISED, explain, is_failure

logger = logging.getLogger("strobe.node")

UNBEGUN_MAX = 64
"""Maximum number of captures kept for snapshots that the coordinator has not begun."""


class Captures:
    """All open snapshots of one process."""

    def __init__(
        self,
        open_captures: dict[SnapshotId, Capture],
        settings: NodeSettings,
        protocol: Endpoint,
        application: Application,
        scheduler: EventScheduler,
        external_io: ExternalIO,
        writer: WriterThread,
        tracer: Tracer | None,
        *,
        send: Callable[[msgspec.Struct], None],
        dispatch: Callable[[Event], None],
        sign: Callable[[str, View, ProcessRecord], ProcessRecord],
        make_directory: Callable[[str], Path],
        restored: Restored | None,
    ) -> None:
        self.open = open_captures
        self.recordings = Recordings(settings, protocol, self.open, self.abandon, make_directory)
        self._name = protocol.process
        self._patience_s = settings.patience_s
        self._protocol = protocol
        self._application = application
        self._scheduler = scheduler
        self._external_io = external_io
        self._tracer = tracer
        self._send = send
        self._dispatch = dispatch
        self._sign = sign
        self._fragments = FragmentWriter(
            self._name, writer, settings.delta_chain_max, external_io.prepare, self.recordings.changed
        )
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
            if not is_failure(error, may_exit=self._application.may_exit):
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
        capture.retry = loop.call_later(self._patience_s, self._scheduler.attempt, expire)
        if self._tracer is not None:
            self._tracer.recorded(str(snapshot), capture.captured.position)
        capture.pause_us = (time.perf_counter_ns() - started) // 1000
        self._send(ProcessRecorded(snapshot, self._name, capture.pause_us))

    def _freeze(self, snapshot: SnapshotId) -> Capture:
        capture = Capture(snapshot, self._application.capture(), time.time_ns() // 1000)
        capture.sources, capture.sinks = self._external_io.positions()
        state, capture.captured.state = capture.captured.state, None
        capture.version = version_of(state)
        if isinstance(state, KeyedState):
            capture.keyed, capture.frozen = state, state.freeze()
        else:
            capture.encoding, capture.data = encode_captured(self._name, state)
        return capture

    def _bound_unbegun(self) -> None:
        """Give up the oldest capture if too many have not begun: a peer may send markers of unknown snapshots."""
        unbegun = [snapshot for snapshot, capture in self.open.items() if not capture.begun.done()]
        if len(unbegun) > UNBEGUN_MAX:
            self.drop(unbegun[0])
            self._give_up(unbegun[0], f"{UNBEGUN_MAX} later ones were recorded before the coordinator began it")

    def _give_up(self, snapshot: SnapshotId, reason: str) -> None:
        logger.warning("snapshot %s: %s", snapshot, reason)
        self._send(RecordingFailed(snapshot, self._name, reason))
        # Not now: the current effects are still being carried out, and their markers must be sent.
        abort = partial(self._dispatch, SnapshotAborted(snapshot))
        asyncio.get_running_loop().call_soon(self._scheduler.run_between, partial(self._scheduler.attempt, abort))

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
        self.recordings.changed()

    def abandon(self, snapshot: SnapshotId, reason: str) -> None:
        """Give up `snapshot`, report it, and free its memory. Safe at any time, since it takes no cut."""
        logger.warning("snapshot %s is aborted here: %s", snapshot, reason)
        self._send(RecordingFailed(snapshot, self._name, reason))
        capture = self.open.get(snapshot)
        if capture is not None and capture.fragment.done():
            self.drop(snapshot)  # the protocol has done its part
        else:
            self._dispatch(SnapshotAborted(snapshot))

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
        self.recordings.changed()

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
            self._resend_started(capture)

    def _resend_started(self, capture: Capture) -> None:
        if capture.started is not None and not capture.begun.done():
            self._send(capture.started)

    def resend(self, snapshot: SnapshotId) -> bool:
        """Resend the report of `snapshot`, if any; return whether the protocol is done with it."""
        capture = self.open.get(snapshot)
        if capture is None:
            return False
        if capture.answer is not None:
            self._send(capture.answer)
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
                self._resend_started(capture)
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
        self._external_io.release(capture.sinks)

    def _expire(self, snapshot: SnapshotId) -> None:
        """Time out without an outcome: the coordinator may never return (E7)."""
        capture, reason = self.open.get(snapshot), f"no outcome for {self._patience_s:g} s"
        if capture is not None and isinstance(capture.answer, FragmentStored):
            logger.warning("snapshot %s: %s; freeing its memory", snapshot, reason)  # it may still be committed
            self.drop(snapshot)
        elif capture is not None:
            self.abandon(snapshot, reason)

    # In the background

    async def _store(self, capture: Capture) -> None:
        """Write the fragment, then report it. A failure fails only this snapshot."""
        try:
            begun = await capture.begun
            record = await self._fragments.write(capture, begun, self._bases.get(begun.parent or ""))
            record = self._sign(str(capture.snapshot), self._protocol.view, record)
            capture.answer = FragmentStored(capture.snapshot, self._name, capture.fragment.result().view, record)
            self._send(capture.answer)
        except RAISED as error:  # a snapshot never ends a process (E3)
            if not is_failure(error, awaited=True):
                raise
            strange = not isinstance(error, (StrobeError, OSError))
            logger.warning("snapshot %s cannot be stored: %s", capture.snapshot, error, exc_info=strange)
            capture.answer = RecordingFailed(capture.snapshot, self._name, explain(error))
            self._send(capture.answer)
