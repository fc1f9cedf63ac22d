"""Follows each snapshot and rollback: updates the tracker, answers requests, informs nodes, and logs events.

The event log, the status and the metrics are made from it.
"""

import asyncio
from collections import deque
from collections.abc import Mapping

from strobe.protocol import Lifecycle, SnapshotId
from strobe.protocol.values.log_entries import Begin, EpochStart
from strobe.runtime.coordinator.node_registry import Members
from strobe.runtime.coordinator.pending_requests import PendingRequests
from strobe.runtime.coordinator.snapshot_tracker import SnapshotTracker
from strobe.runtime.event_log import WARNING, EventLog
from strobe.runtime.messages.api_documents import FinishedSnapshot, RestoreStarted, RollbackReport
from strobe.runtime.messages.control import SnapshotBegun
from strobe.storage import LogState

ROLLBACKS_KEPT = 32


class SnapshotObserver:
    """Receives every log entry, one by one."""

    def __init__(
        self, lifecycle: Lifecycle, state: LogState, requests: PendingRequests, members: Members, log: EventLog
    ) -> None:
        self.tracker = SnapshotTracker()
        self.rollbacks: deque[RollbackReport] = deque(maxlen=ROLLBACKS_KEPT)
        # Rollbacks since the coordinator started.
        self.rollback_count = 0
        self.epoch_known = asyncio.Event()
        self._lifecycle = lifecycle
        self._state = state
        self._requests = requests
        self._members = members
        self._log = log

    def resumed(self) -> None:
        """The log starts at a checkpoint: restore what is displayed of the part before it."""
        view, state = self._lifecycle.view, self._state
        for opened in state.open.values():
            self.tracker.begun(opened.position, opened.begin, view)
            self._requests.begun(opened.begin, view.processes)
        if state.starts:
            self.epoch_known.set()
        rolled_back = [start for start in state.starts.values() if start.epoch > 1]
        for start in rolled_back[-ROLLBACKS_KEPT:]:
            report = RollbackReport(start.epoch, start.at_us, start.restored, start.reason, start.blamed, {})
            self.rollbacks.append(report)

    def begun(self, position: int, begin: Begin) -> None:
        view = self._lifecycle.view
        self.tracker.begun(position, begin, view)
        self._requests.begun(begin, view.processes)
        if self._lifecycle.recovering:
            return
        self._log.emit("begun", snapshot=begin.snapshot, initiators=begin.initiators, attempt=begin.attempt)
        # Sent before the record orders that `Lifecycle` gives next: nodes need it to place their blobs.
        self._members.broadcast(begun_message(self._state, begin.snapshot))

    def ended(self, snapshot: str, at_us: int) -> FinishedSnapshot | None:
        """Return the finished snapshot, unless the log is being read back."""
        complete = self._state.committed.get(snapshot)
        reason = self._state.aborted.get(snapshot, "")
        records = complete.manifest.processes if complete else None
        finished = self.tracker.ended(SnapshotId.parse(snapshot), records, reason, at_us)
        if finished is None or self._lifecycle.recovering:
            return None
        duration_ms = round(finished.duration_us / 1000, 1)
        if complete:
            size = finished.state_bytes + finished.in_flight_bytes
            self._log.emit("committed", snapshot=snapshot, ms=duration_ms, bytes=size, written=finished.written_bytes)
        else:
            self._log.emit("aborted", WARNING, snapshot=snapshot, reason=reason, ms=duration_ms)
        if complete or not self._lifecycle.beginnings.will_retry(snapshot):
            self._requests.ended(snapshot, complete is not None, reason)
        return finished

    def epoch_started(self, entry: EpochStart, positions: Mapping[str, int]) -> None:
        """`positions` are those of the processes in the restored snapshot."""
        self.epoch_known.set()
        if entry.epoch == 1:
            return
        undone = self._undone(positions)
        report = RollbackReport(entry.epoch, entry.at_us, entry.restored, entry.reason, entry.blamed, undone)
        self.rollbacks.append(report)
        if self._lifecycle.recovering:
            return
        self.rollback_count += 1
        self._log.emit(
            "rollback",
            WARNING,
            epoch=entry.epoch,
            restored=entry.restored or "the beginning",
            reason=entry.reason,
            blamed=entry.blamed,
            processes=self._lifecycle.view.processes,
            undone=undone,
        )
        if not self._lifecycle.rollback.pending:  # otherwise this rollback was superseded, and is not reported
            self._requests.restored(RestoreStarted(entry.epoch, entry.restored, undone))

    def _undone(self, positions: Mapping[str, int]) -> dict[str, int]:
        """Return how many events each process loses, as far as heartbeats show."""
        members = sorted(self._members, key=lambda member: member.process)
        return {
            member.process: max(0, member.reached - positions.get(member.process, 0))
            for member in members
            if member.reached is not None
        }


def begun_message(state: LogState, snapshot: str) -> SnapshotBegun:
    opened = state.open[snapshot]
    return SnapshotBegun(SnapshotId.parse(snapshot), opened.position, opened.parent)
