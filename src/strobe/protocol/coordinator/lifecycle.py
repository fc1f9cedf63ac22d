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

from strobe.protocol.coordinator.attempts import Attempt, Attempts
from strobe.protocol.coordinator.beginnings import Beginnings
from strobe.protocol.coordinator.collecting import Collecting
from strobe.protocol.coordinator.departures import Departures
from strobe.protocol.coordinator.membership import Membership
from strobe.protocol.coordinator.messages import (
    Append,
    AppendLost,
    CannotRestore,
    CommitFailed,
    CoordinatorEffect,
    CoordinatorEvent,
    Drained,
    EntryLogged,
    FragmentArrived,
    InstallView,
    JoinWanted,
    LeaveWanted,
    ProcessFailed,
    ProcessReturned,
    ProcessWithoutState,
    RecordingFailed,
    Recovered,
    Released,
    ReportOutcome,
    ReportSettled,
    RequestRecording,
    RestoreRefused,
    RestoreWanted,
    SentCountsArrived,
    SnapshotChosen,
    SnapshotStarted,
    SnapshotUnwanted,
    SnapshotWanted,
    TimePassed,
    WakeAt,
)
from strobe.protocol.coordinator.outcomes import SnapshotOutcomes
from strobe.protocol.coordinator.policy import Policy
from strobe.protocol.coordinator.reconnections import Reconnections
from strobe.protocol.coordinator.restart_messages import CannotHandOver, CannotResume, HandedOver, RestartWanted
from strobe.protocol.coordinator.restarts import Restarts
from strobe.protocol.coordinator.rollback import Rollback
from strobe.protocol.coordinator.schedule import Schedule
from strobe.protocol.process.lai_yang import LaiYang
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import Abort, Begin, Commit, Entry, EpochStart, Release, ViewChange
from strobe.protocol.values.view import View


class Lifecycle:
    """Events in, effects out; `now_us` is the only clock.

    With `epoch=1` the host starts its processes itself, before the coordinator. With `epoch=0` processes are started by
    `RestoreState`. The host then appends no `EpochStart` itself: if the log has none, the first epoch begins here.
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
        self.attempts = Attempts(policy.timeout_us)
        self.outcomes = SnapshotOutcomes(epoch)
        self.rollback = Rollback(view, policy)
        self.schedule = Schedule(policy)
        shared = self.membership, self.attempts, self.outcomes, self.rollback
        self.beginnings = Beginnings(*shared, self.schedule)
        self.restarts = Restarts(self.membership, self.attempts, self.rollback, policy.restart_timeout_us)
        self.reconnections = Reconnections(*shared, self.beginnings, self.restarts)
        self.collecting = Collecting(*shared)
        self.departures = Departures(self.membership, self.rollback, self.schedule)
        # While the log is read back after a restart, nothing is ordered.
        self.recovering = recovering

    def handle(self, event: CoordinatorEvent, now_us: int) -> list[CoordinatorEffect]:
        """Return the effects of `event`, in the order they must happen."""
        effects = self._handle(event, now_us)
        if not self.recovering:
            effects += self.attempts.expire(now_us, self.collecting.commit_obstacle)
            self.restarts.expire(now_us)
            effects += self.rollback.choose(self._idle)
            effects += self.restarts.begin_next(now_us)
            effects += self._change_view(now_us)
            effects += self.beginnings.begin_next(now_us)
            effects += self._wake(now_us)
        return effects

    def _handle(self, event: CoordinatorEvent, now_us: int) -> list[CoordinatorEffect]:
        match event:
            case SnapshotWanted():
                self.schedule.request(event.initiators, event.awaited)
                return []
            case SnapshotUnwanted():
                self.schedule.withdraw(event.waiting)
                return []
            case SnapshotStarted():
                return self.beginnings.adopt(event, now_us)
            case FragmentArrived():
                return self.collecting.fragment(event, now_us)
            case SentCountsArrived():
                return self.attempts.relay(event)
            case ProcessFailed():
                self.rollback.present.discard(event.process)
                self.restarts.failed(event.process)
                return self.attempts.failed(event.process, now_us)
            case ProcessReturned():
                return self.reconnections.returned(event.process)
            case ProcessWithoutState():
                return self.reconnections.without_state(event, now_us)
            case RestoreWanted():
                self.rollback.ask(event)
                return []
            case SnapshotChosen():
                return self.rollback.chosen(event, self.epoch, self.view, now_us)
            case RestoreRefused():
                return (
                    self.rollback.refused(event) + self.reconnections.go_on(now_us) + self.collecting.commit_complete()
                )
            case CannotRestore():
                return self.rollback.cannot_restore(event, self.epoch)
            case RecordingFailed():
                return self.attempts.recording_failed(event, now_us)
            case JoinWanted() | LeaveWanted():
                self.membership.request(event)
                if isinstance(event, JoinWanted):
                    self.rollback.present.add(event.process)
                return []
            case Drained():
                self.restarts.resumed(event.process)
                return self.departures.drained(event) + self.collecting.commit_complete()
            case Released():
                return self.departures.released(event, now_us)
            case RestartWanted():
                self.restarts.request(event.process)
                return []
            case HandedOver():
                return self.restarts.handed_over(event, self.epoch, now_us)
            case CannotHandOver():
                self.restarts.refused(event)
                return []
            case CannotResume():
                return self.reconnections.cannot_resume(event, now_us)
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
    def epoch(self) -> int:
        return self.outcomes.epoch

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
                return self.departures.release_logged(entry, self.recovering)
        return []

    def _epoch_logged(self, event: EntryLogged, entry: EpochStart, now_us: int) -> list[CoordinatorEffect]:
        """Fence off everything older: that ends the open snapshots, and they are requested again."""
        if entry.epoch <= self.epoch:
            return []
        self.outcomes.start_epoch(entry.epoch)
        self.restarts.epoch_started()
        for snapshot in [snapshot for snapshot in self.open if snapshot.epoch < self.epoch]:
            self._requeue(self.open.pop(snapshot).begin, now_us)
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
        self.beginnings.logged(snapshot, begin)
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
        early = self.outcomes.unclaimed.pop(snapshot, {}).values()
        effects = self._request_recordings(snapshot, begin)
        return effects + [effect for event in early for effect in self.collecting.fragment(event, now_us)]

    def _obstacle(self, snapshot: SnapshotId, begin: Begin) -> str | None:
        """Return why no process gets a request to record a snapshot that is in the log."""
        if begin.view != self.view.number:
            return "the view changed"
        # A process that has handed over would not hear of it, nor would its successor.
        restarting = next(filter(self.restarts.is_restarting, self.view.processes), None)
        if restarting is not None:
            return f"process {restarting} restarts"
        # Processes continue counting from the ids they receive.
        return None if self.outcomes.is_near(snapshot) else "its counter is far beyond those before it"

    def _request_recordings(self, snapshot: SnapshotId, begin: Begin) -> list[CoordinatorEffect]:
        # Markers spread Chandy-Lamport from its initiators. Lai-Yang has none, so every process gets a request (L3).
        asked = self.view.processes if self.membership.protocol == LaiYang.name else begin.initiators
        return [RequestRecording(process, snapshot, begin.view) for process in asked]

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
            self._requeue(attempt.begin, now_us)
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
        effects: list[CoordinatorEffect] = []
        for process in dict.fromkeys((*attempt.view.processes, *self.membership.everyone)):
            effects += [ReportOutcome(process, snapshot, committed, reason), ReportSettled(process, settled)]
        effects += [self.departures.order_release(process) for process in free]
        return effects + self.collecting.commit_complete()  # other commits may have waited for this one

    def _requeue(self, begin: Begin, now_us: int) -> None:
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
                return self.beginnings.append_lost(entry)
            case Commit():
                # The other writer's entries may prevent it: check again.
                attempt = self.attempts.not_committed(SnapshotId.parse(entry.snapshot))
                if attempt is not None and attempt.begin.view != self.view.number:
                    return self.attempts.end(attempt, "the view changed", now_us)
                return self.collecting.commit_complete()
            case Abort():
                return [Append(entry)] if SnapshotId.parse(entry.snapshot) in self.open else []
            case ViewChange():
                self.membership.lost()
            case EpochStart():
                return self.rollback.append_lost(entry, self.epoch, now_us)
            case Release():
                return self.departures.release_lost(entry)
        return []

    def _recover(self, now_us: int) -> list[CoordinatorEffect]:
        """Take over: request every open snapshot again, from all processes."""
        self.recovering = False
        self.membership.take_over()
        self.rollback.take_over(self.membership.everyone)
        self.schedule.take_over(now_us, begun_before=self.outcomes.counter > 0)
        if self.epoch == 0:
            return self.rollback.start_first(now_us)
        effects: list[CoordinatorEffect] = []
        for process in self.membership.everyone:
            effects += self.reconnections.catch_up(process)
        for snapshot, attempt in self.open.items():
            attempt.deadline_us = now_us + self.policy.timeout_us
            obstacle = self._obstacle(snapshot, attempt.begin)
            if obstacle is not None:
                effects += self.attempts.end(attempt, obstacle, now_us)
            else:
                effects += [RequestRecording(process, snapshot, attempt.begin.view) for process in self.view.processes]
        return effects

    @property
    def _idle(self) -> bool:
        """Whether nothing is under way that a rollback must wait for."""
        return not (self.attempts.committing or self.beginnings.pending or self.membership.changing)

    def _change_view(self, now_us: int) -> list[CoordinatorEffect]:
        if self.beginnings.pending or self.rollback.pending:
            return []
        change = self.membership.next_change(now_us, self.rollback.present)
        return [Append(change)] if change is not None else []

    def _view_logged(self, entry: ViewChange, now_us: int) -> list[CoordinatorEffect]:
        own = entry.view == self.membership.coming
        before = self.membership.logged(entry.view, self.recovering)
        if before is None or self.recovering:
            return []
        self.rollback.view_changed(entry.view, before, own)
        effects = self.attempts.end_all(f"the view changed from {before.number} to {entry.view.number}", now_us)
        joined = sorted(set(entry.view.processes) - set(before.processes))
        effects += [ReportSettled(process, self.outcomes.counter + 1) for process in joined]
        # A process without state starts with the epoch of the rollback, not with this view.
        informed = [process for process in self.membership.everyone if process not in self.rollback.stateless]
        effects += [InstallView(process, entry.view) for process in informed]
        return effects

    def _wake(self, now_us: int) -> list[CoordinatorEffect]:
        times = self.attempts.deadlines_us() + self.restarts.deadlines_us()
        if len(self.open) < self.policy.overlapping_max:
            times += self.schedule.times_us(overlapping=bool(self.open))
        later = [time for time in times if time > now_us]
        return [WakeAt(min(later))] if later else []
