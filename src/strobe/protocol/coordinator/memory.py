"""The part of `Lifecycle` that comes from the log, as a value: a restart need not read the log from its beginning.

`remember` takes it from a `Lifecycle` that is reading a log; `recall` puts it into a new one, which continues reading
from there. It depends on the log entries alone. Settings that may have changed since come from the new `Lifecycle`:
which processes have output, the number of attempts, the first view. A `Lifecycle` that recalls a memory and reads all
later entries equals one that has read the whole log; tests compare them field by field.
"""

import msgspec

from strobe.names import Name
from strobe.protocol.coordinator.attempts import Attempt
from strobe.protocol.coordinator.lifecycle import Lifecycle
from strobe.protocol.coordinator.membership import MembershipMemory
from strobe.protocol.coordinator.policy import Policy
from strobe.protocol.values.bounds import COUNTER_AHEAD_MAX, Count, PrintedId
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import Begin
from strobe.protocol.values.view import View


class Memory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that a `Lifecycle` keeps of the entries it has read. `views` are those of the `open` snapshots."""

    epoch: Count = 0
    view: View | None = None
    first_view: View | None = None
    epoch_view: View | None = None
    restored: PrintedId | None = None
    newest: PrintedId | None = None
    forked: bool = False
    blames: tuple[tuple[Count, Name], ...] = ()
    counters: tuple[tuple[Count, Count], ...] = ()
    ended: tuple[tuple[PrintedId, bool], ...] = ()
    open: tuple[Begin, ...] = ()
    views: tuple[View, ...] = ()
    unretried: tuple[Begin, ...] = ()
    retried: tuple[PrintedId, ...] = ()
    membered: MembershipMemory = MembershipMemory()


def check_memory(memory: Memory, entries: int) -> None:
    """Raise ValueError or UsageError if these values are not possible after this number of entries."""
    for view in (memory.view, memory.first_view, memory.epoch_view, *memory.views):
        if view is not None:
            view.check()
    for begin in (*memory.open, *memory.unretried):
        begin.check()
    for printed in (memory.restored, memory.newest):
        if printed is not None:
            SnapshotId.parse(printed)
    if any(counter > entries * COUNTER_AHEAD_MAX for _, counter in memory.counters):
        raise ValueError("a counter of snapshots is further ahead than this number of entries allows")
    recall(replay_lifecycle(), memory)


_NO_VIEW = View(0, (), ())


def replay_lifecycle() -> Lifecycle:
    """Return a `Lifecycle` that only reads a log, for `remember`."""
    return Lifecycle(_NO_VIEW, Policy(), "", epoch=0, recovering=True)


def remember(lifecycle: Lifecycle) -> Memory:
    """Return the memory of a `Lifecycle` that was made by `replay_lifecycle` and is still reading the log."""
    assert lifecycle.recovering, "a lifecycle that has taken over has more than the log"
    rollback, outcomes, schedule = lifecycle.rollback, lifecycle.outcomes, lifecycle.schedule
    return Memory(
        epoch=lifecycle.epoch,
        view=_known(lifecycle.view),
        first_view=_known(rollback.first_view),
        epoch_view=_known(rollback.epoch_view),
        restored=rollback.restored,
        newest=rollback.newest,
        forked=rollback.forked,
        blames=tuple(rollback.blames),
        counters=tuple(sorted(outcomes.counters.items())),
        ended=tuple((str(snapshot), committed) for snapshot, committed in outcomes.ended.items()),
        open=tuple(attempt.begin for attempt in lifecycle.open.values()),
        views=tuple(attempt.view for attempt in lifecycle.open.values()),
        unretried=tuple(schedule.unretried.values()),
        retried=tuple(sorted(map(str, schedule.retried))),
        membered=lifecycle.membership.remember(),
    )


def recall(lifecycle: Lifecycle, memory: Memory) -> None:
    """Put `memory` into a `Lifecycle` that has read nothing yet; it continues with the next entry."""
    assert lifecycle.recovering, "only a lifecycle that reads the log back can go on from there"
    rollback, outcomes, schedule = lifecycle.rollback, lifecycle.outcomes, lifecycle.schedule
    outcomes.epoch = memory.epoch
    rollback.first_view = memory.first_view or rollback.first_view
    rollback.epoch_view = memory.epoch_view or rollback.epoch_view
    rollback.restored, rollback.newest, rollback.forked = memory.restored, memory.newest, memory.forked
    rollback.blames = list(memory.blames)
    outcomes.counters = dict(memory.counters)
    outcomes.ended = {SnapshotId.parse(snapshot): committed for snapshot, committed in memory.ended}
    for begin, view in zip(memory.open, memory.views, strict=True):
        # Its time-out starts when the whole log has been read.
        lifecycle.open[SnapshotId.parse(begin.snapshot)] = Attempt(begin, view, 0, {})
    schedule.unretried = {begin.snapshot: begin for begin in memory.unretried}
    schedule.retried = {SnapshotId.parse(snapshot) for snapshot in memory.retried}
    lifecycle.membership.recall(memory.view or lifecycle.view, memory.membered)


def _known(view: View) -> View | None:
    return None if view is _NO_VIEW else view
