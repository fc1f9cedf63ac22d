"""Reads the sources and writes the sinks of one process, consistent with its state (R2)."""

import asyncio
from functools import partial
from time import perf_counter
from typing import Any

from strobe.errors import UsageError
from strobe.event_bound import RECORD_BYTES, EventBound
from strobe.handlers import call
from strobe.outside import Sink, Source
from strobe.protocol import LocalState
from strobe.runtime.node.application import SLICE_S, Application
from strobe.runtime.node.scheduling import EventScheduler
from strobe.runtime.program.writer_thread import WriterThread
from strobe.runtime.recovery.fragment_loader import Restored
from strobe.runtime.restarts.document import ResumedProcess
from strobe.user_code import RAISED, explain

RECORDS_MAX = 256
IDLE_S = 0.02
HELD_BYTES_MAX = 8 << 20
"""Above this size, a sink's buffered output is made durable in the background, without waiting for a snapshot."""
STAGE_AGAIN_S = 0.5
"""Retry delay after output could not be made durable."""


class ExternalIO:
    """The sources and sinks of one process in one epoch."""

    def __init__(
        self,
        sources: dict[str, Source],
        sinks: dict[str, Sink],
        application: Application,
        scheduler: EventScheduler,
        writer: WriterThread,
        bound: EventBound,
        bytes_max: int,
    ) -> None:
        self._sources = sources
        self._sinks = sinks
        self._application = application
        self._scheduler = scheduler
        self._writer = writer
        self._bound = bound
        # The last poll of each source, if not fully delivered: its records, and the number delivered.
        self._polled: dict[str, tuple[list[Any], int]] = {}
        # The position of each source at its last empty poll. Getting a position may cost as much as a read.
        self._at_rest: dict[str, int] = {}
        # The maximum of buffered output per sink, and the size from which on it is made durable.
        self._bytes_max = bytes_max
        self._staged_from_min = min(HELD_BYTES_MAX, self._bytes_max)
        self._staged_from = dict.fromkeys(sinks, self._staged_from_min)
        self._held_back = scheduler.held_back
        self._retry: asyncio.Handle | None = None
        self._next: asyncio.Handle | None = None
        self._stopped = False

    def open(self, epoch: int, restored: Restored | ResumedProcess | None) -> None:
        """Set sources and sinks to the positions of the restored state."""
        if isinstance(restored, ResumedProcess):
            self._resume(epoch, restored.local)
            return
        for name, source in self._sources.items():
            source.open(restored.local.sources.get(name, 0) if restored is not None else 0)
        for name, sink in self._sinks.items():
            if restored is None:
                call(sink, "restore", 0, epoch=epoch, origin=0, fork=False)
            else:
                origin, position = restored.fragment.snapshot.epoch, restored.local.sinks.get(name, 0)
                call(sink, "restore", position, epoch=epoch, origin=origin, fork=restored.fork)

    def _resume(self, epoch: int, local: LocalState) -> None:
        """Go on where the predecessor of this process has stopped. Its staged output stays staged."""
        for name, source in self._sources.items():
            source.open(local.sources.get(name, 0))
        for name, sink in self._sinks.items():
            call(sink, "resume", local.sinks.get(name, 0), epoch=epoch)

    def cannot_resume(self) -> str:
        """Return the name of a sink that a successor could not continue; empty if there is none."""
        return next((name for name, sink in self._sinks.items() if type(sink).resume is Sink.resume), "")

    def start(self) -> None:
        if self._sources and not self._stopped:
            self._next = asyncio.get_running_loop().call_soon(self._scheduler.attempt, self._read)

    def stop(self) -> None:
        """Stop reading sources."""
        self._stopped = True
        if self._next is not None:
            self._next.cancel()

    def close(self) -> None:
        self.stop()
        if self._retry is not None:
            self._retry.cancel()
        # In the writer thread, after its pending jobs for them.
        for source in self._sources.values():
            self._writer.submit(source.stop_reading)
        for sink in self._sinks.values():
            self._writer.submit(sink.close)

    def emit(self, record: Any) -> None:
        if not self._sinks:
            name = self._bound.process
            raise UsageError(
                f'process {name} emits, and has no sink: its output would be lost; name one with process="{name}" in '
                "`sinks` of the system, or as [sink.NAME] in system.toml"
            )
        bound = self._bound
        bound.spend(RECORD_BYTES)
        for name, sink in self._sinks.items():
            before = sink.buffered_bytes
            call(sink, "emit", record)
            held_bytes = sink.buffered_bytes
            bound.pending += max(0, held_bytes - before)  # the writer thread may just have made output durable
            if held_bytes >= self._staged_from[name]:
                self._stage(name, sink)

    def _stage(self, name: str, sink: Sink) -> None:
        """Make buffered output durable in the background. Meanwhile, or after a failure, not again for each record."""
        position, held_bytes = sink.position, sink.buffered_bytes
        self._staged_from[name] = held_bytes + HELD_BYTES_MAX
        if held_bytes < self._bytes_max:
            self._staged_from[name] = min(self._staged_from[name], self._bytes_max)
        else:
            self._held_back.setdefault(name, f"{held_bytes:,} bytes of output for sink {name} wait for the disk")
        call_soon = asyncio.get_running_loop().call_soon_threadsafe

        def stage() -> None:
            try:
                call(sink, "prepare", position)
            except RAISED as error:
                call_soon(self._not_staged, name, explain(error))
                raise
            call_soon(self._staged, name, position)

        self._writer.later(stage)

    def _staged(self, name: str, position: int) -> None:
        """The output of a sink is durable up to `position`; newer output may not be."""
        sink = self._sinks[name]
        self._staged_from[name] = self._staged_from_min
        # At half the limit, so that the process is not stopped and started for every record.
        if sink.buffered_bytes <= self._bytes_max // 2:
            self._held_back.pop(name, None)
            self._scheduler.pump_soon()
        elif name in self._held_back and sink.position > position and not self._scheduler.closed:
            self._stage(name, sink)  # output of the rest of a frame
            return
        self._retry_held_back()

    def _not_staged(self, name: str, problem: str) -> None:
        if name in self._held_back:
            self._held_back[name] = problem
        self._retry_held_back()

    def _retry_held_back(self) -> None:
        """Schedule a retry. The held process emits nothing, so no record would trigger it."""
        if self._held_back and self._retry is None and not self._scheduler.closed:
            self._retry = asyncio.get_running_loop().call_later(STAGE_AGAIN_S, self._stage_held_back)

    def _stage_held_back(self) -> None:
        self._retry = None
        for name in self._held_back:
            self._stage(name, self._sinks[name])

    def positions(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the positions of sources and sinks after the events so far."""
        return (
            {name: self._position(name, source) for name, source in self._sources.items()},
            {name: sink.position for name, sink in self._sinks.items()},
        )

    def _position(self, name: str, source: Source) -> int:
        records, delivered = self._polled.get(name, ([], 0))
        return source.position_after(delivered) if delivered < len(records) else source.position

    def _read(self) -> None:
        """Deliver records of the sources, as long as the process may receive."""
        taken = 0
        for name, source in self._sources.items():
            if self._may_deliver() and not self._scheduler.inbox:
                if name not in self._polled:
                    self._polled[name] = (source.poll(RECORDS_MAX), 0)
                    taken += not self._polled[name][0] and self._has_skipped(name, source)
                taken += self._deliver(name)
        if self._stopped:
            return
        loop, attempt = asyncio.get_running_loop(), self._scheduler.attempt
        self._next = loop.call_soon(attempt, self._read) if taken else loop.call_later(IDLE_S, attempt, self._read)

    def _has_skipped(self, name: str, source: Source) -> bool:
        """Return whether the source has moved since its last empty poll; then it may have more records."""
        before, self._at_rest[name] = self._at_rest.get(name), source.position
        return self._at_rest[name] != before

    def _deliver(self, name: str) -> int:
        """Deliver polled records, as far as possible. In a cut, the rest does not count as read."""
        records, first = self._polled[name]
        step, place = self._application.records_at_once, first
        until_s = perf_counter() + SLICE_S
        while place < len(records) and self._may_deliver() and (place == first or perf_counter() < until_s):
            some = records[place : place + step]
            place += len(some)
            # They count as read from the end of their event on.
            self._polled[name] = (records, place)
            self._application.take(name, some)
        if place == len(records):
            del self._polled[name]
        return place - first

    def _may_deliver(self) -> bool:
        return self._scheduler.may_deliver and not self._scheduler.closed and not self._stopped

    async def prepare(self, positions: dict[str, int]) -> None:
        """Make the output up to a cut durable, before its snapshot may commit."""
        for name, sink in self._sinks.items():
            await self._writer.run(partial(call, sink, "prepare", positions[name]))
            self._staged(name, positions[name])

    def release(self, positions: dict[str, int]) -> None:
        """Release the output that a committed snapshot covers."""
        for name, sink in self._sinks.items():
            self._writer.later(partial(call, sink, "release", positions[name]))
