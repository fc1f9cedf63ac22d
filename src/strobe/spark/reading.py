"""Reading committed snapshots of a store in parallel: the driver reads the log, the Python workers read the blobs.

The driver hands the workers the manifests it has read, so that all of them work on the same moment of the log, and
none reads the log again. One snapshot that cannot be read becomes an error of its own and does not end the others.
"""

from collections.abc import Callable, Iterator

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from strobe.errors import SnapshotError, StoreError
from strobe.protocol.log import Manifest
from strobe.spark import columns as c
from strobe.spark.parts import PARTS, Row, batches_of, error_part, parts_of
from strobe.spark.states import STATES, state_batches, state_rows
from strobe.storage import Store
from strobe.storage.manifests import to_snapshot, to_state

MANIFEST = "manifest"
LISTING = pa.schema([(c.SNAPSHOT_ID, pa.string()), (c.LOG_POSITION, pa.int64()), (MANIFEST, pa.binary())])

Batches = Iterator[pa.RecordBatch]


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark types of an Arrow schema."""
    return from_arrow_schema(schema)


def listing(spark: SparkSession, store: Store) -> DataFrame:
    """Return a row for each committed snapshot: its id, the position of its commit and its manifest as JSON."""
    committed = store.list()
    rows = pa.table(
        [
            [snapshot_id for _, snapshot_id, _ in committed],
            [position for position, _, _ in committed],
            [msgspec.json.encode(manifest) for _, _, manifest in committed],
        ],
        schema=LISTING,
    )
    # Out of one batch of the driver, into one task for each core.
    return spark.createDataFrame(rows, spark_schema(LISTING)).repartition(spark_parallelism(spark))


def read_parts(committed: DataFrame, url: str) -> DataFrame:
    """Return the parts of every snapshot in `committed`, a DataFrame like that of `listing`."""
    return committed.mapInArrow(_reader(url), spark_schema(PARTS))


def read_states(committed: DataFrame, url: str) -> DataFrame:
    """Return the state of every process of every snapshot in `committed`, except those that are damaged."""
    return committed.mapInArrow(_state_reader(url), spark_schema(STATES))


def spark_parallelism(spark: SparkSession) -> int:
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


def _reader(url: str) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        store = Store.open(url)
        return batches_of(part for batch in batches for row in batch.to_pylist() for part in _read_one(store, row))

    return read


def _state_reader(url: str) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        store = Store.open(url)
        return state_batches(
            row for batch in batches for entry in batch.to_pylist() for row in _read_states(store, entry)
        )

    return read


def _read_one(store: Store, row: Row) -> Iterator[Row]:
    snapshot_id, log_position = row[c.SNAPSHOT_ID], row[c.LOG_POSITION]
    manifest = msgspec.json.decode(row[MANIFEST], type=Manifest)
    try:
        snapshot = to_snapshot(snapshot_id, manifest, store.read_blob)
        yield from parts_of(snapshot, log_position, manifest.parent)
    except (SnapshotError, StoreError) as error:
        # A collector may have removed it since the log was read: then it is not damaged but gone.
        if snapshot_id in store.state().committed:
            yield error_part(snapshot_id, log_position, error.problem)


def _read_states(store: Store, row: Row) -> Iterator[Row]:
    manifest = msgspec.json.decode(row[MANIFEST], type=Manifest)
    for process, record in manifest.processes.items():
        try:
            state = to_state(record, store.read_blob)
        except StoreError:
            continue  # its snapshot is among the reading errors: reading the parts has verified the same blobs
        yield from state_rows(row[c.SNAPSHOT_ID], process, state)
