"""The data source `strobe`: `spark.read.format("strobe").option("table", "frontiers").load(URL)`, and readStream.

The driver follows the log and finds the positions of commits; the workers read entries and blobs. The offset of a
stream is a log position (offsets.py). The options are in docs/spark.md.
"""

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    In,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from strobe.errors import StoreError, UsageError
from strobe.spark.dataframes.reader import read_table
from strobe.spark.dataframes.source_options import LATEST, SourceOptions
from strobe.spark.log.offsets import POSITION, Offset, StreamedLog
from strobe.spark.log.partitioning import grouped
from strobe.spark.rows.events import read_events, traces_at
from strobe.spark.schema import columns as c
from strobe.spark.schema.arrow import spark_type
from strobe.storage.log.follower import Followed, Follower

FORMAT = "strobe"
EVENTS = "events"
FOLLOWERS_MAX = 8
"""Maximum number of cached followers in the planner."""


class Group(InputPartition):
    """Some entries of the log, for one task."""

    def __init__(self, entries: list[Followed]) -> None:
        self.entries = entries


class TraceFile(InputPartition):
    """One trace, for one task."""

    def __init__(self, path: str) -> None:
        self.path = path


class StrobeSource(DataSource):
    """A table of a store."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.asked = SourceOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return spark_type(c.READABLE[self.asked.request.table])

    def reader(self, schema: StructType) -> "StrobeReader":
        return FilteringReader(self.asked) if self.asked.push_filters else StrobeReader(self.asked)

    def streamReader(self, schema: StructType) -> "StrobeStreamReader":  # noqa: N802 -- Spark's name
        if self.asked.request.table == EVENTS:
            raise UsageError('the events of a trace are read by spark.read.format("strobe"), and not as a stream')
        return StrobeStreamReader(self.asked)


class StrobeReader(DataSourceReader):
    """The snapshots that are committed when a query is planned."""

    def __init__(self, asked: SourceOptions) -> None:
        self.asked = asked

    def partitions(self) -> list[InputPartition]:
        if self.asked.request.table == EVENTS:
            return [TraceFile(str(path)) for path in traces_at(self.asked.request.url)]
        follower = _follower_of(self.asked.request.url)
        until = follower.end if self.asked.until is None else self.asked.until
        return list(partitions_of(self.asked, follower, 0, until))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_group(self.asked, partition)


class FilteringReader(StrobeReader):
    """Skips the snapshots and processes that the query's own filters exclude.

    Only on request: Spark keeps the filtered plan with the loaded table, and a second query on the same DataFrame would
    miss rows. (Spark also refuses a reader that has this method while push-down is switched off.)
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        for one in filters:
            narrowed = None
            if isinstance(one, EqualTo):
                narrowed = self.asked.narrowed(one.attribute[0], (str(one.value),))
            elif isinstance(one, In):
                narrowed = self.asked.narrowed(one.attribute[0], tuple(map(str, one.value)))
            if narrowed is None:
                yield one
            else:
                self.asked = narrowed


class StrobeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Snapshots as they are committed. The offset is the position of the first entry not read yet."""

    def __init__(self, asked: SourceOptions) -> None:
        self.asked = asked
        self._log = StreamedLog(asked.request.url)
        self._target: int | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        start = self.asked.start
        return self._log.offset(self._log.advance()) if start == LATEST else {POSITION: int(start)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Spark has only limits of rows, bytes and files; a commit is one file of the log.
        return ReadMaxFiles(self.asked.snapshots_max) if self.asked.snapshots_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._log.advance()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        if self._target is None:
            self._log.poll()
        self._log.require(start)
        end = self._log.end if self._target is None else self._target
        if end <= start[POSITION]:
            return start
        if isinstance(limit, ReadMaxFiles):
            following = self._log.follower.between(start[POSITION], end)[limit.max_files :]
            end = following[0].position if following else end
        return self._log.offset(end)

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        return self._log.offset(self._log.end)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self._log.require(start)
        return list(partitions_of(self.asked, self._log.read_to(end), start[POSITION], end[POSITION]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_group(self.asked, partition)


_followers: dict[str, Follower] = {}


def _follower_of(url: str) -> Follower:
    """Return a follower that has read the whole log.

    Spark reuses the planner process for a while, so a cached follower reads only the new entries. A follower that has
    met damage is not cached: the damage may be repaired by the next time.
    """
    follower = _followers.pop(url, None)
    try:
        if follower is not None:
            follower.advance()
    except StoreError:  # the store is gone or was replaced; opening it again reports that
        follower = None
    if follower is None:
        follower = Follower(url)
        follower.advance()
    if not follower.has_met_damage:
        while len(_followers) >= FOLLOWERS_MAX:
            _followers.pop(next(iter(_followers)))
        _followers[url] = follower
    return follower


def partitions_of(asked: SourceOptions, follower: Follower, start: int, end: int) -> Iterator[Group]:
    """Divide the entries between two positions, without removed snapshots, into groups that are worth a task each."""
    entries = [
        entry
        for entry in follower.between(start, end)
        if entry.snapshot_id is None or (asked.wants(entry.snapshot_id) and not follower.is_removed(entry.snapshot_id))
    ]
    return map(Group, grouped(entries, asked.partitions))


def read_group(asked: SourceOptions, partition: Any) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition; if there are no partitions, Spark passes an empty one."""
    if isinstance(partition, TraceFile):
        return read_events(Path(partition.path), asked.request.process)
    return read_table(asked.request, partition.entries if isinstance(partition, Group) else [])
