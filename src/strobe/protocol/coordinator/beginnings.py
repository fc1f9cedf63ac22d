"""Snapshots on their way to the log: the coordinator's own, and those that processes initiate (C1, E10).

None begins while the view is not settled (E2) or a rollback is pending (R1). Another writer's entry may come first.
Then an own beginning is queued again for a new id, and an adopted one is appended again if it is still possible.
"""

from strobe.errors import UsageError
from strobe.protocol.coordinator.attempts import Attempts
from strobe.protocol.coordinator.membership import Membership
from strobe.protocol.coordinator.messages import Append, CoordinatorEffect, ReportOutcome, SnapshotStarted
from strobe.protocol.coordinator.outcomes import SnapshotOutcomes
from strobe.protocol.coordinator.rollback import Rollback
from strobe.protocol.coordinator.schedule import Schedule
from strobe.protocol.values.ids import COORDINATOR, SnapshotId
from strobe.protocol.values.log_entries import Begin
from strobe.protocol.values.view import initiators


class Beginnings:
    """`Begin` entries that were sent to the log and have not been read back yet."""

    def __init__(
        self,
        membership: Membership,
        attempts: Attempts,
        outcomes: SnapshotOutcomes,
        rollback: Rollback,
        schedule: Schedule,
    ) -> None:
        self._membership = membership
        self._attempts = attempts
        self._outcomes = outcomes
        self._rollback = rollback
        self._schedule = schedule
        # One of the coordinator's own, and those initiated by processes.
        self.own: Begin | None = None
        self.adopted: dict[SnapshotId, Begin] = {}

    @property
    def pending(self) -> bool:
        return self.own is not None or bool(self.adopted)

    def begin_next(self, now_us: int) -> list[CoordinatorEffect]:
        """Begin the next requested or scheduled snapshot, if one may begin now."""
        self._schedule.tick(now_us)
        if self._membership.changes or self.own is not None or not self._may_begin(now_us):
            return []
        pending = self._schedule.take(now_us)
        if pending is None:
            return []
        snapshot = SnapshotId(self._outcomes.epoch, self._outcomes.counter + 1, COORDINATOR)
        known = tuple(process for process in pending.initiators if process in self._membership.view.processes)
        self.own = self._entry(snapshot, known, now_us, pending.attempt, pending.retries)
        return [Append(self.own)]

    def adopt(self, event: SnapshotStarted, now_us: int) -> list[CoordinatorEffect]:
        """Adopt a snapshot that a process initiated, or refuse it if the view or the policy does not allow it."""
        snapshot, outcomes = event.snapshot, self._outcomes
        if snapshot in self._attempts.open or snapshot in self.adopted or self._has_outcome(snapshot):
            return []
        if snapshot in outcomes.refused:
            return self._refuse(snapshot)
        if not outcomes.is_near(snapshot):
            raise UsageError(f"the counter of {snapshot} is far beyond {outcomes.counter}, the highest of its epoch")
        view = self._membership.view
        here = event.process in view.processes and event.view == view.number and snapshot.epoch == outcomes.epoch
        if not here or not self._may_begin(now_us):
            return self._refuse(snapshot)
        begin = self.adopted[snapshot] = self._entry(snapshot, (event.process,), now_us)
        return [Append(begin)]

    def logged(self, snapshot: SnapshotId, begin: Begin) -> None:
        self.adopted.pop(snapshot, None)
        if self.own == begin:
            self.own = None

    def append_lost(self, begin: Begin) -> list[CoordinatorEffect]:
        """Another entry took the log position of `begin`."""
        if self.own == begin:
            # The id may be taken now: queue the request again, for a new id.
            self.own = None
            self._schedule.give_back(begin)
            return []
        snapshot = SnapshotId.parse(begin.snapshot)
        known = snapshot in self._attempts.open or self._has_outcome(snapshot)
        if self.adopted.pop(snapshot, None) is None or known:
            return []
        is_current = begin.view == self._membership.view.number and snapshot.epoch == self._outcomes.epoch
        if not is_current or self._rollback.pending:
            return self._refuse(snapshot)
        self.adopted[snapshot] = begin
        return [Append(begin)]

    def will_retry(self, snapshot: str) -> bool:
        """Return whether an aborted snapshot is retried."""
        return self._schedule.retries(snapshot) or (self.own is not None and self.own.retries == snapshot)

    def _may_begin(self, now_us: int) -> bool:
        """Return whether the view and the policy allow one more, including those on their way to the log (E10)."""
        schedule, open_now = self._schedule, self._attempts.open
        under_way = len(open_now) + len(self.adopted) + (self.own is not None)
        in_time = now_us >= schedule.earliest_us(overlapping=bool(open_now))
        may = under_way < schedule.policy.overlapping_max and in_time and not self._rollback.pending
        return may and self._membership.settled  # last: it iterates over all processes

    def _entry(
        self, snapshot: SnapshotId, asked: tuple[str, ...], now_us: int, attempt: int = 1, retries: str | None = None
    ) -> Begin:
        """Return the entry that begins `snapshot` from the requested initiators, and as many more as it takes (M1)."""
        view, protocol = self._membership.view, self._membership.protocol
        everyone, parent = initiators(view, asked), self._rollback.newest
        return Begin(str(snapshot), view.number, protocol, everyone, now_us, parent, retries, attempt)

    def _refuse(self, snapshot: SnapshotId) -> list[CoordinatorEffect]:
        self._outcomes.refuse(snapshot)
        reason = "the coordinator cannot accept it now"
        return [ReportOutcome(process, snapshot, False, reason) for process in self._membership.everyone]

    def _has_outcome(self, snapshot: SnapshotId) -> bool:
        return self._outcomes.has(snapshot, self._attempts.open)
