"""The progress of each open snapshot, and the outcome of recent ones, for the status and metrics (E1)."""

from collections import deque
from collections.abc import Mapping
from itertools import takewhile

from strobe.protocol import SnapshotId, View
from strobe.protocol.values.log_entries import Begin, ProcessRecord
from strobe.runtime.messages.api_documents import ABORTED, COMMITTED, FinishedSnapshot, OpenSnapshot, Part
from strobe.storage.content.summaries import sizes, state_bytes, written_bytes

FINISHED_KEPT = 32
PARTS_KEPT = 2048
"""Maximum number of parts of finished snapshots in a status; older snapshots keep only their summary."""


class RecordingSnapshot:
    """An open snapshot: its view, and the records of the processes that have stored their part."""

    def __init__(self, position: int, begin: Begin, view: View) -> None:
        self.position = position
        self.begin = begin
        self.view = view
        self.pauses_us: dict[str, int] = {}
        self.records: dict[str, ProcessRecord] = {}

    def part(self, process: str) -> Part:
        record = self.records.get(process)
        if record is None:
            pause_us = self.pauses_us.get(process)
            return Part(process, recorded=pause_us is not None, pause_us=pause_us or 0)
        return Part(
            process,
            recorded=True,
            stored=True,
            pause_us=record.pause_us,
            duration_us=record.duration_us,
            state_bytes=state_bytes(record),
            written_bytes=written_bytes(record, self.position),
            in_flight_bytes=sizes({process: record})[1],
        )

    def parts(self) -> list[Part]:
        return [self.part(process) for process in self.view.processes]


class SnapshotTracker:
    """Open snapshots, and recently finished ones."""

    def __init__(self) -> None:
        self.recording: dict[SnapshotId, RecordingSnapshot] = {}
        self.finished: deque[FinishedSnapshot] = deque(maxlen=FINISHED_KEPT)
        self.committed = 0
        self.aborted = 0

    def begun(self, position: int, begin: Begin, view: View) -> None:
        self.recording[SnapshotId.parse(begin.snapshot)] = RecordingSnapshot(position, begin, view)

    def recorded(self, snapshot: SnapshotId, process: str, pause_us: int) -> None:
        if snapshot in self.recording:
            self.recording[snapshot].pauses_us[process] = pause_us

    def stored(self, snapshot: SnapshotId, process: str, record: ProcessRecord) -> None:
        if snapshot in self.recording:
            self.recording[snapshot].records[process] = record

    def ended(
        self, snapshot: SnapshotId, records: Mapping[str, ProcessRecord] | None, reason: str, at_us: int
    ) -> FinishedSnapshot | None:
        """Store the outcome and return the summary; `records` are those that were committed."""
        recording = self.recording.pop(snapshot, None)
        if recording is None:
            return None
        committed = records is not None
        if records is not None:
            recording.records = dict(records)  # a coordinator that reads its log did not receive them from the nodes
        self.committed += committed
        self.aborted += not committed
        state, in_flight, messages = sizes(recording.records)
        finished = FinishedSnapshot(
            id=str(snapshot),
            outcome=COMMITTED if committed else ABORTED,
            reason=reason,
            started_us=recording.begin.at_us,
            duration_us=max(0, at_us - recording.begin.at_us),
            attempt=recording.begin.attempt,
            state_bytes=state,
            written_bytes=sum(written_bytes(record, recording.position) for record in recording.records.values()),
            in_flight_bytes=in_flight,
            in_flight_messages=messages,
            parts=recording.parts(),
        )
        self.finished.append(finished)
        self._drop_old_parts()
        return finished

    def _drop_old_parts(self) -> None:
        kept = 0
        for finished in reversed(self.finished):
            kept += len(finished.parts)
            if kept > PARTS_KEPT and finished is not self.finished[-1]:
                finished.parts = []

    def failing(self) -> list[FinishedSnapshot]:
        """Return the snapshots aborted since the last commit, as far as they are kept, oldest first."""
        aborted = list(takewhile(lambda finished: finished.outcome == ABORTED, reversed(self.finished)))
        return aborted[::-1]

    def open(self) -> list[OpenSnapshot]:
        return [
            OpenSnapshot(
                id=str(snapshot),
                position=recording.position,
                started_us=recording.begin.at_us,
                initiators=recording.begin.initiators,
                attempt=recording.begin.attempt,
                retries=recording.begin.retries,
                waiting_for=[process for process in recording.view.processes if process not in recording.records],
                parts=recording.parts(),
            )
            for snapshot, recording in sorted(self.recording.items())
        ]
