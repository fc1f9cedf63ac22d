"""One process in one epoch: the parts that make it, and its input.

A rollback ends the timeline and begins another. Calls on a closed timeline are ignored. All events of the process pass
through here, one at a time: frames and markers of each channel in order, then timers and source records. Queued frames
still count as in flight.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from strobe.errors import ProtocolViolation
from strobe.event_bound import EventBound
from strobe.message_types import MessageTypes
from strobe.outside import Sink, Source
from strobe.protocol import Frame, SnapshotId, View
from strobe.protocol.coordinator.messages import (
    Drained,
    InstallView,
    RelaySentCount,
    ReportOutcome,
    ReportSettled,
    RequestRecording,
    SnapshotStarted,
    SnapshotWanted,
)
from strobe.protocol.process.endpoint_state import state_of
from strobe.protocol.process.events import (
    BarrierArrived,
    Breakpoint,
    DepartureReady,
    Event,
    FrameReceived,
    Marker,
    MarkerReceived,
    Restarted,
    SentCountRelayed,
    SnapshotAborted,
    SnapshotRequested,
    SnapshotsSettled,
    ViewInstalled,
    ViewReceived,
)
from strobe.protocol.values.log_entries import ProcessRecord
from strobe.runtime.event_loop import BusyPoller
from strobe.runtime.links.codec import BrokenRule
from strobe.runtime.links.frame_checks import FrameChecks
from strobe.runtime.links.incoming_link import IncomingLink
from strobe.runtime.messages.control import SnapshotBegun
from strobe.runtime.node.alignment import Alignment
from strobe.runtime.node.application import Application
from strobe.runtime.node.captures import Captures
from strobe.runtime.node.channels import Channels
from strobe.runtime.node.effects import Effects
from strobe.runtime.node.external_io import ExternalIO
from strobe.runtime.node.fragment_writer import Capture
from strobe.runtime.node.inbox import QueuedItem
from strobe.runtime.node.outbox import Outbox
from strobe.runtime.node.scheduling import ITEMS_MAX, EventScheduler, TimelinePort
from strobe.runtime.program.shared_parts import SharedParts
from strobe.runtime.recovery.fragment_loader import Restored, becoming
from strobe.runtime.restarts.document import HandOverDocument, ResumedProcess, encode_state
from strobe.runtime.restarts.origin import Origin, endpoint_of
from strobe.runtime.settings import NodeSettings
from strobe.runtime.tracing.recorder import Tracer


class TimelineHost(Protocol):
    """What a timeline uses of its host."""

    name: str
    system: str
    protocol: str
    settings: NodeSettings
    application: Application
    message_types: MessageTypes
    sources: dict[str, Source]
    sinks: dict[str, Sink]
    parts: SharedParts

    def send(self, message: msgspec.Struct) -> None:
        """Send a message to the coordinator."""

    def fail(self, error: BaseException) -> None:
        """End the node."""

    def sign(self, snapshot: str, view: View, record: ProcessRecord) -> ProcessRecord: ...

    def make_run_directory(self, name: str) -> Path: ...


class Timeline:
    """Events in, effects out, for one process in one epoch."""

    def __init__(
        self,
        host: TimelineHost,
        epoch: int,
        view: View,
        restored: Origin,
        tracer: Tracer | None,
    ) -> None:
        settings, application, writer = host.settings, host.application, host.parts.writer
        self.name = host.name
        self.system = host.system
        self.epoch = epoch
        self.application = application
        self.tracer = tracer
        begun = restored if isinstance(restored, Restored) else None
        self.protocol = endpoint_of(host.protocol, host.name, view, epoch, restored)
        self.arrivals = FrameChecks(self.protocol)
        self.busy_poller = BusyPoller(host.parts.spin_s(settings))
        self.bound = EventBound(host.name, settings.event_bytes_max, application.event)
        self.outbox = Outbox(host.name, self.protocol, settings, host.message_types, self.bound)
        if tracer is not None:
            self.outbox.trace(lambda: application.position, tracer.sent)
        open_captures: dict[SnapshotId, Capture] = {}
        self.scheduler = EventScheduler(application, self.outbox, open_captures, host.fail, self.protocol.overtakes)
        self.inbox = self.scheduler.inbox
        self.external_io = ExternalIO(
            host.sources, host.sinks, application, self.scheduler, writer, self.bound, settings.sink_bytes_max
        )
        self.captures = Captures(
            open_captures,
            settings,
            self.protocol,
            application,
            self.scheduler,
            self.external_io,
            writer,
            tracer,
            send=host.send,
            dispatch=self.dispatch,
            sign=host.sign,
            make_directory=host.make_run_directory,
            restored=begun,
        )
        self.recordings = self.captures.recordings
        self.barriers = Alignment(settings, self.protocol, self.scheduler, self.recordings, self.dispatch)
        self.channels = Channels(
            host.system, self.protocol, settings, self.outbox, self.scheduler, application, tracer, host.parts.connect
        )
        self.effects = Effects(
            self.protocol,
            application,
            self.outbox.outgoing_links,
            self.channels,
            self.external_io,
            self.captures,
            self.barriers,
            send=host.send,
            departed=lambda: self.dispatch(DepartureReady()),
        )
        self._send = host.send
        self.channels.open()
        for channel, items in (begun.fragment.in_flight if begun else {}).items():
            for item in items:
                self._queue(channel, item.frame, item.consumed)
        if isinstance(restored, ResumedProcess):
            self._resume(restored.document)

    def _queue(self, channel: str, frame: Frame, consumed: int, wire_bytes: int = 0) -> None:
        """Queue a frame that came before this timeline began; one with `wire_bytes` came over a link."""
        link = self.channels.incoming_link(channel) if wire_bytes else None
        receive = self._receiver(channel, frame, consumed, link, wire_bytes)
        self.scheduler.add(QueuedItem(True, receive, channel, frame, consumed, wire_bytes))

    def _resume(self, document: HandOverDocument) -> None:
        """Go on with the links and queues of the predecessor."""
        self.channels.resume(document.sending, document.receiving)
        for item in document.queued:
            if item.frame is not None:
                self._queue(item.channel, item.frame, item.consumed, item.wire_bytes)
            else:
                dispatch = partial(self.dispatch, item.event)
                self.scheduler.add(QueuedItem(False, dispatch, item.channel, event=item.event))

    def start(self, restored: Origin) -> None:
        """Start the process, from scratch or from its restored state."""
        port = TimelinePort(
            self.system,
            self.scheduler,
            self.outbox,
            self.bound,
            self.tracer,
            self.external_io.emit,
            self.protocol.name_snapshot,
            self.initiate,
        )
        if restored is not None:
            with becoming(restored.name, self.name):
                self.application.begin(port, restored.local, restored.state)
        else:
            self.application.begin(port, None, None)
        self.external_io.start()
        self.scheduler.pump()
        self._send(Drained(self.name, self.protocol.view.number))

    def hand_over(self) -> tuple[HandOverDocument, list[bytes]]:
        """Stop for good, between two events. Return all that a successor needs, and the encoded state (E11)."""
        self.external_io.stop()
        self.dispatch(Restarted())
        self.captures.close()
        sending, receiving = self.channels.hand_over()
        captured = self.application.capture()
        encoding, state, version = encode_state(self.name, captured.state)
        sources, sinks = self.external_io.positions()
        queued = list(self.inbox.arrivals())
        self.stop()
        document = HandOverDocument(
            store=self.system,
            process=self.name,
            epoch=self.epoch,
            protocol=self.protocol.name,
            endpoint=state_of(self.protocol),
            sending=sending,
            receiving=receiving,
            queued=queued,
            position=captured.position,
            encoding=encoding,
            state_version=version,
            timers=captured.timers,
            random=captured.random,
            sources=sources,
            sinks=sinks,
        )
        return document, state

    def stop(self) -> None:
        """Ignore all calls from now on."""
        self.scheduler.closed = True

    def close(self) -> None:
        """End the timeline, and cancel everything pending."""
        self.scheduler.close()
        self.application.end()
        self.outbox.close()
        self.busy_poller.close()
        self.external_io.close()
        self.captures.close()
        self.recordings.close()
        self.barriers.close()
        self.effects.close()
        self.channels.close()
        if self.tracer is not None:
            self.tracer.close()

    # Input

    def take_frame(self, incoming_link: IncomingLink, frame: Frame, wire_bytes: int) -> None:
        """Deliver or queue a frame from the wire. If it is garbage, raise FrameRejected with nothing changed."""
        messages = self._arrive(incoming_link, frame)
        if self.scheduler.must_queue(incoming_link.channel):
            # Near the front of the queue keep the decoded messages; further back only the bytes, to save memory.
            kept = messages if len(self.inbox) < ITEMS_MAX else None
            receive = self._receiver(incoming_link.channel, frame, 0, incoming_link, wire_bytes, kept)
            self.scheduler.add(QueuedItem(True, receive, incoming_link.channel, frame, 0, wire_bytes))
            self.scheduler.pump_soon()
        else:
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
        problem = f"a message from {source} is not one of the types in `messages`: {violation.__cause__}"
        return ProtocolViolation(self.name, channel, f"{problem}; find where {source} sends it")

    def taken(self) -> bool:
        """Send the output caused by the last read. Return whether to read more in this event-loop iteration."""
        self.outbox.flush_now()
        self.busy_poller.poll_soon()
        return self.scheduler.may_read_on()

    def take_marker(self, incoming_link: IncomingLink, marker: Marker) -> None:
        self.arrivals.check_marker(incoming_link, marker)
        if self.protocol.overtakes:
            self.barriers.arrived(
                BarrierArrived(incoming_link.channel, marker, tuple(self.inbox.frames(incoming_link.channel)))
            )
        self._take_control(MarkerReceived(incoming_link.channel, marker))

    def take_barrier(self, incoming_link: IncomingLink, marker: Marker, overtaken: tuple[Frame, ...] | None) -> None:
        """Take a barrier that has overtaken these frames at its sender. It also overtakes the frames queued here."""
        waiting = tuple(self.inbox.frames(incoming_link.channel))
        event = BarrierArrived(incoming_link.channel, marker, waiting, overtaken or (), True)
        self.arrivals.check_barrier(incoming_link, event, whole=overtaken is not None)
        if overtaken is None:
            reason = f"a barrier on {incoming_link.channel} has overtaken more than recording_bytes_max allows"
            self.scheduler.run_between(lambda: self.captures.abandon(marker.snapshot, reason))
        else:
            self.barriers.arrived(event)

    def take_view(self, incoming_link: IncomingLink, view: View, sent_count: int) -> None:
        self.arrivals.check_view(incoming_link, view, sent_count)
        self.arrivals.note_view(incoming_link, view)
        self._take_control(ViewReceived(incoming_link.channel, view, sent_count))

    def _take_control(self, event: MarkerReceived | ViewReceived) -> None:
        self.scheduler.run_control(event, lambda: self.dispatch(event))

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

    def _receive(self, channel: str, frame: Frame, consumed: int, messages: list[Any] | None = None) -> None:
        """Receive a frame; `messages` are its messages, if already unpacked."""
        protocol = self.protocol
        if not consumed and protocol.take_plain(channel, frame):
            self.application.deliver(channel, frame, 0, messages, may_pause=True)
        else:
            if frame.index > protocol.index:
                self.outbox.flush()  # Lai-Yang records before it delivers this
            self.effects.carry_out(protocol.handle(FrameReceived(channel, frame, consumed)), messages)
        if protocol.open:  # also if a handler has requested a snapshot inside this frame
            self.recordings.arrived(frame)

    def dispatch(self, event: Event) -> None:
        """Pass an event to the protocol. It may record or change channels, so flush first."""
        self.outbox.flush()
        self.effects.carry_out(self.protocol.handle(event))

    # Orders of the coordinator

    def reach_peers(self, addresses: Mapping[str, tuple[str, int]], members: tuple[str, ...]) -> None:
        """Connect to the peers at these addresses. A process that is not among `members` has left."""
        self.channels.reach_peers(addresses)
        self.outbox.reach_ended(addresses, members)

    def apply(self, order: msgspec.Struct) -> None:
        """Apply an order of the coordinator, between two events."""
        if self.scheduler.closed:
            return
        match order:
            case SnapshotBegun():
                self.captures.begun(order)
            case RequestRecording():
                if not self.captures.resend(order.snapshot):
                    self._dispatch_soon(SnapshotRequested(order.snapshot, order.view))
            case RelaySentCount():
                self._dispatch_soon(SentCountRelayed(order.snapshot, order.channel, order.count))
            case ReportOutcome():
                self.captures.outcome(order.snapshot, order.committed)
                if not order.committed:
                    self._dispatch_soon(SnapshotAborted(order.snapshot))
            case ReportSettled():
                self.captures.settled(order.counter)
                self._dispatch_soon(SnapshotsSettled(order.counter))
            case InstallView():
                self._dispatch_soon(ViewInstalled(order.view))
                # Every reconnecting process gets this order. The view is reported first: no snapshot begins without it.
                self.scheduler.run_between(self.captures.start_again)

    def _dispatch_soon(self, event: Event) -> None:
        """Dispatch an event of the coordinator, ahead of the inbox."""
        self.scheduler.run_between(lambda: self.dispatch(event))

    def initiate(self, requested: str, inside: Breakpoint | None) -> None:
        """Begin a snapshot that this process has requested, or let the coordinator begin it."""
        event = self.protocol.initiation(requested, inside)
        if event is None:
            self._send(SnapshotWanted((self.name,)))
            return
        started = SnapshotStarted(event.snapshot, self.name, event.view)
        self._send(started)
        self.dispatch(event)
        self.captures.initiated(started)
