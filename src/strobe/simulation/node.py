"""The simulated host of one process: runs its handlers, drives its protocol, carries out the effects.

Its crashes follow the fourth duty of a host. State and counters are kept together and survive, as on a node that logs
every event; recordings, captured states and finished fragments are lost. Crashes that lose the state are in
`restorable`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from strobe.declarations import declare
from strobe.errors import ProtocolViolation
from strobe.handlers import handler_finished
from strobe.process import Process, Random
from strobe.protocol import Fragment, Frame, LocalState, SnapshotId, View
from strobe.protocol.coordinator.messages import (
    AskToRecord,
    CoordinatorEffect,
    Dismiss,
    Drained,
    RelaySentCount,
    SentCountsArrived,
    SnapshotStarted,
    SnapshotWanted,
    TellOutcome,
    TellSettled,
    TellView,
)
from strobe.protocol.process.effects import (
    DeliverFrame,
    DropRecording,
    Effect,
    FinishFragment,
    HoldChannel,
    PrepareDeparture,
    RecordState,
    ReportDrained,
    ReportSentCounts,
    ResumeChannel,
    SendBarrier,
    SendFrame,
    SendMarker,
    SendView,
    SetAlignmentTimer,
)
from strobe.protocol.process.events import (
    AlignmentTimedOut,
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
from strobe.simulation.context import SimulatedContext
from strobe.simulation.journal import ChannelJournal
from strobe.simulation.queues import Item, Queues
from strobe.storage.content.state_codec import encode_state

if TYPE_CHECKING:
    from strobe.simulation.world import World


_OF_BARRIERS = (SendBarrier, HoldChannel, ResumeChannel, SetAlignmentTimer)
ALIGNMENT_US = 8_000
"""Maximum time for alignment before it becomes unaligned (V5)."""


class AppliedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that a process has taken, and the epoch in which its frame was sent."""

    channel: str
    incarnation: int
    ordinal: int
    epoch: int


class Node:
    """One process, its protocol, its timers."""

    def __init__(self, world: "World", name: str, process: Process, view: View, random: Random, epoch: int = 1) -> None:
        self.world = world
        self.name = name
        self.process = process
        self.epoch = self.taking_epoch = epoch
        self.protocol = world.protocol_class(name, view, epoch)
        # Barriers overtake queued messages, so only their protocols have queues.
        self.queues = Queues(self) if self.protocol.barriers else None
        self.transmit = world.transmit if self.queues is None else self.queues.transmit
        self.decode = world.system.decoder.decode
        self.context = SimulatedContext(self, random)
        self.position = 0
        self.timers: dict[str, tuple[int, int]] = {}
        self.timer_generation = 0
        self.captured: dict[SnapshotId, LocalState] = {}
        self.kept: dict[SnapshotId, Fragment] = {}
        self.down = False
        self.waiting = False
        # The number of this run of the program, for orders addressed to one run.
        self.instance = 0
        self.departed = False
        self.backlog: list[tuple[Any, Any, Any]] = []
        self.frames_taken = 0
        self.frames_delivered = 0
        # With rollbacks: every message that is applied in the current state of the process.
        self.applied: list[AppliedMessage] | None = None
        self.sent_journals: dict[str, ChannelJournal] = {}
        self.received_journals: dict[str, ChannelJournal] = {}
        self.view_changed()

    def view_changed(self) -> None:
        """Update the channels that the process sees, and open their journals."""
        protocol, journal = self.protocol, self.world.journals[self.epoch]
        self.context.changed = True
        self.context.inputs = tuple(protocol.incoming)
        self.context.outputs = tuple(protocol.outgoing)
        for outgoing in protocol.outgoing.values():
            self.sent_journals[outgoing.id] = journal.open(outgoing.spec)
        for incoming in (*protocol.incoming.values(), *protocol.ending.values()):
            self.received_journals[incoming.id] = journal.open(incoming.spec)

    # Inputs

    def take(self, channel: str, item: Item) -> None:
        """Take the next item from a channel."""
        if self.down:
            self.backlog.append((self.take, channel, item))
        elif self.queues is not None:
            self.queues.arrive(channel, item)
        elif type(item) is Frame:
            self.take_frame(FrameReceived(channel, item))
        else:
            self.dispatch(item)  # type: ignore[arg-type]

    def take_frame(self, event: FrameReceived) -> None:
        self.frames_taken += 1
        self.dispatch(event)
        if self.protocol.open and self.frames_delivered + len(self.protocol.early) != self.frames_taken:
            self.world.stalled(self.name)

    def dispatch(self, event: Event) -> None:
        try:
            effects = self.protocol.handle(event)
        except ProtocolViolation as violation:
            if isinstance(event, FrameReceived):
                self.frames_taken -= 1  # refused, not held back
            self.world.violated(self, violation)
        else:
            self.carry_out(effects)

    def apply(self, order: CoordinatorEffect) -> None:
        """Carry out an order of the coordinator; a crashed process does not receive it."""
        if self.waiting:
            self._join(order)
            return
        if self.down:
            return
        match order:
            case AskToRecord():
                kept = self.kept.get(order.snapshot)
                if kept is not None:
                    self.world.hand_over(self.name, kept)
                else:
                    self.dispatch(SnapshotRequested(order.snapshot, order.view))
            case RelaySentCount():
                self.dispatch(SentCountRelayed(order.snapshot, order.channel, order.count))
            case TellOutcome():
                self.kept.pop(order.snapshot, None)
                if not order.committed:
                    self.dispatch(SnapshotAborted(order.snapshot))
            case TellSettled():
                self.dispatch(SnapshotsSettled(order.counter))
                for snapshot in [known for known in self.kept if known.counter < order.counter]:
                    del self.kept[snapshot]
            case TellView():
                self.dispatch(ViewInstalled(order.view))
            case Dismiss():
                self.world.remove(self.name)

    def _join(self, order: CoordinatorEffect) -> None:
        """Start with the view that this process joins; items that arrived before are taken afterwards."""
        if isinstance(order, TellSettled):
            self.dispatch(SnapshotsSettled(order.counter))
        elif isinstance(order, TellView):
            self.down = self.waiting = False
            self.dispatch(ViewInstalled(order.view))
            self.run_event("start", lambda: self.process.start(self.context))
            self._take_backlog()

    # Outputs

    def carry_out(self, effects: list[Effect]) -> None:
        """Carry out the effects, in the order given."""
        for effect in effects:
            kind = type(effect)
            if kind is DeliverFrame:
                self._deliver(effect)  # type: ignore[arg-type]
            elif kind is SendFrame:
                self.transmit(effect.channel, effect.frame, self.epoch)  # type: ignore[union-attr]
            elif kind in _OF_BARRIERS:
                self._carry_out_barrier(effect)
            else:
                self._carry_out_rare(effect)

    def _carry_out_barrier(self, effect: Effect) -> None:
        queues = self.queues
        assert queues is not None
        match effect:
            case SendBarrier():
                queues.overtake(effect.channel, effect.marker)
            case HoldChannel():
                queues.hold(effect.channel)
                self.world.free_later(self, effect.snapshot)
            case ResumeChannel():
                queues.resume(effect.channel)
            case SetAlignmentTimer():
                self.world.schedule(self.world.now_us + ALIGNMENT_US, self._alignment_over, effect.snapshot, None)
            case _:
                raise AssertionError(f"{effect} is none of barriers")

    def _alignment_over(self, snapshot: SnapshotId, _: None) -> None:
        if self.down:
            self.backlog.append((self._alignment_over, snapshot, None))
        else:
            self.dispatch(AlignmentTimedOut(snapshot))

    def _carry_out_rare(self, effect: Effect) -> None:
        world = self.world
        match effect:
            case RecordState():
                self._record(effect.snapshot)
            case SendMarker():
                self.transmit(effect.channel, MarkerReceived(effect.channel, effect.marker), self.epoch)
            case SendView():
                self.view_changed()
                came = ViewReceived(effect.channel, effect.view, effect.sent_count)
                self.transmit(effect.channel, came, self.epoch)
            case FinishFragment():
                self._finish(effect.fragment)
            case DropRecording():
                self.captured.pop(effect.snapshot, None)
            case ReportSentCounts():
                world.tell_coordinator(self.name, SentCountsArrived(effect.snapshot, self.name, effect.counts))
            case ReportDrained():
                self.view_changed()
                world.tell_coordinator(self.name, Drained(self.name, effect.view))
            case PrepareDeparture():
                self._depart()
            case SendFrame() | DeliverFrame():
                raise AssertionError("carried out above")
            case SendBarrier() | HoldChannel() | ResumeChannel() | SetAlignmentTimer():
                raise AssertionError("carried out above, where there are barriers")

    def _record(self, snapshot: SnapshotId) -> None:
        self.captured[snapshot] = self.capture()
        self.world.recorded(self, snapshot)

    def capture(self) -> LocalState:
        """Return the whole local state: the process's own, its timers, its random generator and its declarations."""
        encoding, data = encode_state(self.name, self.process)
        now_us = self.world.now_us
        timers = tuple((name, max(0, due - now_us) / 1_000_000) for name, (due, _) in sorted(self.timers.items()))
        declared = declare(self.name, self.process, self.world.system.message_rules)
        return LocalState(self.position, encoding, data, timers, self.context.random.state, declared=declared)

    def _finish(self, fragment: Fragment) -> None:
        whole = msgspec.structs.replace(fragment, state=self.captured.pop(fragment.snapshot))
        self.kept[fragment.snapshot] = whole
        self.world.hand_over(self.name, whole)

    # Events

    def _deliver(self, effect: DeliverFrame) -> None:
        channel, frame, consumed = effect.channel, effect.frame, effect.consumed
        self.frames_delivered += 1
        receive: Callable[..., object] = self.process.receive
        context = self.context
        journal = self.received_journals[channel]
        received_at, applied = journal.received_at, self.applied
        ordinal, count = frame.first_ordinal + consumed, frame.count
        recorder = self.world.recorder
        messages = self.decode(frame.body)
        for place, message in enumerate(messages[consumed:] if consumed else messages, consumed + 1):
            self.position += 1
            received_at[ordinal - 1] = self.position
            if applied is not None:
                applied.append(AppliedMessage(channel, journal.spec.incarnation, ordinal, self.taking_epoch))
            if recorder is not None:
                recorder.received(self, channel, ordinal)
            if (returned := receive(context, channel, message)) is not None:
                handler_finished(self.process, "receive", returned)
            if context.outbox or context.requested:
                self._end_event(Breakpoint(channel, place) if place < count else None)
            ordinal += 1
        self.world.events += count - consumed

    def run_event(self, name: str, handler: Any) -> None:
        """Run a handler that no message caused."""
        self.position += 1
        self.world.events += 1
        if self.world.recorder is not None:
            self.world.recorder.internal(self, name)
        handler_finished(self.process, name, handler())
        self._end_event(None)

    def _end_event(self, inside: Breakpoint | None) -> None:
        """Send the messages of the event, then take the snapshots it requested."""
        context = self.context
        if context.outbox:
            outbox, context.outbox = context.outbox, {}
            for channel, payloads in outbox.items():
                self._send(channel, payloads)
        if context.requested:
            requested, context.requested = context.requested, []
            for snapshot in requested:
                self._initiate(snapshot, inside)

    def _send(self, channel: str, payloads: list[bytes]) -> None:
        journal = self.sent_journals[channel]
        recorder = self.world.recorder
        for payload in payloads:
            ordinal = journal.sent(self.position, payload)
            if recorder is not None:
                recorder.sent(self, channel, ordinal, payload)
        self.carry_out(self.protocol.handle(MessagesSent(channel, len(payloads), frame_body(payloads))))

    # Snapshots that this process initiates

    def name_snapshot(self, earlier: int) -> str:
        """Return the id of a snapshot that the current event requests, after `earlier` others."""
        if self.protocol.sequenced:
            return f"request-{self.name}-{self.position}-{earlier + 1}"
        first = self.protocol.next_id()
        return str(SnapshotId(first.epoch, first.counter + earlier, first.initiator))

    def _initiate(self, requested: str, inside: Breakpoint | None) -> None:
        if self.protocol.sequenced:
            self.world.tell_coordinator(self.name, SnapshotWanted((self.name,)))
            return
        snapshot = SnapshotId.parse(requested)
        view = self.protocol.view.number
        self.world.tell_coordinator(self.name, SnapshotStarted(snapshot, self.name, view))
        self.dispatch(SnapshotRequested(snapshot, view, inside))

    # Timers

    def set_timer(self, name: str, after_s: float) -> None:
        self.timer_generation += 1
        due = self.world.now_us + max(0, round(after_s * 1_000_000))
        self.timers[name] = (due, self.timer_generation)
        self.world.schedule(due, self._fire, name, self.timer_generation)

    def cancel_timer(self, name: str) -> None:
        self.timers.pop(name, None)

    def _fire(self, name: str, generation: int) -> None:
        if self.down:
            self.backlog.append((self._fire, name, generation))
            return
        pending = self.timers.get(name)
        if pending is None or pending[1] != generation or self.departed:
            return
        del self.timers[name]
        self.run_event(f"timer {name}", lambda: self.process.timer(self.context, name))

    # Faults and departure

    def crash(self) -> None:
        """Lose everything except state and counters."""
        self.down = True
        self.captured.clear()
        self.kept.clear()

    def restart(self) -> None:
        self.down = False
        self.dispatch(Restarted())
        self._take_backlog()

    def _take_backlog(self) -> None:
        backlog, self.backlog = self.backlog, []
        for action, first, second in backlog:
            action(first, second)

    def expire(self, snapshot: SnapshotId) -> None:
        """Free what is held for `snapshot`, if no outcome has come for too long (E7)."""
        self.kept.pop(snapshot, None)
        if self.protocol.is_under_way(snapshot) and not self.down:
            self.dispatch(SnapshotAborted(snapshot))

    def _depart(self) -> None:
        self.run_event("leave", lambda: self.process.leave(self.context))
        self.departed = True
        self.timers.clear()
        self.dispatch(DepartureReady())


def frame_body(payloads: list[bytes]) -> bytes:
    """Return the MessagePack array of already encoded messages."""
    count = len(payloads)
    if count == 1:
        return b"\x91" + payloads[0]
    if count < 16:
        return bytes((0x90 | count,)) + b"".join(payloads)
    return b"\xdd" + count.to_bytes(4, "big") + b"".join(payloads)
