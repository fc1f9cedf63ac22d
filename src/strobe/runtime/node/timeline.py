"""One process in one epoch: its protocol, its channels, and its inbox.

A rollback ends the timeline and begins another. Calls on a closed timeline are ignored. All events of the process pass
through here, one at a time: frames and markers of each channel in order, then timers and source records. Under
back-pressure, or while the program is busy, they wait in the inbox, in order. Queued frames still count as in flight.
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
"""Maximum number of queued items handled per event-loop iteration."""
SLICE_S = 0.005
"""Maximum time for queued items per event-loop iteration: markers, orders and snapshot writes wait for the next."""
TURN_S = 0.05
"""Maximum time for delivering frames as they are read, per event-loop iteration."""
STORING_TURN_S = 0.002
"""The same while this process has an open snapshot: storing it takes several iterations."""
BURST = 8
"""If barriers overtake: maximum number of frames per read that are delivered at once. The others are queued."""


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
        # A joining process has no channels yet: it joins with the next view.
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
        # The time of the first delivery in this event-loop iteration.
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
        """Start the process, from scratch or from its restored state."""
        if restored is not None:
            with becoming(restored.snapshot, self.name):
                self.application.begin(self, restored.local, restored.state)
        else:
            self.application.begin(self, None, None)
        self.boundary.start()
        self.pump()
        self.report()

    def report(self) -> None:
        """Report to the coordinator that the process has installed its view."""
        self.host.send(Drained(self.name, self.protocol.view.number))

    def close(self) -> None:
        """End the timeline, and cancel everything pending."""
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
        """Admit a peer that has a channel to this process in this epoch."""
        incoming = self.protocol.incoming.get(hello.channel) or self.protocol.ending.get(hello.channel)
        key = (hello.channel, hello.incarnation)
        if incoming is None and key in self.incoming_links:
            return self.incoming_links[key]  # the channel has ended, but its source lacks the last acknowledgement
        if incoming is None or incoming.spec.incarnation < hello.incarnation:
            return Refusal("not in view yet", final=False)
        if incoming.spec.incarnation > hello.incarnation or incoming.spec.source != hello.source:
            return Refusal("unknown channel", final=True)
        if key not in self.incoming_links:
            self.incoming_links[key] = IncomingLink(hello.channel, self.host.settings, incoming.restored_to + 1)
        return self.incoming_links[key]

    def reach_peers(self) -> None:
        """Connect to the current addresses of the peers.

        A peer without an address keeps its old one: a restarted coordinator knows only the processes that have
        reconnected, and links must work without it (C7, E7).
        """
        for channel, outgoing_link in self.outbox.outgoing_links.items():
            address = self.host.addresses.get(self._targets[channel])
            if address is not None:
                outgoing_link.reach(address)

    def open_channels(self) -> None:
        """Open links for the new channels of the view."""
        for outgoing in self.protocol.outgoing.values():
            if outgoing.id not in self.outbox.outgoing_links:
                # Kept after the view drops the channel: messages already sent on it must still arrive.
                self._targets[outgoing.id] = outgoing.spec.target
                self.outbox.add(outgoing.id, self._open_outlet(outgoing.spec))
        # A channel to an upstream process is on a cycle, so its window is not adaptive (`adaptive_window`).
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
        """End an outgoing channel, after its last message."""
        self.outbox.finish(channel, self._targets[channel])
        self.pump_soon()  # it may have been the full channel

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

    # Input

    @property
    def may_deliver(self) -> bool:
        """Whether the process may receive a message, a record or a timer now."""
        return self.application.ready and not self.outbox.full and not self.boundary.held_back

    def take_frame(self, incoming_link: IncomingLink, frame: Frame, wire_bytes: int) -> None:
        """Deliver or queue a frame from the wire. If it is garbage, raise FrameRejected with nothing changed."""
        messages = self._arrive(incoming_link, frame)
        if self.inbox or not self.may_deliver or incoming_link.channel in self._held or self._turn_is_over():
            self._let_wait(incoming_link, frame, wire_bytes, messages)
        elif not self.closed:
            self.outbox.flush_follows = True  # in `taken`
            self._receive(incoming_link.channel, frame, 0, messages)
            incoming_link.consumed(wire_bytes)

    def _arrive(self, incoming_link: IncomingLink, frame: Frame) -> list[Any]:
        """Count a frame as received, and return its messages; raise FrameRejected if it is invalid."""
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
        """Return the violation for a message of a wrong type. It blames the sender, not this process."""
        incoming = self.protocol.incoming.get(channel) or self.protocol.ending.get(channel)
        source = incoming.spec.source if incoming is not None else "its source"
        problem = f"a message from {source} is none of `messages`: {violation.__cause__}; find where {source} sends it"
        return ProtocolViolation(self.name, channel, problem)

    def _let_wait(self, incoming_link: IncomingLink, frame: Frame, wire_bytes: int, messages: list[Any]) -> None:
        # Near the front of the queue keep the decoded messages; further back keep only the bytes, to save memory.
        kept = messages if len(self.inbox) < SLICE else None
        receive = self._receiver(incoming_link.channel, frame, 0, incoming_link, wire_bytes, kept)
        self._wait(QueuedItem(True, receive, incoming_link.channel, frame))
        self.pump_soon()

    def _turn_is_over(self) -> bool:
        """Return whether handlers have used up their time in this event-loop iteration."""
        if self._turn_began_s is not None:
            return perf_counter() - self._turn_began_s > (STORING_TURN_S if self.captures.open else TURN_S)
        self._turn_began_s = perf_counter()
        self._loop.call_soon(self._end_turn)
        return False

    def _end_turn(self) -> None:
        self._turn_began_s = None

    def _take_of_burst(self, incoming_link: IncomingLink, frame: Frame, wire_bytes: int) -> None:
        """`take_frame` if barriers overtake: deliver only the first frames of each read at once.

        The others are queued, and more is read first: a barrier can overtake frames here, but not in the kernel.
        """
        if not self.outbox.flush_follows:  # the first since `taken`
            self._burst = 0
        self._burst += 1
        if self._burst <= BURST:
            Timeline.take_frame(self, incoming_link, frame, wire_bytes)
            return
        self._let_wait(incoming_link, frame, wire_bytes, self._arrive(incoming_link, frame))

    def taken(self) -> bool:
        """Send the output caused by the last read. Return whether to read more in this event-loop iteration.

        If barriers overtake, always read on: a barrier can overtake frames here, but not in the kernel.
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
        """Take a barrier that has overtaken these frames at its sender. It also overtakes the frames queued here."""
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
        """Run an event of the process as soon as possible."""
        if self.inbox or not self.may_deliver:
            self._wait(QueuedItem(True, event))
        elif not self.closed:
            self.attempt(event)

    def attempt(self, action: Callable[[], None]) -> None:
        """Run a callback of the event loop; a failure ends the node."""
        try:
            action()
        except RAISED as error:  # in a handler or in our own code
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
        """Schedule `pump` for the next event-loop iteration, if something is queued."""
        if not self._pumping and (self.inbox or self._orders):
            self._pumping = True
            self._loop.call_soon(self.attempt, self.pump)

    def pump(self) -> None:
        """Handle queued orders and items, as far as possible now."""
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
        """Deliver the messages of `frame`, which may be unpacked already."""
        unpacked = self._unpacked
        messages = unpacked[1] if unpacked is not None and unpacked[0] is frame else None
        self.application.deliver(channel, frame, consumed, messages, self._may_pause)

    def _receive(self, channel: str, frame: Frame, consumed: int, messages: list[Any] | None = None) -> None:
        """Receive a frame; `messages` are its messages, if already unpacked."""
        protocol = self.protocol
        if not consumed and protocol.take_plain(channel, frame):
            self.application.deliver(channel, frame, 0, messages, may_pause=True)
        else:
            if frame.index > protocol.index:
                self.outbox.flush()  # Lai-Yang records before it delivers this
            effects = protocol.handle(FrameReceived(channel, frame, consumed))
            # Delivery may pause only if no effect follows it: later effects need the frame fully received.
            self._may_pause = bool(effects) and isinstance(effects[-1], DeliverFrame)
            self._unpacked = (frame, messages) if messages is not None else None
            self.effects.carry_out(effects)
            self._unpacked = None
        if protocol.open:  # also if a handler has requested a snapshot inside this frame
            self.recordings.arrived(frame)

    def dispatch(self, event: Event) -> None:
        """Pass an event to the protocol. It may record or change channels, so flush first."""
        self.outbox.flush()
        self.effects.carry_out(self.protocol.handle(event))

    # Orders of the coordinator

    def apply(self, order: msgspec.Struct) -> None:
        """Apply an order of the coordinator, between two events."""
        apply_order(self, order)

    def take_soon(self, event: Event) -> None:
        """Dispatch an event of the coordinator, ahead of the inbox."""
        self.run_between(lambda: self.dispatch(event))

    def run_between(self, action: Callable[[], None]) -> None:
        """Run `action` as soon as the process is between two events."""
        if self.application.quiet and not self._orders:
            action()
        else:
            self._orders.append(action)

    # Snapshots that this process initiates

    def name_snapshot(self, earlier: int) -> str:
        """Return the id of a snapshot that the current event requests, after `earlier` others."""
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
