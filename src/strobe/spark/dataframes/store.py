"""The tables of a store (D1): its committed snapshots as DataFrames, and as views for SQL."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from strobe.errors import SnapshotError, UsageError
from strobe.protocol.values.fragment import Snapshot
from strobe.spark.dataframes.data_source import FORMAT
from strobe.spark.dataframes.reader import VERIFY_READ
from strobe.spark.rows.builders import rows_of
from strobe.spark.rows.column_limits import require_fit
from strobe.spark.rows.committed_snapshot import SnapshotInMemory
from strobe.spark.schema import columns as c
from strobe.spark.schema.arrow import Chunks, arrow_schema, batches, spark_type
from strobe.storage.log.follower import Follower

_KEPT = ("snapshots", "frontier_details", "view_processes", "view_channels", "fragments", "channel_ends")
"""Small tables that a proof reads several times."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of columns.TABLES."""

    snapshots: DataFrame
    process_states: DataFrame
    channel_frames: DataFrame
    channel_messages: DataFrame
    frontiers: DataFrame
    events: DataFrame
    frontier_details: DataFrame
    view_processes: DataFrame
    view_channels: DataFrame
    fragments: DataFrame
    channel_ends: DataFrame
    activity: DataFrame
    declared_waits: DataFrame
    declared_references: DataFrame
    reading_errors: DataFrame

    def register(self) -> None:
        """Make each table a temporary view of its name, replacing an earlier one."""
        for field in fields(self):
            getattr(self, field.name).createOrReplaceTempView(field.name)

    def unpersist(self) -> None:
        """Free what Spark caches of the store. The tables stay usable, and are then read again."""
        for name in _KEPT:
            getattr(self, name).unpersist()


def tables(spark: SparkSession, url: str | Path) -> Tables:
    """Return the tables of the snapshots now committed in the store at `url`, and register them as views.

    The whole store is read once to find damaged snapshots: these are in `reading_errors`, and in no other table. The
    tables themselves are read on use.
    """
    follower = Follower(url)
    read = (
        spark.read.format(FORMAT)
        .option("endingPosition", str(follower.advance()))
        .option("partitions", spark.conf.get("spark.sql.shuffle.partitions") or "1")
    )

    def load(name: str, **options: str) -> DataFrame:
        return read.options(table=name, **options).load(follower.url)

    errors = load("reading_errors")
    damaged = [row[0] for row in errors.select(c.SNAPSHOT_ID).where(sf.col(c.SNAPSHOT_ID).isNotNull()).collect()]
    options = {"verify": VERIFY_READ, "without": ",".join(damaged)}
    found = {name: load(name, **options) for name in c.TABLES if name != "reading_errors"}
    result = Tables(**{name: _kept(name, table) for name, table in found.items()}, reading_errors=errors)
    result.register()
    return result


def tables_from_snapshots(spark: SparkSession, snapshots: Iterable[Snapshot]) -> Tables:
    """Return the tables of snapshots in memory, whose ids must differ; log positions are invented, from 0."""
    readable: list[SnapshotInMemory] = []
    errors: list[tuple[Chunks, int]] = []
    seen: set[str] = set()
    for position, snapshot in enumerate(snapshots):
        candidate = SnapshotInMemory(snapshot, position)
        if candidate.id in seen:
            raise UsageError(f"two snapshots have the id {candidate.id}; ids must differ")
        seen.add(candidate.id)
        try:
            require_fit(candidate)
            readable.append(candidate)
        except SnapshotError as error:
            errors.append(([[candidate.id], [position], [None], [error.problem]], 0))

    def frame(name: str) -> DataFrame:
        rows = (row for snapshot in readable for row in ([] if name == "events" else rows_of(name, snapshot, None)))
        columns = c.TABLES[name]
        schema = arrow_schema(columns)
        found = list(batches(schema, errors if name == "reading_errors" else rows))
        # Spark cannot load a table without batches.
        table = pa.Table.from_batches(found or [pa.RecordBatch.from_pylist([], schema)])
        return _kept(name, spark.createDataFrame(table, spark_type(columns)))

    return Tables(**{name: frame(name) for name in c.TABLES})


def _kept(name: str, table: DataFrame) -> DataFrame:
    return table.persist() if name in _KEPT else table
