"""The progress of each open snapshot, and the outcome of recent ones, for the status and metrics (E1)."""

from collections import deque
from collections.abc import Mapping
from itertools import takewhile

from strobe.protocol import SnapshotId, View
from strobe.protocol.values.log_entries import Begin, ProcessRecord
from strobe.runtime.messages.api_documents import ABORTED, COMMITTED, FinishedSnapshot, OpenSnapshot, Part
from strobe.storage.content.sizes import sizes, state_bytes, written_bytes

FINISHED_KEPT = 32


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
        self.under: dict[SnapshotId, RecordingSnapshot] = {}
        self.finished: deque[FinishedSnapshot] = deque(maxlen=FINISHED_KEPT)
        self.committed = 0
        self.aborted = 0

    def begun(self, position: int, begin: Begin, view: View) -> None:
        self.under[SnapshotId.parse(begin.snapshot)] = RecordingSnapshot(position, begin, view)

    def recorded(self, snapshot: SnapshotId, process: str, pause_us: int) -> None:
        if snapshot in self.under:
            self.under[snapshot].pauses_us[process] = pause_us

    def stored(self, snapshot: SnapshotId, process: str, record: ProcessRecord) -> bool:
        """Keep a process's record; return whether its snapshot is open."""
        if snapshot not in self.under:
            return False
        self.under[snapshot].records[process] = record
        return True

    def ended(
        self, snapshot: SnapshotId, records: Mapping[str, ProcessRecord] | None, reason: str, at_us: int
    ) -> FinishedSnapshot | None:
        """Store the outcome and return the summary; `records` are those that were committed."""
        under = self.under.pop(snapshot, None)
        if under is None:
            return None
        committed = records is not None
        if records is not None:
            under.records = dict(records)  # a coordinator that reads its log did not receive them from the nodes
        self.committed += committed
        self.aborted += not committed
        state, in_flight, messages = sizes(under.records)
        finished = FinishedSnapshot(
            id=str(snapshot),
            outcome=COMMITTED if committed else ABORTED,
            reason=reason,
            started_us=under.begin.at_us,
            duration_us=max(0, at_us - under.begin.at_us),
            attempt=under.begin.attempt,
            state_bytes=state,
            written_bytes=sum(written_bytes(record, under.position) for record in under.records.values()),
            in_flight_bytes=in_flight,
            in_flight_messages=messages,
            parts=under.parts(),
        )
        self.finished.append(finished)
        return finished

    def failing(self) -> list[FinishedSnapshot]:
        """Return the snapshots aborted since the last commit, as far as they are kept, oldest first."""
        aborted = list(takewhile(lambda finished: finished.outcome == ABORTED, reversed(self.finished)))
        return aborted[::-1]

    def open(self) -> list[OpenSnapshot]:
        return [
            OpenSnapshot(
                id=str(snapshot),
                position=under.position,
                started_us=under.begin.at_us,
                initiators=under.begin.initiators,
                attempt=under.begin.attempt,
                retries=under.begin.retries,
                waiting_for=[process for process in under.view.processes if process not in under.records],
                parts=under.parts(),
            )
            for snapshot, under in sorted(self.under.items())
        ]
