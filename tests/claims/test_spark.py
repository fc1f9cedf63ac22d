"""P1, S3 and D1, on Spark: snapshots are tables that are queried by field, and their proofs are recomputed there."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import VariantVal
from tests.spark import conftest
from tests.spark.frame_mutations import missing_frame, other_message, swapped_frames
from tests.spark.generate import good_snapshots
from tests.spark.mutations import mutants
from tests.spark.recording_mutations import forgotten_channel_state, inconsistent_cut
from tests.spark.stores import store_with

from strobe.causality.proof import verify
from strobe.protocol.values.fragment import MSGPACK, Fragment
from strobe.spark import tables as read_tables
from strobe.spark import verdicts
from strobe.spark.schema import columns as c
from strobe.spark.schema.variant_encoding import to_variant

spark = conftest.spark

APPLIED = (other_message, missing_frame, swapped_frames, forgotten_channel_state, inconsistent_cut)
GOOD = 5


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with good snapshots, followed by one for each of several mutations."""
    snapshots = list(good_snapshots(81, GOOD))
    for counter, mutation in enumerate(APPLIED, start=GOOD + 1):
        snapshots += mutants(mutation, "claims", 1, counter)
    return store_with(tmp_path_factory.mktemp("claims") / "store", snapshots).url


def balance_of(fragment: Fragment) -> int | None:
    """Return the balance that SQL should see: None if the state is opaque."""
    state = fragment.state
    assert state is not None
    return msgspec.msgpack.decode(state.data)["balance"] if state.encoding == MSGPACK else None


def test_P1_spark_recomputes_the_proof_from_the_stored_bytes_alone(spark: SparkSession, store_url: str) -> None:
    rows = verdicts(store_url)
    assert [row.verdict for row in rows] == [c.HOLDS] * GOOD + [c.VIOLATED] * len(APPLIED)
    for row, counter in zip(rows[GOOD:], range(GOOD + 1, GOOD + 1 + len(APPLIED)), strict=True):
        (mutant,) = mutants(APPLIED[counter - GOOD - 1], "claims", 1, counter)
        assert sorted(row.reason.split("; ")) == sorted(str(finding) for finding in verify(mutant).findings)


def test_D1_snapshots_are_spark_tables_and_state_is_queried_by_field(spark: SparkSession, store_url: str) -> None:
    read_tables(spark, store_url)
    for name, columns in c.TABLES.items():
        assert spark.table(name).dtypes == list(columns.items())
    rows = spark.sql("SELECT snapshot_id, process, state:balance::bigint FROM process_states").collect()
    balances = {(snapshot_id, process): balance for snapshot_id, process, balance in rows}
    for snapshot in good_snapshots(81, GOOD):
        for process, fragment in snapshot.fragments.items():
            assert balances[str(snapshot.id), process] == balance_of(fragment)


def test_D1_a_table_is_read_by_spark_alone_in_batches_and_as_a_stream(
    spark: SparkSession, store_url: str, tmp_path: Path
) -> None:
    """D1: `format("strobe")` needs no registration, and a stream gives the same rows as a batch."""
    batch = spark.read.format("strobe").option("table", "frontiers").load(store_url)
    stream = spark.readStream.format("strobe").option("table", "frontiers").load(store_url)
    rows: list[object] = []
    query = (
        stream.writeStream.trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(lambda frame, _: rows.extend(frame.collect()))
        .start()
    )
    query.awaitTermination()
    assert sorted(map(repr, rows)) == sorted(map(repr, batch.collect()))
    assert len(rows) == batch.count() > 0


def test_D1_events_are_rows_with_their_vector_clocks(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(
        '{"strobe_trace":1,"processes":["a","b"],"channels":[{"id":"ab","source":"a","target":"b"}]}\n'
        '{"kind":"send","process":"a","position":1,"channel":"ab","ordinal":1}\n'
        '{"kind":"receive","process":"b","position":1,"channel":"ab","ordinal":1}\n'
    )
    events = spark.read.format("strobe").option("table", "events").load(str(path)).orderBy("process")
    assert [row[c.VECTOR_CLOCK] for row in events.collect()] == [{"a": 1}, {"a": 1, "b": 1}]


def test_S3_numbers_text_bytes_and_times_keep_their_types(spark: SparkSession) -> None:
    value = {"n": 2**63, "x": 0.1, "t": "é", "b": b"\x00", "at": datetime(2024, 1, 1, tzinfo=UTC), "in": [{"k": None}]}
    variant = to_variant(msgspec.msgpack.encode(value))
    assert variant is not None
    expected = value | {"n": Decimal(2**63)}
    assert VariantVal(*variant).toPython() == expected


def test_S3_messages_are_columns_and_opaque_states_are_marked_bytes(spark: SparkSession, store_url: str) -> None:
    tables = read_tables(spark, store_url)
    (kinds,) = tables.channel_messages.selectExpr("count(*)", "count(payload:amount::bigint)").collect()
    assert kinds[0] == kinds[1] > 0
    rows = tables.process_states.selectExpr("encoding", "state IS NULL", "state_bytes IS NULL").distinct().collect()
    assert {tuple(row) for row in rows} == {("msgpack", False, True), ("bytes", True, False)}
