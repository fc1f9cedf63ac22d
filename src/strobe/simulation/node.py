"""The simulated host of one process: runs its handlers, drives its protocol, carries out the effects.

Its crashes follow the fourth duty of a host. State and counters are kept together and survive, as on a node that logs
every event; recordings, captured states and finished fragments are lost. Crashes that lose the state are in
`restorable`.
"""

from _thread import get_ident
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from strobe.declarations import declare
from strobe.encodable import frame_body
from strobe.errors import ProtocolViolation
from strobe.handlers import handler_finished
from strobe.process import Process, Random, takes_batches
from strobe.protocol import Fragment, Frame, LocalState, SnapshotId, View
from strobe.protocol.coordinator.messages import (
    CoordinatorEffect,
    CoordinatorEvent,
    Dismiss,
    Drained,
    InstallView,
    RelaySentCount,
    ReportOutcome,
    ReportSettled,
    RequestRecording,
    SentCountsArrived,
    SnapshotStarted,
    SnapshotWanted,
)
from strobe.protocol.process.effects import (
    DeliverFrame,
    DropRecording,
    Effect,
    FinishFragment,
    PrepareDeparture,
    RecordState,
    ReportDrained,
    ReportSentCounts,
    SendFrame,
    SendMarker,
    SendView,
)
from strobe.protocol.process.events import (
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
from strobe.simulation.channel_queues import BARRIER_EFFECTS, ChannelQueues, Item
from strobe.simulation.context import SimulatedContext
from strobe.simulation.journal import AppliedMessage, ChannelJournal
from strobe.simulation.node_world import NodeWorld
from strobe.simulation.timers import Timers
from strobe.storage.content.state_codec import captured_state
from strobe.user_code import RAISED, calling, raise_failure


class Node:
    """One process, its protocol, its timers."""

    def __init__(
        self, world: NodeWorld, name: str, process: Process, view: View, random: Random, epoch: int = 1
    ) -> None:
        self.world = world
        self.network = world.network
        self.scheduler = world.network.scheduler
        self.name = name
        self.process = process
        self.epoch = self.taking_epoch = epoch
        self.protocol = world.protocol_class(name, view, epoch)
        # Barriers overtake queued messages, so only their protocols have queues.
        self.queues = ChannelQueues(self, world.transmit) if self.protocol.barriers else None
        self.transmit = world.transmit if self.queues is None else self.queues.transmit
        self.context = SimulatedContext(self, random)
        self.position = 0
        self.timers = Timers(self.scheduler, self._timer_due)
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
            case RequestRecording():
                kept = self.kept.get(order.snapshot)
                if kept is not None:
                    self.report(kept)
                else:
                    self.dispatch(SnapshotRequested(order.snapshot, order.view))
            case RelaySentCount():
                self.dispatch(SentCountRelayed(order.snapshot, order.channel, order.count))
            case ReportOutcome():
                self.kept.pop(order.snapshot, None)
                if not order.committed:
                    self.dispatch(SnapshotAborted(order.snapshot))
            case ReportSettled():
                self.dispatch(SnapshotsSettled(order.counter))
                for snapshot in [known for known in self.kept if known.counter < order.counter]:
                    del self.kept[snapshot]
            case InstallView():
                self.dispatch(ViewInstalled(order.view))
            case Dismiss():
                self.world.remove(self.name)

    def _join(self, order: CoordinatorEffect) -> None:
        """Start with the view that this process joins; items that arrived before are taken afterwards."""
        if isinstance(order, ReportSettled):
            self.dispatch(SnapshotsSettled(order.counter))
        elif isinstance(order, InstallView):
            self.down = self.waiting = False
            self.dispatch(ViewInstalled(order.view))
            self.run_event("start", lambda: self.process.start(self.context))
            self._take_backlog()

    # Outputs

    def report(self, item: CoordinatorEvent | Fragment) -> None:
        """Send an event or a fragment to the coordinator."""
        self.network.control_up(self.name, item)

    def carry_out(self, effects: list[Effect]) -> None:
        """Carry out the effects, in the order given."""
        for effect in effects:
            kind = type(effect)
            if kind is DeliverFrame:
                self._deliver(effect)  # type: ignore[arg-type]
            elif kind is SendFrame:
                self.transmit(effect.channel, effect.frame, self.epoch)  # type: ignore[union-attr]
            elif kind in BARRIER_EFFECTS:
                assert self.queues is not None
                self.queues.carry_out(effect)
            else:
                self._carry_out_rare(effect)

    def _carry_out_rare(self, effect: Effect) -> None:
        match effect:
            case RecordState():
                self._record(effect.snapshot)
            case SendMarker():
                self.transmit(effect.channel, MarkerReceived(effect.channel, effect.marker), self.epoch)
            case SendView():
                self.view_changed()
                self.transmit(effect.channel, ViewReceived(effect.channel, effect.view, effect.sent_count), self.epoch)
            case FinishFragment():
                self._finish(effect.fragment)
            case DropRecording():
                self.captured.pop(effect.snapshot, None)
            case ReportSentCounts():
                self.report(SentCountsArrived(effect.snapshot, self.name, effect.counts))
            case ReportDrained():
                self.view_changed()
                self.report(Drained(self.name, effect.view))
            case PrepareDeparture():
                self._depart()
            case _:
                raise AssertionError(f"{effect} is carried out above")

    def _record(self, snapshot: SnapshotId) -> None:
        self.captured[snapshot] = self.capture()
        self.world.recorded(self, snapshot)

    def capture(self) -> LocalState:
        """Return the whole local state: the process's own, its timers, its random generator and its declarations."""
        with calling(f"process {self.name!r} failed in capture(), after {self.position} events"):
            return captured_state(
                self.name,
                self.process.capture(),
                self.position,
                timers=self.timers.remaining(),
                random=self.context.random.state,
                declared=declare(self.name, self.process, self.world.system.message_rules),
            )

    def _finish(self, fragment: Fragment) -> None:
        whole = msgspec.structs.replace(fragment, state=self.captured.pop(fragment.snapshot))
        self.kept[fragment.snapshot] = whole
        self.report(whole)

    # Events

    def _deliver(self, effect: DeliverFrame) -> None:
        channel, frame, consumed = effect.channel, effect.frame, effect.consumed
        self.frames_delivered += 1
        if takes_batches(self.process):
            self._deliver_batch(channel, frame, consumed)
            return
        receive: Callable[..., object] = self.process.receive
        context = self.context
        journal = self.received_journals[channel]
        received_at, applied = journal.received_at, self.applied
        ordinal, count = frame.first_ordinal + consumed, frame.count
        recorder = self.world.recorder
        messages = self._decode(channel, frame)
        thread = get_ident()
        for place, message in enumerate(messages[consumed:] if consumed else messages, consumed + 1):
            self.position += 1
            received_at[ordinal - 1] = self.position
            if applied is not None:
                applied.append(AppliedMessage(channel, journal.spec.incarnation, ordinal, self.taking_epoch))
            if recorder is not None:
                recorder.received(self, channel, ordinal)
            context.thread = thread
            try:
                if (returned := receive(context, channel, message)) is not None:
                    handler_finished(self.process, "receive", returned)
            except RAISED as error:
                self._failed(f"receive, message {ordinal} on {channel}", error)
            context.thread = None
            if context.outbox or context.requested:
                self._end_event(Breakpoint(channel, place) if place < count else None)
            ordinal += 1
        self.world.events += count - consumed

    def _deliver_batch(self, channel: str, frame: Frame, consumed: int) -> None:
        """Deliver the messages of `frame` in one event, except those received before the cut."""
        messages = self._decode(channel, frame)[consumed:]
        self.position += 1
        self.world.events += 1
        journal, recorder = self.received_journals[channel], self.world.recorder
        ordinals = frame.ordinals[consumed:]
        for ordinal in ordinals:
            journal.received_at[ordinal - 1] = self.position
            if self.applied is not None:
                self.applied.append(AppliedMessage(channel, journal.spec.incarnation, ordinal, self.taking_epoch))
            if recorder is not None:
                recorder.received(self, channel, ordinal)
        place = f"receive_many, messages {ordinals[0]} to {ordinals[-1]} on {channel}"
        self._run_handler(place, "receive_many", lambda: self.process.receive_many(self.context, channel, messages))

    def _decode(self, channel: str, frame: Frame) -> list[Any]:
        try:
            return self.world.system.decoder.decode(frame.body)
        except RAISED as error:
            sender = self.received_journals[channel].spec.source
            raise_failure(
                f"process {self.name!r} cannot decode a message on {channel} as one of its `messages`; "
                f"find where process {sender!r} sends it",
                error,
            )

    def _failed(self, event: str, error: BaseException) -> NoReturn:
        raise_failure(f"process {self.name!r} failed in event {self.position} ({event})", error)

    def run_event(self, name: str, handler: Callable[[], object]) -> None:
        """Run an event that no message caused; `name` begins with the name of its method."""
        self.position += 1
        self.world.events += 1
        if self.world.recorder is not None:
            self.world.recorder.internal(self, name)
        self._run_handler(name, name.partition(" ")[0], handler)

    def _run_handler(self, event: str, method: str, handler: Callable[[], object]) -> None:
        """Run a handler whose event has been counted and noted."""
        self.context.thread = get_ident()
        try:
            handler_finished(self.process, method, handler())
        except RAISED as error:
            self._failed(event, error)
        self.context.thread = None
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

    def _initiate(self, requested: str, inside: Breakpoint | None) -> None:
        event = self.protocol.initiation(requested, inside)
        if event is None:
            self.report(SnapshotWanted((self.name,)))
            return
        self.report(SnapshotStarted(event.snapshot, self.name, event.view))
        self.dispatch(event)

    def _timer_due(self, name: str, generation: int) -> None:
        if self.down:
            self.backlog.append((self._timer_due, name, generation))
        elif not self.departed and self.timers.expire(name, generation):
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
