"""The commits of a store as a stream: one small row for each, in the order of the log; offsets are log positions (S1).

It is what drives the pipeline. A row names the position of a commit that took effect, or of an entry that is damaged,
and the positions of the commits before it; whoever works on a snapshot reads the rest by itself.

A store that is not there, or has gone, or is another one, is one in which nothing is new: the stream waits.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from strobe.errors import StoreError
from strobe.spark.examine import COMMITS
from strobe.spark.stored_bytes import marked
from strobe.storage.following import Follower

SOURCE = "strobe_commits"
URL, STORE_ID, MARKER, HISTORY_LENGTH, PARTITIONS, ROWS_MAX = (
    "path",
    "storeId",
    "marker",
    "history",
    "partitions",
    "rowsMax",
)
POSITION = "position"
"""The one member of an offset."""
LOOK_EVERY_S = 0.1
"""Spark asks many times as often what is new, and an object store would be asked as often."""
PARTITION_ROWS_MIN = 8
"""A task costs as much as examining a few snapshots."""

Offset = dict[str, int]
CommitRow = tuple[int, str | None, str | None, list[int]]


class CommitsSource(DataSource):
    """`spark.readStream.format(SOURCE)`. Options: the path of a store and its id; see the constants for the others."""

    @classmethod
    def name(cls) -> str:
        return SOURCE

    def schema(self) -> StructType:
        return from_arrow_schema(COMMITS)

    def streamReader(self, schema: StructType) -> "CommitsReader":  # noqa: N802 -- the name is Spark's
        options = self.options
        numbers = (int(options[name]) for name in (HISTORY_LENGTH, PARTITIONS, ROWS_MAX))
        return CommitsReader(options[URL], options[STORE_ID], options[MARKER], *numbers)


class CommitRows(InputPartition):
    """Some consecutive rows."""

    def __init__(self, rows: Sequence[CommitRow]) -> None:
        super().__init__(None)
        self.rows = list(rows)


class CommitsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the log in the driver; the rows are so few bytes that they travel with the tasks.

    That the store cannot be read now is told with `marker` before it (`marked`).
    """

    def __init__(self, url: str, store_id: str, marker: str, history: int, partitions: int, rows_max: int) -> None:
        self._url = url
        self._store_id = store_id
        self._marker = marker
        self._history = history
        self._partitions = partitions
        self._rows_max = rows_max
        self._follower: Follower | None = None
        self._last: int | None = None
        self._look_again_s = 0.0

    def initialOffset(self) -> Offset:  # noqa: N802
        return {POSITION: 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        # All that is committed is to be judged, and not all that could be read: here a store that has gone is told.
        with marked(self._marker):
            self._last = self._opened().advance()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        end = self._end() if self._last is None else self._last
        follower = self._follower
        if follower is None or end <= start[POSITION]:
            return start
        rows = follower.between(start[POSITION], end)
        if isinstance(limit, ReadMaxRows) and len(rows) > limit.max_rows:
            return {POSITION: rows[limit.max_rows].position}
        # A begin or an abort is nothing new by itself: the offset moves on when there is something to judge.
        return {POSITION: end} if rows or isinstance(limit, ReadAllAvailable) else start

    def partitions(self, start: Offset, end: Offset) -> Sequence[CommitRows]:
        with marked(self._marker):
            rows = self._rows(start[POSITION], end[POSITION])
        parts = max(1, min(self._partitions, len(rows) // PARTITION_ROWS_MIN))
        ends = accumulate(((len(rows) + place) // parts for place in range(parts)), initial=0)
        return [CommitRows(rows[first:last]) for first, last in pairwise(ends) if last > first]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, CommitRows), "it is one of `partitions`"
        columns = zip(*partition.rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, COMMITS, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=COMMITS)

    def _rows(self, start: int, end: int) -> list[CommitRow]:
        follower = self._followed_to(end)
        before = [one.position for one in follower.between(0, start) if one.snapshot_id is not None]
        before = before[len(before) - min(self._history, len(before)) :]
        rows: list[CommitRow] = []
        for one in follower.between(start, end):
            rows.append((one.position, one.snapshot_id, one.problem, before))
            if one.snapshot_id is not None and self._history:
                before = [*before, one.position][-self._history :]
        return rows

    def _followed_to(self, end: int) -> Follower:
        follower = self._opened()
        if follower.end < end and follower.advance() < end:
            raise StoreError(self._url, f"ends before log entry {end}, which was read before; bring it back")
        return follower

    def _end(self) -> int:
        """Return how far the log goes, or was read where it cannot be read now. It is not looked at all the time."""
        if time.monotonic() >= self._look_again_s:
            with suppress(StoreError):
                self._opened().advance()
            self._look_again_s = time.monotonic() + LOOK_EVERY_S
        return self._follower.end if self._follower is not None else 0

    def _opened(self) -> Follower:
        if self._follower is None:
            self._follower = Follower(self._url, self._store_id)
        return self._follower
