"""Snapshots that have begun and have no outcome yet: fragments received, deadlines, aborts."""

from collections.abc import Callable

import msgspec

from strobe.protocol.coordinator.messages import (
    Append,
    CommitFailed,
    CoordinatorEffect,
    RecordingFailed,
    RelaySentCount,
    SentCountsArrived,
)
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import Abort, Begin, ProcessRecord
from strobe.protocol.values.view import View


class Attempt(msgspec.Struct):
    """One snapshot under way: its view, the fragments that have arrived, and whether it is ending.

    `arrived` has the record of each stored fragment, or None if the host itself keeps the fragments.
    """

    begin: Begin
    view: View
    deadline_us: int
    arrived: dict[str, ProcessRecord | None]
    aborting: bool = False
    committing: bool = False

    @property
    def ending(self) -> bool:
        return self.aborting or self.committing

    def records(self) -> dict[str, ProcessRecord]:
        """Return the records of the processes of its view."""
        found = {process: self.arrived[process] for process in self.view.processes}
        return {process: record for process, record in found.items() if record is not None}

    @property
    def whole(self) -> bool:
        return len(self.arrived) >= len(self.view.processes) and self.arrived.keys() >= self.view.members


class Attempts:
    """All snapshots under way, by id."""

    def __init__(self, timeout_us: int) -> None:
        self.timeout_us = timeout_us
        self.open: dict[SnapshotId, Attempt] = {}

    def begin(self, snapshot: SnapshotId, begin: Begin, view: View, now_us: int) -> Attempt:
        """The log has its `Begin`: start its time-out."""
        attempt = self.open[snapshot] = Attempt(begin, view, now_us + self.timeout_us, {})
        return attempt

    def take_whole(self) -> list[tuple[SnapshotId, Attempt]]:
        """Return the snapshots that now have all of their fragments, and mark them as committing."""
        whole = [(snapshot, attempt) for snapshot, attempt in self.open.items() if attempt.whole and not attempt.ending]
        for _, attempt in whole:
            attempt.committing = True
        return whole

    @property
    def committing(self) -> bool:
        return any(attempt.committing for attempt in self.open.values())

    def not_committed(self, snapshot: SnapshotId) -> Attempt | None:
        """Its commit is no longer under way. Return the attempt if it still has no outcome."""
        attempt = self.open.get(snapshot)
        if attempt is not None:
            attempt.committing = False
        return attempt

    def deadlines_us(self) -> list[int]:
        return [attempt.deadline_us for attempt in self.open.values() if not attempt.ending]

    def relay(self, event: SentCountsArrived) -> list[CoordinatorEffect]:
        """Send the targets of a process's channels the number of messages it has sent on them (V1)."""
        attempt = self.open.get(event.snapshot)
        if attempt is None:
            return []
        return [
            RelaySentCount(channel.target, event.snapshot, channel.id, event.counts[channel.id])
            for channel in attempt.view.outgoing(event.process)
            if channel.id in event.counts
        ]

    def failed(self, process: str, now_us: int, verb: str = "failed") -> list[CoordinatorEffect]:
        """Abort snapshots that can no longer complete. A fragment that has arrived survives its process's end."""
        doomed = [
            attempt
            for attempt in self.open.values()
            if process in attempt.view.processes and process not in attempt.arrived
        ]
        return [effect for attempt in doomed for effect in self.end(attempt, f"process {process} {verb}", now_us)]

    def recording_failed(self, event: RecordingFailed, now_us: int) -> list[CoordinatorEffect]:
        """A process cannot finish its part: abort the snapshot."""
        attempt = self.open.get(event.snapshot)
        return self.end(attempt, f"{event.process}: {event.reason}", now_us) if attempt is not None else []

    def commit_failed(self, event: CommitFailed, now_us: int) -> list[CoordinatorEffect]:
        """A snapshot with all of its fragments could not be committed: abort it."""
        attempt = self.not_committed(event.snapshot)
        return self.end(attempt, event.reason, now_us) if attempt is not None else []

    def expire(self, now_us: int, held_by: Callable[[], str]) -> list[CoordinatorEffect]:
        """Abort snapshots past their deadline. `held_by` returns what a snapshot with all fragments waits for."""
        effects: list[CoordinatorEffect] = []
        for attempt in self.open.values():
            if now_us >= attempt.deadline_us and not attempt.ending:
                missing = ", ".join(process for process in attempt.view.processes if process not in attempt.arrived)
                lacking = f"a fragment from {missing}" if missing else held_by()
                reason = f"timed out after {self.timeout_us / 1_000_000:g} s without {lacking}"
                effects += self.end(attempt, reason, now_us)
        return effects

    def end_all(self, reason: str, now_us: int) -> list[CoordinatorEffect]:
        return [effect for attempt in self.open.values() for effect in self.end(attempt, reason, now_us)]

    def end(self, attempt: Attempt, reason: str, now_us: int) -> list[CoordinatorEffect]:
        """Abort one for this reason, unless it is already ending."""
        if attempt.ending:
            return []
        attempt.aborting = True
        return [Append(Abort(attempt.begin.snapshot, reason, now_us))]
