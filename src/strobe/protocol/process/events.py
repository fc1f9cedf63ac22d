"""What a process's protocol is told: facts, in the past tense. A closed union: `assert_never` finds a gap."""

import msgspec

from strobe.protocol.values.bounds import Count, ViewNumber
from strobe.protocol.values.frames import Frame, InFlight
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.view import View


class Marker(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a marker carries. A barrier also says how many messages its sender had sent on the channel (V3-V5)."""

    epoch: Count
    view: ViewNumber
    snapshot: SnapshotId
    sent_count: Count | None = None


class MessagesSent(msgspec.Struct, frozen=True, gc=False):
    """An event has ended that put `count` messages on `channel`; `body` is their MessagePack array."""

    channel: str
    count: int
    body: bytes


class FrameReceived(msgspec.Struct, frozen=True, gc=False):
    """The host has taken a frame from `channel` and is about to run its messages through the process.

    `consumed` of them were received before the cut that this process was restored to (0 but for breakpoints).
    """

    channel: str
    frame: Frame
    consumed: int = 0


class MarkerReceived(msgspec.Struct, frozen=True):
    channel: str
    marker: Marker


class BarrierArrived(msgspec.Struct, frozen=True):
    """A barrier has reached this machine. `waiting` came before it on its channel and is not received yet.

    One that `overtakes` has overtaken all that waits, here and at its sender: `overtaken` is what waited there, and its
    turn is now. Any other has its turn behind what waits: then `MarkerReceived` tells of it again.
    """

    channel: str
    marker: Marker
    waiting: tuple[InFlight, ...] = ()
    overtaken: tuple[Frame, ...] = ()
    overtakes: bool = False


class AlignmentTimedOut(msgspec.Struct, frozen=True):
    """The time has passed that alignment for `snapshot` may take (V5)."""

    snapshot: SnapshotId


class Breakpoint(msgspec.Struct, frozen=True):
    """The cut falls inside the last frame from `channel`, after `consumed` of its messages."""

    channel: str
    consumed: int


class SnapshotRequested(msgspec.Struct, frozen=True):
    """This process shall record for `snapshot`; asked twice, it records once. Under Lai-Yang the counter of the id is
    the cut index."""

    snapshot: SnapshotId
    view: int
    breakpoint: Breakpoint | None = None


class SentCountRelayed(msgspec.Struct, frozen=True):
    """The sender of `channel` had sent `count` messages at its recording of `snapshot` (V1)."""

    snapshot: SnapshotId
    channel: str
    count: int


class SnapshotAborted(msgspec.Struct, frozen=True):
    """`snapshot` will never complete: the coordinator said so, or this process has waited for too long (E6, E7)."""

    snapshot: SnapshotId


class SnapshotsSettled(msgspec.Struct, frozen=True):
    """Every snapshot of this epoch below `counter` has its outcome: forget those, and ignore their markers."""

    counter: int


class ViewInstalled(msgspec.Struct, frozen=True):
    """The coordinator brought a view, for the first time or again (E2)."""

    view: View


class ViewReceived(msgspec.Struct, frozen=True):
    """A view-install frame has come on `channel`; its sender had sent `sent_count` messages before it."""

    channel: str
    view: View
    sent_count: int


class DepartureReady(msgspec.Struct, frozen=True):
    """This process is leaving, and its last event is over: its outgoing channels may be closed."""


class Restarted(msgspec.Struct, frozen=True):
    """The process came back from a crash: its state and counters were kept, its recordings under way were not."""


Event = (
    MessagesSent
    | FrameReceived
    | MarkerReceived
    | BarrierArrived
    | AlignmentTimedOut
    | SnapshotRequested
    | SentCountRelayed
    | SnapshotAborted
    | SnapshotsSettled
    | ViewInstalled
    | ViewReceived
    | DepartureReady
    | Restarted
)
