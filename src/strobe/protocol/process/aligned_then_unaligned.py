"""Aligned barriers that turn unaligned when alignment takes longer than a set time (V5).

    T1  The timer starts when the first barrier of a snapshot reaches the machine, or when a source records.
    T2  On time-out, if the process has not recorded: it records now, with barriers that overtake (U1). An input whose
        barrier has had its turn is empty, and resumes. If the barrier of another input has reached the machine, the
        state of that input is what waited ahead of the barrier. If it has not, the input is recorded until the barrier
        reaches the machine (C4, U2).
    T3  On time-out, if the process has recorded: its barriers may still wait behind messages at this machine, so it
        sends them again, ahead of those. A receiver that has already had them in turn ignores the copies.
    T4  A barrier that overtakes turns its receiver unaligned at once.

Why it works: an input whose barrier has had its turn is empty at this moment, as under A3; the others are as under U2.
Inputs are held back no longer than the set time, whatever else happens.
"""

from typing import Any

from strobe.protocol.process.aligned import Aligned
from strobe.protocol.process.effects import Effect, SendBarrier, SetAlignmentTimer
from strobe.protocol.process.events import BarrierArrived, FrameReceived, Marker, MarkerReceived
from strobe.protocol.process.unaligned import joined
from strobe.protocol.values.ids import SnapshotId


class AlignedThenUnaligned(Aligned):
    """One process's part of the protocol: events in, effects out."""

    name = "aligned-then-unaligned"
    overtakes = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # Barriers that have reached the machine and have not had their turn.
        self.arrived: dict[SnapshotId, dict[str, BarrierArrived]] = {}
        # The barriers of aligned recordings whose timer still runs: they may still wait behind messages (T3).
        self.following: dict[SnapshotId, list[SendBarrier]] = {}
        self.timed: set[SnapshotId] = set()

    def _receive_frame(self, event: FrameReceived) -> list[Effect]:
        effects = super()._receive_frame(event)
        self._keep(event)
        return effects

    def check_barrier(self, event: BarrierArrived) -> None:
        snapshot, channel = event.marker.snapshot, event.channel
        recording = self.open.get(snapshot)
        if not self._concerns(channel, event.marker) or channel in self.aligning.get(snapshot, ()):
            return
        if recording is None or channel in recording.pending:
            joined(event, self.incoming[channel], self.process)

    def _barrier_arrived(self, event: BarrierArrived) -> list[Effect]:
        snapshot = event.marker.snapshot
        if not self._concerns(event.channel, event.marker) or event.channel in self.aligning.get(snapshot, ()):
            return []
        self.arrived.setdefault(snapshot, {})[event.channel] = event
        if snapshot in self.open:
            return self._close(snapshot)
        return self._turn(snapshot) if event.overtakes else self._time(snapshot)

    def _receive_marker(self, event: MarkerReceived) -> list[Effect]:
        snapshot = event.marker.snapshot
        self.arrived.get(snapshot, {}).pop(event.channel, None)
        if snapshot not in self.open:
            return super()._receive_marker(event)
        recording = self.open[snapshot]
        recording.pending.discard(event.channel)
        return self._finish(recording)

    def _align(self, snapshot: SnapshotId) -> list[Effect]:
        effects = super()._align(snapshot)
        self.arrived.pop(snapshot, None)
        self.following[snapshot] = [
            SendBarrier(channel, Marker(self.epoch, self.view.number, snapshot, outgoing.count))
            for channel, outgoing in self.outgoing.items()
        ]
        return effects + self._time(snapshot)

    def _time(self, snapshot: SnapshotId) -> list[Effect]:
        if snapshot in self.timed:
            return []
        self.timed.add(snapshot)
        return [SetAlignmentTimer(snapshot)]

    def _alignment_timed_out(self, snapshot: SnapshotId) -> list[Effect]:
        self.timed.discard(snapshot)
        if snapshot in self.following:
            return [barrier for barrier in self.following.pop(snapshot) if barrier.channel in self.outgoing]
        return self._turn(snapshot) if snapshot in self.aligning or snapshot in self.arrived else []

    def _turn(self, snapshot: SnapshotId) -> list[Effect]:
        """Record now, ahead of all waiting messages (T2)."""
        recording, record_state = self._begin(snapshot, None)
        recording.pending -= self.aligning.get(snapshot, set())
        self.newest = max(snapshot, self.newest or snapshot)
        barriers = [SendBarrier(channel, self._barrier(recording, channel)) for channel in self.outgoing]
        return [record_state, *barriers, *self._release(snapshot), *self._close(snapshot)]

    def _close(self, snapshot: SnapshotId) -> list[Effect]:
        """Take the state of each channel whose barrier has reached the machine from the queues (U2)."""
        recording = self.open[snapshot]
        for channel, event in self.arrived.pop(snapshot, {}).items():
            if channel in recording.pending:
                recording.frames[channel] += joined(event, self.incoming[channel], self.process)
                recording.pending.discard(channel)
        return self._finish(recording)

    def _abort(self, snapshot: SnapshotId, reason: str) -> list[Effect]:
        self.arrived.pop(snapshot, None)
        self.following.pop(snapshot, None)
        return super()._abort(snapshot, reason)

    def _abort_all(self, reason: str) -> list[Effect]:
        self.arrived.clear()
        self.following.clear()
        return super()._abort_all(reason)

    def _settle(self, counter: int) -> list[Effect]:
        for kept in (self.arrived, self.following):
            for snapshot in [known for known in kept if known.counter < counter]:
                del kept[snapshot]
        return super()._settle(counter)
