"""Barrier alignment on a live node (V3-V5): held channels, and their timeouts.

A held channel gets no new credit, so the data queued here never exceeds its window.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from strobe.protocol import Endpoint, SnapshotId
from strobe.protocol.process.events import AlignmentTimedOut, BarrierArrived, Event, SnapshotAborted
from strobe.runtime.node.recording_memory import Recordings
from strobe.runtime.node.scheduling import EventScheduler
from strobe.runtime.settings import NodeSettings


class Alignment:
    """The barrier alignment of one timeline. `dispatch` passes an event to the protocol."""

    def __init__(
        self,
        settings: NodeSettings,
        protocol: Endpoint,
        scheduler: EventScheduler,
        recordings: Recordings,
        dispatch: Callable[[Event], None],
    ) -> None:
        self._settings = settings
        self._protocol = protocol
        self._scheduler = scheduler
        self._recordings = recordings
        self._dispatch = dispatch
        self._timers: dict[SnapshotId, asyncio.TimerHandle] = {}
        self._outcome_timers: dict[SnapshotId, asyncio.TimerHandle] = {}

    def arrived(self, event: BarrierArrived) -> None:
        """Dispatch the arrival of a barrier as soon as the process is between two events.

        The barrier overtakes the frames queued now. Frames that it has overtaken at its sender may arrive before the
        dispatch.
        """
        self._scheduler.run_between(partial(self._dispatch_arrived, event))

    def hold(self, channel: str, snapshot: SnapshotId) -> None:
        """Hold `channel` back: deliver no more of its items, including those already queued."""
        self._scheduler.inbox.hold(channel)
        if snapshot not in self._outcome_timers:
            self._outcome_timers[snapshot] = self._later(self._settings.patience_s, self._give_up, snapshot)

    def resume(self, channel: str) -> None:
        """Resume delivery of `channel`."""
        self._scheduler.inbox.resume(channel)
        self._scheduler.pump_soon()

    def time(self, snapshot: SnapshotId) -> None:
        """Start the alignment timeout of `snapshot` (V5)."""
        self._timers[snapshot] = self._later(self._settings.alignment_s, self._time_out, snapshot)

    def close(self) -> None:
        for timer in (*self._timers.values(), *self._outcome_timers.values()):
            timer.cancel()

    def _dispatch_arrived(self, event: BarrierArrived) -> None:
        begun = event.marker.snapshot in self._protocol.open
        self._dispatch(event)
        if begun:
            self._recordings.joined([*(item.frame for item in event.waiting), *event.overtaken])
        else:
            self._recordings.look()  # includes other channels whose barriers have arrived

    def _later(self, after_s: float, action: Callable[[SnapshotId], None], snapshot: SnapshotId) -> asyncio.TimerHandle:
        between = partial(self._scheduler.run_between, partial(action, snapshot))
        return asyncio.get_running_loop().call_later(after_s, self._scheduler.attempt, between)

    def _time_out(self, snapshot: SnapshotId) -> None:
        del self._timers[snapshot]
        self._dispatch(AlignmentTimedOut(snapshot))
        self._recordings.look()

    def _give_up(self, snapshot: SnapshotId) -> None:
        """Time out without an outcome: the coordinator may never return, so release the held channels (E7)."""
        del self._outcome_timers[snapshot]
        if self._protocol.is_under_way(snapshot):
            self._dispatch(SnapshotAborted(snapshot))
