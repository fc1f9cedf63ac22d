"""What the coordinator remembers of snapshots that are over, or that it has only heard rumours of.

A bounded number of each: processes are told up to which counter everything is settled, and what lies below needs no
remembering. A new epoch settles everything older.
"""

from collections.abc import Collection

from strobe.protocol.coordinator.messages import FragmentArrived
from strobe.protocol.values.bounds import COUNTER_AHEAD_MAX
from strobe.protocol.values.ids import SnapshotId

IDS_REMEMBERED = 64
"""While all goes well, processes are told to forget an id only when this many later ones were begun: one that a process
has initiated by itself, with a counter a little behind, is not taken for an old one. Who joins or comes back is told at
once."""


class SnapshotOutcomes:
    """Which snapshots are over, and how they ended."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        # Whether each was committed.
        self.ended: dict[SnapshotId, bool] = {}
        # What processes initiated and the coordinator would not take on: never begun, but told to be over.
        # Of many the newest: who was away and hears of no outcome frees what it holds, in time (E7).
        self.refused: dict[SnapshotId, None] = {}
        # Fragments that came before the news of their snapshot, with the view each was recorded in.
        self.unclaimed: dict[SnapshotId, dict[str, int]] = {}
        # The highest counter that the log has, by epoch.
        self.counters: dict[int, int] = {}

    @property
    def counter(self) -> int:
        """The highest counter of this epoch that the log has."""
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
        """Tell whether the counter of `snapshot` is one that a process may have come to by counting."""
        return snapshot.counter <= self.counters.get(snapshot.epoch, 0) + COUNTER_AHEAD_MAX

    def end(self, snapshot: SnapshotId, committed: bool) -> None:
        self.ended[snapshot] = committed

    def refuse(self, snapshot: SnapshotId) -> None:
        self.refused[snapshot] = None
        if len(self.refused) > 4 * IDS_REMEMBERED:
            del self.refused[next(iter(self.refused))]
        self.unclaimed.pop(snapshot, None)

    def has(self, snapshot: SnapshotId, going_on: Collection[SnapshotId]) -> bool:
        """Tell whether `snapshot` is over, whether or not it is remembered how."""
        if snapshot in self.ended or snapshot.epoch < self.epoch:
            return True
        old = snapshot.epoch == self.epoch and snapshot.counter < self.settled_below(going_on)
        return old and snapshot not in going_on

    def settled_below(self, going_on: Collection[SnapshotId]) -> int:
        counters = [snapshot.counter for snapshot in going_on if snapshot.epoch == self.epoch]
        return max(0, min(counters, default=self.counter) - IDS_REMEMBERED)

    def missed_since(self, counter: int) -> dict[SnapshotId, bool]:
        """Return what is over and has at least this counter, with whether it was committed."""
        over = self.ended | dict.fromkeys(self.refused, False)
        return {snapshot: over[snapshot] for snapshot in sorted(over) if snapshot.counter >= counter}

    def keep_unclaimed(self, event: FragmentArrived) -> None:
        """A fragment may overtake the news of a snapshot that a process has initiated: keep word of it, for a while."""
        self.unclaimed.setdefault(event.snapshot, {})[event.process] = event.view
        if len(self.unclaimed) > IDS_REMEMBERED:
            del self.unclaimed[min(self.unclaimed)]

    def forget(self, settled: int) -> SnapshotId | None:
        """Keep memory bounded; return the id before which everything was forgotten, if it was time for that."""
        if len(self.ended) + len(self.refused) <= 4 * IDS_REMEMBERED:
            return None
        recent = SnapshotId(self.epoch, settled, "")  # before every one with a name
        self.ended = {known: how for known, how in self.ended.items() if known >= recent}
        self.refused = {known: None for known in self.refused if known >= recent}
        return recent
