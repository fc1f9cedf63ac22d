"""Turns the coordinator's orders into protocol events and updates of the captures of one process."""

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
    """Apply an order of the coordinator, between two events."""
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
            # Every reconnecting process gets this order. The view is reported first: no snapshot begins without it.
            timeline.run_between(timeline.captures.start_again)
