"""The commits of a store as a stream: only new ones, continued from an offset, of one store only (D2)."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.spark.generate import good_snapshots
from tests.spark.stores import commit, damage, store_with

from strobe.errors import StoreCorrupt, StoreError, UsageError
from strobe.spark.dataframes.data_source import StrobeStreamReader
from strobe.spark.dataframes.source_options import SourceOptions
from strobe.spark.log import offsets
from strobe.spark.log.offsets import Offset, refuse_other_log
from strobe.spark.log.snapshot_reader import Unavailable, marked, new_marker, unavailable_reason
from strobe.spark.pipeline.commit_source import CommitsReader
from strobe.storage import Store
from strobe.storage.entries.log_file import entry_name
from strobe.storage.files.disk import Disk

MARKER = "unavailable-7:"


def reader_of(store: Store) -> CommitsReader:
    return CommitsReader(store.url, store.header.store, MARKER, history=9, partitions=2, rows_max=2000)


def taken(reader: CommitsReader, start: Offset, rows_max: int = 2000) -> tuple[list[str | None], Offset]:
    """Return the snapshots since `start`, limited to `rows_max`, and the offset of their end."""
    end = reader.latestOffset(start, ReadMaxRows(rows_max))
    return [row[1] for part in reader.partitions(start, end) for row in part.rows], end


def test_a_new_reader_waits_for_its_own_store(tmp_path: Path) -> None:
    first, second, *others = (str(snapshot.id) for snapshot in good_snapshots(1, 5))
    snapshots = list(good_snapshots(1, 5))
    store = store_with(tmp_path / "store", snapshots[:1])
    found, at = taken(reader_of(store), {"position": 0})
    assert found == [first]
    (tmp_path / "store").rename(tmp_path / "away")
    other = store_with(tmp_path / "store", snapshots[2:])
    reader = reader_of(store)
    assert reader.latestOffset(at, ReadMaxRows(2000)) == at
    for call in (reader.prepareForTriggerAvailableNow, lambda: reader.partitions(at, {"position": 4})):
        with pytest.raises(Unavailable, match=f"^{MARKER} store .* is another store"):
            call()
    (tmp_path / "store").rename(tmp_path / "other")
    (tmp_path / "away").rename(tmp_path / "store")
    commit(store, snapshots[1])
    assert taken(reader_of(store), at)[0] == [second]
    assert (
        taken(CommitsReader(str(tmp_path / "other"), other.header.store, MARKER, 9, 2, 2000), {"position": 0})[0]
        == others
    )


def test_a_batch_of_a_store_that_vanished_is_reported_unavailable(tmp_path: Path) -> None:
    """A store that is missing later is not a usage error, so the batch is retried."""
    store = store_with(tmp_path / "store", good_snapshots(2, 1))
    (tmp_path / "store").rename(tmp_path / "away")
    with pytest.raises(Unavailable, match=f"^{MARKER} store .* does not exist"):
        reader_of(store).partitions({"position": 0}, {"position": 2})


def restored(store: Store, root: Path) -> Store:
    """Replace the store by the copy of it at `root`."""
    shutil.rmtree(store.url)
    shutil.copytree(root, store.url)
    return Store.open(store.url)


@pytest.mark.parametrize("rows_max", [2, 2000])
def test_an_older_copy_of_the_store_is_refused_at_any_length(tmp_path: Path, rows_max: int) -> None:
    """D2: it has other entries at positions that were read before, which would never be read."""
    snapshots = list(good_snapshots(3, 7))
    store = store_with(tmp_path / "store", snapshots[:1])
    shutil.copytree(store.url, tmp_path / "copy")
    for snapshot in snapshots[1:4]:
        commit(store, snapshot)
    at: Offset = {"position": 0}
    for _ in range(2 if rows_max == 2 else 1):
        found, at = taken(reader_of(store), at, rows_max)
    assert found[-1] == str(snapshots[3].id)
    shutil.copytree(store.url, tmp_path / "newer")
    store = restored(store, tmp_path / "copy")
    for grown in ([], snapshots[4:]):
        for snapshot in grown:
            commit(store, snapshot)
        with pytest.raises(UsageError, match=r"an older copy of the store.*\(--to\)"):
            refuse_other_log(store.url, store.header.store, at)
        with pytest.raises(Unavailable, match="an older copy of the store"):
            reader_of(store).latestOffset(at, ReadMaxRows(rows_max))
        with pytest.raises(Unavailable, match="an older copy of the store"):
            reader_of(store).partitions({"position": 0}, at)
    store = restored(store, tmp_path / "newer")
    commit(store, snapshots[4])
    refuse_other_log(store.url, store.header.store, at)
    assert taken(reader_of(store), at)[0] == [str(snapshots[4].id)]


def test_an_offset_of_an_earlier_strobe_is_continued(tmp_path: Path) -> None:
    """It has no checksum; the next offset has one."""
    first, second = good_snapshots(4, 2)
    store = store_with(tmp_path / "store", [first, second])
    refuse_other_log(store.url, store.header.store, {"position": 2})
    found, at = taken(reader_of(store), {"position": 2})
    assert (found, at["position"], len(at["checksum"])) == ([str(second.id)], 4, 64)


@pytest.mark.parametrize("position", [3, 4])
def test_a_stream_continues_after_an_entry_damaged_since(tmp_path: Path, position: int) -> None:
    """Either the last entry of the previous batch, or the first one after it."""
    first, second, third = good_snapshots(5, 3)
    store = store_with(tmp_path / "store", [first, second])
    _, at = taken(reader_of(store), {"position": 0})
    commit(store, third)
    damage(tmp_path / "store" / entry_name(position))
    refuse_other_log(store.url, store.header.store, at)
    assert [name for name in taken(reader_of(store), at)[0] if name] == [str(third.id)]


def test_a_log_is_polled_less_often_than_spark_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object store would get hundreds of requests a second; the same for the streams of tables."""
    monkeypatch.setattr(offsets, "POLL_S", 3600.0)
    store = store_with(tmp_path / "store", good_snapshots(6, 1))
    tables = StrobeStreamReader(SourceOptions.parse({"path": store.url, "table": "snapshots"}))
    for reader in (reader_of(store), tables):
        at = reader.latestOffset({"position": 0}, ReadAllAvailable())
        with monkeypatch.context() as offline:
            offline.setattr(Disk, "read", None)
            assert reader.latestOffset(at, ReadAllAvailable()) == at
        assert at["position"] == 2


@pytest.mark.parametrize("error", [StoreError("s3://b", "timed out"), Unavailable("store s3://b: timed out")])
def test_an_unavailable_store_is_recognized_by_its_marker_only(error: Exception) -> None:
    marker = new_marker()
    with pytest.raises(Unavailable) as raised, marked(marker):
        raise error
    text = f"Traceback ...\n{type(raised.value).__qualname__}: {raised.value}\n\tat java.lang.Thread"
    assert unavailable_reason(Exception(text), marker) == "store s3://b: timed out"
    assert unavailable_reason(Exception(text), new_marker()) is None
    for quoted in (
        "strobe.errors.StoreError: x",
        "strobe.spark.log.snapshot_reader.Unavailable: x",
        "unavailable-0: x",
    ):
        assert unavailable_reason(Exception(quoted), marker) is None


def test_damage_of_a_snapshot_is_not_marked_as_unavailable() -> None:
    with pytest.raises(StoreCorrupt), marked(MARKER, damage_too=False):
        raise StoreCorrupt("s3://b", "blobs/0/1", "is missing")
