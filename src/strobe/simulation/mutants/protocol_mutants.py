"""Protocols with one rule broken each (P4). They test the checkers and the explorer, which must catch them.

A mutant names the rule it breaks, the world it runs in, and the class that replaces the real one.
"""

from typing import Any

import msgspec

from strobe.errors import UsageError
from strobe.protocol import ChandyLamport, Fragment, Frontier, LaiYang, Lifecycle, SnapshotId
from strobe.protocol.coordinator.messages import CoordinatorEffect
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
from strobe.simulation.mutants.barrier_mutants import (
    DeliveredEarly,
    ForgottenAtReceiver,
    ForgottenAtSender,
    ForgottenWhenTimeIsOver,
    HeldForGood,
    RecordedBeforeAlignment,
)
from strobe.simulation.mutants.rollback_mutants import (
    CountersNotRestored,
    NotRedelivered,
    OldEpochAccepted,
    RedeliveredTwice,
    StateNotRestored,
)
from strobe.simulation.node import Node


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


class SharedStateNode(Node):
    """E4 broken: the state is captured by reference, and written when the fragment is finished."""

    def _finish(self, fragment: Fragment) -> None:
        early = self.captured[fragment.snapshot]
        self.captured[fragment.snapshot] = msgspec.structs.replace(early, data=self.capture().data)
        super()._finish(fragment)


class ForgetsAfterRestart(Lifecycle):
    """E7 broken: a restarted coordinator ignores the snapshots that were under way."""

    def _recover(self, now_us: int) -> list[CoordinatorEffect]:
        self.open.clear()
        return super()._recover(now_us)


class Mutant(msgspec.Struct, frozen=True):
    """A broken protocol and the world in which its matrix row is made. `rule` is the broken rule, in a few words.

    `explored_on` is the scenario in which the explorer catches it. It is None if the explorer cannot: the mutant breaks
    a host, or its fault shows only when messages are lost with a process.
    """

    name: str
    rule: str
    caught_by: tuple[str, ...]
    protocol_class: Any = None
    node_class: Any = None
    lifecycle_class: Any = None
    faults: str = "delays"
    reorder: bool = False
    conserved: bool = True
    overlapping_max: int = 2
    explored_on: str | None = "pair-cl"

    @property
    def protocol(self) -> str:
        return self.protocol_class.name if self.protocol_class is not None else ChandyLamport.name


CUT, PROOF, EXACT, TOTAL = "cut-consistent", "proof-verifies", "channels-exact", "conservation"
ORPHAN, FREED, GO_ON, CONVERGES = "no-orphan", "buffers-freed", "deliveries-go-on", "converges"
ONCE = "exactly-once"

MUTANTS = (
    Mutant(
        "marker-after-message",
        "C2: the marker comes before any later message",
        (CUT, PROOF, EXACT, TOTAL),
        MarkerAfterMessage,
    ),
    Mutant(
        "forgotten-channel", "C3: every other incoming channel is recorded", (PROOF, EXACT, TOTAL), ForgottenChannel
    ),
    Mutant(
        "forgotten-quiet-channel",
        "P1: a channel with nothing in flight is in the proof too",
        (PROOF,),
        ForgottenQuietChannel,
    ),
    Mutant("missing-marker", "C2: a marker goes on every outgoing channel", (CONVERGES,), MissingMarker),
    Mutant("state-recorded-late", "C3: the state is recorded at once", (CUT, EXACT, TOTAL), StateRecordedLate),
    Mutant(
        "reordered-channel",
        "M2: order is checked, not assumed",
        (CUT, PROOF, EXACT, TOTAL),
        ReorderedChannel,
        reorder=True,
    ),
    Mutant(
        "states-without-channels", "channel state is part of a snapshot", (PROOF, EXACT, TOTAL), StatesWithoutChannels
    ),
    Mutant(
        "one-after-another",
        "the recordings form one consistent cut",
        (CUT, PROOF, EXACT, TOTAL),
        OneAfterAnother,
        explored_on="smallest-ly",
    ),
    Mutant(
        "same-clock-time",
        "L2: a higher index makes one record first",
        (CUT, PROOF, TOTAL),
        SameClockTime,
        explored_on="smallest-ly",
    ),
    Mutant(
        "same-clock-time-patched",
        "L2, and the frontiers say otherwise",
        (CUT,),
        SameClockTimePatched,
        conserved=False,
        explored_on="smallest-ly",
    ),
    Mutant("counted-twice", "C3: what was received is not in the channel", (EXACT,), CountedTwice, conserved=False),
    Mutant(
        "state-shared", "E4: a write after the cut never shows", (TOTAL,), node_class=SharedStateNode, explored_on=None
    ),
    Mutant(
        "forgets-after-restart",
        "E7: what was under way is finished or aborted",
        (ORPHAN,),
        lifecycle_class=ForgetsAfterRestart,
        faults="delays,coordinator",
        explored_on=None,
    ),
    Mutant(
        "abort-ignored",
        "E6: an abort frees the buffers",
        (FREED,),
        AbortIgnored,
        faults="delays,crashes",
        explored_on=None,
    ),
    Mutant("holds-deliveries", "C7: the application is never paused", (GO_ON,), HoldsDeliveries, overlapping_max=1),
    Mutant(
        "state-not-restored",
        "R1: every process gets its recorded state",
        (ONCE,),
        node_class=StateNotRestored,
        faults="delays,rollbacks",
        conserved=False,
        explored_on=None,
    ),
    Mutant(
        "counters-not-restored",
        "R1: every process gets its recorded counters",
        (PROOF, EXACT, TOTAL, ONCE),
        node_class=CountersNotRestored,
        faults="delays,rollbacks",
        explored_on=None,
    ),
    Mutant(
        "not-redelivered",
        "R1: recorded messages in flight are received",
        (EXACT, TOTAL, ONCE),
        node_class=NotRedelivered,
        faults="delays,rollbacks",
        explored_on=None,
    ),
    Mutant(
        "redelivered-twice",
        "R1: each of them once",
        (ONCE,),
        node_class=RedeliveredTwice,
        faults="delays,rollbacks",
        conserved=False,
        explored_on=None,
    ),
    Mutant(
        "old-epoch-accepted",
        "R1: a new epoch fences off everything older",
        (PROOF, TOTAL, ONCE),
        node_class=OldEpochAccepted,
        faults="delays,rollbacks",
        explored_on=None,
    ),
    Mutant(
        "recorded-before-alignment",
        "A3: aligned barriers align first and record then",
        (PROOF, EXACT, TOTAL),
        RecordedBeforeAlignment,
        explored_on="diamond-aligned",
    ),
    Mutant(
        "delivered-early",
        "A2: what comes behind a barrier is held back",
        (CUT, PROOF, TOTAL),
        DeliveredEarly,
        explored_on="diamond-aligned",
    ),
    Mutant(
        "forgotten-at-sender",
        "U2: what waits at the sender is overtaken too",
        (PROOF, EXACT, TOTAL),
        ForgottenAtSender,
        explored_on="diamond-unaligned",
    ),
    Mutant(
        "forgotten-at-receiver",
        "U2: what waits at the receiver is overtaken too",
        (PROOF, EXACT, TOTAL),
        ForgottenAtReceiver,
        explored_on="diamond-unaligned",
    ),
    Mutant(
        "held-for-good",
        "T2: holding back ends when the time is over",
        (FREED,),
        HeldForGood,
        explored_on="join-timed",
    ),
    Mutant(
        "forgotten-when-time-is-over",
        "T2: what waits before a barrier that has come is overtaken",
        (PROOF, EXACT, TOTAL),
        ForgottenWhenTimeIsOver,
        explored_on="join-timed-twice",
    ),
)


def mutant(name: str) -> Mutant:
    """Return the mutant called `name`."""
    known = {mutant.name: mutant for mutant in MUTANTS}
    if name not in known:
        raise UsageError(f"there is no mutant {name!r}; mutants are: {', '.join(known)}")
    return known[name]


def _replace_fragment(effect: Effect, change: Any) -> Effect:
    return FinishFragment(change(effect.fragment)) if isinstance(effect, FinishFragment) else effect


def _without_frames(fragment: Fragment) -> Fragment:
    return msgspec.structs.replace(fragment, in_flight=dict.fromkeys(fragment.in_flight, ()))


def _without_quiet(fragment: Fragment) -> Fragment:
    busy = {channel: items for channel, items in fragment.in_flight.items() if items}
    received = {channel: fragment.received[channel] for channel in busy}
    return msgspec.structs.replace(fragment, in_flight=busy, received=received)
