"""The baseline without Strobe's protocol: the same nodes and links, with a protocol that does nothing.

No ordinals, no hash, no check whether a snapshot is being recorded. It is in the list of protocols only if this module
is imported, and takes no snapshots.
"""

from strobe.protocol import ChandyLamport, Frame
from strobe.protocol.process.effects import Effect
from strobe.protocol.process.events import Event, FrameReceived, MessagesSent
from strobe.protocol.process.registry import PROTOCOLS


class PlainFraming(ChandyLamport):
    """Passes frames on unchanged."""

    name = "plain-framing"

    def take_plain(self, channel: str, frame: Frame) -> bool:
        return True

    def number(self, channel: str, count: int, body: bytes) -> int:
        return 1

    def handle(self, event: Event) -> list[Effect]:
        assert type(event) not in (FrameReceived, MessagesSent), "nothing is recorded: all frames are plain"
        return super().handle(event)


PROTOCOLS[PlainFraming.name] = PlainFraming
