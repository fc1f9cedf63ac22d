"""The channel ends of one process: their counters, and how they change with the view.

Views (E2). On each channel, a view-install frame precedes the first message of that view. A process that installs a
view sends this frame on each of its outgoing channels; on a channel that ends, it is the last frame. Messages still in
flight on an ended channel are received as usual, up to the announced end. A leaving process first receives all messages
sent to it, runs its last event, then ends its own channels. `ReportDrained` reports to the coordinator that the view is
installed here and that all ended channels are empty. No snapshot of the new view begins before every process has
reported.
"""

from strobe.errors import ProtocolViolation
from strobe.protocol.process.channels import Incoming, Outgoing
from strobe.protocol.process.effects import DeliverFrame, Effect, PrepareDeparture, ReportDrained, SendFrame, SendView
from strobe.protocol.process.events import FrameReceived, MessagesSent, ViewReceived
from strobe.protocol.values.frames import FIFO, Frame
from strobe.protocol.values.view import View


class ChannelEnds:
    """The view of one process, and its incoming and outgoing channel ends."""

    def __init__(self, process: str, view: View) -> None:
        self.process = process
        self.view = view
        # The view last announced to the peers in band. A leaving process keeps sending in the last view it was part of.
        self.announced = view.number
        self.outgoing = {spec.id: Outgoing(spec) for spec in view.outgoing(process)}
        self.incoming = {spec.id: Incoming(spec) for spec in view.incoming(process)}
        self.ending: dict[str, Incoming] = {}
        self.early: list[FrameReceived] = []
        # `departing`: this process is leaving, and its last event is due. `departed`: that event has run.
        self.departing = False
        self.departed = False
        # The cut index carried by every frame; 0 if the protocol has none.
        self.index = 0

    # Implemented by the protocols

    def _receive_frame(self, event: FrameReceived) -> list[Effect]:
        raise NotImplementedError

    def _abort_all(self, reason: str) -> list[Effect]:
        raise NotImplementedError

    # Frames

    def number(self, channel: str, count: int, body: bytes) -> int:
        """Count and hash `count` messages that were sent on `channel`; return the ordinal of the first.

        A host that writes them to the wire itself, with `index` and `announced`, need not pass `MessagesSent`.
        """
        return self.outgoing[channel].number(count, body)

    def _send(self, event: MessagesSent) -> list[Effect]:
        first = self.number(event.channel, event.count, event.body)
        return [SendFrame(event.channel, Frame(first, event.count, event.body, self.index, self.announced))]

    def _is_early(self, event: FrameReceived) -> bool:
        """Hold back a frame of a view not installed here: on an unordered channel it may overtake the view frame."""
        if event.frame.view <= self.view.number:
            return False
        incoming = self.incoming.get(event.channel)
        if incoming is not None and incoming.fifo:
            problem = f"a frame of view {event.frame.view} arrived before it"
            raise ProtocolViolation(self.process, event.channel, problem)
        self.early.append(event)
        return True

    def _accept(self, event: FrameReceived) -> list[Effect]:
        """Count a frame as received, and return the effects."""
        channel, frame, consumed = event.channel, event.frame, event.consumed
        incoming = self._known(channel)
        incoming.accept(frame, self.process, consumed)
        if incoming.drained and channel in self.ending:
            return [DeliverFrame(channel, frame, consumed), *self._drain(channel)]
        return [DeliverFrame(channel, frame, consumed)]

    def _known(self, channel: str) -> Incoming:
        incoming = self.incoming.get(channel) or self.ending.get(channel)
        if incoming is None:
            raise ProtocolViolation(self.process, channel, "a frame arrived on a channel that is not in the view")
        return incoming

    # Views

    def _install(self, view: View) -> list[Effect]:
        """Switch to `view`: abort recordings of the old one, and announce it to every peer in band."""
        if view.number <= self.view.number:
            self._require_same(view)
            return self._report_again(view)
        effects = self._abort_all("view changed")
        leaving = self.process not in view.members
        self.view = view
        ended, self.incoming = self.incoming, {}
        for spec in view.incoming(self.process):
            goes_on = spec.id in ended and ended[spec.id].spec == spec
            self.incoming[spec.id] = ended.pop(spec.id) if goes_on else Incoming(spec)
        self.ending.update(ended)
        effects += self._end_self_loops(view) if leaving else self._announce(view)
        if not self.ending:
            effects += self._drained()
        # All are received before any is delivered. No recording can begin in between: no snapshot of this view begins
        # before every process has installed it.
        early, self.early = self.early, []
        for event in early:
            effects += self._receive_frame(event)
        return effects

    def _require_same(self, view: View) -> None:
        """Raise ProtocolViolation if the coordinator's view of this number differs: then a peer sent a false one."""
        if view.number == self.view.number and view != self.view:
            problem = f"view {view.number} differs between the coordinator and a peer"
            raise ProtocolViolation(self.process, "of the coordinator", problem)

    def _end_self_loops(self, view: View) -> list[Effect]:
        """End channels from this process to itself: a leaving process waits for their end."""
        loops = [channel for channel, outgoing in self.outgoing.items() if outgoing.spec.target == self.process]
        return [SendView(channel, view, self.outgoing.pop(channel).count) for channel in loops]

    def _report_again(self, view: View) -> list[Effect]:
        """Report again to a restarted coordinator."""
        if view.number < self.view.number or self.ending or not (self.departed or self.process in self.view.members):
            return []
        return [ReportDrained(self.view.number)]

    def _announce(self, view: View) -> list[Effect]:
        """Send the view on every channel that continues, starts or ends with it."""
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
        # On an unordered channel, the frame of an earlier view may come late: it does not end the channel.
        if incoming is not None and incoming.spec not in event.view.channels:
            incoming.ended_at = event.sent_count
            effects += self._drain(event.channel)
        return effects

    def _check_view_frame(self, event: ViewReceived) -> None:
        """On a FIFO channel, every message sent before the view must have arrived before it (M2)."""
        incoming = self.incoming.get(event.channel) or self.ending.get(event.channel)
        spec = next((spec for spec in event.view.channels if spec.id == event.channel), None)
        fifo = incoming.fifo if incoming is not None else spec is not None and spec.kind == FIFO
        received = incoming.count if incoming is not None and (spec is None or spec == incoming.spec) else 0
        if fifo and received != event.sent_count:
            problem = f"{event.sent_count} messages were sent before view {event.view.number}, but {received} arrived"
            raise ProtocolViolation(self.process, event.channel, problem)

    def _drain(self, channel: str) -> list[Effect]:
        if not self.ending[channel].drained:
            return []
        del self.ending[channel]
        return self._drained() if not self.ending else []

    def _drained(self) -> list[Effect]:
        if self.process in self.view.members:
            return [ReportDrained(self.view.number)]
        if self.departing:  # a later view has come; the last event runs only once
            return [ReportDrained(self.view.number)] if self.departed else []
        self.departing = True
        return [PrepareDeparture()]

    def _depart(self) -> list[Effect]:
        """End every outgoing channel: the last event of this process is over."""
        self.departed = True
        outgoing, self.outgoing = self.outgoing, {}
        ends: list[Effect] = [SendView(channel, self.view, out.count) for channel, out in outgoing.items()]
        return [*ends, ReportDrained(self.view.number)]
