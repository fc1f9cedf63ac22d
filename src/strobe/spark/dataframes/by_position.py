"""The tables of some snapshots, read by their log positions: the input of invariants (D1).

A table is created on first use. The workers read entries and blobs by position, without reading the whole log.
"""

import re
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from strobe.spark.schema import columns as c
from strobe.spark.schema.arrow import spark_type

ENTRIES = pa.schema([(c.LOG_POSITION, pa.int64()), (c.SNAPSHOT_ID, pa.string())])
TASK_SNAPSHOTS_MIN = 8
"""Fewer snapshots than this are not worth a separate task."""

Batches = Iterator[pa.RecordBatch]


NAMES = tuple(name for name in c.TABLES if name not in ("events", "reading_errors"))
"""Events belong to a run and not to a snapshot; unreadable files are in quarantine."""


class SnapshotTables:
    """Has a DataFrame for each of NAMES: `tables.process_states`, `tables.channel_messages`, ..."""

    def __init__(self, spark: SparkSession, make: Callable[[str], DataFrame]) -> None:
        self.spark = spark
        self._make = make
        self._made: dict[str, DataFrame] = {}

    def __getattr__(self, name: str) -> DataFrame:
        if name not in NAMES:
            raise AttributeError(f"there is no table {name!r}; there are: {', '.join(NAMES)}")
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def register(self, sql: str) -> None:
        """Make each table that `sql` mentions a temporary view, replacing an earlier one."""
        words = {word.lower() for word in re.findall(r"\w+", sql)}
        for name in NAMES:
            if name in words:
                getattr(self, name).createOrReplaceTempView(name)


def empty_tables(spark: SparkSession) -> SnapshotTables:
    """Return the tables without rows."""
    return SnapshotTables(spark, lambda name: spark.createDataFrame([], spark_type(c.TABLES[name])))


def tables_of_snapshots(spark: SparkSession, url: str, snapshots: Mapping[str, int], marker: str) -> SnapshotTables:
    """Return the tables of `snapshots`, which maps ids to log positions.

    If a query fails because something is unavailable now, `marker` is in the text of the error (`marked`).
    """
    rows = pa.table([list(snapshots.values()), list(snapshots)], schema=ENTRIES)
    entries = spark.createDataFrame(rows, from_arrow_schema(ENTRIES))
    tasks = min(tasks_max(spark), len(snapshots) // TASK_SNAPSHOTS_MIN)
    spread = entries.repartition(tasks) if tasks > 1 else entries.coalesce(1)

    def make(table: str) -> DataFrame:
        return spread.mapInArrow(_reader(url, table, marker), spark_type(c.TABLES[table]))

    return SnapshotTables(spark, make)


def tasks_max(spark: SparkSession) -> int:
    """Return a useful number of tasks: two for each core, so that one slow task does not delay the whole job."""
    return 2 * int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


def _reader(url: str, table: str, marker: str) -> Callable[[Batches], Batches]:
    def read(given: Batches) -> Batches:
        # Imported in the worker, because the package may have been shipped with the job.
        from strobe.spark.log.snapshot_reader import SnapshotReader, marked
        from strobe.spark.rows.builders import rows_of
        from strobe.spark.rows.committed_snapshot import read_snapshot
        from strobe.spark.schema.arrow import arrow_schema, batches

        reader = SnapshotReader(url, encoded_ends=True)
        # A blob damaged since the examination is an error: a table without it would look complete.
        with marked(marker, damage_too=False):
            for batch in given:
                entries = zip(*(batch.column(name).to_pylist() for name in ENTRIES.names), strict=True)
                snapshots = (read_snapshot(reader, snapshot_id, position) for position, snapshot_id in entries)
                rows = (row for snapshot in snapshots for row in rows_of(table, snapshot, None))
                yield from batches(arrow_schema(c.TABLES[table]), rows)

    return read
