"""What a process's protocol orders its host to do: imperatives, carried out in the order given."""

import msgspec

from strobe.protocol.process.events import Marker
from strobe.protocol.values.fragment import Fragment
from strobe.protocol.values.frames import Frame
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.view import View


class RecordState(msgspec.Struct, frozen=True):
    """Capture the process's state now, before anything else happens to it."""

    snapshot: SnapshotId


class SendMarker(msgspec.Struct, frozen=True):
    """Put a marker on `channel`, behind everything sent so far and before everything sent later (C2)."""

    channel: str
    marker: Marker


class SendBarrier(msgspec.Struct, frozen=True):
    """Put a barrier on `channel` ahead of all that waits at this machine, with what it overtakes of the messages up to
    its `sent_count`; behind barriers that were sent before (V4)."""

    channel: str
    marker: Marker


class HoldChannel(msgspec.Struct, frozen=True):
    """Hand over nothing more from `channel`, whose barrier has come, until told to: the others align with it (V3)."""

    channel: str
    snapshot: SnapshotId


class ResumeChannel(msgspec.Struct, frozen=True):
    """Go on with what has come on `channel`, which was held back."""

    channel: str


class SetAlignmentTimer(msgspec.Struct, frozen=True):
    """Tell `AlignmentTimedOut` when alignment for `snapshot` has taken as long as it may (V5)."""

    snapshot: SnapshotId


class SendFrame(msgspec.Struct, frozen=True, gc=False):
    channel: str
    frame: Frame


class DeliverFrame(msgspec.Struct, frozen=True, gc=False):
    """Run the messages of `frame` through the process, but for the first `consumed`."""

    channel: str
    frame: Frame
    consumed: int = 0


class ReportSentCounts(msgspec.Struct, frozen=True):
    """Tell the coordinator how many messages had been sent on each outgoing channel at the cut (V1)."""

    snapshot: SnapshotId
    counts: dict[str, int]


class FinishFragment(msgspec.Struct, frozen=True):
    """This process is locally complete (C5): add the captured state and hand the fragment over."""

    fragment: Fragment


class DropRecording(msgspec.Struct, frozen=True):
    """Free what was captured for `snapshot`: it will not complete here, for this `reason`."""

    snapshot: SnapshotId
    reason: str


class SendView(msgspec.Struct, frozen=True):
    """Put a view-install frame on `channel`: the last thing on a channel that ends, else the first of its view."""

    channel: str
    view: View
    sent_count: int


class PrepareDeparture(msgspec.Struct, frozen=True):
    """All that was sent to this process has been received: run its last event, then tell `DepartureReady`."""


class ReportDrained(msgspec.Struct, frozen=True):
    """Tell the coordinator that every channel which ended with view `view` has been received to its end (E2)."""

    view: int


Effect = (
    RecordState
    | SendMarker
    | SendBarrier
    | HoldChannel
    | ResumeChannel
    | SetAlignmentTimer
    | SendFrame
    | DeliverFrame
    | ReportSentCounts
    | FinishFragment
    | DropRecording
    | SendView
    | PrepareDeparture
    | ReportDrained
)
