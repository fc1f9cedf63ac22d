"""The end of a leave: a process reports that it has drained, releases its output (R2), and is dismissed."""

from strobe.protocol.coordinator.membership import Membership
from strobe.protocol.coordinator.messages import Append, CoordinatorEffect, Dismiss, Drained, Released
from strobe.protocol.coordinator.rollback import Rollback
from strobe.protocol.coordinator.schedule import Schedule
from strobe.protocol.values.log_entries import Release


class Departures:
    """Dismisses each departed process as soon as nothing needs it any more."""

    def __init__(self, membership: Membership, rollback: Rollback, schedule: Schedule) -> None:
        self._membership = membership
        self._rollback = rollback
        self._schedule = schedule

    def drained(self, event: Drained) -> list[CoordinatorEffect]:
        membership, process = self._membership, event.process
        # A dismissed process may have reported twice: it is not a member any more.
        if event.view == membership.view.number and membership.includes(process):
            self._rollback.seen(process)
        was_staged = process in membership.staged
        free = membership.note_drained(event)
        if not was_staged and process in membership.staged:
            self._schedule.request(())  # request the snapshot that it waits for
        self._rollback.present.difference_update(free)
        return [Dismiss(process) for process in free]

    def released(self, event: Released, now_us: int) -> list[CoordinatorEffect]:
        """A departed process has released all of its output. It exits once the log has that: only it can report it."""
        departed = self._membership.departed.get(event.process)
        if departed is not None and departed.view == event.view and self._membership.unreleased(event.process):
            return [Append(Release(event.process, event.view, now_us))]
        return self._dismiss(event.process)

    def release_logged(self, entry: Release, recovering: bool) -> list[CoordinatorEffect]:
        was_awaited = self._membership.released(entry.process, entry.view)
        return self._dismiss(entry.process) if was_awaited and not recovering else []

    def release_lost(self, entry: Release) -> list[CoordinatorEffect]:
        return [Append(entry)] if self._membership.unreleased(entry.process) else []

    def order_release(self, process: str) -> Dismiss:
        """Return the `Dismiss` for a departed process that still has to release output."""
        departed = self._membership.departed[process]
        return Dismiss(process, departed.sinks, departed.view)

    def _dismiss(self, process: str) -> list[CoordinatorEffect]:
        if self._membership.includes(process):
            return []  # a rollback undid its leave, and it was informed
        self._rollback.present.discard(process)
        return [Dismiss(process)]
