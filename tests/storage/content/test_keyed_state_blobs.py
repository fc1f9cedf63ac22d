"""Keyed states in a store: chains of blobs are read back as one state, kept complete, and stay short (E5, S2)."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.storage import stranger
from tests.storage.keyed_samples import KeyedWriter, accounts

from strobe import KeyedState, Process
from strobe.errors import SnapshotCorrupt
from strobe.protocol.values.fragment import KEYED, LocalState
from strobe.protocol.values.log_entries import BlobRef, ProcessRecord, Remove
from strobe.storage import Store, collect
from strobe.storage.content.blobs import blob_name
from strobe.storage.content.keyed_state_blobs import keyed_items, takes_delta
from strobe.storage.content.manifests import blobs_of
from strobe.storage.content.state_codec import decode_state, encode_captured, is_captured


class Keeper(Process):
    """A process whose whole state is keyed."""

    def __init__(self, state: KeyedState[Any]) -> None:
        self.state = state

    def capture(self) -> KeyedState[Any]:
        return self.state

    def restore(self, state: KeyedState[Any]) -> None:
        self.state = state


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def state_of(store: Store, name: str) -> LocalState:
    state = store.load(name).fragments["a"].state
    assert state is not None
    return state


def entries_of(store: Store, name: str) -> dict[Any, Any]:
    return {key: msgspec.msgpack.decode(value) for key, value in keyed_items(state_of(store, name))}


def grow(store: Store, snapshots: int, chain_max: int = 8) -> dict[str, dict[Any, Any]]:
    """Commit this many snapshots, changing and deleting a little before each; return what each must hold."""
    writer = KeyedWriter(store, accounts(), chain_max)
    expected = {}
    for counter in range(1, snapshots + 1):
        writer.state[f"account {counter}"] = b"changed"
        writer.state.pop(f"account {counter - 1}", None)
        expected[writer.commit(counter)] = dict(writer.state)
    return expected


def test_every_snapshot_of_a_chain_is_read_back_unchanged(store: Store) -> None:
    expected = grow(store, 5)
    for name, entries in expected.items():
        assert entries_of(store, name) == entries
        keeper = Keeper(KeyedState(bytes))
        keeper.restore(decode_state(keeper, state_of(store, name)))
        assert dict(keeper.state) == entries
    assert [len(state_of(store, name).deltas) for name in expected] == [0, 1, 2, 3, 4]
    assert store.verify_bytes() == []


def test_a_reader_made_from_the_document_reads_keyed_states(store: Store) -> None:
    """S1: the format of segments is documented well enough."""
    expected = grow(store, 3)
    stranger.main(store.url)
    for name, manifest in stranger.complete_snapshots(Path(store.url)).items():
        assert stranger.read_state(Path(store.url), manifest["processes"]["a"]) == expected[name]


def test_E5_chains_are_bounded_and_compacted_by_writing_everything(store: Store) -> None:
    expected = grow(store, 8, chain_max=3)
    states = [state_of(store, name) for name in expected]
    assert [len(state.deltas) for state in states] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert all(entries_of(store, name) == entries for name, entries in expected.items())


def test_E5_a_chain_ends_when_its_deltas_exceed_half_of_the_base() -> None:
    def record(base: int, *deltas: int, encoding: str = KEYED) -> ProcessRecord:
        refs = tuple(BlobRef("0" * 64, size, 0) for size in deltas)
        return ProcessRecord(0, encoding, BlobRef("0" * 64, base, 0), {}, {}, {}, deltas=refs)

    assert takes_delta(record(100), 8)
    assert takes_delta(record(100, 20, 30), 8)
    assert not takes_delta(record(100, 20, 31), 8)
    assert not takes_delta(record(100, 20, 30), 2)
    assert not takes_delta(record(100), 0)
    assert not takes_delta(record(100, encoding="msgpack"), 8)


def test_collecting_an_old_snapshot_leaves_the_chains_that_need_its_blobs(store: Store) -> None:
    """S2, E8: a manifest names every blob that it needs, whichever snapshot wrote it."""
    expected = grow(store, 6, chain_max=3)
    names = list(expected)
    for name in names[:3] + names[4:5]:
        store.append(Remove(name, "old", 0), store.state().next_position)
    kept = {blob_name(ref) for _, _, manifest in store.list() for ref in blobs_of(manifest)}
    assert collect(store).names
    left = {path.relative_to(store.url).as_posix() for path in Path(store.url).glob("blobs/*/*")}
    assert left == kept
    for name in (names[3], names[5]):
        assert entries_of(store, name) == expected[name]
    assert store.verify_bytes() == []


def test_a_lost_or_damaged_delta_is_named(store: Store) -> None:
    *_, last = grow(store, 3)
    ref = store.state().committed[last].manifest.processes["a"].deltas[0]
    path = Path(store.url) / blob_name(ref)
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    assert [problem.place for problem in store.verify_bytes()] == [blob_name(ref)]
    with pytest.raises(SnapshotCorrupt, match=blob_name(ref)):
        store.load(last)
    path.unlink()
    assert [problem.place for problem in store.verify_bytes()] == [blob_name(ref)]


def test_a_captured_keyed_state_is_encoded_the_same_in_every_run() -> None:
    one, other = accounts(), KeyedState(bytes)
    other.update(reversed(list(one.items())))
    assert encode_captured("a", Keeper(one).capture()) == encode_captured("a", Keeper(other).capture())
    encoding, data = encode_captured("a", Keeper(one).capture())
    restored = decode_state(Keeper(KeyedState(bytes)), LocalState(0, encoding, data))
    assert restored == one
    assert restored.value_type is bytes


def test_a_process_is_compared_with_a_state_in_any_encoding(store: Store) -> None:
    expected = grow(store, 3)
    first, *_, last = expected
    keeper = Keeper(KeyedState(bytes))
    keeper.state.update(expected[last])
    assert is_captured("a", keeper, state_of(store, last))
    assert not is_captured("a", keeper, state_of(store, first))
    assert not is_captured("a", keeper, LocalState(0, "bytes", keeper.state.encode()))
