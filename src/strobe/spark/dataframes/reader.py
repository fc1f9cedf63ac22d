"""Reads a table of some commits of a store, in a worker: entry by entry, blob by blob, verified.

An unreadable snapshot has a row in `reading_errors` and in no other table, and does not affect other snapshots. A
snapshot that was removed meanwhile has no row at all.
"""

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa

from strobe.errors import SnapshotError
from strobe.spark.log.snapshot_reader import SnapshotReader, may_be_readable_later, place_and_problem
from strobe.spark.rows.builders import rows_of
from strobe.spark.rows.column_limits import require_readable
from strobe.spark.rows.committed_snapshot import read_snapshot
from strobe.spark.schema import columns as c
from strobe.spark.schema.arrow import Chunks, Rows, arrow_schema, batches
from strobe.storage.log.follower import Followed

VERIFY_SNAPSHOT = "snapshot"
VERIFY_READ = "read"


class TableRequest(msgspec.Struct, frozen=True):
    """Which table of which store; of one `process`, if that is given and the table has that column.

    `verify` is the part of a snapshot that must be valid: all of it (`snapshot`), or only the bytes that the table is
    made of (`read`).
    """

    url: str
    table: str
    process: str | None = None
    verify: str = VERIFY_SNAPSHOT


def read_table(request: TableRequest, entries: Iterable[Followed]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table for the commits among `entries`."""
    if request.table == "commits":
        rows = _commits(request.url, entries)
    else:
        reading = TableReading(request)
        rows = (row for entry in entries for row in reading.rows(entry))
    return batches(arrow_schema(c.READABLE[request.table]), rows)


def _commits(url: str, entries: Iterable[Followed]) -> Rows:
    for entry in entries:
        yield [[entry.position], [entry.snapshot_id], [f"{url}/{entry.name}"], [entry.problem]], 0


class TableReading:
    """Reads one table in one worker."""

    def __init__(self, request: TableRequest) -> None:
        self._request = request
        self._reader = SnapshotReader(request.url, encoded_ends=True)

    def rows(self, entry: Followed) -> list[tuple[Chunks, int]]:
        """Return the rows of one log entry; none if its snapshot was removed meanwhile."""
        errors_wanted = self._request.table == "reading_errors"
        if entry.snapshot_id is None:
            return [self._error(entry, entry.name, entry.problem)] if errors_wanted else []
        try:
            return self._rows_of(entry.snapshot_id, entry.position)
        except Exception as error:
            # A malformed manifest fails only its own snapshot.
            if may_be_readable_later(error):
                raise
            if self._reader.is_removed(entry.snapshot_id, entry.position) or not errors_wanted:
                return []
            place, problem = place_and_problem(error, entry.name)
            return [self._error(entry, place, problem if isinstance(error, SnapshotError) else f"{place}: {problem}")]

    def _rows_of(self, snapshot_id: str, position: int) -> list[tuple[Chunks, int]]:
        snapshot = read_snapshot(self._reader, snapshot_id, position)
        table = self._request.table
        if self._request.verify == VERIFY_SNAPSHOT or table == "reading_errors":
            require_readable(snapshot)
        return [] if table == "reading_errors" else list(rows_of(table, snapshot, self._request.process))

    def _error(self, entry: Followed, place: str, problem: str | None) -> tuple[Chunks, int]:
        return [[entry.snapshot_id], [entry.position], [f"{self._request.url}/{place}"], [problem]], 0
