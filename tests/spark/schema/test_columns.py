"""The public columns of every table (D1), written out here independently of columns.py.

A change of one of them breaks queries of users.
"""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.pipelines import judge_once
from tests.storage.samples import commit, sample

from strobe.spark import tables
from strobe.storage import Store

TABLES = {
    "snapshots": "snapshot_id string, log_position bigint, parent_id string, protocol string, "
    "initiators array<string>, view_id bigint, epoch bigint, started_at timestamp, completed_at timestamp, "
    "state_bytes bigint, in_flight_bytes bigint",
    "process_states": "snapshot_id string, process string, key string, state variant, state_bytes binary, "
    "encoding string, state_hash binary, position bigint",
    # In addition to the specified columns, `process` is the process that recorded the frame. It comes last.
    "channel_frames": "snapshot_id string, channel string, frame bigint, first_ordinal bigint, message_count int, "
    "consumed int, bytes binary, process string",
    "channel_messages": "snapshot_id string, channel string, source string, target string, ordinal bigint, "
    "payload variant, payload_bytes binary",
    "frontiers": "snapshot_id string, channel string, kind string, sent_count bigint, sent_hash binary, "
    "received_count bigint, received_hash binary",
    "events": "trace_id string, process string, position bigint, kind string, channel string, ordinal bigint, "
    "message_id string, vector_clock map<string,bigint>",
}
OUTPUTS = {
    "verdicts": "snapshot_id string, check string, verdict string, reason string, checked_at timestamp, "
    "batch_id bigint",
    "violations": "snapshot_id string, check string, subject string, detail variant",
    "quarantine": "uri string, snapshot_id string, reason string, first_seen timestamp",
}

Columns = list[tuple[str, ...]]


def columns(text: str) -> Columns:
    return [tuple(column.split(" ")) for column in text.split(", ")]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.create(tmp_path / "store")
    commit(store, sample(1))
    return store


def test_D1_the_tables_of_a_store_have_the_specified_columns(spark: SparkSession, store: Store) -> None:
    found = tables(spark, store.url)
    assert {name: spark.table(name).dtypes for name in TABLES} == {name: columns(text) for name, text in TABLES.items()}
    assert {name: getattr(found, name).dtypes for name in TABLES} == {name: spark.table(name).dtypes for name in TABLES}


def test_D2_spark_reads_the_variants_that_the_pipeline_writes(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    judge_once(spark, store.url, tmp_path / "to")
    found = {name: spark.read.parquet(str(tmp_path / "to" / name)).dtypes for name in OUTPUTS}
    assert found == {name: columns(text) for name, text in OUTPUTS.items()}
