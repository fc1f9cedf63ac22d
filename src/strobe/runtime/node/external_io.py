"""Reads the sources and writes the sinks of one process, consistent with its state (R2)."""

import asyncio
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from strobe.errors import UsageError
from strobe.event_bound import RECORD_BYTES
from strobe.handlers import call
from strobe.outside import Sink, Source
from strobe.runtime.node.application import SLICE_S
from strobe.runtime.recovery.fragment_loader import Restored
from strobe.user_code import RAISED, explain

if TYPE_CHECKING:
    from strobe.runtime.node.timeline import Timeline

RECORDS_MAX = 256
IDLE_S = 0.02
HELD_BYTES_MAX = 8 << 20
"""Above this size, a sink's buffered output is made durable in the background, without waiting for a snapshot."""
STAGE_AGAIN_S = 0.5
"""Retry delay after output could not be made durable."""


class Boundary:
    """The sources and sinks of one process in one epoch."""

    def __init__(
        self, timeline: "Timeline", sources: dict[str, Source], sinks: dict[str, Sink], restored: Restored | None
    ) -> None:
        self._timeline = timeline
        self._sources = sources
        self._sinks = sinks
        self._restored = restored
        # The last poll of each source, if not fully delivered: its records, and the number delivered.
        self._polled: dict[str, tuple[list[Any], int]] = {}
        # The position of each source at its last empty poll. Getting a position may cost as much as a read.
        self._at_rest: dict[str, int] = {}
        # The maximum of buffered output per sink, and the size from which on it is made durable.
        self._bytes_max = timeline.host.settings.sink_bytes_max
        self._staged_from_min = min(HELD_BYTES_MAX, self._bytes_max)
        self._staged_from = dict.fromkeys(sinks, self._staged_from_min)
        # Sinks above the maximum, and why. Until their output is durable, the process receives nothing.
        self.held_back: dict[str, str] = {}
        self._stage_again: asyncio.Handle | None = None
        self._next: asyncio.Handle | None = None
        self._stopped = False

    def open(self) -> None:
        """Set sources and sinks to the positions of the restored state."""
        local = self._restored.local if self._restored is not None else None
        for name, source in self._sources.items():
            source.open(local.sources.get(name, 0) if local is not None else 0)
        origin = self._restored.fragment.snapshot.epoch if self._restored is not None else 0
        for name, sink in self._sinks.items():
            position = local.sinks.get(name, 0) if local is not None else 0
            fork = self._restored is not None and self._restored.fork
            call(sink, "restore", position, epoch=self._timeline.epoch, origin=origin, fork=fork)

    def start(self) -> None:
        if self._sources and not self._stopped:
            self._next = asyncio.get_running_loop().call_soon(self._timeline.attempt, self._read)

    def stop(self) -> None:
        """Stop reading sources."""
        self._stopped = True
        if self._next is not None:
            self._next.cancel()

    def close(self) -> None:
        self.stop()
        if self._stage_again is not None:
            self._stage_again.cancel()
        # In the writer thread, after its pending jobs for them.
        for source in self._sources.values():
            self._timeline.host.writer.submit(source.stop_reading)
        for sink in self._sinks.values():
            self._timeline.host.writer.submit(sink.close)

    def emit(self, record: Any) -> None:
        if not self._sinks:
            name = self._timeline.name
            raise UsageError(
                f'process {name} emits, and has no sink: its output would be lost; name one with process="{name}" in '
                "`sinks` of the system, or as [sink.NAME] in system.toml"
            )
        bound = self._timeline.bound
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
            self.held_back.setdefault(name, f"{held_bytes:,} bytes of output for sink {name} wait for the disk")
        call_soon = asyncio.get_running_loop().call_soon_threadsafe

        def stage() -> None:
            try:
                call(sink, "prepare", position)
            except RAISED as error:
                call_soon(self._not_staged, name, explain(error))
                raise
            call_soon(self._staged, name, position)

        self._timeline.host.writer.later(stage)

    def _staged(self, name: str, position: int) -> None:
        """The output of a sink is durable up to `position`; newer output may not be."""
        sink = self._sinks[name]
        self._staged_from[name] = self._staged_from_min
        # At half the limit, so that the process is not stopped and started for every record.
        if sink.buffered_bytes <= self._bytes_max // 2:
            self.held_back.pop(name, None)
            self._timeline.pump_soon()
        elif name in self.held_back and sink.position > position and not self._timeline.closed:
            self._stage(name, sink)  # output of the rest of a frame
            return
        self._see_to_held_back()

    def _not_staged(self, name: str, problem: str) -> None:
        if name in self.held_back:
            self.held_back[name] = problem
        self._see_to_held_back()

    def _see_to_held_back(self) -> None:
        """Schedule a retry. The held process emits nothing, so no record would trigger it."""
        if self.held_back and self._stage_again is None and not self._timeline.closed:
            self._stage_again = asyncio.get_running_loop().call_later(STAGE_AGAIN_S, self._stage_held_back)

    def _stage_held_back(self) -> None:
        self._stage_again = None
        for name in self.held_back:
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
            if self._may_deliver() and not self._timeline.inbox:
                if name not in self._polled:
                    self._polled[name] = (source.poll(RECORDS_MAX), 0)
                    taken += not self._polled[name][0] and self._has_skipped(name, source)
                taken += self._deliver(name)
        if self._stopped:
            return
        loop, attempt = asyncio.get_running_loop(), self._timeline.attempt
        self._next = loop.call_soon(attempt, self._read) if taken else loop.call_later(IDLE_S, attempt, self._read)

    def _has_skipped(self, name: str, source: Source) -> bool:
        """Return whether the source has moved since its last empty poll; then it may have more records."""
        before, self._at_rest[name] = self._at_rest.get(name), source.position
        return self._at_rest[name] != before

    def _deliver(self, name: str) -> int:
        """Deliver polled records, as far as possible. In a cut, the rest does not count as read."""
        records, first = self._polled[name]
        step, place = self._timeline.application.records_at_once, first
        until_s = perf_counter() + SLICE_S
        while place < len(records) and self._may_deliver() and (place == first or perf_counter() < until_s):
            some = records[place : place + step]
            place += len(some)
            # They count as read from the end of their event on.
            self._polled[name] = (records, place)
            self._timeline.application.take(name, some)
        if place == len(records):
            del self._polled[name]
        return place - first

    def _may_deliver(self) -> bool:
        return self._timeline.may_deliver and not self._timeline.closed and not self._stopped

    async def prepare(self, positions: dict[str, int]) -> None:
        """Make the output up to a cut durable, before its snapshot may commit."""
        for name, sink in self._sinks.items():
            await self._timeline.host.writer.run(partial(call, sink, "prepare", positions[name]))
            self._staged(name, positions[name])

    def release(self, positions: dict[str, int]) -> None:
        """Release the output that a committed snapshot covers."""
        for name, sink in self._sinks.items():
            self._timeline.host.writer.later(partial(call, sink, "release", positions[name]))
