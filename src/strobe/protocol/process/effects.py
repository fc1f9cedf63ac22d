"""The effects that a process's protocol returns: orders to its host, carried out in the order given."""

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
    """Send a barrier on `channel` ahead of all messages queued at this machine, but behind earlier barriers (V4).

    It carries copies of the messages it overtakes, up to its `sent_count`.
    """

    channel: str
    marker: Marker


class HoldChannel(msgspec.Struct, frozen=True):
    """The barrier has come on `channel`: pass nothing more from it until `ResumeChannel`. Other inputs align (V3)."""

    channel: str
    snapshot: SnapshotId


class ResumeChannel(msgspec.Struct, frozen=True):
    """Resume `channel`, which was held back."""

    channel: str


class SetAlignmentTimer(msgspec.Struct, frozen=True):
    """Pass `AlignmentTimedOut` when alignment for `snapshot` has taken its maximum time (V5)."""

    snapshot: SnapshotId


class SendFrame(msgspec.Struct, frozen=True, gc=False):
    channel: str
    frame: Frame


class DeliverFrame(msgspec.Struct, frozen=True, gc=False):
    """Run the messages of `frame`, except the first `consumed`, through the process."""

    channel: str
    frame: Frame
    consumed: int = 0


class ReportSentCounts(msgspec.Struct, frozen=True):
    """Report to the coordinator how many messages had been sent on each outgoing channel at the cut (V1)."""

    snapshot: SnapshotId
    counts: dict[str, int]


class FinishFragment(msgspec.Struct, frozen=True):
    """This process is locally complete (C5): add the captured state and send the fragment."""

    fragment: Fragment


class DropRecording(msgspec.Struct, frozen=True):
    """Free the state captured for `snapshot`: it will not complete here, for this `reason`."""

    snapshot: SnapshotId
    reason: str


class SendView(msgspec.Struct, frozen=True):
    """Send a view-install frame on `channel`: the last frame if the channel ends, otherwise the first of its view."""

    channel: str
    view: View
    sent_count: int


class PrepareDeparture(msgspec.Struct, frozen=True):
    """All messages sent to this process have been received: run its last event, then pass `DepartureReady`."""


class ReportDrained(msgspec.Struct, frozen=True):
    """Report to the coordinator that every channel that ended with view `view` has been received to its end (E2)."""

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
