"""The common base of all protocols at one process: its recordings, on top of its channels and view (`channel_ends`).

Rollback (R1). A restored endpoint continues from the frontiers of its fragment. The host passes it the recorded frames
first, before anything from the wire. Until they are received they are channel state of every cut, like any other
message in flight.

Memory. An id that was recorded, finished or aborted is remembered, so that a late or duplicate marker never records
again. `SnapshotsSettled` bounds that: ids below its counter are forgotten and their markers ignored.
"""

from collections.abc import Mapping, Set
from typing import Self, assert_never

from strobe.errors import ProtocolViolation, UsageError
from strobe.protocol.process.channel_ends import ChannelEnds
from strobe.protocol.process.effects import DropRecording, Effect, FinishFragment, RecordState
from strobe.protocol.process.events import (
    AlignmentTimedOut,
    BarrierArrived,
    Breakpoint,
    DepartureReady,
    Event,
    FrameReceived,
    Marker,
    MarkerReceived,
    MessagesSent,
    Restarted,
    SentCountRelayed,
    SnapshotAborted,
    SnapshotRequested,
    SnapshotsSettled,
    ViewInstalled,
    ViewReceived,
)
from strobe.protocol.values.bounds import COUNTER_AHEAD_MAX, IDS_MAX
from strobe.protocol.values.fragment import Fragment
from strobe.protocol.values.frames import Frame, Frontier, InFlight
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.view import View


class Recording:
    """A snapshot under way at this process: the frontiers at its cut, and the frames received on each channel since."""

    __slots__ = ("arrived", "expected", "frames", "pending", "received", "sent", "snapshot")

    def __init__(self, snapshot: SnapshotId, sent: dict[str, Frontier], received: dict[str, Frontier]) -> None:
        self.snapshot = snapshot
        self.sent = sent
        self.received = received
        # Channels whose state is not complete yet.
        self.pending = set(received)
        self.frames: dict[str, list[InFlight]] = {channel: [] for channel in received}
        # Lai-Yang only: messages of a lower index received so far, and their total number according to the sender.
        self.arrived = {channel: frontier.count for channel, frontier in received.items()}
        self.expected: dict[str, int] = {}


class Endpoint(ChannelEnds):
    """One process's side of a snapshot protocol: events in, effects out. Subclasses add the rules of one protocol.

    `sequenced`: the coordinator names every snapshot, and a process that wants one sends it a request. `barriers`: the
    protocol also controls the queues of the channels at either machine. `overtakes`: its barriers may overtake queued
    messages, and its host passes `BarrierArrived`.
    """

    name = ""
    sequenced = False
    barriers = False
    overtakes = False

    def __init__(self, process: str, view: View, epoch: int = 1) -> None:
        super().__init__(process, view)
        self.epoch = epoch
        self.open: dict[SnapshotId, Recording] = {}
        self.closed: set[SnapshotId] = set()
        self.counter_floor = 0
        self.counter_seen = 0

    @classmethod
    def restored(cls, process: str, view: View, epoch: int, fragment: Fragment, sent_counts: Mapping[str, int]) -> Self:
        """Return the endpoint of a process that a rollback has restored from `fragment` (R1).

        `view` has the channels of the snapshot's view. `sent_counts` has, for each incoming channel, the number of
        messages sent, from the sender's own record.
        """
        endpoint = cls(process, view, epoch)
        _require_same_channels(process, endpoint.outgoing.keys(), fragment.sent.keys())
        _require_same_channels(process, endpoint.incoming.keys(), fragment.received.keys())
        for channel, outgoing in endpoint.outgoing.items():
            outgoing.restore(fragment.sent[channel])
        for channel, incoming in endpoint.incoming.items():
            incoming.restore(fragment.received[channel], fragment.in_flight.get(channel, ()))
            if sent_counts.get(channel) != incoming.restored_to:
                raise UsageError(
                    f"channel {channel!r} cannot be restored at {process}: {sent_counts.get(channel)} messages were "
                    f"sent on it, {incoming.restored_to} were received or in flight; restore a snapshot that verifies"
                )
        return endpoint

    def handle(self, event: Event) -> list[Effect]:
        """Return the effects of `event`, in the order they must happen."""
        match event:
            case FrameReceived():
                return self._receive_frame(event)
            case MessagesSent():
                return self._send(event)
            case MarkerReceived():
                return self._receive_marker(event)
            case BarrierArrived():
                return self._barrier_arrived(event)
            case AlignmentTimedOut():
                return self._alignment_timed_out(event.snapshot)
            case SnapshotRequested():
                return self._request(event)
            case SentCountRelayed():
                return self._relayed(event)
            case SnapshotAborted():
                return self._abort(event.snapshot, "aborted")
            case SnapshotsSettled():
                return self._settle(event.counter)
            case ViewInstalled():
                return self._install(event.view)
            case ViewReceived():
                return self._receive_view(event)
            case DepartureReady():
                return self._depart()
            case Restarted():
                return self._abort_all("process restarted")
            case _:
                assert_never(event)

    def take_plain(self, channel: str, frame: Frame) -> bool:
        """Count a frame that `handle` would only count and deliver. Otherwise change nothing and return False.

        Most frames are like that, and this path is several times as fast; the host delivers the frame itself. `handle`
        is the reference: it may be called instead at any time.
        """
        # No recording is open, the frame starts none, and its view is installed here.
        if self.open or frame.index > self.index or frame.view > self.view.number:
            return False
        incoming = self.incoming.get(channel)
        return incoming is not None and incoming.take_next(frame)

    # The rules of a protocol

    def _request(self, event: SnapshotRequested) -> list[Effect]:
        raise NotImplementedError

    def _receive_marker(self, event: MarkerReceived) -> list[Effect]:
        return []  # a protocol without markers

    def _barrier_arrived(self, event: BarrierArrived) -> list[Effect]:
        return []  # a protocol whose barriers wait for their turn

    def _alignment_timed_out(self, snapshot: SnapshotId) -> list[Effect]:
        return []  # a protocol without an alignment timer

    def _relayed(self, event: SentCountRelayed) -> list[Effect]:
        return []  # a protocol without relayed counts

    def check_barrier(self, event: BarrierArrived) -> None:
        """Raise ProtocolViolation, with nothing changed, if `BarrierArrived` would break a rule."""

    def may_advance_to(self, index: int) -> bool:
        """Return whether a frame may carry this cut index, which is above our own."""
        return False  # a protocol without indices

    def next_id(self) -> SnapshotId:
        """Return an id for a snapshot that this process initiates (C1)."""
        return SnapshotId(self.epoch, max(self.counter_seen + 1, self.counter_floor), self.process)

    def name_snapshot(self, position: int, earlier: int) -> str:
        """Return the id of a snapshot that the event at `position` requests, after `earlier` others."""
        if self.sequenced:
            return f"request-{self.process}-{position}-{earlier + 1}"
        first = self.next_id()
        return str(SnapshotId(first.epoch, first.counter + earlier, first.initiator))

    def initiation(self, requested: str, inside: Breakpoint | None) -> SnapshotRequested | None:
        """Return the event that begins a requested snapshot here; None if the coordinator begins it."""
        if self.sequenced:
            return None
        return SnapshotRequested(SnapshotId.parse(requested), self.view.number, inside)

    # Recordings

    def is_under_way(self, snapshot: SnapshotId) -> bool:
        """Return whether this process holds anything for `snapshot`."""
        return snapshot in self.open

    def _is_settled(self, snapshot: SnapshotId) -> bool:
        """Return whether this process has nothing left to do for `snapshot`; remember that it was seen."""
        if not self._is_near(snapshot.counter) or (len(self.closed) >= IDS_MAX and snapshot not in self.open):
            return True  # no coordinator begins it, and our own ids must not follow it
        if snapshot.counter > self.counter_seen:
            self.counter_seen = snapshot.counter
        return snapshot.epoch != self.epoch or snapshot.counter < self.counter_floor or snapshot in self.closed

    def _is_near(self, counter: int) -> bool:
        """Return whether some process can have reached this counter by counting."""
        return counter <= max(self.counter_seen, self.counter_floor) + COUNTER_AHEAD_MAX

    def _takes_part_in(self, view: int) -> bool:
        """Return whether this process takes part in a snapshot of this view. A leaving process takes part in none."""
        return view == self.view.number and self.process in self.view.members

    def _concerns(self, channel: str, marker: Marker) -> bool:
        """Return whether a marker matters here; raise ProtocolViolation if it cannot have come."""
        if self._is_settled(marker.snapshot) or marker.view < self.view.number:
            return False
        if marker.view > self.view.number:
            raise ProtocolViolation(self.process, channel, f"a marker of view {marker.view} arrived before that view")
        if channel not in self.incoming:
            raise ProtocolViolation(self.process, channel, "a marker came on a channel that is not in the view")
        return True

    def _keep(self, event: FrameReceived) -> None:
        """Add a frame to each recording at whose cut it was in flight: those still without a marker on its channel."""
        for recording in self.open.values():
            if event.channel in recording.pending:
                recording.frames[event.channel].append(InFlight(event.frame, event.consumed))

    def _barrier(self, recording: Recording, channel: str) -> Marker:
        """Return the barrier of `recording` for `channel`, with the number of messages sent before the cut (V3-V5)."""
        return Marker(self.epoch, self.view.number, recording.snapshot, recording.sent[channel].count)

    def _begin(self, snapshot: SnapshotId, inside: Breakpoint | None) -> tuple[Recording, Effect]:
        """Fix the cut of `snapshot` here and now."""
        sent = {channel: outgoing.frontier() for channel, outgoing in self.outgoing.items()}
        received = {channel: incoming.frontier(inside) for channel, incoming in self.incoming.items()}
        recording = Recording(snapshot, sent, received)
        if inside is not None and inside.channel in recording.frames:
            last = self.incoming[inside.channel].last
            assert last is not None
            recording.frames[inside.channel].append(InFlight(last, inside.consumed))
        self.open[snapshot] = recording
        return recording, RecordState(snapshot)

    def _finish(self, recording: Recording) -> list[Effect]:
        """Return the fragment once the state of every incoming channel is complete (C5)."""
        if recording.pending:
            return []
        del self.open[recording.snapshot]
        self.closed.add(recording.snapshot)
        in_flight = {channel: tuple(frames) for channel, frames in recording.frames.items()}
        sent, received = recording.sent, recording.received
        return [FinishFragment(Fragment(recording.snapshot, self.process, self.view.number, sent, received, in_flight))]

    def _abort(self, snapshot: SnapshotId, reason: str) -> list[Effect]:
        if snapshot.epoch == self.epoch and snapshot.counter >= self.counter_floor:
            self.closed.add(snapshot)
        if self.open.pop(snapshot, None) is None:
            return []
        return [DropRecording(snapshot, reason)]

    def _abort_all(self, reason: str) -> list[Effect]:
        return [effect for snapshot in list(self.open) for effect in self._abort(snapshot, reason)]

    def _settle(self, counter: int) -> list[Effect]:
        effects = [
            effect
            for snapshot in list(self.open)
            if snapshot.counter < counter
            for effect in self._abort(snapshot, "settled elsewhere")
        ]
        self.counter_floor = max(self.counter_floor, counter)
        self.closed = {snapshot for snapshot in self.closed if snapshot.counter >= self.counter_floor}
        return effects


def _require_same_channels(process: str, of_view: Set[str], of_fragment: Set[str]) -> None:
    for channel in sorted(of_view ^ of_fragment):
        lacking = "the snapshot" if channel in of_view else "the view"
        raise UsageError(
            f"{process} cannot be restored: {lacking} has no channel {channel!r}; restore onto the snapshot's own view"
        )
