"""The coordinator's state machine: snapshots from request to outcome, and the views they belong to.

    wanted ──Begin──► recording ──every fragment──► committing ──Commit──► complete
                          │                              │
                          └── time out, crash, view ─────┴──Abort──► aborted ──back-off──► wanted again, under a new id

It has no durable state of its own. Every step that must survive is a log entry, and takes effect here only when the log
returns it (`EntryLogged`), whichever coordinator wrote it. A restart is a new `Lifecycle`, the whole log, then
`Recovered`. It then sends a request to record to every process of each open snapshot. By C1 that is harmless to a
process that has recorded, which sends its fragment or its counts again. So the snapshot completes, or times out and is
aborted (E7).

One view at a time (E2): a view is settled when every process has installed it and received ended channels to their end.
Until then no snapshot begins. A membership change aborts open snapshots, and they are retried on the new view.

A rollback (R1, `rollback`) starts a new epoch, which fences off everything older.
"""

from collections.abc import Collection
from typing import assert_never

from strobe.errors import UsageError
from strobe.protocol.coordinator.attempts import Attempt, Attempts
from strobe.protocol.coordinator.membership import Membership
from strobe.protocol.coordinator.messages import (
    Append,
    AppendLost,
    AskToRecord,
    CannotRestore,
    CommitFailed,
    CommitSnapshot,
    CoordinatorEffect,
    CoordinatorEvent,
    Dismiss,
    Drained,
    EntryLogged,
    FragmentArrived,
    JoinWanted,
    LeaveWanted,
    ProcessFailed,
    ProcessReturned,
    ProcessWithoutState,
    RecordingFailed,
    Recovered,
    Released,
    RestoreRefused,
    RestoreWanted,
    SentCountsArrived,
    SnapshotChosen,
    SnapshotStarted,
    SnapshotUnwanted,
    SnapshotWanted,
    TellOutcome,
    TellSettled,
    TellView,
    TimePassed,
    WakeAt,
)
from strobe.protocol.coordinator.outcomes import SnapshotOutcomes
from strobe.protocol.coordinator.policy import Policy
from strobe.protocol.coordinator.rollback import Rollback
from strobe.protocol.coordinator.schedule import PendingSnapshot, Schedule
from strobe.protocol.process.lai_yang import LaiYang
from strobe.protocol.values.ids import COORDINATOR, SnapshotId
from strobe.protocol.values.log_entries import Abort, Begin, Commit, Entry, EpochStart, Release, ViewChange
from strobe.protocol.values.view import View, initiators


class Lifecycle:
    """Events in, effects out; `now_us` is the only clock.

    With `epoch=1` the host starts its processes itself, before the coordinator. With `epoch=0` processes are started by
    `TellRestore`. The host then appends no `EpochStart` itself: if the log has none, the first epoch begins here.
    `outputs` are the processes whose output is held back until a snapshot covers it (R2).
    """

    def __init__(
        self,
        view: View,
        policy: Policy,
        protocol: str,
        *,
        epoch: int = 1,
        recovering: bool = False,
        outputs: Collection[str] = (),
    ) -> None:
        policy.check()
        self.membership = Membership(view, protocol, outputs)
        self.protocol = protocol
        self.epoch = epoch
        self.attempts = Attempts(policy.timeout_us)
        self.outcomes = SnapshotOutcomes(epoch)
        self.rollback = Rollback(view, policy)
        self.schedule = Schedule(policy)
        # `Begin` entries on their way to the log: one of the coordinator's own, and those initiated by processes.
        self.beginning: Begin | None = None
        self.adopting: dict[SnapshotId, Begin] = {}
        # While the log is read back after a restart, nothing is ordered.
        self.recovering = recovering

    def handle(self, event: CoordinatorEvent, now_us: int) -> list[CoordinatorEffect]:
        """Return the effects of `event`, in the order they must happen."""
        effects = self._handle(event, now_us)
        if not self.recovering:
            effects += self.attempts.expire(now_us, self._what_holds_commits)
            effects += self.rollback.choose(self._calm)
            effects += self._change_view(now_us)
            effects += self._begin_what_may(now_us)
            effects += self._wake(now_us)
        return effects

    def _handle(self, event: CoordinatorEvent, now_us: int) -> list[CoordinatorEffect]:
        match event:
            case SnapshotWanted():
                self.schedule.want(event.initiators, event.awaited)
                return []
            case SnapshotUnwanted():
                self.schedule.withdraw(event.waiting)
                return []
            case SnapshotStarted():
                return self._started(event, now_us)
            case FragmentArrived():
                return self._fragment(event, now_us)
            case SentCountsArrived():
                return self.attempts.relay(event)
            case ProcessFailed():
                return self._failed(event.process, now_us)
            case ProcessReturned():
                return self._returned(event.process)
            case ProcessWithoutState():
                return self._blank(event, now_us)
            case RestoreWanted():
                self.rollback.want(event)
                return []
            case SnapshotChosen():
                return self.rollback.chosen(event, self.epoch, self.view, now_us)
            case RestoreRefused():
                return self.rollback.refused(event) + self._go_on(now_us)
            case CannotRestore():
                return self.rollback.cannot_restore(event, self.epoch)
            case RecordingFailed():
                return self.attempts.recording_failed(event, now_us)
            case JoinWanted() | LeaveWanted():
                return self._change_wanted(event)
            case Drained():
                return self._drained(event)
            case Released():
                return self._released(event, now_us)
            case EntryLogged():
                return self._logged(event, now_us)
            case AppendLost():
                return self._append_lost(event.entry, now_us)
            case CommitFailed():
                return self.attempts.commit_failed(event, now_us)
            case Recovered():
                return self._recover(now_us)
            case TimePassed():
                return []
            case _:
                assert_never(event)

    @property
    def policy(self) -> Policy:
        return self.schedule.policy

    @property
    def open(self) -> dict[SnapshotId, Attempt]:
        """The snapshots that have begun and have no outcome yet."""
        return self.attempts.open

    @property
    def view(self) -> View:
        return self.membership.view

    @property
    def settled(self) -> bool:
        """Whether every process has installed the view and received ended channels to their end."""
        return self.membership.settled

    @property
    def newest_complete(self) -> str | None:
        """The newest complete snapshot of this timeline, whose blobs the next one may share (S2)."""
        return self.rollback.newest

    @property
    def counter(self) -> int:
        """The highest counter of this epoch in the log."""
        return self.outcomes.counter

    # Beginning

    def _begin_what_may(self, now_us: int) -> list[CoordinatorEffect]:
        self.schedule.tick(now_us)
        if self.membership.changes or self.beginning is not None or not self._may_begin(now_us):
            return []
        want = self.schedule.take(now_us)
        if want is None:
            return []
        self.beginning = self._name(want, now_us)
        return [Append(self.beginning)]

    def _may_begin(self, now_us: int) -> bool:
        """Return whether the view and the policy allow one more, including those on their way to the log (E10)."""
        under_way = len(self.open) + len(self.adopting) + (self.beginning is not None)
        in_time = now_us >= self.schedule.earliest_us(overlapping=bool(self.open))
        may = under_way < self.policy.overlapping_max and in_time and not self.rollback.pending
        return may and self.settled  # last: it iterates over all processes

    def _name(self, want: PendingSnapshot, now_us: int) -> Begin:
        snapshot = SnapshotId(self.epoch, self.counter + 1, COORDINATOR)
        known = tuple(process for process in want.initiators if process in self.view.processes)
        return self._begin_entry(snapshot, known, now_us, want.attempt, want.retries)

    def _begin_entry(
        self, snapshot: SnapshotId, asked: tuple[str, ...], now_us: int, attempt: int = 1, retries: str | None = None
    ) -> Begin:
        """Return the entry that begins `snapshot` from the requested initiators, and as many more as it takes (M1)."""
        everyone = initiators(self.view, asked)
        parent = self.newest_complete
        return Begin(str(snapshot), self.view.number, self.protocol, everyone, now_us, parent, retries, attempt)

    def _started(self, event: SnapshotStarted, now_us: int) -> list[CoordinatorEffect]:
        """Adopt a snapshot that a process initiated, or refuse it if the view or the policy does not allow it."""
        snapshot = event.snapshot
        if snapshot in self.open or snapshot in self.adopting or self._has_outcome(snapshot):
            return []
        if snapshot in self.outcomes.refused:
            return self._refuse(snapshot)
        if not self.outcomes.is_near(snapshot):
            raise UsageError(f"the counter of {snapshot} is far beyond {self.counter}, the highest of its epoch")
        here = event.process in self.view.processes and event.view == self.view.number and snapshot.epoch == self.epoch
        if not here or not self._may_begin(now_us):
            return self._refuse(snapshot)
        begin = self._begin_entry(snapshot, (event.process,), now_us)
        self.adopting[snapshot] = begin
        return [Append(begin)]

    def _refuse(self, snapshot: SnapshotId) -> list[CoordinatorEffect]:
        self.outcomes.refuse(snapshot)
        reason = "the coordinator cannot take it on now"
        return [TellOutcome(process, snapshot, False, reason) for process in self.membership.everyone]

    # Collecting

    def _fragment(self, event: FragmentArrived, now_us: int) -> list[CoordinatorEffect]:
        attempt = self.open.get(event.snapshot)
        if attempt is None:
            if not self._has_outcome(event.snapshot) and event.snapshot not in self.outcomes.refused:
                self.outcomes.keep_unclaimed(event)
            return []
        if attempt.ending:
            return []
        if event.view != attempt.begin.view:
            return self.attempts.end(attempt, f"{event.process} recorded it in view {event.view}", now_us)
        attempt.arrived.add(event.process)
        return self._commit_what_is_whole()

    def _commit_what_is_whole(self) -> list[CoordinatorEffect]:
        """Commit snapshots that have all of their fragments.

        Not while a rollback is pending, which waits for commits to end. Nor while a process is leaving and a restarted
        coordinator does not know the end offsets of its output.
        """
        if self.rollback.pending or self.membership.unstaged:
            return []
        # This runs for every fragment, so the loops over all processes are only for complete snapshots.
        return [
            CommitSnapshot(snapshot, self.membership.covered(), self.membership.joined_later())
            for snapshot in self.attempts.take_whole()
        ]

    def _what_holds_commits(self) -> str:
        """Return what a snapshot that has all of its fragments waits for."""
        unstaged = ", ".join(self.membership.unstaged)
        return f"the output of {unstaged}, which leaves" if unstaged else "the end of a rollback"

    def _failed(self, process: str, now_us: int) -> list[CoordinatorEffect]:
        self.rollback.present.discard(process)
        return self.attempts.failed(process, now_us)

    # The log

    def _logged(self, event: EntryLogged, now_us: int) -> list[CoordinatorEffect]:
        entry = event.entry
        match entry:
            case Begin():
                return self._begun(entry, now_us)
            case Commit() | Abort():
                return self._ended(entry, now_us)
            case ViewChange():
                return self._view_logged(entry, now_us)
            case EpochStart():
                return self._epoch_logged(event, entry, now_us)
            case Release():
                return self._release_logged(entry)
        return []

    def _epoch_logged(self, event: EntryLogged, entry: EpochStart, now_us: int) -> list[CoordinatorEffect]:
        """Fence off everything older: that ends the open snapshots, and they are requested again."""
        if entry.epoch <= self.epoch:
            return []
        self.epoch = entry.epoch
        self.outcomes.start_epoch(entry.epoch)
        for snapshot in [snapshot for snapshot in self.open if snapshot.epoch < self.epoch]:
            self._want_again(self.open.pop(snapshot).begin, now_us)
        leaving = set(self.membership.leaving)
        if entry.view is not None:
            still_leaving = set() if self.recovering else leaving - self.rollback.may_have_left(entry)
            self.membership.rolled_back(entry.view, still_leaving, event.departed, event.joined)
        return self.rollback.epoch_logged(entry, self.view, leaving, self.recovering)

    def _begun(self, begin: Begin, now_us: int) -> list[CoordinatorEffect]:
        snapshot = SnapshotId.parse(begin.snapshot)
        if self.recovering:
            self.membership.read_begin(begin.view)
        self.outcomes.begun(snapshot)
        self.adopting.pop(snapshot, None)
        if self.beginning == begin:
            self.beginning = None
        self.schedule.logged(begin)
        if snapshot in self.open or self._has_outcome(snapshot) or snapshot.epoch < self.epoch:
            return []
        attempt = self.attempts.begin(snapshot, begin, self.view, now_us)
        self.outcomes.refused.pop(snapshot, None)
        if self.recovering:
            return []
        self.schedule.last_begin_us = now_us
        obstacle = self._obstacle(snapshot, begin)
        if obstacle is not None:
            return self.attempts.end(attempt, obstacle, now_us)
        return self._ask(snapshot, begin) + self._claim(snapshot, now_us)

    def _obstacle(self, snapshot: SnapshotId, begin: Begin) -> str | None:
        """Return why no process gets a request to record a snapshot that is in the log."""
        if begin.view != self.view.number:
            return "the view changed"
        # Processes continue counting from the ids they receive.
        return None if self.outcomes.is_near(snapshot) else "its counter is far beyond those before it"

    def _ask(self, snapshot: SnapshotId, begin: Begin) -> list[CoordinatorEffect]:
        # Markers spread Chandy-Lamport from its initiators. Lai-Yang has none, so every process gets a request (L3).
        asked = self.view.processes if self.protocol == LaiYang.name else begin.initiators
        return [AskToRecord(process, snapshot, begin.view) for process in asked]

    def _claim(self, snapshot: SnapshotId, now_us: int) -> list[CoordinatorEffect]:
        arrived = self.outcomes.unclaimed.pop(snapshot, {})
        return [
            effect
            for process, view in arrived.items()
            for effect in self._fragment(FragmentArrived(snapshot, process, view), now_us)
        ]

    def _ended(self, entry: Commit | Abort, now_us: int) -> list[CoordinatorEffect]:
        snapshot = SnapshotId.parse(entry.snapshot)
        if isinstance(entry, Commit) and entry.manifest.epoch != snapshot.epoch:
            return []  # not a snapshot of its epoch; the store ignores it too
        attempt = self.open.pop(snapshot, None)
        if attempt is None:
            return []
        committed, reason = True, ""
        free: list[str] = []
        if isinstance(entry, Abort):
            committed, reason = False, entry.reason
            self._want_again(attempt.begin, now_us)
        else:
            self.rollback.committed(entry.snapshot, entry.manifest.view)
            free = self.membership.committed(entry.manifest, self.recovering)
            self.schedule.unretried.clear()
        self.outcomes.end(snapshot, committed)
        settled = self.outcomes.settled_below(self.open)
        forgotten = self.outcomes.forget(settled)
        if forgotten is not None:
            self.schedule.forget(forgotten)
        if self.recovering:
            return []
        self.schedule.last_outcome_us = now_us
        told = dict.fromkeys((*attempt.view.processes, *self.membership.everyone))
        effects: list[CoordinatorEffect] = []
        for process in told:
            effects += [TellOutcome(process, snapshot, committed, reason), TellSettled(process, settled)]
        effects += [self.dismissal(process) for process in free]
        return effects + self._commit_what_is_whole()  # other commits may have waited for this one

    def _want_again(self, begin: Begin, now_us: int) -> None:
        """The snapshot of `begin` was aborted: retry it. While the log is read back, note that a retry is needed."""
        if self.recovering:
            self.schedule.note_aborted(begin)
        else:
            self.schedule.requeue(begin, now_us)

    def _has_outcome(self, snapshot: SnapshotId) -> bool:
        return self.outcomes.has(snapshot, self.open)

    def _append_lost(self, entry: Entry, now_us: int) -> list[CoordinatorEffect]:
        """Append again what is still needed, given the other writer's entries."""
        match entry:
            case Begin():
                return self._begin_lost(entry)
            case Commit():
                # The other writer's entries may prevent it: check again.
                attempt = self.attempts.not_committed(SnapshotId.parse(entry.snapshot))
                if attempt is not None and attempt.begin.view != self.view.number:
                    return self.attempts.end(attempt, "the view changed", now_us)
                return self._commit_what_is_whole()
            case Abort():
                return [Append(entry)] if SnapshotId.parse(entry.snapshot) in self.open else []
            case ViewChange():
                self.membership.lost()
            case EpochStart():
                return self.rollback.append_lost(entry, self.epoch, now_us)
            case Release():
                return [Append(entry)] if self.membership.unreleased(entry.process) else []
        return []

    def _begin_lost(self, begin: Begin) -> list[CoordinatorEffect]:
        if self.beginning == begin:
            # The id may be taken now: queue the request again, for a new id.
            self.beginning = None
            self.schedule.give_back(begin)
            return []
        snapshot = SnapshotId.parse(begin.snapshot)
        if self.adopting.pop(snapshot, None) is None or snapshot in self.open or self._has_outcome(snapshot):
            return []
        if begin.view != self.view.number or snapshot.epoch != self.epoch or self.rollback.pending:
            return self._refuse(snapshot)
        self.adopting[snapshot] = begin
        return [Append(begin)]

    def _recover(self, now_us: int) -> list[CoordinatorEffect]:
        """Take over: request every open snapshot again, from all processes."""
        self.recovering = False
        self.membership.take_over()
        self.rollback.take_over(self.membership.everyone)
        self.schedule.take_over(now_us, begun_before=self.counter > 0)
        if self.epoch == 0:
            return self.rollback.start_first(now_us)
        effects: list[CoordinatorEffect] = []
        for process in self.membership.everyone:
            effects += self._catch_up(process)
        for snapshot, attempt in self.open.items():
            attempt.deadline_us = now_us + self.policy.timeout_us
            obstacle = self._obstacle(snapshot, attempt.begin)
            if obstacle is not None:
                effects += self.attempts.end(attempt, obstacle, now_us)
            else:
                effects += [AskToRecord(process, snapshot, attempt.begin.view) for process in self.view.processes]
        return effects

    def _catch_up(self, process: str) -> list[CoordinatorEffect]:
        """Send `process` everything it may have missed: the outcomes, and the view."""
        under_way = (*self.open, *self.adopting)
        floor = min((snapshot.counter for snapshot in under_way), default=self.counter + 1)
        reason = "it has ended meanwhile"
        missed = self.outcomes.missed_since(floor)
        outcomes = [TellOutcome(process, snapshot, done, "" if done else reason) for snapshot, done in missed.items()]
        newest = SnapshotId.parse(self.newest_complete) if self.newest_complete else None
        # The newest complete snapshot releases the output it covers (R2), and is the base of later deltas (E5).
        covering = [TellOutcome(process, newest, True, "")] if newest is not None and newest not in missed else []
        return [
            *covering,
            TellSettled(process, floor),
            *outcomes,
            TellView(process, self.view),
        ]

    def _returned(self, process: str) -> list[CoordinatorEffect]:
        self.rollback.seen(process)
        return [self.rollback.halt] if self.rollback.halt is not None else self._catch_up(process)

    def _blank(self, event: ProcessWithoutState, now_us: int) -> list[CoordinatorEffect]:
        if not self.rollback.pending and self.membership.gone(event.process):
            return [Dismiss(event.process)]
        if event.again:
            self.rollback.started.discard(event.process)
        if event.process in self.membership.staged and self.rollback.halt is None:
            # All of its output is durable. It waits for a snapshot that covers it, or for a rollback to before it left.
            self.rollback.present.add(event.process)
            return []
        effects = self.rollback.blank(event, self.membership.everyone, self.epoch, self.view, now_us)
        return effects + (self._begin_joiner(event.process) if self._waits_to_begin(event.process) else [])

    def _go_on(self, now_us: int) -> list[CoordinatorEffect]:
        """If no rollback is pending any more, do what has waited for it."""
        effects: list[CoordinatorEffect] = []
        if not self.rollback.pending:
            for process in sorted(self.rollback.present.intersection(self.view.processes) - self.rollback.started):
                effects += self._blank(ProcessWithoutState(process), now_us)
        return effects + self._commit_what_is_whole()

    def _waits_to_begin(self, process: str) -> bool:
        """Return whether it is in the view, was never started, and starts with the view: it was away when it joined."""
        is_new = process in self.view.processes and process not in self.rollback.started
        return is_new and not self.rollback.restores(self.view)

    def _begin_joiner(self, process: str) -> list[CoordinatorEffect]:
        if self.rollback.pending:
            return []  # it may have to join again
        self.rollback.seen(process)
        return [TellSettled(process, self.counter + 1), TellView(process, self.view)]

    @property
    def _calm(self) -> bool:
        """Whether nothing is under way that a rollback must wait for."""
        committing = any(attempt.committing for attempt in self.open.values())
        return not (committing or self.beginning or self.adopting or self.membership.changing)

    # Views

    def _change_wanted(self, change: JoinWanted | LeaveWanted) -> list[CoordinatorEffect]:
        self.membership.want(change)
        if isinstance(change, JoinWanted):
            self.rollback.present.add(change.process)
        return []

    def _drained(self, event: Drained) -> list[CoordinatorEffect]:
        # A dismissed process may have reported twice: it is not a member any more.
        if event.view == self.view.number and self.membership.includes(event.process):
            self.rollback.seen(event.process)
        waiting = event.process in self.membership.staged
        free = self.membership.note_drained(event)
        if not waiting and event.process in self.membership.staged:
            self.schedule.want(())  # request the snapshot that it waits for
        self.rollback.present.difference_update(free)
        return [Dismiss(process) for process in free] + self._commit_what_is_whole()

    def dismissal(self, process: str) -> Dismiss:
        """Return the `Dismiss` for a departed process that still has to release output."""
        gone = self.membership.departed[process]
        return Dismiss(process, gone.sinks, gone.view)

    def _released(self, event: Released, now_us: int) -> list[CoordinatorEffect]:
        """A departed process has released all of its output. It exits once the log has that: only it can report it."""
        gone = self.membership.departed.get(event.process)
        if gone is not None and gone.view == event.view and self.membership.unreleased(event.process):
            return [Append(Release(event.process, event.view, now_us))]
        return self._let_end(event.process)

    def _release_logged(self, entry: Release) -> list[CoordinatorEffect]:
        waiting = self.membership.released(entry.process, entry.view)
        return self._let_end(entry.process) if waiting and not self.recovering else []

    def _let_end(self, process: str) -> list[CoordinatorEffect]:
        if self.membership.includes(process):
            return []  # a rollback undid its leave, and it was informed
        self.rollback.present.discard(process)
        return [Dismiss(process)]

    def _change_view(self, now_us: int) -> list[CoordinatorEffect]:
        if self.beginning is not None or self.adopting or self.rollback.pending:
            return []
        change = self.membership.next_change(now_us, self.rollback.present)
        return [Append(change)] if change is not None else []

    def _view_logged(self, entry: ViewChange, now_us: int) -> list[CoordinatorEffect]:
        own = entry.view == self.membership.coming
        before = self.membership.logged(entry.view, self.recovering)
        if before is None or self.recovering:
            return []
        self.rollback.view_changed(entry.view, before, own)
        effects: list[CoordinatorEffect] = []
        for attempt in self.open.values():
            effects += self.attempts.end(
                attempt, f"the view changed from {before.number} to {entry.view.number}", now_us
            )
        joined = sorted(set(entry.view.processes) - set(before.processes))
        effects += [TellSettled(process, self.counter + 1) for process in joined]
        # A process without state starts with the epoch of the rollback, not with this view.
        told = [process for process in self.membership.everyone if process not in self.rollback.blanks]
        effects += [TellView(process, entry.view) for process in told]
        return effects

    def _wake(self, now_us: int) -> list[CoordinatorEffect]:
        times = self.attempts.deadlines_us()
        if len(self.open) < self.policy.overlapping_max:
            times += self.schedule.times_us(overlapping=bool(self.open))
        later = [time for time in times if time > now_us]
        return [WakeAt(min(later))] if later else []
