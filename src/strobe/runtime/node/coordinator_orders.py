"""What the coordinator's orders come to at one process: events of its protocol, and the end of what is kept."""

from typing import TYPE_CHECKING

import msgspec

from strobe.protocol.coordinator.messages import AskToRecord, RelaySentCount, TellOutcome, TellSettled, TellView
from strobe.protocol.process.events import (
    SentCountRelayed,
    SnapshotAborted,
    SnapshotRequested,
    SnapshotsSettled,
    ViewInstalled,
)

if TYPE_CHECKING:
    from strobe.runtime.node.timeline import Timeline


def apply_order(timeline: "Timeline", order: msgspec.Struct) -> None:
    """Do what the coordinator says, between two events."""
    match order:
        case AskToRecord():
            if not timeline.captures.resend(order.snapshot):
                timeline.take_soon(SnapshotRequested(order.snapshot, order.view))
        case RelaySentCount():
            timeline.take_soon(SentCountRelayed(order.snapshot, order.channel, order.count))
        case TellOutcome():
            timeline.captures.outcome(order.snapshot, order.committed)
            if not order.committed:
                timeline.take_soon(SnapshotAborted(order.snapshot))
        case TellSettled():
            timeline.captures.settled(order.counter)
            timeline.take_soon(SnapshotsSettled(order.counter))
        case TellView():
            timeline.take_soon(ViewInstalled(order.view))
            # Said to everybody who returns; and behind the word that the view is there, without which none may begin.
            timeline.run_between(timeline.captures.start_again)
