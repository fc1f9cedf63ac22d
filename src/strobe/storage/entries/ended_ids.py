"""The ids of ended snapshots with their reasons, in memory that hardly grows with their number.

A log kept for months has millions of them, and most have the same reason: removal by retention. Ids are numbered, so
consecutive ids with the same reason are stored as one run.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping

import msgspec

from strobe.errors import UsageError
from strobe.protocol.values.ids import SnapshotId


class IdRange(msgspec.Struct, frozen=True):
    """The counters `first` .. `last` of one initiator in one epoch."""

    first: int
    last: int
    reason: str


class EndedIds(Mapping[str, str]):
    """Maps printed ids to reasons. Ids are only ever added."""

    def __init__(self) -> None:
        self._runs: dict[tuple[int, str], list[IdRange]] = {}
        self._count = 0

    def add(self, snapshot: str, reason: str) -> None:
        """Add an id that is not contained yet."""
        identity = SnapshotId.parse(snapshot)
        runs = self._runs.setdefault((identity.epoch, identity.initiator), [])
        at = bisect_right(runs, identity.counter, key=_first)
        first = last = identity.counter
        start, end = at, at
        if at and runs[at - 1].last == first - 1 and runs[at - 1].reason == reason:
            start, first, reason = at - 1, runs[at - 1].first, runs[at - 1].reason
        if at < len(runs) and runs[at].first == last + 1 and runs[at].reason == reason:
            end, last = at + 1, runs[at].last
        runs[start:end] = [IdRange(first, last, reason)]
        self._count += 1

    def runs(self) -> Iterator[tuple[int, str, IdRange]]:
        """Yield every run with its epoch and initiator."""
        for (epoch, initiator), runs in self._runs.items():
            for run in runs:
                yield epoch, initiator, run

    def add_run(self, epoch: int, initiator: str, run: IdRange) -> None:
        """Add a run from `runs`, in the same order."""
        self._runs.setdefault((epoch, initiator), []).append(run)
        self._count += run.last - run.first + 1

    def numbered(self, prefix: str) -> Iterator[str]:
        """Yield the ids that begin with this epoch and counter."""
        epoch = int(prefix.split("-")[0])
        for whose, initiator in self._runs:
            snapshot = f"{prefix}{initiator}"
            if whose == epoch and snapshot in self:
                yield snapshot

    def copy(self) -> "EndedIds":
        other = EndedIds()
        other._runs = {whose: runs.copy() for whose, runs in self._runs.items()}
        other._count = self._count
        return other

    def __getitem__(self, snapshot: str) -> str:
        try:
            identity = SnapshotId.parse(snapshot)
        except UsageError:
            raise KeyError(snapshot) from None
        runs = self._runs.get((identity.epoch, identity.initiator), [])
        at = bisect_right(runs, identity.counter, key=_first)
        if not at or runs[at - 1].last < identity.counter:
            raise KeyError(snapshot)
        return runs[at - 1].reason

    def __iter__(self) -> Iterator[str]:
        for epoch, initiator, run in self.runs():
            for counter in range(run.first, run.last + 1):
                yield str(SnapshotId(epoch, counter, initiator))

    def __len__(self) -> int:
        return self._count


def _first(run: IdRange) -> int:
    return run.first
