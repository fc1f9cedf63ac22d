"""The ends of one process's channels: what is counted on them, and how they change with the view.

Views (E2). A view-install frame precedes the first message of that view on each channel. A process that installs a view
sends one on each of its outgoing channels; it is the last frame on a channel that ends. What still comes on a channel
that has ended is received as ever, to its announced end. A process that leaves first receives all that was sent to it,
runs its last event, then ends its own channels. `ReportDrained` tells the coordinator that the view is installed here
and that nothing is on the way any more on channels that ended; no snapshot of the new view begins before all have said
so.
"""

from strobe.errors import ProtocolViolation
from strobe.protocol.process.channels import Incoming, Outgoing
from strobe.protocol.process.effects import DeliverFrame, Effect, PrepareDeparture, ReportDrained, SendFrame, SendView
from strobe.protocol.process.events import FrameReceived, MessagesSent, ViewReceived
from strobe.protocol.values.frames import FIFO, Frame
from strobe.protocol.values.view import View


class ChannelEnds:
    """The view of one process, and both kinds of ends that it has in it."""

    def __init__(self, process: str, view: View) -> None:
        self.process = process
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
        # The cut index that goes with every frame; it stays 0 where a protocol has none.
        self.index = 0

    # What depends on what is recorded

    def _receive_frame(self, event: FrameReceived) -> list[Effect]:
        raise NotImplementedError

    def _abort_all(self, reason: str) -> list[Effect]:
        raise NotImplementedError

    # Frames

    def number(self, channel: str, count: int, body: bytes) -> int:
        """Count and hash `count` messages that were sent on `channel`; return the ordinal of the first.

        The host that puts them on the wire itself, with `index` and `announced`, need not tell `MessagesSent`.
        """
        return self.outgoing[channel].number(count, body)

    def _send(self, event: MessagesSent) -> list[Effect]:
        first = self.number(event.channel, event.count, event.body)
        return [SendFrame(event.channel, Frame(first, event.count, event.body, self.index, self.announced))]

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

    # Views

    def _install(self, view: View) -> list[Effect]:
        """Go over to `view`: drop what belongs to the old one, and tell every peer in band."""
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
        # Taken one after the other, and only then delivered: nothing is recorded between them, as no snapshot of this
        # view begins before everybody has installed it.
        early, self.early = self.early, []
        for event in early:
            effects += self._receive_frame(event)
        return effects

    def _require_same(self, view: View) -> None:
        """Raise ProtocolViolation where the coordinator has another view of this number: a peer sent a false one."""
        if view.number == self.view.number and view != self.view:
            problem = f"view {view.number} is another at the coordinator than the one that came from a peer"
            raise ProtocolViolation(self.process, "of the coordinator", problem)

    def _end_self_loops(self, view: View) -> list[Effect]:
        """A process that leaves can wait for the end of a channel to itself only if it has ended it."""
        loops = [channel for channel, outgoing in self.outgoing.items() if outgoing.spec.target == self.process]
        return [SendView(channel, view, self.outgoing.pop(channel).count) for channel in loops]

    def _report_again(self, view: View) -> list[Effect]:
        """Answer a coordinator that came back and asks once more."""
        if view.number < self.view.number or self.ending or not (self.departed or self.process in self.view.members):
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
        if self.process in self.view.members:
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
