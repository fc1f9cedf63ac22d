"""Reading tables through format("strobe"), against a plain Python loop that makes the same Arrow batches.

Also against the JVM's own Parquet reader on the same rows. The upper limit is a source that yields ready-made batches.
All ways take turns on a session that has run each of them before; Spark's start is measured separately. CPU time is
that of Java and its Python workers together.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bench.figures import Figure, at_least, cpu_of_tree_s, shown, wall_s
from bench.spark.spark_stores import fill, mesh, snapshot_of, write_trace
from strobe.spark import local_session, stop_local_session
from strobe.spark.dataframes.reader import Request, read_table
from strobe.spark.rows.events import read_events
from strobe.spark.schema import columns as c
from strobe.spark.schema.arrow import spark_type
from strobe.storage.log.follower import Follower

COMMAND = "python -m bench spark_read"
ROUNDS = 5
GOAL = 500_000
_RAW_TIMES = 40


class Case(NamedTuple):
    """A table of a store, and a name for its rows."""

    table: str
    path: Path
    what: str


class Taken(NamedTuple):
    wall_s: float
    cpu_s: float


class RawSource(DataSource):
    """Batches of `frontiers` made in advance: only Spark's own time is left."""

    @classmethod
    def name(cls) -> str:
        return "strobe_raw"

    def schema(self) -> StructType:
        return spark_type(c.FRONTIERS)

    def reader(self, schema: StructType) -> "RawReader":
        return RawReader(self.options["path"])


class RawReader(DataSourceReader):
    def __init__(self, url: str) -> None:
        self.url = url

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        follower = Follower(self.url)
        made = list(
            read_table(Request(self.url, "frontiers", verify="read"), follower.between(0, follower.advance())[:5])
        )
        for _ in range(_RAW_TIMES):
            yield from made


def measure() -> list[Figure]:
    start_s = wall_s(lambda: local_session("strobe-bench", long_running=True))
    spark = local_session()
    # The workers cannot import modules that run by `python -m bench`.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(RawSource)
    figures = [shown("reading, Spark's start", start_s, "s", COMMAND)]
    with tempfile.TemporaryDirectory() as folder:
        for case in _cases(Path(folder)):
            figures += _measure(spark, case, Path(folder) / "parquet" / case.path.name)
            if case.table == "frontiers":
                figures.append(_raw_limit(spark, case))
    stop_local_session()
    return figures


def _cases(folder: Path) -> list[Case]:
    many, few, star = mesh(64, 64), mesh(8, 8), mesh(64, 1)
    stores = {
        "frontiers": [snapshot_of(many, counter) for counter in range(1, 401)],
        "keyed": [snapshot_of(few, counter, keys=1000) for counter in range(1, 61)],
        "plain": [snapshot_of(star, counter) for counter in range(1, 101)],
        "messages": [snapshot_of(few, counter, frames=4, messages=256) for counter in range(1, 61)],
    }
    for name, snapshots in stores.items():
        fill(folder / name, snapshots)
    write_trace(folder / "run.jsonl", 100_000)
    return [
        Case("frontiers", folder / "frontiers", "frontiers, 4,032 a snapshot"),
        Case("process_states", folder / "keyed", "process_states, keyed, 1,000 keys a process"),
        Case("process_states", folder / "plain", "process_states, a file for each"),
        Case("channel_messages", folder / "messages", "channel_messages, 256 a frame"),
        Case("channel_frames", folder / "messages", "channel_frames, of 10 KB"),
        Case("events", folder / "run.jsonl", "events of a JSONL trace, with clocks"),
    ]


def _measure(spark: SparkSession, case: Case, parquet: Path) -> list[Figure]:
    def source() -> DataFrame:
        return spark.read.format("strobe").option("table", case.table).load(str(case.path))

    rows = source().count()
    source().write.mode("overwrite").parquet(str(parquet))
    ways: dict[str, Callable[[], Any]] = {
        "source": lambda: _consume(source()),
        "loop": lambda: _loop(case),
        "parquet": lambda: _consume(spark.read.parquet(str(parquet))),
    }
    taken: dict[str, list[Taken]] = {name: [] for name in ways}
    for _ in range(ROUNDS + 1):  # the first warms up
        for name, way in ways.items():
            taken[name].append(_take(way))
    median = {
        name: Taken(*(statistics.median(column) for column in zip(*found[1:], strict=True)))
        for name, found in taken.items()
    }
    rate = rows / median["source"].wall_s
    named = f'format("strobe"), {case.what}'
    return [
        at_least(named, rate, "rows/s", GOAL, COMMAND)
        if case.table == "frontiers"
        else shown(named, rate, "rows/s", COMMAND),
        shown("  against a Python loop that makes the same batches", _ratio(median, "loop"), "x", COMMAND),
        shown("  against the JVM reading the same rows as Parquet", _ratio(median, "parquet"), "x", COMMAND),
        shown("  processor time of a row", median["source"].cpu_s / rows * 1e6, "us", COMMAND),
    ]


def _ratio(median: dict[str, Taken], other: str) -> float:
    return median[other].wall_s / median["source"].wall_s


def _raw_limit(spark: SparkSession, case: Case) -> Figure:
    def raw() -> DataFrame:
        return spark.read.format(RawSource.name()).load(str(case.path))

    rows = raw().count()
    taken = [_take(lambda: _consume(raw())).wall_s for _ in range(ROUNDS)]
    name = f"  raw limit: the same columns from a source that makes 5 snapshots and repeats them {_RAW_TIMES} times"
    return shown(name, rows / statistics.median(taken), "rows/s", COMMAND)


def _consume(table: DataFrame) -> None:
    table.write.format("noop").mode("overwrite").save()


def _loop(case: Case) -> None:
    if case.table == "events":
        assert sum(batch.num_rows for batch in read_events(case.path, None))
        return
    follower = Follower(case.path)
    entries = follower.between(0, follower.advance())
    assert sum(batch.num_rows for batch in read_table(Request(str(case.path), case.table), entries))


def _take(way: Callable[[], Any]) -> Taken:
    before, start = cpu_of_tree_s(), time.perf_counter()
    way()
    return Taken(time.perf_counter() - start, cpu_of_tree_s() - before)
