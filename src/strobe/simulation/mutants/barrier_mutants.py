"""Barriers with one rule broken each (V3-V5)."""

from strobe.protocol import Aligned, AlignedThenUnaligned, InFlight, SnapshotId, Unaligned
from strobe.protocol.process.effects import Effect, HoldChannel, ResumeChannel
from strobe.protocol.process.events import BarrierArrived, Event, MarkerReceived


class RecordedBeforeAlignment(Aligned):
    """A3 broken: the first barrier makes the process record, and its channels are still recorded as empty."""

    def _receive_marker(self, event: MarkerReceived) -> list[Effect]:
        return self._align(event.marker.snapshot) if self._concerns(event.channel, event.marker) else []


class DeliveredEarly(Aligned):
    """A2 broken: messages behind a barrier are received before the other barriers have come."""

    def _is_held(self, channel: str) -> bool:
        return False

    def handle(self, event: Event) -> list[Effect]:
        return [effect for effect in super().handle(event) if not isinstance(effect, HoldChannel | ResumeChannel)]


class ForgottenAtSender(Unaligned):
    """U2 broken: messages that the barrier overtook at its sender are not part of the channel's state."""

    def _overtaken(self, event: BarrierArrived) -> list[InFlight]:
        return [item for item in super()._overtaken(event) if item in event.waiting]


class ForgottenAtReceiver(Unaligned):
    """U2 broken: messages that the barrier overtook at its receiver are not part of the channel's state."""

    def _overtaken(self, event: BarrierArrived) -> list[InFlight]:
        return [item for item in super()._overtaken(event) if item not in event.waiting]


class HeldForGood(AlignedThenUnaligned):
    """T2 broken: when the alignment timer fires, a process records but does not resume the inputs it held back."""

    def _turn(self, snapshot: SnapshotId) -> list[Effect]:
        return [effect for effect in super()._turn(snapshot) if not isinstance(effect, ResumeChannel)]


class ForgottenWhenTimeIsOver(AlignedThenUnaligned):
    """T2 broken: messages waiting before a barrier that has reached the machine are not part of the channel's state."""

    def _close(self, snapshot: SnapshotId) -> list[Effect]:
        recording = self.open[snapshot]
        recording.pending -= self.arrived.pop(snapshot, {}).keys()
        return self._finish(recording)
