"""What every protocol shares at one process: its channels, its view, its recordings.

Views (E2). A view-install frame precedes the first message of that view on each channel. A process that installs a view
sends one on each of its outgoing channels; it is the last frame on a channel that ends. What still comes on a channel
that has ended is received as ever, to its announced end. A process that leaves first receives all that was sent to it,
runs its last event, then ends its own channels. `ReportDrained` tells the coordinator that the view is installed here
and that nothing is on the way any more on channels that ended; no snapshot of the new view begins before all have said
so.

Rollback (R1). A restored endpoint goes on from the frontiers of its fragment. The host hands it the recorded frames
first, before anything from the wire; until then they are channel state of every cut, as anything is that has not been
received.

Memory. An id that was recorded, finished or aborted is remembered, so that a late or duplicate marker never records
again. `SnapshotsSettled` bounds that: ids below its counter are forgotten and their markers ignored.
"""

from collections.abc import Mapping, Set
from typing import Self, assert_never

from strobe.errors import ProtocolViolation, UsageError
from strobe.protocol.channels import Incoming, Outgoing
from strobe.protocol.effects import (
    DeliverFrame,
    DropRecording,
    Effect,
    FinishFragment,
    PrepareDeparture,
    RecordState,
    ReportDrained,
    SendFrame,
    SendView,
)
from strobe.protocol.events import (
    Breakpoint,
    DepartureReady,
    Event,
    FrameReceived,
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
from strobe.protocol.fragment import Fragment
from strobe.protocol.frames import FIFO, Frontier, InFlight
from strobe.protocol.ids import SnapshotId
from strobe.protocol.view import View


class Recording:
    """A snapshot under way at this process: the frontiers at its cut, and what came on each channel since."""

    __slots__ = ("arrived", "expected", "frames", "pending", "received", "sent", "snapshot")

    def __init__(self, snapshot: SnapshotId, sent: dict[str, Frontier], received: dict[str, Frontier]) -> None:
        self.snapshot = snapshot
        self.sent = sent
        self.received = received
        # Channels whose state is not known to its end yet.
        self.pending = set(received)
        self.frames: dict[str, list[InFlight]] = {channel: [] for channel in received}
        # Lai-Yang only: messages of a lower index that have come so far, and how many the sender says there are.
        self.arrived = {channel: frontier.count for channel, frontier in received.items()}
        self.expected: dict[str, int] = {}


class Endpoint:
    """One process's side of a snapshot protocol: events in, effects out. Subclasses add the rules of one protocol."""

    name = ""

    def __init__(self, process: str, view: View, epoch: int = 1) -> None:
        self.process = process
        self.epoch = epoch
        self.view = view
        # The view that the peers were told in band; a process that leaves goes on sending in the last one it was part
        # of.
        self.announced = view.number
        self.outgoing = {spec.id: Outgoing(spec) for spec in view.outgoing(process)}
        self.incoming = {spec.id: Incoming(spec) for spec in view.incoming(process)}
        self.ending: dict[str, Incoming] = {}
        self.early: list[FrameReceived] = []
        # Whether this process leaves: it is to run its last event, or (`departed`) has run it.
        self.departing = False
        self.departed = False
        self.open: dict[SnapshotId, Recording] = {}
        self.closed: set[SnapshotId] = set()
        self.counter_floor = 0
        self.counter_seen = 0
        # The cut index that goes with every frame; it stays 0 where a protocol has none.
        self.index = 0

    @classmethod
    def restored(cls, process: str, view: View, epoch: int, fragment: Fragment, sent_counts: Mapping[str, int]) -> Self:
        """Return the endpoint of a process that a rollback has made what `fragment` says it was (R1).

        `view` has the channels of the snapshot's view; `sent_counts` says of each incoming channel how many messages
        its sender had sent, by the sender's own record.
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

    # The rules that make it this or that protocol

    def _receive_frame(self, event: FrameReceived) -> list[Effect]:
        raise NotImplementedError

    def _request(self, event: SnapshotRequested) -> list[Effect]:
        raise NotImplementedError

    def _receive_marker(self, event: MarkerReceived) -> list[Effect]:
        return []  # a protocol without markers

    def _relayed(self, event: SentCountRelayed) -> list[Effect]:
        return []  # a protocol without relayed counts

    def next_id(self) -> SnapshotId:
        """Return an id for a snapshot that this process initiates (C1)."""
        return SnapshotId(self.epoch, max(self.counter_seen + 1, self.counter_floor), self.process)

    # Frames

    def _send(self, event: MessagesSent) -> list[Effect]:
        frame = self.outgoing[event.channel].seal(event.count, event.body, self.index, self.announced)
        return [SendFrame(event.channel, frame)]

    def _is_early(self, event: FrameReceived) -> bool:
        """Hold back a frame of a view not installed here yet: an unordered channel may overtake the installation."""
        if event.frame.view <= self.view.number:
            return False
        incoming = self.incoming.get(event.channel)
        if incoming is not None and incoming.fifo:
            raise ProtocolViolation(self.process, event.channel, f"a frame of view {event.frame.view} came before it")
        self.early.append(event)
        return True

    def _accept(self, event: FrameReceived) -> list[Effect]:
        """Count a frame as received, and return what follows from that."""
        channel, frame, consumed = event.channel, event.frame, event.consumed
        incoming = self._known(channel)
        incoming.accept(frame, self.process, consumed)
        if incoming.drained and channel in self.ending:
            return [DeliverFrame(channel, frame, consumed), *self._drain(channel)]
        return [DeliverFrame(channel, frame, consumed)]

    def _known(self, channel: str) -> Incoming:
        incoming = self.incoming.get(channel) or self.ending.get(channel)
        if incoming is None:
            raise ProtocolViolation(self.process, channel, "a frame came on a channel that is not in the view")
        return incoming

    # Recordings

    def _is_settled(self, snapshot: SnapshotId) -> bool:
        """Tell whether `snapshot` needs nothing of this process any more; remember that it was seen."""
        if snapshot.counter > self.counter_seen:
            self.counter_seen = snapshot.counter
        return snapshot.epoch != self.epoch or snapshot.counter < self.counter_floor or snapshot in self.closed

    def _takes_part_in(self, view: int) -> bool:
        """Tell whether a snapshot of this view concerns this process: one that is leaving has no part in any more."""
        return view == self.view.number and self.process in self.view.processes

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
        """Hand the fragment over once every incoming channel is known to its end (C5)."""
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

    # Views

    def _install(self, view: View) -> list[Effect]:
        """Go over to `view`: drop what belongs to the old one, and tell every peer in band."""
        if view.number <= self.view.number:
            return self._report_again(view)
        effects = self._abort_all("view changed")
        leaving = self.process not in view.processes
        self.view = view
        ended, self.incoming = self.incoming, {}
        for spec in view.incoming(self.process):
            goes_on = spec.id in ended and ended[spec.id].spec == spec
            self.incoming[spec.id] = ended.pop(spec.id) if goes_on else Incoming(spec)
        self.ending.update(ended)
        effects += self._end_self_loops(view) if leaving else self._announce(view)
        if not self.ending:
            effects += self._drained()
        # Taken one after the other, and only then delivered: nothing is recorded between them, as no snapshot of this
        # view begins before everybody has installed it.
        early, self.early = self.early, []
        for event in early:
            effects += self._receive_frame(event)
        return effects

    def _end_self_loops(self, view: View) -> list[Effect]:
        """A process that leaves can wait for the end of a channel to itself only if it has ended it."""
        loops = [channel for channel, outgoing in self.outgoing.items() if outgoing.spec.target == self.process]
        return [SendView(channel, view, self.outgoing.pop(channel).count) for channel in loops]

    def _report_again(self, view: View) -> list[Effect]:
        """Answer a coordinator that came back and asks once more."""
        if view.number < self.view.number or self.ending or not (self.departed or self.process in self.view.processes):
            return []
        return [ReportDrained(self.view.number)]

    def _announce(self, view: View) -> list[Effect]:
        """Put the view on every channel that goes on, starts or ends with it."""
        self.announced = view.number
        ended, self.outgoing = self.outgoing, {}
        for spec in view.outgoing(self.process):
            goes_on = spec.id in ended and ended[spec.id].spec == spec
            self.outgoing[spec.id] = ended.pop(spec.id) if goes_on else Outgoing(spec)
        return [SendView(channel, view, out.count) for channel, out in (*ended.items(), *self.outgoing.items())]

    def _receive_view(self, event: ViewReceived) -> list[Effect]:
        self._check_view_frame(event)
        effects = self._install(event.view) if event.view.number > self.view.number else []
        incoming = self.ending.get(event.channel)
        # On an unordered channel the frame of an earlier view may come late: it is not the end of the channel.
        if incoming is not None and incoming.spec not in event.view.channels:
            incoming.ended_at = event.sent_count
            effects += self._drain(event.channel)
        return effects

    def _check_view_frame(self, event: ViewReceived) -> None:
        """On a FIFO channel, everything sent before the view must have come before it (M2)."""
        incoming = self.incoming.get(event.channel) or self.ending.get(event.channel)
        spec = next((spec for spec in event.view.channels if spec.id == event.channel), None)
        fifo = incoming.fifo if incoming is not None else spec is not None and spec.kind == FIFO
        came = incoming.count if incoming is not None and (spec is None or spec == incoming.spec) else 0
        if fifo and came != event.sent_count:
            problem = f"{event.sent_count} messages were sent before view {event.view.number}, {came} came"
            raise ProtocolViolation(self.process, event.channel, problem)

    def _drain(self, channel: str) -> list[Effect]:
        if not self.ending[channel].drained:
            return []
        del self.ending[channel]
        return self._drained() if not self.ending else []

    def _drained(self) -> list[Effect]:
        if self.process in self.view.processes:
            return [ReportDrained(self.view.number)]
        if self.departing:  # a later view has come; the last event is run once
            return [ReportDrained(self.view.number)] if self.departed else []
        self.departing = True
        return [PrepareDeparture()]

    def _depart(self) -> list[Effect]:
        """End every outgoing channel: the last event of this process is over."""
        self.departed = True
        outgoing, self.outgoing = self.outgoing, {}
        ends: list[Effect] = [SendView(channel, self.view, out.count) for channel, out in outgoing.items()]
        return [*ends, ReportDrained(self.view.number)]


def _require_same_channels(process: str, of_view: Set[str], of_fragment: Set[str]) -> None:
    for channel in sorted(of_view ^ of_fragment):
        lacking = "the snapshot" if channel in of_view else "the view"
        raise UsageError(
            f"{process} cannot be restored: {lacking} has no channel {channel!r}; restore onto the snapshot's own view"
        )
