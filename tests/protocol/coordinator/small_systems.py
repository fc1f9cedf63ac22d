"""Small systems, and a coordinator with a snapshot in progress, for tests of its life cycle."""

from tests.protocol.coordinator_host import CoordinatorHost, those
from tests.protocol.playbook import snapshot_id, view

from strobe.protocol import Policy
from strobe.protocol.coordinator.messages import CoordinatorEffect, SnapshotWanted, WakeAt

RING = view("p>q", "q>r", "r>p")
FUNNEL = view("p>r", "q>r")
S1, S2 = snapshot_id(1), snapshot_id(2)
SECOND = 1_000_000


def woken_at(effects: list[CoordinatorEffect]) -> int:
    """Return when the host wakes the state machine: a wake-up is "at the latest", so the earliest one counts."""
    return min(order.at_us for order in those(effects, WakeAt))


def begun(policy: Policy | None = None, protocol: str = "chandy-lamport") -> CoordinatorHost:
    """A host with one snapshot in progress."""
    host = CoordinatorHost(RING, policy, protocol)
    host.handle(SnapshotWanted())
    return host
