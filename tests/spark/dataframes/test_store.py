"""The tables: their columns and contents, and how values that do not fit are handled."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from pyspark.sql import DataFrame, SparkSession
from tests.spark.generate import good_snapshots
from tests.spark.mutations import mutants
from tests.spark.recording_mutations import forgotten_receiver
from tests.spark.stores import begin, commit, damage, store_with
from tests.storage.keyed_samples import KeyedWriter

from strobe import KeyedState
from strobe.errors import StoreFormatError, UsageError
from strobe.keyed_state.segments import pack_header, pack_part
from strobe.protocol.values.fragment import KEYED, MSGPACK, OPAQUE, Fragment, LocalState, Snapshot
from strobe.protocol.values.frames import Frame, Frontier, InFlight, extend_fifo, seed_hash
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import Abort, Remove
from strobe.protocol.values.view import ChannelSpec, View
from strobe.spark import Tables, tables_from_snapshots, verdicts, verify_proofs
from strobe.spark import tables as read_tables
from strobe.spark.checks import dataframe_proof
from strobe.spark.schema import arrow
from strobe.spark.schema import columns as c
from strobe.storage import Store
from strobe.storage.entries.log_file import entry_name

VIEW = View(3, ("a", "b"), (ChannelSpec("ab", "a", "b"), ChannelSpec("ba", "b", "a")))


def snapshot_of(
    counter: int = 1,
    body: bytes = b"\x90",
    count: int = 0,
    consumed: int = 0,
    first_ordinal: int = 1,
    state: object = None,
    encoding: str = MSGPACK,
) -> Snapshot:
    """Two processes, with one frame in flight from a to b if `count` is not 0; `state` is that of a."""
    identity = SnapshotId(1, counter, "a")
    frames = (InFlight(Frame(first_ordinal, count, body), consumed),) if count else ()
    ab, ba = seed_hash("ab", 1), seed_hash("ba", 1)
    sent = extend_fifo(ab, first_ordinal, count, body) if count > 0 and first_ordinal < 1 << 64 else ab
    data = state if isinstance(state, bytes) else msgspec.msgpack.encode(state)
    fragments = {
        "a": Fragment(
            identity,
            "a",
            3,
            {"ab": Frontier(count, sent)},
            {"ba": Frontier(0, ba)},
            {"ba": ()},
            LocalState(7, encoding, data),
        ),
        "b": Fragment(
            identity,
            "b",
            3,
            {"ba": Frontier(0, ba)},
            {"ab": Frontier(consumed, ab)},
            {"ab": frames},
            LocalState(9, MSGPACK, msgspec.msgpack.encode({"balance": 2})),
        ),
    }
    return Snapshot(identity, "chandy-lamport", ("a",), VIEW, fragments, 1_000_000, 1_500_000)


WHEN = '{"ratio":1.5,"when":"2024-05-06 07:08:09.00001+00:00"}'


def rows_of(table: DataFrame, *expressions: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in table.selectExpr(*expressions).collect()]


def states_of(tables: Tables) -> list[tuple[object, ...]]:
    columns = ("to_json(state)", "state_bytes", "encoding", "state_hash", "position")
    return rows_of(tables.process_states.where("process = 'a'").orderBy("snapshot_id"), *columns)


def test_every_table_has_its_documented_columns(spark: SparkSession) -> None:
    tables = tables_from_snapshots(spark, good_snapshots(2, 1))
    for name, columns in c.TABLES.items():
        assert getattr(tables, name).dtypes == list(columns.items())
    assert verify_proofs(tables).dtypes == list(c.VERDICTS.items())


def test_a_snapshot_has_its_times_and_sizes(spark: SparkSession) -> None:
    body = msgspec.msgpack.encode(["x"])
    snapshot = snapshot_of(body=body, count=1, state=b"12345", encoding=OPAQUE)
    (row,) = tables_from_snapshots(spark, [snapshot]).snapshots.collect()
    assert row.asDict() | {"started_at": None, "completed_at": None} == {
        "snapshot_id": "000001-00000001-a",
        "log_position": 0,
        "parent_id": None,
        "protocol": "chandy-lamport",
        "initiators": ["a"],
        "view_id": 3,
        "epoch": 1,
        "started_at": None,
        "completed_at": None,
        "state_bytes": snapshot.state_bytes,
        "in_flight_bytes": len(body),
    }
    lasted = row["completed_at"] - row["started_at"]
    assert lasted.total_seconds() == 0.5


def test_times_are_those_recorded(spark: SparkSession) -> None:
    tables = tables_from_snapshots(spark, [snapshot_of()])
    ((started,),) = rows_of(tables.snapshots, "date_format(started_at, 'yyyy-MM-dd HH:mm:ss')")
    assert datetime.fromisoformat(f"{started}+00:00") == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def test_values_are_variants_if_possible_and_bytes_otherwise(spark: SparkSession) -> None:
    """S3: opaque bytes are marked as such, and data that cannot be decoded is never dropped."""
    states: list[tuple[object, str, str | None]] = [
        ({"balance": 12, "names": ["x", None, True]}, MSGPACK, '{"balance":12,"names":["x",null,true]}'),
        ({"ratio": 1.5, "when": datetime(2024, 5, 6, 7, 8, 9, 10, UTC)}, MSGPACK, WHEN),
        ({"big": 2**64 - 1, "small": -(2**63)}, MSGPACK, '{"big":18446744073709551615,"small":-9223372036854775808}'),
        ({"raw": b"\x00\xff"}, MSGPACK, '{"raw":"AP8="}'),
        ({7: "seven"}, MSGPACK, '{"7":"seven"}'),
        ({1: "a", "1": "b"}, MSGPACK, None),
        (msgspec.msgpack.Ext(1, b"x"), MSGPACK, None),
        (b"\xc1 is never used", MSGPACK, None),
        (msgspec.msgpack.encode(1) + b"more", MSGPACK, None),
        (msgspec.msgpack.encode({"balance": 1}), OPAQUE, None),
        (b"", OPAQUE, None),
        (b"\x91" * 5000 + b"\x90", MSGPACK, None),
    ]
    snapshots = [snapshot_of(counter, state=state, encoding=kind) for counter, (state, kind, _) in enumerate(states)]
    data = [s.fragments["a"].state.data for s in snapshots if s.fragments["a"].state]
    assert states_of(tables_from_snapshots(spark, snapshots)) == [
        (text, None if text else raw, kind, blake3(raw).digest(), 7)
        for (_, kind, text), raw in zip(states, data, strict=True)
    ]


def test_a_keyed_state_has_a_row_for_each_key(spark: SparkSession, tmp_path: Path) -> None:
    """D1, S3: keyed state is queried by key and by field, with deltas applied."""
    store = Store.create(tmp_path / "store")
    state: KeyedState[object] = KeyedState()
    state.update({"ada": {"balance": 1}, "bob": {"balance": 2}, "eve": {"balance": 3}, 7: 4, b"\xff": b"\x00"})
    writer = KeyedWriter(store, state)
    first = writer.commit(1)
    state.update({"ada": {"balance": 5}, "new": None})
    del state["eve"]
    second = writer.commit(2)
    tables = read_tables(spark, store.url)
    found = tables.process_states.where("process = 'a'").orderBy("snapshot_id", "key")
    assert rows_of(found, "snapshot_id", "key", "to_json(state)", "encoding", "position") == [
        (first, "7", "4", KEYED, 4),
        (first, "ada", '{"balance":1}', KEYED, 4),
        (first, "bob", '{"balance":2}', KEYED, 4),
        (first, "eve", '{"balance":3}', KEYED, 4),
        (first, "ff", '"AA=="', KEYED, 4),
        (second, "7", "4", KEYED, 4),
        (second, "ada", '{"balance":5}', KEYED, 4),
        (second, "bob", '{"balance":2}', KEYED, 4),
        (second, "ff", '"AA=="', KEYED, 4),
        (second, "new", "null", KEYED, 4),
    ]
    value = msgspec.msgpack.encode({"balance": 2})
    hashes = rows_of(found.where("key = 'bob'"), "state_hash", "state_bytes")
    assert hashes == [(blake3(value).digest(), None)] * 2
    loaded = tables_from_snapshots(spark, [store.load(first), store.load(second)])
    columns = ("snapshot_id", "process", "key", "state_hash")
    assert sorted(rows_of(loaded.process_states, *columns), key=repr) == sorted(
        rows_of(tables.process_states, *columns), key=repr
    )


def test_a_broken_keyed_state_is_not_dropped(spark: SparkSession) -> None:
    broken = b"".join((pack_header("base"), *pack_part({"ada": 1}), b"garbage"))
    tables = tables_from_snapshots(spark, [snapshot_of(state=broken, encoding=KEYED)])
    found = tables.process_states.where("process = 'a'").orderBy("key")
    assert rows_of(found, "key", "to_json(state)", "state_bytes") == [(None, None, broken), ("ada", "1", None)]


def test_messages_that_were_received_are_not_in_flight(spark: SparkSession) -> None:
    messages = [{"amount": 1}, {"amount": 2}, "text"]
    body = msgspec.msgpack.encode(messages)
    tables = tables_from_snapshots(spark, [snapshot_of(body=body, count=3, consumed=1)])
    columns = ("channel", "source", "target", "ordinal", "to_json(payload)", "payload_bytes")
    assert rows_of(tables.channel_messages.orderBy("ordinal"), *columns) == [
        ("ab", "a", "b", 2, '{"amount":2}', msgspec.msgpack.encode(messages[1])),
        ("ab", "a", "b", 3, '"text"', msgspec.msgpack.encode(messages[2])),
    ]


def test_a_body_that_cannot_be_split_is_one_message_with_all_of_it(spark: SparkSession) -> None:
    body = b"\x92\xc1\xc1"
    tables = tables_from_snapshots(spark, [snapshot_of(body=body, count=2)])
    assert rows_of(tables.channel_messages, "ordinal", "payload", "payload_bytes") == [(1, None, body)]


def test_a_forgotten_channel_has_a_row_with_nothing_in_it(spark: SparkSession) -> None:
    (mutant,) = mutants(forgotten_receiver, "one", 1, 1)
    forgotten = {channel.id for channel in mutant.view.channels} - {
        name for fragment in mutant.fragments.values() for name in fragment.received
    }
    tables = tables_from_snapshots(spark, [mutant])
    assert tables.frontiers.count() == len(mutant.view.channels)
    rows = rows_of(tables.frontiers.where("received_count IS NULL"), "channel", "received_hash")
    assert rows == [(name, None) for name in forgotten]


def test_a_number_that_fits_no_column_is_an_error_of_its_snapshot_alone(spark: SparkSession) -> None:
    body = msgspec.msgpack.encode(["x"])
    strange = [
        snapshot_of(1, body=body, count=1, first_ordinal=(1 << 64) - 1),
        snapshot_of(2, body=body, count=1 << 31),
        snapshot_of(3, body=body, count=1),
    ]
    tables = tables_from_snapshots(spark, strange)
    assert rows_of(tables.reading_errors.orderBy("snapshot_id"), "snapshot_id", "reason") == [
        (str(strange[0].id), f"a first ordinal of channel ab is {(1 << 64) - 1}, and its column holds 0 to {1 << 62}"),
        (str(strange[1].id), f"a message count of channel ab is {1 << 31}, and its column holds 0 to {(1 << 31) - 1}"),
    ]
    assert rows_of(tables.snapshots, "snapshot_id") == [(str(strange[2].id),)]


def test_two_snapshots_of_the_same_id_are_refused(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="two snapshots have the id 000001-00000001-a"):
        tables_from_snapshots(spark, [snapshot_of(), snapshot_of()])


def test_a_snapshot_in_many_batches_gives_the_same_tables(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots = list(good_snapshots(21, 20))
    whole = tables_from_snapshots(spark, snapshots)
    monkeypatch.setattr(arrow, "BATCH_BYTES_MAX", 64)
    monkeypatch.setattr(arrow, "BATCH_ROWS_MAX", 3)
    split = tables_from_snapshots(spark, snapshots)
    for name in ("snapshots", "channel_frames", "channel_ends", "fragments", "view_channels", "view_processes"):
        unsplit, in_batches = (sorted(map(repr, getattr(tables, name).collect())) for tables in (whole, split))
        assert unsplit == in_batches


def test_only_committed_snapshots_are_in_the_tables(spark: SparkSession, tmp_path: Path) -> None:
    kept, aborted, opened, removed = good_snapshots(31, 4)
    store = store_with(tmp_path / "store", [kept, removed])
    store.append(Remove(str(removed.id), "no longer wanted", at_us=40), store.state().next_position)
    begin(store, aborted)
    store.write_snapshot(aborted)
    store.append(Abort(str(aborted.id), "timeout", at_us=50), store.state().next_position)
    begin(store, opened)
    store.write_snapshot(opened)
    tables = read_tables(spark, store.url)
    assert rows_of(tables.snapshots, "snapshot_id", "log_position") == [(str(kept.id), 1)]
    assert {name for (name,) in rows_of(spark.table("fragments"), "snapshot_id")} == {str(kept.id)}


def test_a_damaged_blob_is_an_error_of_its_snapshot_alone(spark: SparkSession, tmp_path: Path) -> None:
    """S2: corruption is named, in Spark too, and other snapshots are still verified."""
    snapshots = list(good_snapshots(41, 6))
    store = store_with(tmp_path / "store", snapshots)
    _, name, manifest = store.list()[2]
    blob = manifest.processes["a"].state
    damage(tmp_path / "store" / "blobs" / f"{blob.begin:020d}" / blob.blake3)
    rows = verdicts(store.url)
    assert [row.snapshot_id for row in rows] == [str(snapshot.id) for snapshot in snapshots]
    assert [row.verdict for row in rows if row.snapshot_id != name] == ["holds"] * 5
    (error,) = (row for row in rows if row.snapshot_id == name)
    assert error.verdict == "error"
    assert blob.blake3 in error.reason
    assert not error.holds
    tables = read_tables(spark, store.url)
    assert rows_of(tables.reading_errors, "snapshot_id", "reason") == [(name, error.reason)]
    seen = {snapshot_id for (snapshot_id,) in rows_of(tables.process_states, "snapshot_id")}
    assert seen == {str(snapshot.id) for snapshot in snapshots} - {name}


def test_a_snapshot_removed_while_it_is_read_is_not_damaged(spark: SparkSession, tmp_path: Path) -> None:
    kept, removed = good_snapshots(51, 2)
    store = store_with(tmp_path / "store", [kept, removed])
    tables = read_tables(spark, store.url)
    manifest = store.list()[1][2]
    store.append(Remove(str(removed.id), "no longer wanted", at_us=40), store.state().next_position)
    for record in manifest.processes.values():
        (tmp_path / "store" / "blobs" / f"{record.state.begin:020d}" / record.state.blake3).unlink(missing_ok=True)
    for table in (tables.process_states, tables.snapshots):
        assert {name for (name,) in rows_of(table, "snapshot_id")} == {str(kept.id)}
    assert tables.reading_errors.isEmpty()


def test_verdicts_are_computed_on_the_given_session(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: a session of a Connect server is not the active one, so another one could be started by mistake."""
    monkeypatch.setattr(dataframe_proof, "local_session", lambda: pytest.fail("another session is asked for"))
    store = store_with(tmp_path / "store", good_snapshots(43, 2))
    assert [row.verdict for row in verdicts(store.url, spark)] == ["holds"] * 2


def test_an_empty_store_has_empty_tables_and_no_verdicts(spark: SparkSession, tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    assert verdicts(store.url) == []
    assert spark.table("snapshots").isEmpty()
    assert spark.table("channel_messages").isEmpty()


def test_a_damaged_log_entry_is_an_error_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    snapshots = list(good_snapshots(71, 3))
    store = store_with(tmp_path / "store", snapshots)
    damage(tmp_path / "store" / entry_name(3))
    tables = read_tables(spark, store.url)
    assert rows_of(tables.reading_errors, "snapshot_id", "log_position", "uri") == [
        (None, 3, f"{store.url}/{entry_name(3)}")
    ]
    kept = [str(snapshots[0].id), str(snapshots[2].id)]
    assert sorted(str(name) for (name,) in rows_of(tables.snapshots, "snapshot_id")) == kept
    found = {row.snapshot_id: row.verdict for row in verdicts(store.url)}
    assert found == dict.fromkeys(kept, "holds") | {f"{store.url}/{entry_name(3)}": "error"}


def test_a_path_without_a_store_is_refused_before_spark_starts(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StoreFormatError, match="does not exist"):
        verdicts(tmp_path / "nowhere")


def test_tables_do_not_change_after_they_were_read(spark: SparkSession, tmp_path: Path) -> None:
    early, late = good_snapshots(61, 2)
    store = store_with(tmp_path / "store", [early])
    tables = read_tables(spark, store.url)
    commit(store, late)
    assert tables.snapshots.count() == 1
    assert read_tables(spark, store.url).snapshots.count() == 2
