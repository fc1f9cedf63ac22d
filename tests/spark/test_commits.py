"""The commits of a store as a stream: what is new, from where the last one ended, and of that store alone (D2)."""

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from tests.spark.generate import good_snapshots
from tests.spark.stores import commit, store_with

from strobe.errors import StoreCorrupt, StoreError
from strobe.spark.commits import CommitsReader, Offset
from strobe.spark.stored_bytes import Unavailable, marked, new_marker, unavailable_reason
from strobe.storage import Store

MARKER = "unavailable-7:"


def reader_of(store: Store) -> CommitsReader:
    return CommitsReader(store.url, store.header.store, MARKER, history=9, partitions=2, rows_max=2000)


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
        with pytest.raises(Unavailable, match=f"^{MARKER} store .* is another store"):
            ask()
    (tmp_path / "store").rename(tmp_path / "other")
    (tmp_path / "away").rename(tmp_path / "store")
    commit(store, snapshots[1])
    assert taken(reader_of(store), at)[0] == [second]
    assert (
        taken(CommitsReader(str(tmp_path / "other"), other.header.store, MARKER, 9, 2, 2000), {"position": 0})[0]
        == others
    )


def test_a_batch_that_was_begun_before_the_store_vanished_is_tried_again(tmp_path: Path) -> None:
    """However often: that there is no store is no mistake of whom it was there for."""
    store = store_with(tmp_path / "store", good_snapshots(2, 1))
    (tmp_path / "store").rename(tmp_path / "away")
    with pytest.raises(Unavailable, match=f"^{MARKER} store .* does not exist"):
        reader_of(store).partitions({"position": 0}, {"position": 2})


@pytest.mark.parametrize("error", [StoreError("s3://b", "timed out"), Unavailable("store s3://b: timed out")])
def test_what_cannot_be_had_now_is_found_in_the_text_of_an_error_by_its_marker_alone(error: Exception) -> None:
    marker = new_marker()
    with pytest.raises(Unavailable) as raised, marked(marker):
        raise error
    text = f"Traceback ...\n{type(raised.value).__qualname__}: {raised.value}\n\tat java.lang.Thread"
    assert unavailable_reason(Exception(text), marker) == "store s3://b: timed out"
    assert unavailable_reason(Exception(text), new_marker()) is None
    for quoted in ("strobe.errors.StoreError: x", "strobe.spark.stored_bytes.Unavailable: x", "unavailable-0: x"):
        assert unavailable_reason(Exception(quoted), marker) is None


def test_damage_is_not_marked_where_it_is_about_a_snapshot() -> None:
    with pytest.raises(StoreCorrupt), marked(MARKER, damage_too=False):
        raise StoreCorrupt("s3://b", "blobs/0/1", "is missing")
