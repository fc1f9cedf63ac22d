"""Processes that connect: with their state of this epoch, without it, or after they have left."""

from strobe.protocol.coordinator.attempts import Attempts
from strobe.protocol.coordinator.beginnings import Beginnings
from strobe.protocol.coordinator.membership import Membership
from strobe.protocol.coordinator.messages import (
    CoordinatorEffect,
    Dismiss,
    InstallView,
    ProcessWithoutState,
    ReportOutcome,
    ReportSettled,
)
from strobe.protocol.coordinator.outcomes import SnapshotOutcomes
from strobe.protocol.coordinator.restart_messages import CannotResume
from strobe.protocol.coordinator.restarts import Restarts
from strobe.protocol.coordinator.rollback import Rollback
from strobe.protocol.values.ids import SnapshotId


class Reconnections:
    """Sends each connected process what it needs to continue or to start."""

    def __init__(
        self,
        membership: Membership,
        attempts: Attempts,
        outcomes: SnapshotOutcomes,
        rollback: Rollback,
        beginnings: Beginnings,
        restarts: Restarts,
    ) -> None:
        self._membership = membership
        self._attempts = attempts
        self._outcomes = outcomes
        self._rollback = rollback
        self._beginnings = beginnings
        self._restarts = restarts

    def returned(self, process: str) -> list[CoordinatorEffect]:
        """A process has its state of this epoch."""
        self._rollback.seen(process)
        if self._rollback.halt is not None:
            return [self._rollback.halt]
        return [*self.catch_up(process), *self._restarts.returned(process)]

    def without_state(self, event: ProcessWithoutState, now_us: int) -> list[CoordinatorEffect]:
        membership, rollback, process = self._membership, self._rollback, event.process
        if not rollback.pending and membership.gone(process):
            return [Dismiss(process)]
        resume = self._restarts.resume(event, self._outcomes.epoch)
        if resume:
            rollback.present.add(process)
            return [*resume, *self.catch_up(process)]
        if event.again:
            rollback.started.discard(process)
        if process in membership.staged and rollback.halt is None:
            # All of its output is durable. It waits for a snapshot that covers it, or for a rollback to before it left.
            rollback.present.add(process)
            return []
        effects = rollback.connected_without_state(
            event, membership.everyone, self._outcomes.epoch, membership.view, now_us
        )
        return effects + (self._begin_joiner(process) if self._waits_to_begin(process) else [])

    def cannot_resume(self, event: CannotResume, now_us: int) -> list[CoordinatorEffect]:
        """An earlier successor has run on from the hand-over and crashed, or the hand-over is damaged."""
        if not self._restarts.cannot_resume(event):
            return []
        return self.without_state(ProcessWithoutState(event.process), now_us)

    def go_on(self, now_us: int) -> list[CoordinatorEffect]:
        """If no rollback is pending any more, start the processes that have waited for it.

        A hand-over that was reported meanwhile was ignored: ask for the report again.
        """
        if self._rollback.pending:
            return []
        processes = self._rollback.present.intersection(self._membership.view.processes) - self._rollback.started
        effects = [effect for process in self._restarts.processes for effect in self._restarts.returned(process)]
        for process in sorted(processes):
            effects += self.without_state(ProcessWithoutState(process), now_us)
        return effects

    def catch_up(self, process: str) -> list[CoordinatorEffect]:
        """Send `process` everything it may have missed: the outcomes, and the view."""
        under_way = (*self._attempts.open, *self._beginnings.adopted)
        floor = min((snapshot.counter for snapshot in under_way), default=self._outcomes.counter + 1)
        reason = "it has ended meanwhile"
        missed = self._outcomes.missed_since(floor)
        outcomes = [ReportOutcome(process, snapshot, done, "" if done else reason) for snapshot, done in missed.items()]
        newest = SnapshotId.parse(self._rollback.newest) if self._rollback.newest else None
        # The newest complete snapshot releases the output it covers (R2), and is the base of later deltas (E5).
        covering = [ReportOutcome(process, newest, True, "")] if newest is not None and newest not in missed else []
        return [*covering, ReportSettled(process, floor), *outcomes, InstallView(process, self._membership.view)]

    def _waits_to_begin(self, process: str) -> bool:
        """Return whether it is in the view, was never started, and starts with the view: it was away when it joined."""
        view = self._membership.view
        is_new = process in view.processes and process not in self._rollback.started
        return is_new and not self._rollback.restores(view)

    def _begin_joiner(self, process: str) -> list[CoordinatorEffect]:
        if self._rollback.pending:
            return []  # it may have to join again
        self._rollback.seen(process)
        return [ReportSettled(process, self._outcomes.counter + 1), InstallView(process, self._membership.view)]
