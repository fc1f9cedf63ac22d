"""The form of a `LogState` in a checkpoint: everything except its commits, which are in segments (S1)."""

from collections.abc import Collection, Iterable
from itertools import repeat

import msgspec

from strobe.names import Name
from strobe.protocol.values.bounds import Count, PrintedId
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import Begin, EpochStart, Term
from strobe.protocol.values.view import View
from strobe.storage.checkpoints.commit_segments import CommitSegment
from strobe.storage.entries.ended_ids import EndedIds, IdRange
from strobe.storage.entries.log_state import Committed, LogState, Opened


class EndedRun(msgspec.Struct, frozen=True, array_like=True):
    """The counters `first` .. `last` of one initiator in one epoch; `reason` is an index into `Folded.reasons`."""

    epoch: Count
    initiator: Name
    first: Count
    last: Count
    reason: Count


class RemovedParent(msgspec.Struct, frozen=True):
    """A removed snapshot that is the parent of an open one; `position` is that of its commit."""

    snapshot: PrintedId
    position: Count
    started_us: Count
    at_us: Count


class Folded(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state after the entries before the checkpoint."""

    term: Term | None = None
    epoch: Count = 0
    view: View | None = None
    restored: PrintedId | None = None
    open: tuple[tuple[Count, Begin, PrintedId | None], ...] = ()
    pinned: tuple[PrintedId, ...] = ()
    starts: tuple[EpochStart, ...] = ()
    removed_parents: tuple[RemovedParent, ...] = ()
    reasons: tuple[str, ...] = ()
    aborted: tuple[EndedRun, ...] = ()
    removed: tuple[EndedRun, ...] = ()

    def check(self, position: int) -> None:
        """Raise ValueError or UsageError if this cannot be the state before entry `position`."""
        if self.view is not None:
            self.view.check()
        for _, begin, _ in self.open:
            begin.check()
        named = (self.restored, *self.pinned, *(parent.snapshot for parent in self.removed_parents))
        for printed in (*named, *(start.restored for start in self.starts)):
            if printed is not None:
                SnapshotId.parse(printed)
        positions = [at for at, _, _ in self.open] + [parent.position for parent in self.removed_parents]
        if max(positions, default=-1) >= position:
            raise ValueError("it names an entry after it")
        epochs = [0, *(start.epoch for start in self.starts)]
        if epochs != sorted(set(epochs)) or epochs[-1] != self.epoch:
            raise ValueError("its epochs do not ascend to the one that it is in")
        self._check_runs(position)

    def _check_runs(self, position: int) -> None:
        for runs in (self.aborted, self.removed):
            last: dict[tuple[int, str], int] = {}
            for run in runs:
                if not last.get((run.epoch, run.initiator), -1) < run.first <= run.last:
                    raise ValueError("its runs of ids do not ascend")
                if run.reason >= len(self.reasons):
                    raise ValueError("a run of ids has no reason")
                last[run.epoch, run.initiator] = run.last
        # Each of these snapshots has a begin entry.
        if sum(run.last - run.first + 1 for run in (*self.aborted, *self.removed)) > position:
            raise ValueError("more snapshots have ended than there are entries")

    def check_commits(self, committed: Collection[str]) -> None:
        """Raise ValueError if these cannot be the complete snapshots."""
        known = {*committed, *(parent.snapshot for parent in self.removed_parents)}
        for _, begin, parent in self.open:
            if begin.snapshot in committed or (parent is not None and parent not in known):
                raise ValueError(f"{begin.snapshot} cannot be open with the parent {parent}")

    def removed_ids(self) -> EndedIds:
        """Return the ids of the removed snapshots, with the reasons."""
        return _ended(self.removed, self.reasons)


def fold(state: LogState) -> Folded:
    """Return the content of `state` except its commits."""
    reasons: dict[str, int] = {}
    return Folded(
        term=state.term,
        epoch=state.epoch,
        view=state.view,
        restored=state.restored,
        open=tuple((opened.position, opened.begin, opened.parent) for opened in state.open.values()),
        pinned=tuple(sorted(state.pinned)),
        starts=tuple(state.starts.values()),
        removed_parents=tuple(
            RemovedParent(snapshot, parent.position, parent.started_us, parent.at_us)
            for snapshot, parent in state.removed_parents.items()
        ),
        aborted=_runs(state.aborted, reasons),
        removed=_runs(state.removed, reasons),
        reasons=tuple(reasons),
    )


def unfold(folded: Folded, segments: Iterable[CommitSegment], position: int, state: LogState) -> None:
    """Set the new `state` to the state after the entries before `position`."""
    assert state.next_position == 0, "only a new state can begin at a checkpoint"
    state.next_position = position
    state.term = folded.term
    state.epoch, state.view, state.restored = folded.epoch, folded.view, folded.restored
    state.open = {begin.snapshot: Opened(at, begin, parent) for at, begin, parent in folded.open}
    state.pinned = set(folded.pinned)
    state.starts = {start.epoch: start for start in folded.starts}
    state.aborted = _ended(folded.aborted, folded.reasons)
    state.removed = folded.removed_ids()
    for segment in segments:
        _take_segment(segment, state)
    state.removed_parents = {
        parent.snapshot: Committed(parent.position, parent.started_us, parent.at_us, state.manifests)
        for parent in folded.removed_parents
    }


def _take_segment(segment: CommitSegment, state: LogState) -> None:
    columns, same = segment.commits, (repeat(state.manifests), repeat(""), repeat(segment))
    committed = map(Committed, columns.positions, columns.started_us, columns.at_us, *same)
    state.committed.update(zip(columns.snapshots, committed, strict=True))
    for snapshot in segment.removed_since:
        del state.committed[snapshot]


def _runs(ended: EndedIds, reasons: dict[str, int]) -> tuple[EndedRun, ...]:
    return tuple(
        EndedRun(epoch, initiator, run.first, run.last, reasons.setdefault(run.reason, len(reasons)))
        for epoch, initiator, run in ended.runs()
    )


def _ended(runs: Iterable[EndedRun], reasons: tuple[str, ...]) -> EndedIds:
    ended = EndedIds()
    for run in runs:
        ended.add_run(run.epoch, run.initiator, IdRange(run.first, run.last, reasons[run.reason]))
    return ended
