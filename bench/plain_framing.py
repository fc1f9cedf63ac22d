"""What Strobe adds to the frames of a channel, taken away: the same nodes and links, with a protocol that does nothing.

No ordinals, no hash, no check whether a snapshot is recorded. It stands in the list of protocols only where this module
is imported, and takes no snapshots.
"""

from strobe.protocol import ChandyLamport, Frame
from strobe.protocol.effects import DeliverFrame, Effect, SendFrame
from strobe.protocol.events import Event, FrameReceived, MessagesSent
from strobe.protocol.registry import PROTOCOLS


class PlainFraming(ChandyLamport):
    """Hands frames on as they are."""

    name = "plain-framing"

    def handle(self, event: Event) -> list[Effect]:
        if type(event) is FrameReceived:
            return [DeliverFrame(event.channel, event.frame, event.consumed)]
        if type(event) is MessagesSent:
            return [SendFrame(event.channel, Frame(1, event.count, event.body, 0, 1))]
        return super().handle(event)


PROTOCOLS[PlainFraming.name] = PlainFraming
