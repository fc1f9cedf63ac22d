"""Chandy-Lamport (1985), for FIFO channels.

    C1  Any process may initiate; several may, also with the same id.
    C2  Recording: first the local state, then a marker on every outgoing channel, before any later message on it.
    C3  The first marker, on channel c: record at once; c is empty; every other incoming channel is recorded from now.
    C4  A later marker on channel d: the state of d is the messages that came on it since the local recording.
    C5  Locally complete when a marker has come on every incoming channel.
    C6  Any number of snapshots overlap; each has its own `Recording`, identified by the snapshot id.
    C7  A frame is delivered in the same step in which it is received, whatever is being recorded.

Why it works: on each channel, the marker is exactly behind the messages that its sender's recorded state accounts for.
Messages ahead of the marker were sent before the sender's cut, messages behind it after. A receiver records no later
than the first marker (C2, C3), so no message received before its cut was sent after the sender's. The messages between
the receiver's cut and the marker are those that were in flight (C4).
"""

from strobe.protocol.process.effects import Effect, SendMarker
from strobe.protocol.process.endpoint import Endpoint, Recording
from strobe.protocol.process.events import (
    Breakpoint,
    FrameReceived,
    Marker,
    MarkerReceived,
    SnapshotRequested,
)
from strobe.protocol.values.ids import SnapshotId


class ChandyLamport(Endpoint):
    """One process's part of the protocol: events in, effects out."""

    name = "chandy-lamport"

    def _receive_frame(self, event: FrameReceived) -> list[Effect]:
        if self._is_early(event):
            return []
        effects = self._accept(event)
        self._keep(event)
        return effects

    def _receive_marker(self, event: MarkerReceived) -> list[Effect]:
        channel, marker = event.channel, event.marker
        if not self._concerns(channel, marker):
            return []
        recording, effects = self._recorded(marker.snapshot)
        recording.pending.discard(channel)
        return effects + self._finish(recording)

    def _request(self, event: SnapshotRequested) -> list[Effect]:
        snapshot = event.snapshot
        if self._is_settled(snapshot) or snapshot in self.open or not self._takes_part_in(event.view):
            return []
        recording, effects = self._record(snapshot, event.breakpoint)
        return effects + self._finish(recording)

    def _recorded(self, snapshot: SnapshotId) -> tuple[Recording, list[Effect]]:
        """Return the recording of `snapshot`. On its first marker, begin it and return the effects of that (C3)."""
        recording = self.open.get(snapshot)
        return (recording, []) if recording is not None else self._record(snapshot, None)

    def _record(self, snapshot: SnapshotId, inside: Breakpoint | None) -> tuple[Recording, list[Effect]]:
        """Record the local state, then send the markers (C2)."""
        recording, record_state = self._begin(snapshot, inside)
        marker = Marker(self.epoch, self.view.number, snapshot)
        return recording, [record_state, *(SendMarker(channel, marker) for channel in self.outgoing)]
