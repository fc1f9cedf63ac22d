"""Follows each snapshot and rollback: updates trackers, answers requests, logs events, and triggers retention.

The event log, the status and the metrics are made from it.
"""

from typing import TYPE_CHECKING

from strobe.protocol import SnapshotId
from strobe.protocol.values.log_entries import Begin, EpochStart
from strobe.runtime.event_log import WARNING
from strobe.runtime.messages.api_documents import RestoreStarted, RollbackReport

if TYPE_CHECKING:
    from strobe.runtime.coordinator.coordinator import Coordinator

RETAIN_EVERY_S = 5.0
COLLECT_EVERY_S = 60.0
ROLLBACKS_KEPT = 32


class SnapshotObserver:
    """Receives every log entry, one by one."""

    def __init__(self, coordinator: "Coordinator") -> None:
        self._coordinator = coordinator
        self._retained_s: float | None = None

    def resumed(self) -> None:
        """The log starts at a checkpoint: restore what is displayed of the part before it."""
        coordinator = self._coordinator
        state = coordinator.state
        for opened in state.open.values():
            coordinator.progress.begun(opened.position, opened.begin, coordinator.brain.view)
            coordinator.requests.begun(opened.begin, coordinator.brain.view.processes)
        if state.starts:
            coordinator.epoch_known.set()
        rolled_back = [start for start in state.starts.values() if start.epoch > 1]
        for start in rolled_back[-ROLLBACKS_KEPT:]:
            report = RollbackReport(start.epoch, start.at_us, start.restored, start.reason, start.blamed, {})
            coordinator.rollbacks.append(report)

    def begun(self, position: int, begin: Begin) -> None:
        coordinator = self._coordinator
        coordinator.progress.begun(position, begin, coordinator.brain.view)
        coordinator.requests.begun(begin, coordinator.brain.view.processes)
        if coordinator.brain.recovering:
            return
        coordinator.log.emit("begun", snapshot=begin.snapshot, initiators=begin.initiators, attempt=begin.attempt)
        # Sent before the record orders that `Lifecycle` gives next: nodes need it to place their blobs.
        coordinator.tell_all(coordinator.begun_message(begin.snapshot))

    def ended(self, snapshot: str, at_us: int) -> None:
        coordinator = self._coordinator
        complete = coordinator.state.committed.get(snapshot)
        reason = coordinator.state.aborted.get(snapshot, "")
        records = complete.manifest.processes if complete else None
        finished = coordinator.progress.ended(SnapshotId.parse(snapshot), records, reason, at_us)
        if finished is None or coordinator.brain.recovering:
            return
        duration_ms = round(finished.duration_us / 1000, 1)
        if complete:
            size = finished.state_bytes + finished.in_flight_bytes
            coordinator.log.emit(
                "committed", snapshot=snapshot, ms=duration_ms, bytes=size, written=finished.written_bytes
            )
        else:
            coordinator.log.emit("aborted", WARNING, snapshot=snapshot, reason=reason, ms=duration_ms)
        if complete or not self._will_retry(snapshot):
            coordinator.requests.ended(snapshot, complete is not None, reason)
        coordinator.on_finished(finished)
        self._retain(complete is not None)

    def _will_retry(self, snapshot: str) -> bool:
        beginning = self._coordinator.brain.beginning
        return any(want.retries == snapshot for want in self._coordinator.brain.schedule.wants) or (
            beginning is not None and beginning.retries == snapshot
        )

    def _retain(self, committed: bool) -> None:
        """Run retention now and then: after commits if retention is set, otherwise after aborts."""
        coordinator = self._coordinator
        settings = coordinator.retention
        wanted = any((settings.keep_last, settings.keep_hourly, settings.keep_daily))
        if not wanted and committed:
            return
        every_s = RETAIN_EVERY_S if wanted else COLLECT_EVERY_S
        now_s = coordinator.now_s()
        if self._retained_s is None or now_s - self._retained_s >= every_s:
            self._retained_s = now_s
            coordinator.work(coordinator.store.desk.retain, settings)

    def epoch_started(self, entry: EpochStart) -> None:
        coordinator = self._coordinator
        coordinator.epoch_known.set()
        if entry.epoch == 1:
            return
        undone = self._undone()
        report = RollbackReport(entry.epoch, entry.at_us, entry.restored, entry.reason, entry.blamed, undone)
        coordinator.rollbacks.append(report)
        if coordinator.brain.recovering:
            return
        coordinator.rollback_count += 1
        coordinator.refusal = None
        coordinator.log.emit(
            "rollback",
            WARNING,
            epoch=entry.epoch,
            restored=entry.restored or "the beginning",
            reason=entry.reason,
            blamed=entry.blamed,
            processes=coordinator.brain.view.processes,
            undone=undone,
        )
        if not coordinator.brain.rollback.pending:  # otherwise this rollback was superseded, and is not reported
            coordinator.requests.restored(RestoreStarted(entry.epoch, entry.restored, undone))

    def _undone(self) -> dict[str, int]:
        """Return how many events each process loses, as far as heartbeats show."""
        origin = self._coordinator.origin
        positions = origin.positions if origin is not None else {}
        members = sorted(self._coordinator.members, key=lambda member: member.process)
        return {
            member.process: max(0, member.reached - positions.get(member.process, 0))
            for member in members
            if member.reached is not None
        }
