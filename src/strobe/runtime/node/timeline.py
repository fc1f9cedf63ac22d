"""One process in one epoch: its protocol, its channels, and what waits to be received.

A rollback ends the timeline and begins another; whatever still holds on to the old one speaks to the deaf. Everything
that happens to the process goes through here one at a time: frames and markers from each channel in their order, then
timers and records from outside. What cannot be taken yet, because a peer of the process is slow or the program is busy,
waits in the inbox, in order, and is still in its channel.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from strobe.errors import ProtocolViolation
from strobe.event_bound import EventBound
from strobe.protocol import ChannelSpec, Frame, SnapshotId, View
from strobe.protocol.coordinator.messages import (
    Drained,
    SnapshotStarted,
    SnapshotWanted,
)
from strobe.protocol.process.effects import DeliverFrame
from strobe.protocol.process.events import (
    BarrierArrived,
    Breakpoint,
    Event,
    FrameReceived,
    Marker,
    MarkerReceived,
    SnapshotRequested,
    ViewReceived,
)
from strobe.protocol.values.view import upstream_of
from strobe.runtime.links.codec import BrokenRule, Hello, Refusal
from strobe.runtime.links.incoming_link import IncomingLink
from strobe.runtime.links.outgoing_link import OutgoingLink
from strobe.runtime.node.alignment import Barriers
from strobe.runtime.node.busy_poll import BusyPoller
from strobe.runtime.node.captures import Captures
from strobe.runtime.node.coordinator_orders import apply_order
from strobe.runtime.node.effects import Effects
from strobe.runtime.node.external_io import Boundary
from strobe.runtime.node.frame_checks import Arrivals
from strobe.runtime.node.inbox import Inbox, QueuedItem
from strobe.runtime.node.outbox import Outbox
from strobe.runtime.node.recording_memory import Recordings
from strobe.runtime.recovery.fragment_loader import Restored, becoming, new_endpoint
from strobe.user_code import RAISED

if TYPE_CHECKING:
    from strobe.runtime.node.host import Host

logger = logging.getLogger("strobe.node")

SLICE = 64
"""So many waiting things are taken in one turn of the loop, so that it goes on turning."""
SLICE_S = 0.005
"""Nor more than take so long: markers, orders and snapshots that are being written wait for the next turn."""
TURN_S = 0.05
"""Frames are delivered as they are read for so long; then the loop turns, before anything more is read."""
STORING_TURN_S = 0.002
"""The same while a part of a snapshot is kept for its outcome: to store it takes several turns."""
BURST = 8
"""Where barriers overtake, so many frames are taken as they are read; what was read with them waits for its turn."""


class Timeline:
    """Events in, effects out, for one process in one epoch."""

    def __init__(self, host: "Host", epoch: int, view: View, restored: Restored | None) -> None:
        self.host = host
        self.name = host.name
        self.system = host.system
        self.epoch = epoch
        self.closed = False
        self.application = host.application
        self.protocol = new_endpoint(host.protocol, host.name, view, epoch, restored)
        # One that joins has no channels yet: the view that it joins with is the next.
        self.tracer = host.open_tracer(epoch, restored, 0 if view.processes else view.number + 1)
        self.arrivals = Arrivals(self.protocol)
        self.effects = Effects(self)
        self.busy_poller = BusyPoller(host.settings.spin_s)
        self.bound = EventBound(host.name, host.settings.event_bytes_max, self.application.event)
        self.outbox = Outbox(host.name, self.protocol, host.settings, self.bound)
        self.boundary = Boundary(self, host.sources, host.sinks, restored)
        self.captures = Captures(self, restored)
        self.recordings = Recordings(self)
        if self.tracer is not None:
            self.outbox.counted, self.outbox.on_seal = self.application, self.tracer.sent
        self.incoming_links: dict[tuple[str, int], IncomingLink] = {}
        self._targets: dict[str, str] = {}
        self.inbox = Inbox()
        self.barriers = Barriers(self)
        self._held = self.inbox.held
        self._orders: deque[Callable[[], None]] = deque()
        self._pumping = False
        self._unpacked: tuple[Frame, list[Any]] | None = None
        self._may_pause = False
        # When the first frame was delivered in this turn of the loop.
        self._turn_began_s: float | None = None
        self._loop = asyncio.get_running_loop()
        if self.protocol.overtakes:
            self._burst = 0
            self.take_frame = self._take_of_burst  # type: ignore[method-assign]
        self.open_channels()
        for channel, items in (restored.fragment.in_flight if restored else {}).items():
            for item in items:
                self._wait(
                    QueuedItem(
                        True, self._receiver(channel, item.frame, item.consumed), channel, item.frame, item.consumed
                    )
                )

    def live(self, restored: Restored | None) -> None:
        """Let the process begin here: from its beginning, or as it was restored."""
        if restored is not None:
            with becoming(restored.snapshot, self.name):
                self.application.begin(self, restored.local, restored.state)
        else:
            self.application.begin(self, None, None)
        self.boundary.start()
        self.pump()
        self.report()

    def report(self) -> None:
        """Tell the coordinator that the process is there, in its view."""
        self.host.send(Drained(self.name, self.protocol.view.number))

    def close(self) -> None:
        """End: nothing that began here happens any more."""
        self.closed = True
        self.inbox.clear()
        self.application.end()
        self.outbox.close()
        self.busy_poller.close()
        self.boundary.close()
        self.captures.close()
        self.recordings.close()
        self.barriers.close()
        for incoming_link in self.incoming_links.values():
            incoming_link.close()
        if self.tracer is not None:
            self.tracer.close()

    # Channels

    def admit(self, hello: Hello) -> IncomingLink | Refusal:
        """Let a peer in that has a channel to this process in this epoch."""
        incoming = self.protocol.incoming.get(hello.channel) or self.protocol.ending.get(hello.channel)
        key = (hello.channel, hello.incarnation)
        if incoming is None and key in self.incoming_links:
            return self.incoming_links[key]  # it has ended, and its source does not know that all has come
        if incoming is None or incoming.spec.incarnation < hello.incarnation:
            return Refusal("not in view yet", final=False)
        if incoming.spec.incarnation > hello.incarnation or incoming.spec.source != hello.source:
            return Refusal("unknown channel", final=True)
        if key not in self.incoming_links:
            self.incoming_links[key] = IncomingLink(hello.channel, self.host.settings, incoming.restored_to + 1)
        return self.incoming_links[key]

    def reach_peers(self) -> None:
        """Peers may have new addresses.

        Who is not in the book is reached where it was: a coordinator that was started again knows only who has come
        back to it, and what goes over the links is none of its business (C7, E7).
        """
        for channel, outgoing_link in self.outbox.outgoing_links.items():
            address = self.host.addresses.get(self._targets[channel])
            if address is not None:
                outgoing_link.reach(address)

    def open_channels(self) -> None:
        """Open links for channels that the view has and this timeline has not."""
        for outgoing in self.protocol.outgoing.values():
            if outgoing.id not in self.outbox.outgoing_links:
                # Kept when the view has the channel no more: what was sent on it must still arrive.
                self._targets[outgoing.id] = outgoing.spec.target
                self.outbox.add(outgoing.id, self._open_outlet(outgoing.spec))
        # Who sends to this process, if only through others, is not held back sooner than the settings say.
        upstream = upstream_of(self.protocol.view, self.name)
        for channel, outgoing_link in self.outbox.outgoing_links.items():
            outgoing_link.keep_pace(self._targets[channel] not in upstream)
        inputs, outputs = tuple(self.protocol.incoming), tuple(self.protocol.outgoing)
        self.application.view_changed(inputs, outputs)
        if self.tracer is not None:
            incoming = (*self.protocol.incoming.values(), *self.protocol.ending.values())
            specs = [*(end.spec for end in incoming), *(end.spec for end in self.protocol.outgoing.values())]
            self.tracer.see(self.protocol.view.processes, specs, inputs, outputs, self.application.random_state)
        self.reach_peers()

    def end_channel(self, channel: str) -> None:
        """An outgoing channel has ended, and all was sent on it."""
        self.outbox.finish(channel, self._targets[channel])
        self.pump_soon()  # it may have been the one that had no room

    def _open_outlet(self, spec: ChannelSpec) -> OutgoingLink:
        hello = Hello(
            system=self.system, epoch=self.epoch, source=self.name, channel=spec.id, incarnation=spec.incarnation
        )
        return OutgoingLink(hello, self.host.settings, lambda: self._has_room(spec.id), self._refused)

    def _has_room(self, channel: str) -> None:
        self.outbox.has_room(channel)
        self.pump_soon()

    def _refused(self, channel: str, reason: str) -> None:
        logger.warning("channel %s was refused: %s", channel, reason)

    # What comes in

    @property
    def may_deliver(self) -> bool:
        """Whether the process may be given a message, a record or a timer now."""
        return self.application.ready and not self.outbox.full and not self.boundary.held_back

    def take_frame(self, incoming_link: IncomingLink, frame: Frame, wire_bytes: int) -> None:
        """Take a frame from the wire: at once if nothing waits. Garbage: raise FrameRejected, with nothing changed."""
        messages = self._arrive(incoming_link, frame)
        if self.inbox or not self.may_deliver or incoming_link.channel in self._held or self._turn_is_over():
            self._let_wait(incoming_link, frame, wire_bytes, messages)
        elif not self.closed:
            self.outbox.flush_follows = True  # by `Host.taken`
            self._receive(incoming_link.channel, frame, 0, messages)
            incoming_link.consumed(wire_bytes)

    def _arrive(self, incoming_link: IncomingLink, frame: Frame) -> list[Any]:
        """Count a frame as come, and return its messages; raise FrameRejected where it cannot be right."""
        protocol = self.protocol
        if (
            frame.first_ordinal != incoming_link.next_ordinal
            or frame.view > protocol.view.number
            or frame.index > protocol.index
        ):
            self.arrivals.check_messages(incoming_link, frame)
        try:
            messages = self.application.unpack(incoming_link.channel, frame)
        except ProtocolViolation as violation:
            raise BrokenRule(self._wrong_message(incoming_link.channel, violation)) from violation
        incoming_link.next_ordinal += frame.count
        return messages

    def _wrong_message(self, channel: str, violation: ProtocolViolation) -> ProtocolViolation:
        """Return what a message is told by that the process does not take: its sender is at fault, and not who ends."""
        incoming = self.protocol.incoming.get(channel) or self.protocol.ending.get(channel)
        source = incoming.spec.source if incoming is not None else "its source"
        problem = f"a message from {source} is none of `messages`: {violation.__cause__}; find where {source} sends it"
        return ProtocolViolation(self.name, channel, problem)

    def _let_wait(self, incoming_link: IncomingLink, frame: Frame, wire_bytes: int, messages: list[Any]) -> None:
        # What is taken soon is not unpacked twice; of what waits for long, the bytes are enough to keep.
        kept = messages if len(self.inbox) < SLICE else None
        receive = self._receiver(incoming_link.channel, frame, 0, incoming_link, wire_bytes, kept)
        self._wait(QueuedItem(True, receive, incoming_link.channel, frame))
        self.pump_soon()

    def _turn_is_over(self) -> bool:
        """Tell whether handlers have run for so long that the loop has to turn before they go on."""
        if self._turn_began_s is not None:
            return perf_counter() - self._turn_began_s > (STORING_TURN_S if self.captures.open else TURN_S)
        self._turn_began_s = perf_counter()
        self._loop.call_soon(self._end_turn)
        return False

    def _end_turn(self) -> None:
        self._turn_began_s = None

    def _take_of_burst(self, incoming_link: IncomingLink, frame: Frame, wire_bytes: int) -> None:
        """Take a frame where barriers overtake: of all that was read at once, the first ones in any case.

        The others wait, and what else has come is read first: a barrier can overtake them here, and not in the kernel.
        """
        if not self.outbox.flush_follows:  # the first since `taken`
            self._burst = 0
        self._burst += 1
        if self._burst <= BURST:
            Timeline.take_frame(self, incoming_link, frame, wire_bytes)
            return
        self._let_wait(incoming_link, frame, wire_bytes, self._arrive(incoming_link, frame))

    def taken(self) -> bool:
        """All that was read at once has been given: send what it has led to. Tell whether to read on in this turn.

        A barrier can overtake what waits here, and not what waits in the kernel: where they do, all is read.
        """
        self.outbox.flush_now()
        self.busy_poller.poll_soon()
        return self.protocol.overtakes or not (self.inbox or self._turn_is_over())

    def take_marker(self, incoming_link: IncomingLink, marker: Marker) -> None:
        self.arrivals.check_marker(incoming_link, marker)
        if self.protocol.overtakes:
            self.barriers.arrived(
                BarrierArrived(incoming_link.channel, marker, tuple(self.inbox.frames(incoming_link.channel)))
            )
        self._take_control(incoming_link.channel, MarkerReceived(incoming_link.channel, marker))

    def take_barrier(self, incoming_link: IncomingLink, marker: Marker, overtaken: tuple[Frame, ...] | None) -> None:
        """Take a barrier from the wire that has overtaken these frames there; it overtakes all that waits here."""
        waiting = tuple(self.inbox.frames(incoming_link.channel))
        event = BarrierArrived(incoming_link.channel, marker, waiting, overtaken or (), True)
        self.arrivals.check_barrier(incoming_link, event, whole=overtaken is not None)
        if overtaken is None:
            reason = f"a barrier on {incoming_link.channel} has overtaken more than recording_bytes_max allows"
            self.run_between(lambda: self.captures.abandon(marker.snapshot, reason))
        else:
            self.barriers.arrived(event)

    def take_view(self, incoming_link: IncomingLink, view: View, sent_count: int) -> None:
        self.arrivals.check_view(incoming_link, view, sent_count)
        self.arrivals.note_view(incoming_link, view)
        self._take_control(incoming_link.channel, ViewReceived(incoming_link.channel, view, sent_count))

    def run_soon(self, event: Callable[[], None]) -> None:
        """Run an event of the process as soon as it may have one."""
        if self.inbox or not self.may_deliver:
            self._wait(QueuedItem(True, event))
        elif not self.closed:
            self.attempt(event)

    def attempt(self, action: Callable[[], None]) -> None:
        """Do what the loop has called for; where that fails, the process cannot go on."""
        try:
            action()
        except RAISED as error:  # a handler failed, or something of ours
            self.host.fail(error)

    def _take_control(self, channel: str, event: Event) -> None:
        if self.inbox or not self.application.quiet or channel in self._held:
            self._wait(QueuedItem(False, lambda: self.dispatch(event), channel))
        elif not self.closed:
            self.dispatch(event)

    def _receiver(
        self,
        channel: str,
        frame: Frame,
        consumed: int,
        incoming_link: IncomingLink | None = None,
        wire_bytes: int = 0,
        messages: list[Any] | None = None,
    ) -> Callable[[], None]:
        def receive() -> None:
            self._receive(channel, frame, consumed, messages)
            if incoming_link is not None:
                incoming_link.consumed(wire_bytes)

        return receive

    def _wait(self, waiting: QueuedItem) -> None:
        if not self.closed:
            self.inbox.append(waiting)

    def pump_soon(self) -> None:
        """Something has changed: take what waits, in the next turn of the loop."""
        if not self._pumping and (self.inbox or self._orders):
            self._pumping = True
            self._loop.call_soon(self.attempt, self.pump)

    def pump(self) -> None:
        """Take what waits, as far as it can be taken now."""
        self._pumping = False
        while self._orders and self.application.quiet and not self.closed:
            self._orders.popleft()()
        inbox, until_s = self.inbox, perf_counter() + (STORING_TURN_S if self.captures.open else SLICE_S)
        for _ in range(SLICE):
            waiting = inbox.next() if not self.closed else None
            if waiting is None or not (self.may_deliver if waiting.needs_room else self.application.quiet):
                return
            inbox.take().action()
            if perf_counter() > until_s:
                break
        self.pump_soon()

    def deliver(self, channel: str, frame: Frame, consumed: int) -> None:
        """Give the process the messages of `frame`, which may be unpacked already."""
        unpacked = self._unpacked
        messages = unpacked[1] if unpacked is not None and unpacked[0] is frame else None
        self.application.deliver(channel, frame, consumed, messages, self._may_pause)

    def _receive(self, channel: str, frame: Frame, consumed: int, messages: list[Any] | None = None) -> None:
        """Receive a frame, whose `messages` these are where it is unpacked."""
        protocol = self.protocol
        if not consumed and protocol.take_plain(channel, frame):
            self.application.deliver(channel, frame, 0, messages, may_pause=True)
        else:
            if frame.index > protocol.index:
                self.outbox.flush()  # Lai-Yang records before it delivers this
            effects = protocol.handle(FrameReceived(channel, frame, consumed))
            # What follows from the frame's having been received follows when it was.
            self._may_pause = bool(effects) and isinstance(effects[-1], DeliverFrame)
            self._unpacked = (frame, messages) if messages is not None else None
            self.effects.carry_out(effects)
            self._unpacked = None
        if protocol.open:  # also where a handler has asked for a snapshot, inside this frame
            self.recordings.arrived(frame)

    def dispatch(self, event: Event) -> None:
        """Tell the protocol something that may make it record or change its channels."""
        self.outbox.flush()
        self.effects.carry_out(self.protocol.handle(event))

    # Orders of the coordinator

    def apply(self, order: msgspec.Struct) -> None:
        """Do what the coordinator says, between two events."""
        apply_order(self, order)

    def take_soon(self, event: Event) -> None:
        """Orders do not wait behind what is on the channels."""
        self.run_between(lambda: self.dispatch(event))

    def run_between(self, action: Callable[[], None]) -> None:
        """Do something as soon as the process is between two events."""
        if self.application.quiet and not self._orders:
            action()
        else:
            self._orders.append(action)

    # Snapshots that this process initiates

    def name_snapshot(self, earlier: int) -> str:
        """Return the id of a snapshot that the event under way asks for, after `earlier` others."""
        if self.protocol.sequenced:
            return f"request-{self.name}-{self.application.position}-{earlier + 1}"
        first = self.protocol.next_id()
        return str(SnapshotId(first.epoch, first.counter + earlier, first.initiator))

    def initiate(self, requested: str, inside: Breakpoint | None) -> None:
        if self.protocol.sequenced:
            self.host.send(SnapshotWanted((self.name,)))
            return
        snapshot, view = SnapshotId.parse(requested), self.protocol.view.number
        started = SnapshotStarted(snapshot, self.name, view)
        self.host.send(started)
        self.dispatch(SnapshotRequested(snapshot, view, inside))
        self.captures.initiated(started)
