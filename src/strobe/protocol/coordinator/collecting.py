"""Collects the fragments of open snapshots, and orders a commit when all of them have arrived."""

from strobe.protocol.coordinator.attempts import Attempts
from strobe.protocol.coordinator.membership import Membership
from strobe.protocol.coordinator.messages import CommitSnapshot, CoordinatorEffect, FragmentArrived
from strobe.protocol.coordinator.outcomes import SnapshotOutcomes
from strobe.protocol.coordinator.rollback import Rollback


class Collecting:
    """The fragments on their way to a commit."""

    def __init__(
        self, membership: Membership, attempts: Attempts, outcomes: SnapshotOutcomes, rollback: Rollback
    ) -> None:
        self._membership = membership
        self._attempts = attempts
        self._outcomes = outcomes
        self._rollback = rollback

    def fragment(self, event: FragmentArrived, now_us: int) -> list[CoordinatorEffect]:
        snapshot, attempt = event.snapshot, self._attempts.open.get(event.snapshot)
        if attempt is None:
            if not self._outcomes.has(snapshot, self._attempts.open) and snapshot not in self._outcomes.refused:
                self._outcomes.keep_unclaimed(event)
            return []
        if attempt.ending:
            return []
        if event.view != attempt.begin.view:
            return self._attempts.end(attempt, f"{event.process} recorded it in view {event.view}", now_us)
        attempt.arrived[event.process] = event.record
        return self.commit_complete()

    def commit_complete(self) -> list[CoordinatorEffect]:
        """Commit snapshots that have all of their fragments.

        Not while a rollback is pending, which waits for commits to end. Nor while a process is leaving and a restarted
        coordinator does not know the end offsets of its output.
        """
        if self._rollback.pending or self._membership.unstaged:
            return []
        whole = self._attempts.take_whole()
        if not whole:
            return []  # this runs for every fragment: loop over all processes only for complete snapshots
        departed, joined = self._membership.covered(), self._membership.joined_later()
        return [
            CommitSnapshot(snapshot, attempt.begin, attempt.view, attempt.records(), departed, joined)
            for snapshot, attempt in whole
        ]

    def commit_obstacle(self) -> str:
        """Return what a snapshot that has all of its fragments waits for."""
        unstaged = ", ".join(self._membership.unstaged)
        return f"the output of {unstaged}, which leaves" if unstaged else "the end of a rollback"
