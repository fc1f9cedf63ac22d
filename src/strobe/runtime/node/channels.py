"""The channels of one process in one epoch: which peers may connect, and the links to the members of the view."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial

from strobe.protocol import ChannelSpec, Endpoint
from strobe.protocol.values.view import upstream_of
from strobe.runtime.links.codec import Hello, Refusal
from strobe.runtime.links.handed_over_ends import ReceivingEnd, SendingEnd
from strobe.runtime.links.incoming_link import IncomingLink
from strobe.runtime.links.outgoing_connection import Connect
from strobe.runtime.links.outgoing_link import OutgoingLink
from strobe.runtime.node.application import Application
from strobe.runtime.node.outbox import Outbox
from strobe.runtime.node.scheduling import EventScheduler
from strobe.runtime.settings import NodeSettings
from strobe.runtime.tracing.recorder import Tracer

logger = logging.getLogger("strobe.node")


class Channels:
    """The links of the channels in the process's view, and of those that are ending."""

    def __init__(
        self,
        system: str,
        protocol: Endpoint,
        settings: NodeSettings,
        outbox: Outbox,
        scheduler: EventScheduler,
        application: Application,
        tracer: Tracer | None,
        connect: Connect,
    ) -> None:
        self.incoming_links: dict[tuple[str, int], IncomingLink] = {}
        self._system = system
        self._protocol = protocol
        self._settings = settings
        self._outbox = outbox
        self._scheduler = scheduler
        self._application = application
        self._tracer = tracer
        self._connect = connect
        self._targets: dict[str, str] = {}
        self._addresses: Mapping[str, tuple[str, int]] = {}
        self._handed_over = False

    def admit(self, hello: Hello) -> IncomingLink | Refusal:
        """Admit a peer that has a channel to this process in this epoch."""
        if self._handed_over:
            return Refusal("restarting", final=False)
        incoming = self._protocol.incoming.get(hello.channel) or self._protocol.ending.get(hello.channel)
        key = (hello.channel, hello.incarnation)
        if incoming is None and key in self.incoming_links:
            return self.incoming_links[key]  # the channel has ended, but its source lacks the last acknowledgement
        if incoming is None or incoming.spec.incarnation < hello.incarnation:
            return Refusal("not in view yet", final=False)
        if incoming.spec.incarnation > hello.incarnation or incoming.spec.source != hello.source:
            return Refusal("unknown channel", final=True)
        if key not in self.incoming_links:
            self.incoming_links[key] = IncomingLink(hello.channel, self._settings, incoming.restored_to + 1)
        return self.incoming_links[key]

    def incoming_link(self, channel: str) -> IncomingLink:
        """Return the link of a channel in the view, to which a peer was admitted before."""
        return self.incoming_links[channel, self._protocol.incoming[channel].spec.incarnation]

    def reach_peers(self, addresses: Mapping[str, tuple[str, int]]) -> None:
        """Connect to the current addresses of the peers.

        A peer without an address keeps its old one: a restarted coordinator knows only the processes that have
        reconnected, and links must work without it (C7, E7).
        """
        self._addresses = addresses
        for channel, outgoing_link in self._outbox.outgoing_links.items():
            address = addresses.get(self._targets[channel])
            if address is not None:
                outgoing_link.reach(address)

    def open(self) -> None:
        """Open links for the new channels of the view."""
        protocol, outbox = self._protocol, self._outbox
        for outgoing in protocol.outgoing.values():
            if outgoing.id not in outbox.outgoing_links:
                # Kept after the view drops the channel: messages already sent on it must still arrive.
                self._targets[outgoing.id] = outgoing.spec.target
                outbox.add(outgoing.id, self._open_link(outgoing.spec))
        # A channel to an upstream process is on a cycle, so its window is not adaptive (`adaptive_window`).
        upstream = upstream_of(protocol.view, protocol.process)
        for channel, outgoing_link in outbox.outgoing_links.items():
            outgoing_link.set_adaptive(self._targets[channel] not in upstream)
        inputs, outputs = tuple(protocol.incoming), tuple(protocol.outgoing)
        self._application.view_changed(inputs, outputs)
        if self._tracer is not None:
            incoming = (*protocol.incoming.values(), *protocol.ending.values())
            specs = [*(end.spec for end in incoming), *(end.spec for end in protocol.outgoing.values())]
            self._tracer.set_channels(protocol.view.processes, specs, inputs, outputs, self._application.random_state)
        self.reach_peers(self._addresses)

    def end(self, channel: str) -> None:
        """End an outgoing channel, after its last message."""
        self._outbox.finish(channel, self._targets[channel])
        self._scheduler.pump_soon()  # it may have been the full channel

    def hand_over(self) -> tuple[dict[str, SendingEnd], list[ReceivingEnd]]:
        """Close all links, admit nobody any more, and return what the successor of this process needs (E11)."""
        self._handed_over = True
        receiving = [link.hand_over(incarnation) for (_, incarnation), link in self.incoming_links.items()]
        return {channel: link.hand_over() for channel, link in self._outbox.outgoing_links.items()}, receiving

    def resume(self, sending: Mapping[str, SendingEnd], receiving: Sequence[ReceivingEnd]) -> None:
        """Go on with links that were handed over."""
        for channel, end in sending.items():
            self._outbox.resume(channel, end)
        for received in receiving:
            incoming_link = IncomingLink(received.channel, self._settings)
            incoming_link.resume(received)
            self.incoming_links[received.channel, received.incarnation] = incoming_link

    def close(self) -> None:
        for incoming_link in self.incoming_links.values():
            incoming_link.close()

    def has_room(self, channel: str) -> None:
        """The backlog of `channel` no longer holds the process back."""
        self._outbox.has_room(channel)
        self._scheduler.pump_soon()

    def _open_link(self, spec: ChannelSpec) -> OutgoingLink:
        hello = Hello(
            system=self._system,
            epoch=self._protocol.epoch,
            source=self._protocol.process,
            channel=spec.id,
            incarnation=spec.incarnation,
        )
        room = partial(self.has_room, spec.id)
        return OutgoingLink(hello, self._settings, room, self._refused, connect=self._connect)

    def _refused(self, channel: str, reason: str) -> None:
        logger.warning("channel %s was refused: %s", channel, reason)
