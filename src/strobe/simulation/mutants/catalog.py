"""The mutants of the matrix: the rule that each breaks, the world it runs in, the checkers that must catch it (P4)."""

from typing import Any

import msgspec

from strobe.errors import UsageError
from strobe.protocol import ChandyLamport
from strobe.simulation.mutants.barrier_mutants import (
    DeliveredEarly,
    ForgottenAtReceiver,
    ForgottenAtSender,
    ForgottenWhenTimeIsOver,
    HeldForGood,
    RecordedBeforeAlignment,
)
from strobe.simulation.mutants.host_mutants import (
    CountersNotRestored,
    FieldLostNode,
    ForgetsAfterRestart,
    NotRedelivered,
    OldEpochAccepted,
    RedeliveredTwice,
    SharedStateNode,
    StateNotRestored,
)
from strobe.simulation.mutants.protocol_mutants import (
    AbortIgnored,
    CountedTwice,
    ForgottenChannel,
    ForgottenQuietChannel,
    HoldsDeliveries,
    MarkerAfterMessage,
    MissingMarker,
    OneAfterAnother,
    ReorderedChannel,
    SameClockTime,
    SameClockTimePatched,
    StateRecordedLate,
    StatesWithoutChannels,
)


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
    invariants: bool = False
    overlapping_max: int = 2
    explored_on: str | None = "pair-cl"

    @property
    def protocol(self) -> str:
        return self.protocol_class.name if self.protocol_class is not None else ChandyLamport.name


CUT, PROOF, EXACT, TOTAL = "cut-consistent", "proof-verifies", "channels-exact", "conservation"
ORPHAN, FREED, GO_ON, CONVERGES = "no-orphan", "buffers-freed", "deliveries-go-on", "converges"
ONCE, DECLARED = "exactly-once", "invariants"

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
        "L2: a higher index makes a process record first",
        (CUT, PROOF, TOTAL),
        SameClockTime,
        explored_on="smallest-ly",
    ),
    Mutant(
        "same-clock-time-patched",
        "L2, and the frontiers hide it",
        (CUT,),
        SameClockTimePatched,
        conserved=False,
        explored_on="smallest-ly",
    ),
    Mutant("counted-twice", "C3: a received message is not in the channel", (EXACT,), CountedTwice, conserved=False),
    Mutant(
        "state-shared", "E4: a write after the cut never shows", (TOTAL,), node_class=SharedStateNode, explored_on=None
    ),
    Mutant(
        "field-lost",
        "S3: every field of a state is stored",
        (DECLARED,),
        node_class=FieldLostNode,
        invariants=True,
        explored_on=None,
    ),
    Mutant(
        "forgets-after-restart",
        "E7: open snapshots are finished or aborted",
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
        "R1: each message in flight is received once",
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
        "A2: messages after a barrier are held back",
        (CUT, PROOF, TOTAL),
        DeliveredEarly,
        explored_on="diamond-aligned",
    ),
    Mutant(
        "forgotten-at-sender",
        "U2: messages waiting at the sender are overtaken too",
        (PROOF, EXACT, TOTAL),
        ForgottenAtSender,
        explored_on="diamond-unaligned",
    ),
    Mutant(
        "forgotten-at-receiver",
        "U2: messages waiting at the receiver are overtaken too",
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
        "T2: messages waiting before an arrived barrier are overtaken",
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
