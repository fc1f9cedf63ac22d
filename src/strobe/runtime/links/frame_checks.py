"""Checks frames from a link against the protocol's rules, before they are counted, queued or take effect (E14, M2).

A frame that breaks a rule ends its connection and changes nothing else; its source sends it again after the reconnect.
An accepted frame breaks no rule when it is handled, however long it was queued. So a violation found by the protocol
means that this node's own state is wrong, and ends the node.
"""

from collections.abc import Sequence

from strobe.errors import ProtocolViolation
from strobe.protocol import Frame, View
from strobe.protocol.process.endpoint import Endpoint
from strobe.protocol.process.events import BarrierArrived, Marker
from strobe.protocol.values.view import is_next
from strobe.runtime.links.codec import BrokenRule
from strobe.runtime.links.incoming_link import NOTHING_DUE, IncomingLink


class FrameChecks:
    """The checks of one process in one epoch. Each raises BrokenRule and changes nothing."""

    def __init__(self, protocol: Endpoint) -> None:
        self._protocol = protocol

    def check_messages(self, incoming_link: IncomingLink, frame: Frame) -> None:
        """Check a frame that is not simply the next one of its channel, with a known view and cut index."""
        self._refuse_after_end(incoming_link)
        due, first = incoming_link.next_ordinal, frame.first_ordinal
        if first < due:
            problem = f"message {first} arrived again or out of order: {due} was expected (duplicate)"
            self._refuse(incoming_link, problem)
        if first > due:
            missing = f"{first - due} missing: a gap or a reordering"
            self._refuse(incoming_link, f"message {first} arrived, but {due} was expected ({missing})")
        self._check_labels(incoming_link, frame, self._newest_view(incoming_link))

    def check_marker(self, incoming_link: IncomingLink, marker: Marker) -> None:
        self._refuse_after_end(incoming_link)
        self._check_view_of(incoming_link, marker, self._newest_view(incoming_link))
        received = incoming_link.next_ordinal - 1
        if self._protocol.barriers and marker.sent_count != received:
            self._refuse(
                incoming_link, f"a barrier states that {marker.sent_count} messages arrived before it, not {received}"
            )

    def check_barrier(self, incoming_link: IncomingLink, event: BarrierArrived, whole: bool) -> None:
        """Check a barrier that overtakes and, if it is `whole`, the frames that it has overtaken."""
        self._refuse_after_end(incoming_link)
        protocol = self._protocol
        if not protocol.overtakes:
            self._refuse(incoming_link, f"an overtaking barrier arrived, and {protocol.name} has none")
        self._check_view_of(incoming_link, event.marker, protocol.view)
        if event.marker.sent_count is None:
            self._refuse(incoming_link, "a barrier lacks the number of messages sent before it")
        if whole:
            self._check_overtaken(incoming_link, event.overtaken)
            try:
                protocol.check_barrier(event)
            except ProtocolViolation as violation:
                raise BrokenRule(violation) from violation

    def check_view(self, incoming_link: IncomingLink, view: View, sent_count: int) -> None:
        self._refuse_after_end(incoming_link)
        known = self._newest_view(incoming_link)
        if incoming_link.view is not None and view.number <= incoming_link.view.number:
            self._refuse(incoming_link, f"view {view.number} arrived after view {incoming_link.view.number}")
        if view.number == known.number and view != known:
            self._refuse(incoming_link, f"view {view.number} arrived, and differs from that view here")
        # Membership changes happen one at a time: each waits until every process has installed the previous one (E2).
        if view.number > known.number and known.processes and not is_next(view, known):
            self._refuse(incoming_link, f"view {view.number} arrived, not one change after view {known.number}")
        received = incoming_link.next_ordinal - 1
        if sent_count != received:
            self._refuse(incoming_link, f"{sent_count} messages preceded view {view.number}, but {received} arrived")

    def note_view(self, incoming_link: IncomingLink, view: View) -> None:
        """Note a checked view. If it does not contain the channel, nothing may follow on the channel."""
        incoming_link.view = view
        incoming = self._protocol.incoming.get(incoming_link.channel) or self._protocol.ending.get(
            incoming_link.channel
        )
        if incoming is None or incoming.spec not in view.channels:
            incoming_link.next_ordinal = NOTHING_DUE

    def _newest_view(self, incoming_link: IncomingLink) -> View:
        """Return the newest view that is installed here or queued on this channel."""
        installed = self._protocol.view
        return (
            incoming_link.view
            if incoming_link.view is not None and incoming_link.view.number > installed.number
            else installed
        )

    def _check_view_of(self, incoming_link: IncomingLink, marker: Marker, known: View) -> None:
        if marker.view > known.number:
            self._refuse(incoming_link, f"a marker of view {marker.view} arrived before that view")
        installed = self._protocol.view
        if marker.view == installed.number and incoming_link.channel not in self._protocol.incoming:
            self._refuse(incoming_link, f"a marker arrived on a channel that is not in view {marker.view}")

    def _check_labels(self, incoming_link: IncomingLink, frame: Frame, known: View) -> None:
        """Check the view and the cut index of a frame."""
        if frame.view > known.number:
            self._refuse(incoming_link, f"a frame of view {frame.view} arrived before it")
        if frame.index and not self._protocol.may_advance_to(frame.index):
            self._refuse(incoming_link, f"the cut index of a frame leaps to {frame.index}")

    def _check_overtaken(self, incoming_link: IncomingLink, overtaken: Sequence[Frame]) -> None:
        """Check that the copies begin at the next message of the channel, and are contiguous."""
        due = incoming_link.next_ordinal
        for frame in overtaken:
            if frame.first_ordinal != due:
                problem = f"a barrier has overtaken message {frame.first_ordinal}, but {due} was expected"
                self._refuse(incoming_link, problem)
            self._check_labels(incoming_link, frame, self._newest_view(incoming_link))
            due += frame.count

    def _refuse_after_end(self, incoming_link: IncomingLink) -> None:
        if incoming_link.next_ordinal == NOTHING_DUE:
            self._refuse(incoming_link, "a frame arrived after the end of the channel")

    def _refuse(self, incoming_link: IncomingLink, problem: str) -> None:
        raise BrokenRule(ProtocolViolation(self._protocol.process, incoming_link.channel, problem))
