"""The fold of a log as a checkpoint has it: everything of a `LogState` but its commits, which lie in segments (S1)."""

from collections.abc import Iterable
from itertools import repeat

import msgspec

from strobe.protocol.log import Begin, EpochStart, Term
from strobe.protocol.view import View
from strobe.storage.commit_segments import Segment
from strobe.storage.ended_ids import EndedIds, Run
from strobe.storage.log_state import Committed, LogState, Opened


class EndedRun(msgspec.Struct, frozen=True, array_like=True):
    """The counters `first` .. `last` of one initiator in one epoch; `reason` is the place in `Folded.reasons`."""

    epoch: int
    initiator: str
    first: int
    last: int
    reason: int


class RemovedParent(msgspec.Struct, frozen=True):
    """A snapshot that was removed while one that shares its blobs is open; `position` is that of its commit."""

    snapshot: str
    position: int
    started_us: int
    at_us: int


class Folded(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the entries before the checkpoint come to."""

    term: Term | None = None
    epoch: int = 0
    view: View | None = None
    restored: str | None = None
    open: tuple[tuple[int, Begin, str | None], ...] = ()
    pinned: tuple[str, ...] = ()
    starts: tuple[EpochStart, ...] = ()
    removed_parents: tuple[RemovedParent, ...] = ()
    reasons: tuple[str, ...] = ()
    aborted: tuple[EndedRun, ...] = ()
    removed: tuple[EndedRun, ...] = ()


def fold(state: LogState) -> Folded:
    """Return what `state` has beside its commits."""
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


def unfold(folded: Folded, segments: Iterable[Segment], position: int, state: LogState) -> None:
    """Bring `state`, which has read nothing yet, to where it is after the entries before `position`."""
    assert state.next_position == 0, "only a new state can begin at a checkpoint"
    state.next_position = position
    state.term = folded.term
    state.epoch, state.view, state.restored = folded.epoch, folded.view, folded.restored
    state.open = {begin.snapshot: Opened(at, begin, parent) for at, begin, parent in folded.open}
    state.pinned = set(folded.pinned)
    state.starts = {start.epoch: start for start in folded.starts}
    state.aborted = _ended(folded.aborted, folded.reasons)
    state.removed = _ended(folded.removed, folded.reasons)
    for segment in segments:
        _take_segment(segment, state)
    state.removed_parents = {
        parent.snapshot: Committed(parent.position, parent.started_us, parent.at_us, state.manifests)
        for parent in folded.removed_parents
    }


def _take_segment(segment: Segment, state: LogState) -> None:
    columns, same = segment.commits, (repeat(state.manifests), repeat(""), repeat(segment))
    committed = map(Committed, columns.positions, columns.started_us, columns.at_us, *same)
    state.committed.update(zip(columns.snapshots, committed, strict=True))
    if segment.ref.live < len(columns.positions):
        for snapshot in columns.snapshots:
            if snapshot in state.removed:
                del state.committed[snapshot]


def _runs(ended: EndedIds, reasons: dict[str, int]) -> tuple[EndedRun, ...]:
    return tuple(
        EndedRun(epoch, initiator, run.first, run.last, reasons.setdefault(run.reason, len(reasons)))
        for epoch, initiator, run in ended.runs()
    )


def _ended(runs: Iterable[EndedRun], reasons: tuple[str, ...]) -> EndedIds:
    ended = EndedIds()
    for run in runs:
        ended.add_run(run.epoch, run.initiator, Run(run.first, run.last, reasons[run.reason]))
    return ended
