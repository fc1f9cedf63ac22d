"""Barrier alignment on a live node (V3-V5): held channels, and their timeouts.

A held channel gets no new credit, so the data queued here never exceeds its window.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from strobe.protocol import SnapshotId
from strobe.protocol.process.events import AlignmentTimedOut, BarrierArrived, SnapshotAborted

if TYPE_CHECKING:
    from strobe.runtime.node.timeline import Timeline


class Barriers:
    """The barrier alignment of one timeline."""

    def __init__(self, timeline: "Timeline") -> None:
        self._timeline = timeline
        self._timers: dict[SnapshotId, asyncio.TimerHandle] = {}
        self._patience: dict[SnapshotId, asyncio.TimerHandle] = {}

    def arrived(self, event: BarrierArrived) -> None:
        """Dispatch the arrival of a barrier as soon as the process is between two events.

        The barrier overtakes the frames queued now. Frames that it has overtaken at its sender may arrive before the
        dispatch.
        """
        self._timeline.run_between(partial(self._tell_arrived, event))

    def hold(self, channel: str, snapshot: SnapshotId) -> None:
        """Hold `channel` back: deliver no more of its items, including those already queued."""
        self._timeline.inbox.hold(channel)
        if snapshot not in self._patience:
            self._patience[snapshot] = self._later(self._timeline.host.settings.patience_s, self._give_up, snapshot)

    def resume(self, channel: str) -> None:
        """Resume delivery of `channel`."""
        self._timeline.inbox.resume(channel)
        self._timeline.pump_soon()

    def time(self, snapshot: SnapshotId) -> None:
        """Start the alignment timeout of `snapshot` (V5)."""
        self._timers[snapshot] = self._later(self._timeline.host.settings.alignment_s, self._time_out, snapshot)

    def close(self) -> None:
        for timer in (*self._timers.values(), *self._patience.values()):
            timer.cancel()

    def _tell_arrived(self, event: BarrierArrived) -> None:
        timeline = self._timeline
        begun = event.marker.snapshot in timeline.protocol.open
        timeline.dispatch(event)
        if begun:
            timeline.recordings.joined([*(item.frame for item in event.waiting), *event.overtaken])
        else:
            timeline.recordings.look()  # includes other channels whose barriers have arrived

    def _later(self, after_s: float, action: Callable[[SnapshotId], None], snapshot: SnapshotId) -> asyncio.TimerHandle:
        timeline = self._timeline
        between = partial(timeline.run_between, partial(action, snapshot))
        return asyncio.get_running_loop().call_later(after_s, timeline.attempt, between)

    def _time_out(self, snapshot: SnapshotId) -> None:
        del self._timers[snapshot]
        self._timeline.dispatch(AlignmentTimedOut(snapshot))
        self._timeline.recordings.look()

    def _give_up(self, snapshot: SnapshotId) -> None:
        """Time out without an outcome: the coordinator may never return, so release the held channels (E7)."""
        del self._patience[snapshot]
        if self._timeline.protocol.is_under_way(snapshot):
            self._timeline.dispatch(SnapshotAborted(snapshot))
