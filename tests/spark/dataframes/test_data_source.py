"""`format("strobe")`: tables of a store through Spark's data source API, in batches and as a stream."""

import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, GreaterThan
from tests.spark.generate import good_snapshots
from tests.spark.stores import commit, damage, store_with

from strobe.errors import StoreFormatError
from strobe.protocol.values.ids import short_name
from strobe.protocol.values.log_entries import Pin
from strobe.spark.dataframes.data_source import FilteringReader, StrobeReader
from strobe.spark.dataframes.source_options import SourceOptions
from strobe.spark.schema import columns as c
from strobe.storage import Store, append_when, collect
from strobe.storage.entries.log_file import entry_name
from strobe.storage.files.disk import Disk
from strobe.storage.store import retention


def load(spark: SparkSession, url: str, table: str, **options: str) -> DataFrame:
    return spark.read.format("strobe").option("table", table).options(**options).load(url)


def ids_of(table: DataFrame) -> set[str]:
    return {row[0] for row in table.select(c.SNAPSHOT_ID).distinct().collect()}


def test_only_the_requested_rows_are_read(spark: SparkSession, tmp_path: Path) -> None:
    first, second = good_snapshots(1, 2)
    store = store_with(tmp_path / "store", [first, second])
    assert ids_of(load(spark, store.url, "snapshots")) == {str(first.id), str(second.id)}
    assert ids_of(load(spark, store.url, "frontiers", snapshot=str(second.id))) == {str(second.id)}
    assert ids_of(load(spark, store.url, "frontiers", snapshot=short_name(str(second.id)))) == {str(second.id)}
    assert ids_of(load(spark, store.url, "snapshots", endingPosition="2")) == {str(first.id)}
    processes = load(spark, store.url, "fragments", process="a").select(c.PROCESS).distinct().collect()
    assert [tuple(row) for row in processes] == [("a",)]


def test_filters_are_pushed_down_on_request(spark: SparkSession, tmp_path: Path) -> None:
    store = store_with(tmp_path / "store", good_snapshots(5, 3))
    wanted = store.list()[1][1]
    condition = f"snapshot_id = '{wanted}' AND process = 'a'"
    pushed = load(spark, store.url, "process_states", pushFilters="true").where(condition)
    assert [(row[c.SNAPSHOT_ID], row[c.PROCESS]) for row in pushed.collect()] == [(wanted, "a")]

    reader = FilteringReader(SourceOptions.parse({"path": store.url, "table": "process_states"}))
    later = GreaterThan(("position",), 3)
    assert list(reader.pushFilters([EqualTo((c.SNAPSHOT_ID,), wanted), EqualTo((c.PROCESS,), "a"), later])) == [later]
    assert (reader.asked.snapshots, reader.asked.request.process) == ({wanted}, "a")
    short = SourceOptions.parse({"path": store.url, "table": "snapshots", "snapshot": short_name(wanted)})
    narrowed = short.narrowed(c.SNAPSHOT_ID, (wanted, store.list()[0][1]))
    assert narrowed is not None
    assert narrowed.snapshots == {wanted}


def test_filters_are_not_pushed_down_by_default(spark: SparkSession, tmp_path: Path) -> None:
    """Spark caches the filtered plan with the table, so that a later query would miss rows."""
    store = store_with(tmp_path / "store", good_snapshots(5, 3))
    table = load(spark, store.url, "fragments")
    everything = table.count()
    filtered = table.where(f"snapshot_id = '{store.list()[1][1]}' AND process = 'a'")
    assert (filtered.count(), table.count()) == (1, everything)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "the option 'table' is missing"),
        ({"table": "nonsense"}, "the option 'table' is 'nonsense'; it is one of: snapshots"),
        ({"table": "snapshots", "sanpshot": "x"}, "no option 'sanpshot'; options are: path, table"),
        ({"table": "snapshots", "partitions": "many"}, "give a whole number"),
        ({"table": "snapshots", "maxSnapshotsPerTrigger": "0"}, "give a whole number, 1 or more"),
    ],
)
def test_a_wrong_option_is_named(spark: SparkSession, tmp_path: Path, options: dict[str, str], problem: str) -> None:
    url = Store.create(tmp_path / "store").url
    with pytest.raises(PySparkException, match=problem):
        spark.read.format("strobe").options(**options).load(url)


def test_damage_is_an_error_of_its_snapshot_alone_and_named(spark: SparkSession, tmp_path: Path) -> None:
    """S2: the same whether the log or a blob is damaged, for every table."""
    snapshots = list(good_snapshots(2, 4))
    store = store_with(tmp_path / "store", snapshots)
    blob = store.list()[1][2].processes["a"].state
    blob_place = f"blobs/{blob.begin:020d}/{blob.blake3}"
    damage(tmp_path / "store" / blob_place)
    damage(tmp_path / "store" / entry_name(5))
    good = {str(snapshots[0].id), str(snapshots[3].id)}
    assert ids_of(load(spark, store.url, "frontiers")) == good
    errors = load(spark, store.url, "reading_errors").orderBy(c.LOG_POSITION).collect()
    assert [(row[c.SNAPSHOT_ID], row[c.LOG_POSITION], row[c.URI]) for row in errors] == [
        (str(snapshots[1].id), 3, f"{store.url}/{blob_place}"),
        (None, 5, f"{store.url}/{entry_name(5)}"),
    ]
    assert ids_of(load(spark, store.url, "frontiers", verify="read")) == good | {str(snapshots[1].id)}


def planned(url: str) -> list[str | None]:
    """The snapshots that the process that plans a query finds in the log."""
    reader = StrobeReader(SourceOptions.parse({"path": url, "table": "snapshots"}))
    return [entry.snapshot_id for group in reader.partitions() for entry in group.entries]


def test_a_planner_reads_new_entries_and_detects_changed_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2, D1: damage is found, and forgotten after its repair; a replaced store is read from its beginning."""
    first, second, third = good_snapshots(6, 3)
    store = store_with(tmp_path / "store", [first])
    assert planned(store.url) == [str(first.id)]
    commit(store, second)
    read: list[str] = []
    read_file = Disk.read
    monkeypatch.setattr(Disk, "read", lambda disk, name: read.append(name) or read_file(disk, name))
    assert planned(store.url) == [str(first.id), str(second.id)]
    assert entry_name(0) not in read
    commit(store, third)
    entry = tmp_path / "store" / entry_name(5)
    good = entry.read_bytes()
    damage(entry)
    assert planned(store.url) == [str(first.id), str(second.id), None]
    entry.write_bytes(good)
    assert planned(store.url) == [str(first.id), str(second.id), str(third.id)]
    (tmp_path / "store").rename(tmp_path / "moved")
    assert planned(store_with(tmp_path / "store", [third]).url) == [str(third.id)]
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(StoreFormatError, match="does not exist"):
        planned(store.url)


class Streamed:
    """Runs a stream over the available data, repeatedly with the same checkpoint, and keeps the ids of each batch."""

    def __init__(self, spark: SparkSession, url: str, checkpoint: Path, **options: str) -> None:
        self.batches: list[list[str]] = []
        stream = spark.readStream.format("strobe").option("table", "snapshots").options(**options).load(url)
        self._writer = (
            stream.writeStream.trigger(availableNow=True)
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(lambda batch, _: self.batches.append(sorted(ids_of(batch))))
        )

    def run(self) -> list[list[str]]:
        self.batches = []
        query = self._writer.start()
        query.awaitTermination()
        return self.batches


def test_a_stream_respects_its_limit_and_continues_from_its_offset(spark: SparkSession, tmp_path: Path) -> None:
    snapshots = list(good_snapshots(3, 4))
    ids = [str(snapshot.id) for snapshot in snapshots]
    store = store_with(tmp_path / "store", snapshots[:3])
    streamed = Streamed(spark, store.url, tmp_path / "checkpoint", maxSnapshotsPerTrigger="2")
    assert streamed.run() == [ids[:2], ids[2:3]]
    assert streamed.run() == []
    commit(store, snapshots[3])
    assert streamed.run() == [ids[3:]]


def test_a_stream_continues_after_entries_at_its_offset_are_removed(spark: SparkSession, tmp_path: Path) -> None:
    """S1, D2: each retained snapshot comes once; one that retention has removed in between does not come."""
    snapshots = list(good_snapshots(5, 6))
    ids = [str(snapshot.id) for snapshot in snapshots]
    store = store_with(tmp_path / "store", snapshots[:2])
    streamed = Streamed(spark, store.url, tmp_path / "checkpoint")
    assert streamed.run() == [ids[:2]]
    store = Store.open(store.url, checkpoint_every=2)
    for snapshot in snapshots[2:]:
        commit(store, snapshot)
        store.write_checkpoint()
    for removed in (0, 1, 3):
        retention.remove(store, ids[removed], "old", 0)
    for number in range(4):
        append_when(store, lambda _, number=number: Pin(ids[-1], number % 2 == 0, 0))
        store.write_checkpoint()
    collect(store)
    assert store.positions()[0] > 4, "the entry before the offset is gone"
    assert streamed.run() == [[ids[2], ids[4], ids[5]]]
    assert streamed.run() == []
    assert ids_of(load(spark, store.url, "snapshots")) == {ids[2], ids[4], ids[5]}


def test_a_stream_is_not_continued_in_an_older_copy_of_the_store(spark: SparkSession, tmp_path: Path) -> None:
    """D2: the copy's new snapshots are at positions that were read before, so they would be missed silently."""
    first, second, third, fourth = good_snapshots(7, 4)
    store = store_with(tmp_path / "store", [first])
    shutil.copytree(store.url, tmp_path / "copy")
    commit(store, second)
    streamed = Streamed(spark, store.url, tmp_path / "checkpoint")
    assert streamed.run() == [[str(first.id), str(second.id)]]
    shutil.rmtree(store.url)
    (tmp_path / "copy").rename(store.url)
    for snapshot in (third, fourth):
        commit(Store.open(store.url), snapshot)
    with pytest.raises(PySparkException, match="an older copy of the store"):
        streamed.run()


def test_a_stream_can_begin_at_the_end_of_the_log(spark: SparkSession, tmp_path: Path) -> None:
    early, late = good_snapshots(4, 2)
    store = store_with(tmp_path / "store", [early])
    streamed = Streamed(spark, store.url, tmp_path / "checkpoint", startingPosition="latest")
    assert all(batch == [] for batch in streamed.run())
    commit(store, late)
    assert streamed.run() == [[str(late.id)]]
