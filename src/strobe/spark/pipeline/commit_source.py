"""The commits of a store as a stream: one small row for each, in log order; offsets are log positions (S1).

This source drives the pipeline. A row has the position of an effective commit, or of a damaged entry, and the positions
of the commits before it. The workers read everything else themselves.

If the store is missing or was replaced, the stream sees nothing new and waits.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from strobe.errors import StoreError
from strobe.spark.checks.snapshot_checker import COMMIT_BATCH
from strobe.spark.log.offsets import POSITION, Offset, StreamedLog
from strobe.spark.log.partitioning import grouped
from strobe.spark.log.snapshot_reader import marked
from strobe.storage.log.follower import Follower

SOURCE = "strobe_commits"
URL, STORE_ID, MARKER, HISTORY_LENGTH, PARTITIONS, ROWS_MAX = (
    "path",
    "storeId",
    "marker",
    "history",
    "partitions",
    "rowsMax",
)
BatchRow = tuple[int, str | None, str | None, list[int]]


class CommitsSource(DataSource):
    """`spark.readStream.format(SOURCE)`. Options: the path of a store and its id; see the constants for the others."""

    @classmethod
    def name(cls) -> str:
        return SOURCE

    def schema(self) -> StructType:
        return from_arrow_schema(COMMIT_BATCH)

    def streamReader(self, schema: StructType) -> "CommitsReader":  # noqa: N802 -- Spark's name
        options = self.options
        numbers = (int(options[name]) for name in (HISTORY_LENGTH, PARTITIONS, ROWS_MAX))
        return CommitsReader(options[URL], options[STORE_ID], options[MARKER], *numbers)


class CommitRows(InputPartition):
    """Some consecutive rows."""

    def __init__(self, rows: Sequence[BatchRow]) -> None:
        super().__init__(None)
        self.rows = list(rows)


class CommitsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the log in the driver; the rows are small enough to be sent with the tasks.

    Errors of an unavailable store are prefixed with `marker` (`marked`).
    """

    def __init__(self, url: str, store_id: str, marker: str, history: int, partitions: int, rows_max: int) -> None:
        self._log = StreamedLog(url, store_id)
        self._marker = marker
        self._history = history
        self._partitions = partitions
        self._rows_max = rows_max
        self._last: int | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        return {POSITION: 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        # All commits must be judged, not only the readable ones: so a missing store is an error here.
        with marked(self._marker):
            self._last = self._log.advance()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        with marked(self._marker):
            end = self._end() if self._last is None else self._last
            self._log.require(start)
            if end <= start[POSITION]:
                return start
            rows = self._log.follower.between(start[POSITION], end)
            if isinstance(limit, ReadMaxRows) and len(rows) > limit.max_rows:
                return self._log.offset(rows[limit.max_rows].position)
            # Begins and aborts do not move the offset: it moves only with something to judge.
            return self._log.offset(end) if rows or isinstance(limit, ReadAllAvailable) else start

    def partitions(self, start: Offset, end: Offset) -> Sequence[CommitRows]:
        with marked(self._marker):
            self._log.read_to(start)
            follower = self._log.read_to(end)
            rows = iter(self._rows(follower, start[POSITION], end[POSITION]))
        groups = grouped(follower.between(start[POSITION], end[POSITION]), self._partitions)
        return [CommitRows(list(islice(rows, len(group)))) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, CommitRows), "it is one of `partitions`"
        columns = zip(*partition.rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, COMMIT_BATCH, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=COMMIT_BATCH)

    def _rows(self, follower: Follower, start: int, end: int) -> list[BatchRow]:
        before = [one.position for one in follower.between(0, start) if one.snapshot_id is not None]
        before = before[len(before) - min(self._history, len(before)) :]
        rows: list[BatchRow] = []
        for one in follower.between(start, end):
            rows.append((one.position, one.snapshot_id, one.problem, before))
            if one.snapshot_id is not None and self._history:
                before = [*before, one.position][-self._history :]
        return rows

    def _end(self) -> int:
        """Return the end of the log; if it cannot be read now, the position up to which it was read."""
        with suppress(StoreError):
            self._log.poll()
        return self._log.end
