"""Assembles a snapshot's manifest from its process records."""

import msgspec

from strobe.protocol import SnapshotId, View
from strobe.protocol.values.log_entries import Begin, Departure, Manifest, ProcessRecord


class CommitOrder(msgspec.Struct, frozen=True):
    """Everything that a commit needs: every process of `view` has stored its part."""

    snapshot: SnapshotId
    begin: Begin
    view: View
    records: dict[str, ProcessRecord]
    departed: dict[str, Departure] = {}
    joined: dict[str, int] = {}


def assemble(order: CommitOrder, parent: str | None, completed_us: int) -> Manifest:
    """Return the manifest of the snapshot."""
    return Manifest(
        protocol=order.begin.protocol,
        initiators=order.begin.initiators,
        view=order.view,
        epoch=order.snapshot.epoch,
        started_us=order.begin.at_us,
        completed_us=completed_us,
        processes={process: order.records[process] for process in sorted(order.records)},
        retries=order.begin.retries,
        parent=parent,
        departed=order.departed,
        joined=order.joined,
    )
