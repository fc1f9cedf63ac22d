"""The table `events`: traces of simulated and of live runs, with their vector clocks."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.runtime.tracing_host import write_segments
from tests.simulation.systems import players

from strobe.causality import vector_clocks
from strobe.causality.trace import Trace, parse_trace
from strobe.causality.trace_lines import Receive, Send
from strobe.errors import UsageError
from strobe.protocol.process.first_view import first_view
from strobe.simulation.recorder import Recorder
from strobe.simulation.world import World
from strobe.spark import tables
from strobe.spark.rows.events import traces_at
from strobe.storage import Store
from strobe.traces.reading import read_live_trace


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    system = players("complete", "chandy-lamport", snapshots=True)
    recorder = Recorder(first_view(system), 3, "ordinals")
    World(system, 3, recorder=recorder).run(3)
    return recorder


def expected(trace: Trace) -> list[tuple[object, ...]]:
    """Return the rows for all lines of a trace, computed by the definitions."""
    clocks = vector_clocks(trace)
    rows = []
    for line in trace.lines():
        message = (line.channel, line.ordinal) if isinstance(line, Send | Receive) else (None, None)
        clock = dict(clocks[line.process, line.position]) if line.position else None
        rows.append((line.process, line.position, type(line).__name__.lower(), *message, clock))
    return sorted(rows, key=repr)


def events_of(spark: SparkSession, path: Path, **options: str) -> list[tuple[object, ...]]:
    table = spark.read.format("strobe").options(table="events", **options).load(str(path))
    columns = ("process", "position", "kind", "channel", "ordinal", "vector_clock")
    return sorted((tuple(row) for row in table.select(*columns).collect()), key=repr)


def test_every_line_of_a_trace_file_is_a_row_with_its_vector_clock(
    spark: SparkSession, tmp_path: Path, recorder: Recorder
) -> None:
    """D1, M3: the clocks are those of the definitions."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(recorder.text())
    trace = parse_trace(path.read_bytes().splitlines(keepends=True))
    rows = expected(trace)
    assert len(rows) > 50
    assert events_of(spark, path) == rows
    process = trace.processes[0]
    assert events_of(spark, path, process=process) == [row for row in rows if row[0] == process]


def test_the_events_of_a_store_are_those_of_its_live_processes(
    spark: SparkSession, tmp_path: Path, recorder: Recorder
) -> None:
    store = Store.create(tmp_path / "store")
    trace = parse_trace(recorder.text().splitlines(keepends=True))
    epoch = write_segments(trace, tmp_path / "store" / "run" / "trace")
    assert events_of(spark, tmp_path / "store") == expected(read_live_trace(epoch).trace)
    found = tables(spark, store.url).events.select("trace_id").distinct().collect()
    assert [tuple(row) for row in found] == [("epoch-000001",)]


def test_events_of_unknown_order_have_no_clocks(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "gap.jsonl"
    path.write_text(
        '{"strobe_trace":1,"processes":["a","b"],"channels":[{"id":"ab","source":"a","target":"b"}]}\n'
        '{"kind":"receive","process":"b","position":1,"channel":"ab","ordinal":2}\n'
    )
    assert events_of(spark, path) == [("b", 1, "receive", "ab", 2, None)]


def test_events_cannot_be_read_as_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    stream = spark.readStream.format("strobe").options(table="events").load(str(tmp_path))
    with pytest.raises(PySparkException, match="not as a stream"):
        stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination()


def test_a_path_without_a_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no trace"):
        traces_at(tmp_path / "nowhere")
    Store.create(tmp_path / "store")
    assert traces_at(tmp_path / "store") == []
