"""Snapshots that have ended, were refused, or are known only by an early fragment.

The number of each is bounded. Processes are informed of the counter below which everything is settled, and snapshots
below it need not be remembered. A new epoch settles everything older.
"""

from collections.abc import Collection

from strobe.protocol.coordinator.messages import FragmentArrived
from strobe.protocol.values.bounds import COUNTER_AHEAD_MAX
from strobe.protocol.values.ids import SnapshotId

IDS_REMEMBERED = 64
"""In normal operation, processes forget an id only after this number of later ones have begun. So a snapshot that a
process initiates itself, with a counter a little behind, is not mistaken for an old one. A process that joins or comes
back forgets settled ids at once.
"""


class SnapshotOutcomes:
    """The ended snapshots and their outcomes."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        # True: committed. False: aborted.
        self.ended: dict[SnapshotId, bool] = {}
        # Snapshots that a process initiated and the coordinator refused: never begun, but reported as ended. Only the
        # newest are kept: a process that was away and gets no outcome frees its buffers after a time-out (E7).
        self.refused: dict[SnapshotId, None] = {}
        # Fragments that arrived before their snapshot was announced, by process.
        self.unclaimed: dict[SnapshotId, dict[str, FragmentArrived]] = {}
        # The highest counter in the log, by epoch.
        self.counters: dict[int, int] = {}

    @property
    def counter(self) -> int:
        """The highest counter of this epoch in the log."""
        return self.counters.get(self.epoch, 0)

    def start_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.counters = {known: counter for known, counter in self.counters.items() if known >= epoch}
        self.ended = {known: how for known, how in self.ended.items() if known.epoch >= epoch}
        self.refused = {known: None for known in self.refused if known.epoch >= epoch}
        self.unclaimed = {known: found for known, found in self.unclaimed.items() if known.epoch >= epoch}

    def begun(self, snapshot: SnapshotId) -> None:
        if self.is_near(snapshot):
            self.counters[snapshot.epoch] = max(self.counters.get(snapshot.epoch, 0), snapshot.counter)

    def is_near(self, snapshot: SnapshotId) -> bool:
        """Return whether a process can have reached the counter of `snapshot` by counting."""
        return snapshot.counter <= self.counters.get(snapshot.epoch, 0) + COUNTER_AHEAD_MAX

    def end(self, snapshot: SnapshotId, committed: bool) -> None:
        self.ended[snapshot] = committed

    def refuse(self, snapshot: SnapshotId) -> None:
        self.refused[snapshot] = None
        if len(self.refused) > 4 * IDS_REMEMBERED:
            del self.refused[next(iter(self.refused))]
        self.unclaimed.pop(snapshot, None)

    def has(self, snapshot: SnapshotId, going_on: Collection[SnapshotId]) -> bool:
        """Return whether `snapshot` has ended, even if its outcome is forgotten."""
        if snapshot in self.ended or snapshot.epoch < self.epoch:
            return True
        old = snapshot.epoch == self.epoch and snapshot.counter < self.settled_below(going_on)
        return old and snapshot not in going_on

    def settled_below(self, going_on: Collection[SnapshotId]) -> int:
        counters = [snapshot.counter for snapshot in going_on if snapshot.epoch == self.epoch]
        return max(0, min(counters, default=self.counter) - IDS_REMEMBERED)

    def missed_since(self, counter: int) -> dict[SnapshotId, bool]:
        """Return the ended snapshots with at least this counter, and whether each was committed."""
        over = self.ended | dict.fromkeys(self.refused, False)
        return {snapshot: over[snapshot] for snapshot in sorted(over) if snapshot.counter >= counter}

    def keep_unclaimed(self, event: FragmentArrived) -> None:
        """Remember a fragment that arrived before the announcement of its snapshot, which a process has initiated."""
        self.unclaimed.setdefault(event.snapshot, {})[event.process] = event
        if len(self.unclaimed) > IDS_REMEMBERED:
            del self.unclaimed[min(self.unclaimed)]

    def forget(self, settled: int) -> SnapshotId | None:
        """Keep memory bounded. Return the id before which everything was forgotten, or None if there was no need."""
        if len(self.ended) + len(self.refused) <= 4 * IDS_REMEMBERED:
            return None
        recent = SnapshotId(self.epoch, settled, "")  # sorts before every id with a name
        self.ended = {known: how for known, how in self.ended.items() if known >= recent}
        self.refused = {known: None for known in self.refused if known >= recent}
        return recent
