"""The commits of a store as a stream: what is new, from where the last one ended, and of that store alone (D2)."""

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from tests.spark.generate import good_snapshots
from tests.spark.stores import commit, store_with

from strobe.errors import StoreError
from strobe.spark.commits import CommitsReader, Offset
from strobe.storage import Store


def reader_of(store: Store) -> CommitsReader:
    return CommitsReader(store.url, store.header.store, history=9, partitions=2, rows_max=2000)


def taken(reader: CommitsReader, start: Offset, rows_max: int = 2000) -> tuple[list[str | None], Offset]:
    """The snapshots that are new since `start`, at most so many, and where they end."""
    end = reader.latestOffset(start, ReadMaxRows(rows_max))
    return [row[1] for part in reader.partitions(start, end) for row in part.rows], end


def test_a_reader_that_is_made_anew_waits_for_the_first_store_while_another_is_in_its_place(tmp_path: Path) -> None:
    first, second, *others = (str(snapshot.id) for snapshot in good_snapshots(1, 5))
    snapshots = list(good_snapshots(1, 5))
    store = store_with(tmp_path / "store", snapshots[:1])
    found, at = taken(reader_of(store), {"position": 0})
    assert found == [first]
    (tmp_path / "store").rename(tmp_path / "away")
    other = store_with(tmp_path / "store", snapshots[2:])
    reader = reader_of(store)
    assert reader.latestOffset(at, ReadMaxRows(2000)) == at
    for ask in (reader.prepareForTriggerAvailableNow, lambda: reader.partitions(at, {"position": 4})):
        with pytest.raises(StoreError, match="is another store"):
            ask()
    (tmp_path / "store").rename(tmp_path / "other")
    (tmp_path / "away").rename(tmp_path / "store")
    commit(store, snapshots[1])
    assert taken(reader_of(store), at)[0] == [second]
    assert taken(CommitsReader(str(tmp_path / "other"), other.header.store, 9, 2, 2000), {"position": 0})[0] == others
