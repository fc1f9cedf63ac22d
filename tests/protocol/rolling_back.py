"""Shared by the tests of rollback: a coordinator with a complete snapshot, and crashes that cause a rollback."""

import msgspec
from tests.protocol.coordinator_host import CoordinatorHost
from tests.protocol.playbook import snapshot_id, view

from strobe.protocol import Policy, SnapshotId, View
from strobe.protocol.coordinator.messages import (
    CoordinatorEffect,
    JoinWanted,
    ProcessFailed,
    ProcessWithoutState,
    SnapshotChosen,
    SnapshotWanted,
)
from strobe.protocol.values.view import ChannelSpec

RING = view("p>q", "q>r", "r>p")
S1, S2 = snapshot_id(1), snapshot_id(2)
JOIN_S = JoinWanted("s", (ChannelSpec("ps", "p", "s"), ChannelSpec("sp", "s", "p")))
SECOND = 1_000_000


def renumbered(of: View, number: int) -> View:
    return msgspec.structs.replace(of, number=number)


def with_one_complete(policy: Policy | None = None) -> CoordinatorHost:
    """A host on which S1 is complete."""
    host = CoordinatorHost(RING, policy)
    host.handle(SnapshotWanted())
    host.fragments(S1, "p", "q", "r")
    return host


def crash(host: CoordinatorHost, *processes: str) -> list[CoordinatorEffect]:
    """Processes fail and reconnect without their state."""
    effects = []
    for process in processes:
        effects += host.handle(ProcessFailed(process), ProcessWithoutState(process))
    return effects


def chosen(host: CoordinatorHost, snapshot: SnapshotId | None = S1, of: View | None = RING) -> list[CoordinatorEffect]:
    return host.handle(SnapshotChosen(str(snapshot) if snapshot else None, of if snapshot else None))


def roll_back(host: CoordinatorHost, process: str, snapshot: SnapshotId | None = S1) -> list[CoordinatorEffect]:
    """Do one whole rollback, until all processes are restored."""
    crash(host, process)
    effects = chosen(host, snapshot)
    host.drained(host.lifecycle.view.number, *host.lifecycle.view.processes)
    return effects
