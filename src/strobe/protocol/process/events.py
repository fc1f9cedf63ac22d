"""The events of a process's protocol: facts, in the past tense. A closed union: `assert_never` finds a gap."""

import msgspec

from strobe.protocol.values.bounds import Count, ViewNumber
from strobe.protocol.values.frames import Frame, InFlight
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.view import View


class Marker(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of a marker. A barrier also has the number of messages its sender had sent on the channel (V3-V5)."""

    epoch: Count
    view: ViewNumber
    snapshot: SnapshotId
    sent_count: Count | None = None


class MessagesSent(msgspec.Struct, frozen=True, gc=False):
    """An event has ended that sent `count` messages on `channel`; `body` is their MessagePack array."""

    channel: str
    count: int
    body: bytes


class FrameReceived(msgspec.Struct, frozen=True, gc=False):
    """The host has taken a frame from `channel` and is about to run its messages through the process.

    `consumed` of them were received before the cut that this process was restored to (0 except for breakpoints).
    """

    channel: str
    frame: Frame
    consumed: int = 0


class MarkerReceived(msgspec.Struct, frozen=True):
    channel: str
    marker: Marker


class BarrierArrived(msgspec.Struct, frozen=True):
    """A barrier has reached this machine. The frames `waiting` came before it on its channel and are not received yet.

    If it `overtakes`, it has overtaken all queued frames, here and at its sender, and takes effect now; `overtaken` are
    the frames that were queued at the sender. Otherwise it takes effect after the queued frames: then `MarkerReceived`
    follows.
    """

    channel: str
    marker: Marker
    waiting: tuple[InFlight, ...] = ()
    overtaken: tuple[Frame, ...] = ()
    overtakes: bool = False


class AlignmentTimedOut(msgspec.Struct, frozen=True):
    """Alignment for `snapshot` has taken its maximum time (V5)."""

    snapshot: SnapshotId


class Breakpoint(msgspec.Struct, frozen=True):
    """The cut falls inside the last frame from `channel`, after `consumed` of its messages."""

    channel: str
    consumed: int


class SnapshotRequested(msgspec.Struct, frozen=True):
    """A recording for `snapshot` was requested. Repeated requests record once.

    Under Lai-Yang the counter of the id is the cut index.
    """

    snapshot: SnapshotId
    view: int
    breakpoint: Breakpoint | None = None


class SentCountRelayed(msgspec.Struct, frozen=True):
    """The sender of `channel` had sent `count` messages at its recording of `snapshot` (V1)."""

    snapshot: SnapshotId
    channel: str
    count: int


class SnapshotAborted(msgspec.Struct, frozen=True):
    """`snapshot` will never complete: the coordinator aborted it, or this process has waited for too long (E6, E7)."""

    snapshot: SnapshotId


class SnapshotsSettled(msgspec.Struct, frozen=True):
    """Every snapshot of this epoch below `counter` has its outcome: forget those, and ignore their markers."""

    counter: int


class ViewInstalled(msgspec.Struct, frozen=True):
    """The coordinator sent a view, for the first time or again (E2)."""

    view: View


class ViewReceived(msgspec.Struct, frozen=True):
    """A view-install frame arrived on `channel`; its sender had sent `sent_count` messages before it."""

    channel: str
    view: View
    sent_count: int


class DepartureReady(msgspec.Struct, frozen=True):
    """This process is leaving, and its last event is over: its outgoing channels may be closed."""


class Restarted(msgspec.Struct, frozen=True):
    """The process came back from a crash. Its state and counters were kept, its open recordings were not."""


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
