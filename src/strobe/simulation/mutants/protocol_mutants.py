"""Chandy-Lamport and Lai-Yang with one rule broken each."""

from typing import Any

import msgspec

from strobe.protocol import ChandyLamport, Fragment, Frontier, LaiYang, SnapshotId
from strobe.protocol.process.channels import Incoming
from strobe.protocol.process.effects import DeliverFrame, Effect, FinishFragment, RecordState, SendMarker
from strobe.protocol.process.endpoint import Recording
from strobe.protocol.process.events import (
    Breakpoint,
    Event,
    FrameReceived,
    MessagesSent,
    SnapshotAborted,
    SnapshotRequested,
    SnapshotsSettled,
)
from strobe.protocol.values.frames import Frame, InFlight


class MarkerAfterMessage(ChandyLamport):
    """C2 broken: the markers are sent after the next message, not before it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.held: dict[str, list[SendMarker]] = {}

    def handle(self, event: Event) -> list[Effect]:
        effects: list[Effect] = []
        for effect in super().handle(event):
            if isinstance(effect, SendMarker) and not self.ending:
                self.held.setdefault(effect.channel, []).append(effect)
            else:
                effects.append(effect)
        if isinstance(event, MessagesSent):
            effects += self.held.pop(event.channel, [])
        return effects


class ForgottenChannel(ChandyLamport):
    """C3 broken: the last incoming channel is not recorded, and its marker is not awaited."""

    def _begin(self, snapshot: SnapshotId, inside: Breakpoint | None) -> tuple[Recording, Effect]:
        recording, effect = super()._begin(snapshot, inside)
        if self.incoming:
            recording.pending.discard(max(self.incoming))
        return recording, effect


class ForgottenQuietChannel(ChandyLamport):
    """A channel with nothing in flight is left out of the fragment."""

    def _finish(self, recording: Recording) -> list[Effect]:
        effects = super()._finish(recording)
        return [_replace_fragment(effect, _without_quiet) for effect in effects]


class MissingMarker(ChandyLamport):
    """C2 broken: no marker on the last outgoing channel."""

    def handle(self, event: Event) -> list[Effect]:
        last = max(self.outgoing, default="")
        return [
            effect
            for effect in super().handle(event)
            if not (isinstance(effect, SendMarker) and effect.channel == last)
        ]


class StateRecordedLate(ChandyLamport):
    """C3 broken: the state is recorded after the next message, the channels at the marker."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.late: list[Effect] = []

    def handle(self, event: Event) -> list[Effect]:
        effects: list[Effect] = []
        due = self.late if isinstance(event, FrameReceived) else []
        for effect in super().handle(event):
            if isinstance(effect, RecordState):
                self.late = [*self.late, effect]
            elif isinstance(effect, FinishFragment):
                effects += [record for record in self.late if record not in due]
                effects += due
                self.late, due = [], []
                effects.append(effect)
            else:
                effects.append(effect)
        if due:
            effects += due
            self.late = [record for record in self.late if record not in due]
        return effects


class _Unchecked(Incoming):
    """M2 broken: ordinals are not checked."""

    __slots__ = ()

    def accept(self, frame: Frame, process: str, consumed: int = 0) -> None:
        self.hash_before_last = self.hash
        self.hash = self.extend(self.hash, frame.first_ordinal, frame.count, frame.body)
        self.count += frame.count
        self.last = frame


class ReorderedChannel(ChandyLamport):
    """M2 broken: channels reorder, and ordinals are not checked."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.incoming = {channel: _Unchecked(incoming.spec) for channel, incoming in self.incoming.items()}


class StatesWithoutChannels(ChandyLamport):
    """The first naive snapshot: states at a consistent cut, without the messages in flight."""

    def _finish(self, recording: Recording) -> list[Effect]:
        return [_replace_fragment(effect, _without_frames) for effect in super()._finish(recording)]


class OneAfterAnother(LaiYang):
    """The second naive snapshot: each process is frozen in turn, and channels are recorded as empty."""

    def handle(self, event: Event) -> list[Effect]:
        if isinstance(event, SnapshotRequested) and not self._is_settled(event.snapshot):
            recording, record_state = self._begin(event.snapshot, None)
            recording.pending.clear()
            return [record_state, *self._finish(recording)]
        return super().handle(event)


class SameClockTime(LaiYang):
    """The third naive snapshot: all processes record at the same time on clocks that differ (L2 broken)."""

    def _receive_frame(self, event: FrameReceived) -> list[Effect]:
        """Treat a frame of a higher index as one of the current index, so that it does not make this process record."""
        late = msgspec.structs.replace(event.frame, index=min(event.frame.index, self.index))
        index = event.frame.index
        effects = super()._receive_frame(FrameReceived(event.channel, late))
        for recording in self.open.values():
            items = recording.frames[event.channel]
            if items and items[-1].frame is late and index >= recording.snapshot.counter:
                items.pop()
        return effects


class SameClockTimePatched(SameClockTime):
    """As before, but the processes hide it: they claim to have received only what had been sent."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.history: dict[str, dict[int, bytes]] = {
            channel: {0: incoming.seed} for channel, incoming in self.incoming.items()
        }

    def _receive_frame(self, event: FrameReceived) -> list[Effect]:
        effects = super()._receive_frame(event)
        incoming = self.incoming[event.channel]
        self.history[event.channel][incoming.count] = incoming.hash
        return effects

    def _finish(self, recording: Recording) -> list[Effect]:
        for channel, expected in recording.expected.items():
            if recording.received[channel].count > expected:
                recording.received[channel] = Frontier(expected, self.history[channel][expected])
        return super()._finish(recording)


class CountedTwice(ChandyLamport):
    """C3 broken: the last frame received before the recording is recorded as in flight, and is in the state as well."""

    def _begin(self, snapshot: SnapshotId, inside: Breakpoint | None) -> tuple[Recording, Effect]:
        recording, effect = super()._begin(snapshot, inside)
        for channel, incoming in self.incoming.items():
            if incoming.last is not None:
                count = incoming.count - incoming.last.count
                recording.received[channel] = Frontier(count, incoming.hash_before_last)
                recording.frames[channel].append(InFlight(incoming.last))
        return recording, effect


class AbortIgnored(ChandyLamport):
    """E6 broken: an aborted snapshot's buffers are kept."""

    def handle(self, event: Event) -> list[Effect]:
        if isinstance(event, (SnapshotAborted, SnapshotsSettled)):
            return []
        return super().handle(event)


class HoldsDeliveries(ChandyLamport):
    """C7 broken: nothing is delivered between the recording and the completion."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.undelivered: list[Effect] = []

    def handle(self, event: Event) -> list[Effect]:
        effects: list[Effect] = []
        for effect in super().handle(event):
            if isinstance(effect, DeliverFrame) and self.open:
                self.undelivered.append(effect)
            else:
                effects.append(effect)
        if not self.open:
            effects += self.undelivered
            self.undelivered = []
        return effects


def _replace_fragment(effect: Effect, change: Any) -> Effect:
    return FinishFragment(change(effect.fragment)) if isinstance(effect, FinishFragment) else effect


def _without_frames(fragment: Fragment) -> Fragment:
    return msgspec.structs.replace(fragment, in_flight=dict.fromkeys(fragment.in_flight, ()))


def _without_quiet(fragment: Fragment) -> Fragment:
    busy = {channel: items for channel, items in fragment.in_flight.items() if items}
    received = {channel: fragment.received[channel] for channel in busy}
    return msgspec.structs.replace(fragment, in_flight=busy, received=received)
