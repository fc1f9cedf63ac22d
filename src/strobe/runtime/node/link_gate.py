"""The `Gate` of a node: admits peers, and passes their frames to the timeline."""

from typing import Protocol

from strobe.errors import ProtocolViolation
from strobe.protocol import Frame, View
from strobe.protocol.process.events import Marker
from strobe.runtime.links.codec import FrameRejected, Hello, Refusal
from strobe.runtime.links.handshake import refuse_hello
from strobe.runtime.links.incoming_link import IncomingLink
from strobe.runtime.node.timeline import Timeline
from strobe.runtime.program.shared_parts import SharedParts
from strobe.user_code import RAISED


class GateHost(Protocol):
    """What the gate uses of its host."""

    system: str
    epoch: int
    timeline: Timeline | None
    parts: SharedParts

    def fail(self, error: BaseException) -> None:
        """End the node."""


class LinkGate:
    """The `Gate` of a host. A failure in a handler or in our own code ends the host."""

    def __init__(self, host: GateHost) -> None:
        self._host = host

    def admit(self, hello: Hello) -> IncomingLink | Refusal:
        host = self._host
        if not host.system:
            return Refusal("not ready", final=False)
        refusal = refuse_hello(hello, host.system, host.epoch)
        if refusal is not None:
            return refusal
        return host.timeline.channels.admit(hello) if host.timeline is not None else Refusal("not ready", final=False)

    def take_frame(self, incoming_link: IncomingLink, frame: Frame, wire_bytes: int) -> None:
        timeline = self._host.timeline  # `_timeline` would be a call more for every frame
        assert timeline is not None, "links are dropped with their timeline"
        try:
            timeline.take_frame(incoming_link, frame, wire_bytes)
        except FrameRejected:
            raise
        except RAISED as error:
            self._host.fail(error)

    def take_marker(self, incoming_link: IncomingLink, marker: Marker) -> None:
        try:
            self._timeline.take_marker(incoming_link, marker)
        except FrameRejected:
            raise
        except RAISED as error:
            self._host.fail(error)

    def take_barrier(self, incoming_link: IncomingLink, marker: Marker, overtaken: tuple[Frame, ...] | None) -> None:
        try:
            self._timeline.take_barrier(incoming_link, marker, overtaken)
        except FrameRejected:
            raise
        except RAISED as error:
            self._host.fail(error)

    def take_view(self, incoming_link: IncomingLink, view: View, sent_count: int) -> None:
        try:
            self._timeline.take_view(incoming_link, self._host.parts.shared_view(view), sent_count)
        except FrameRejected:
            raise
        except RAISED as error:
            self._host.fail(error)

    def disagree(self, violation: ProtocolViolation) -> None:
        """End the node: the two ends of the channel disagree, and only a rollback makes them agree again."""
        self._host.fail(violation)

    def taken(self) -> bool:
        return self._host.timeline is None or self._host.timeline.taken()

    @property
    def _timeline(self) -> Timeline:
        timeline = self._host.timeline
        assert timeline is not None, "links are dropped with their timeline"
        return timeline
