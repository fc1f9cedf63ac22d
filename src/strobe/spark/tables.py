"""The tables of a store (D1): its committed snapshots as DataFrames, and as views for SQL.

Everything is derived from the parts (parts.py) by expressions, except messages and states, which Python workers turn
into JSON when they are asked for.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from strobe.errors import SnapshotError, UsageError
from strobe.protocol.fragment import Snapshot
from strobe.spark import columns as c
from strobe.spark.parts import PARTS, Row, batches_of, error_part, parts_of
from strobe.spark.payloads import JSON, MESSAGES, split_frames
from strobe.spark.reading import listing, read_parts, read_states, spark_parallelism, spark_schema
from strobe.spark.states import STATES, state_batches, states_of
from strobe.storage import Store


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of columns.TABLES. `parts` is what they come from, kept so that a store is read once for all."""

    snapshots: DataFrame
    process_states: DataFrame
    channel_frames: DataFrame
    channel_messages: DataFrame
    frontiers: DataFrame
    view_processes: DataFrame
    view_channels: DataFrame
    fragments: DataFrame
    channel_ends: DataFrame
    reading_errors: DataFrame
    parts: DataFrame

    def register(self) -> None:
        """Make each table a temporary view of its name, in place of an earlier one."""
        for field in fields(self):
            if field.name in c.TABLES:
                getattr(self, field.name).createOrReplaceTempView(field.name)

    def unpersist(self) -> None:
        """Free what Spark keeps of the store. The tables can still be used, and read it again."""
        self.parts.unpersist()


def read_tables(spark: SparkSession, url: str | Path) -> Tables:
    """Return the tables of the snapshots that are committed in the store at `url` now, and register them as views."""
    store = Store.open(url)
    committed = listing(spark, store)
    tables = tables_of(read_parts(committed, store.url).persist(), read_states(committed, store.url))
    tables.register()
    return tables


def tables_from_snapshots(spark: SparkSession, snapshots: Iterable[Snapshot]) -> Tables:
    """Return the tables of snapshots in memory, whose ids must differ; positions in the log are made up, from 0."""
    snapshots = list(snapshots)
    parts = pa.Table.from_batches(batches_of(_parts_in_memory(snapshots)), PARTS)
    states = pa.Table.from_batches(state_batches(states_of(snapshots)), STATES)
    return tables_of(
        spark.createDataFrame(parts, spark_schema(PARTS)).repartition(spark_parallelism(spark)).persist(),
        spark.createDataFrame(states, spark_schema(STATES)),
    )


def tables_of(parts: DataFrame, states: DataFrame) -> Tables:
    """Take parts apart into tables, and put the states beside them."""
    view_channels = _exploded(parts, "view_channels", c.VIEW_CHANNELS)
    channel_ends = _exploded(parts, "channel_ends", c.CHANNEL_ENDS)
    channel_frames = _exploded(parts, "channel_frames", c.CHANNEL_FRAMES)
    snapshots = parts.where("snapshot IS NOT NULL").select(c.SNAPSHOT_ID, c.LOG_POSITION, "snapshot.*")
    return Tables(
        snapshots=snapshots,
        process_states=process_states(states, snapshots),
        channel_frames=channel_frames,
        channel_messages=channel_messages(channel_frames, view_channels),
        frontiers=frontiers(view_channels, channel_ends),
        view_processes=parts.select(c.SNAPSHOT_ID, sf.explode("view_processes").alias(c.PROCESS)),
        view_channels=view_channels,
        fragments=_exploded(parts, "fragments", c.FRAGMENTS),
        channel_ends=channel_ends,
        reading_errors=parts.where(sf.col(c.ERROR).isNotNull()).select(
            c.SNAPSHOT_ID, c.LOG_POSITION, sf.lit(None).cast("string").alias(c.URI), sf.col(c.ERROR).alias(c.REASON)
        ),
        parts=parts,
    )


def process_states(states: DataFrame, snapshots: DataFrame) -> DataFrame:
    """States by field where their encoding says MessagePack and JSON can say them; `state_bytes` where not.

    Only of snapshots that could be read whole: a sum over some of the processes would look like one over all.
    """
    return (
        states.join(snapshots, c.SNAPSHOT_ID, "left_semi")
        .withColumn(c.STATE, sf.try_parse_json(JSON))
        .withColumn(c.STATE_BYTES, sf.when(sf.col(c.STATE).isNull(), sf.col(c.BYTES)))
        .select(*c.PROCESS_STATES)
    )


def channel_messages(channel_frames: DataFrame, view_channels: DataFrame) -> DataFrame:
    """Every message in flight on a channel of the view, as its receiver recorded it."""
    ends = view_channels.select(c.SNAPSHOT_ID, c.CHANNEL, c.SOURCE, c.TARGET)
    return (
        channel_frames.mapInArrow(split_frames, spark_schema(MESSAGES))
        .withColumnRenamed(c.PROCESS, c.TARGET)
        .join(ends, [c.SNAPSHOT_ID, c.CHANNEL, c.TARGET])
        .withColumn(c.PAYLOAD, sf.try_parse_json(JSON))
        .select(*c.CHANNEL_MESSAGES)
    )


def frontiers(view_channels: DataFrame, channel_ends: DataFrame) -> DataFrame:
    """One row for each channel of the view; NULL where its sender or its receiver has not recorded it."""
    sent = channel_ends.select(c.SNAPSHOT_ID, c.CHANNEL, sf.col(c.PROCESS).alias(c.SOURCE), c.SENT_COUNT, c.SENT_HASH)
    received = channel_ends.select(
        c.SNAPSHOT_ID,
        c.CHANNEL,
        sf.col(c.PROCESS).alias(c.TARGET),
        c.RECEIVED_COUNT,
        c.RECEIVED_HASH,
        c.IN_FLIGHT_FRAMES,
    )
    return (
        view_channels.join(sent, [c.SNAPSHOT_ID, c.CHANNEL, c.SOURCE], "left")
        .join(received, [c.SNAPSHOT_ID, c.CHANNEL, c.TARGET], "left")
        .select(*c.FRONTIERS)
    )


def _exploded(parts: DataFrame, column: str, shape: c.Columns) -> DataFrame:
    rows = parts.select(c.SNAPSHOT_ID, sf.explode(column).alias("row"))
    return rows.select(*(name if name == c.SNAPSHOT_ID else f"row.{name}" for name in shape))


def _parts_in_memory(snapshots: Iterable[Snapshot]) -> Iterable[Row]:
    seen: set[str] = set()
    for position, snapshot in enumerate(snapshots):
        snapshot_id = str(snapshot.id)
        if snapshot_id in seen:
            raise UsageError(f"two snapshots have the id {snapshot_id}; ids must differ")
        seen.add(snapshot_id)
        try:
            yield from parts_of(snapshot, position)
        except SnapshotError as error:
            yield error_part(snapshot_id, position, error.problem)
