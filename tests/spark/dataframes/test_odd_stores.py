"""Invalid manifests, and stores that are temporarily unreadable (P1, S2, D2).

An invalid manifest fails only its own snapshot. An unreadable store is retried. Nothing is skipped or mistaken for
damage.
"""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.spark.examining import entries_of, examined
from tests.storage.samples import commit, sample

from strobe.errors import StoreError
from strobe.protocol.values.log_entries import EpochStart, Remove
from strobe.spark.checks.snapshot_checker import GONE, QUARANTINE, ROW_KIND, VERDICT, SnapshotChecker
from strobe.spark.dataframes.reader import TableRequest, read_table
from strobe.spark.schema import columns as c
from strobe.storage import Store
from strobe.storage.content.blobs import blob_name
from strobe.storage.entries.log_file import entry_name
from strobe.storage.files.checksummed_json import UNSEALED, seal
from strobe.storage.files.disk import Disk
from strobe.storage.log.commit_reader import CommitReader

TABLES = [name for name in c.READABLE if name != "events"]
ODD: list[Any] = [
    0,
    -1,
    2**31,
    2**63,
    2**64 - 1,
    1.5,
    "",
    "a",
    "../../etc/passwd",
    None,
    [],
    {},
    [[]],
    True,
    "\0",
    "zz",
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.create(tmp_path / "store")
    for counter in range(1, 4):
        commit(store, sample(counter))
    return store


def proofs(found: list[dict[str, Any]]) -> list[str]:
    return [row["name"] for row in found if row[ROW_KIND] == VERDICT and row["check"] == c.PROOF]


def rows_of(store: Store, table: str) -> list[dict[str, Any]]:
    return [row for batch in read_table(TableRequest(store.url, table), entries_of(store)) for row in batch.to_pylist()]


def rewrite(store: Store, position: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Change an entry's content, with a valid checksum."""
    path = Path(store.url) / entry_name(position)
    document = msgspec.json.decode(path.read_bytes())
    change(document["entry"])
    path.write_bytes(seal(msgspec.json.encode(document | {"blake3": UNSEALED}) + b"\n")[0])


def a_negative_incarnation(entry: dict[str, Any]) -> None:
    entry["manifest"]["view"]["channels"][0]["incarnation"] = -1


def an_invalid_name(entry: dict[str, Any]) -> None:
    entry["manifest"]["processes"]["a"]["state"]["blake3"] = "\0"


def an_invalid_hash(entry: dict[str, Any]) -> None:
    for frontier in entry["manifest"]["processes"]["a"]["sent"].values():
        frontier["hash"] = "no hash"


@pytest.mark.parametrize("change", [a_negative_incarnation, an_invalid_name, an_invalid_hash])
def test_an_odd_manifest_fails_its_own_snapshot_alone(store: Store, change: Callable[[dict[str, Any]], None]) -> None:
    before = {table: of_others(store, table) for table in TABLES}
    rewrite(store, 3, change)
    found = examined(store)
    assert [proofs(found)[0], proofs(found)[2]] == ["holds", "holds"]
    assert proofs(found)[1] in ("error", "violated")
    assert {table: of_others(store, table) for table in TABLES} == before


def test_every_damaged_blob_of_a_snapshot_is_named(store: Store) -> None:
    """S2: truncated frames, and the states of other processes; each once, and the proof is not checked."""
    records = store.state().committed["000001-00000002-coordinator"].manifest.processes
    refs = [records["b"].frames, records["a"].state, records["c"].state]
    damaged = [f"{store.url}/{blob_name(ref)}" for ref in refs if ref is not None]
    for path in damaged:
        Path(path).write_bytes(Path(path).read_bytes()[:-1])
    found = examined(store)
    assert sorted(row["name"] for row in found if row[ROW_KIND] == QUARANTINE) == sorted(damaged)
    assert proofs(found) == ["holds", "error", "holds"]


def of_others(store: Store, table: str) -> int:
    """Return the number of a table's rows that belong to unchanged snapshots."""
    return sum(row["snapshot_id"] not in (None, "000001-00000002-coordinator") for row in rows_of(store, table))


def test_no_odd_value_in_a_manifest_stops_the_examination_of_others(store: Store) -> None:
    draw = random.Random(5)
    original = (Path(store.url) / entry_name(3)).read_bytes()
    for _ in range(60):
        rewrite(store, 3, lambda entry: put_odd(entry, draw))
        found = examined(store)
        assert proofs(found)[0] == proofs(found)[-1] == "holds"
        for table in TABLES:
            rows_of(store, table)
        (Path(store.url) / entry_name(3)).write_bytes(original)


def put_odd(entry: dict[str, Any], draw: random.Random) -> None:
    path = draw.choice([path for path in paths(entry) if path])
    place: Any = entry
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = draw.choice(ODD)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*path, key))


def test_an_entry_nested_too_deep_is_named_and_the_others_count(store: Store) -> None:
    raw = (
        b'{"blake3":"'
        + UNSEALED.encode()
        + b'","position":3,"previous":"","entry":'
        + b"[" * 5000
        + b"]" * 5000
        + b"}\n"
    )
    (Path(store.url) / entry_name(3)).write_bytes(seal(raw)[0])
    assert [entry.problem is None for entry in entries_of(store)] == [True, False, True]


class Unreadable:
    """Stands for a reader whose store does not answer."""

    def __init__(self, reader: CommitReader, name: str, positions: set[int] | None = None) -> None:
        self._read, self._positions = getattr(reader, name), positions
        setattr(reader, name, self)

    def __call__(self, what: Any) -> Any:
        if self._positions is None or what in self._positions:
            raise StoreError("the store", "cannot read it: timed out")
        return self._read(what)


@pytest.mark.parametrize(("name", "positions"), [("read_blob", None), ("read_commit", {1})])
def test_a_file_that_cannot_be_read_now_is_retried_and_not_damage(
    store: Store, name: str, positions: set[int] | None
) -> None:
    """Also an entry that only drift needs: drift is computed from the log, so its result must not change."""
    found = examined(store, lambda checker: Unreadable(checker._reader._reader, name, positions) and None)
    kinds = {row[ROW_KIND] for row in found}
    assert GONE in kinds
    assert QUARANTINE not in kinds


def test_the_log_is_read_once_however_many_snapshots_were_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once per snapshot: retention may have removed thousands before they are judged."""
    for entry in entries_of(store):
        assert entry.snapshot_id is not None
        store.append(Remove(entry.snapshot_id, "retention", 40), store.state().next_position)
    shutil.rmtree(Path(store.url) / "blobs")
    read: list[str] = []

    def count(checker: SnapshotChecker) -> None:
        read_file = Disk.read
        monkeypatch.setattr(Disk, "read", lambda disk, name: read.append(name) or read_file(disk, name))

    assert proofs(examined(store, count)) == ["undecided"] * 3
    assert read.count(entry_name(0)) == 1


@pytest.mark.parametrize("first", [1, 11])
def test_another_store_at_the_same_path_is_not_judged(store: Store, first: int) -> None:
    """D2: neither under the expected ids, nor as damaged."""
    entries = entries_of(store)
    put_in_place(store, first, store_id=None)
    assert {row[ROW_KIND] for row in examined(store, entries=entries)} == {GONE}


@pytest.mark.parametrize("entries_before", [0, 1])
def test_an_older_copy_with_other_new_entries_is_not_judged(store: Store, entries_before: int) -> None:
    """D2: the header is that of the same store, but the expected positions have other commits or none."""
    entries = entries_of(store)
    put_in_place(store, 11, store.header.store, entries_before)
    found = examined(store, entries=entries)
    assert {row[ROW_KIND] for row in found} == {GONE}
    assert "that was read before" in found[0]["text"]
    with pytest.raises(StoreError, match="that was read before"):
        list(read_table(TableRequest(store.url, "fragments"), entries))


def put_in_place(store: Store, first: int, store_id: str | None, entries_before: int = 0) -> None:
    shutil.rmtree(store.url)
    other = Store.create(store.url, identity=store_id)
    for epoch in range(1, entries_before + 1):
        other.append(EpochStart(epoch, at_us=1), other.state().next_position)
    for counter in range(first, first + 3):
        commit(other, sample(counter, balance=7))


def test_an_entry_with_a_repeated_field_fails_only_its_snapshot(store: Store) -> None:
    path = Path(store.url) / entry_name(3)
    raw = path.read_bytes().replace(b',"at_us":30}', b',"at_us":30,"snapshot":"000001-00000009-coordinator"}')
    path.write_bytes(seal(b'{"blake3":"' + UNSEALED.encode() + raw[len(b'{"blake3":"') + 64 :])[0])
    assert [proofs(examined(store)), len(rows_of(store, "snapshots"))] == [["holds", "error", "holds"], 2]


def test_a_temporarily_unreadable_table_is_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """D1: a stream would otherwise continue beyond what it has not read."""

    def timed_out(reader: CommitReader, ref: object) -> memoryview:
        raise StoreError(store.url, "cannot read it: timed out")

    monkeypatch.setattr(CommitReader, "read_blob", timed_out)
    with pytest.raises(StoreError, match="timed out"):
        rows_of(store, "process_states")


def test_a_table_of_a_missing_store_is_an_error(store: Store, tmp_path: Path) -> None:
    entries = entries_of(store)
    Path(store.url).rename(tmp_path / "hidden")
    with pytest.raises(StoreError, match=r"does not exist|is missing; put it back"):
        list(read_table(TableRequest(store.url, "process_states"), entries))
