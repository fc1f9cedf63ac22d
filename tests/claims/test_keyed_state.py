"""The promises about keyed state. More thorough tests are in tests/keyed_state/test_keyed_state.py."""

import tracemalloc
from pathlib import Path

import msgspec
from tests.storage.keyed_samples import KeyedWriter, accounts

from strobe import KeyedState
from strobe.keyed_state import Frozen
from strobe.storage import Store
from strobe.storage.content.keyed_state_blobs import keyed_items


class Account(msgspec.Struct):
    balance: int


def restored(frozen: Frozen, state: KeyedState[Account]) -> dict[str, Account]:
    return dict(KeyedState.from_segments([b"".join(frozen.slices())], state.value_type))


def bytes_to_freeze(entries: int) -> int:
    """Return the peak memory of a freeze."""
    state = accounts(entries)
    tracemalloc.start()
    frozen = state.freeze()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    frozen.close()
    return peak


def test_E4_freezing_costs_the_same_for_ten_and_100_000_entries() -> None:
    assert bytes_to_freeze(100_000) <= bytes_to_freeze(10) + 256 < 4096


def test_E4_changes_after_the_cut_do_not_reach_the_snapshot() -> None:
    state = KeyedState(Account)
    account = Account(1)
    state.update({"ada": account, "bob": Account(2)})
    frozen = state.freeze()
    account.balance = 100
    state["bob"].balance = 100
    state["eve"] = Account(3)
    del state["bob"]
    assert restored(frozen, state) == {"ada": Account(1), "bob": Account(2)}


def test_E4_several_snapshots_are_frozen_at_once() -> None:
    state = KeyedState(Account)
    frozen = []
    for balance in range(3):
        state["ada"] = Account(balance)
        frozen.append(state.freeze())
    state.clear()
    assert [restored(snapshot, state)["ada"].balance for snapshot in frozen] == [0, 1, 2]


def test_E5_changed_and_deleted_keys_are_deltas_and_chains_are_compacted(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    writer = KeyedWriter(store, accounts(1000), chain_max=2)
    lengths = []
    for counter in range(1, 6):
        writer.state[f"account {counter}"] = b"changed"
        del writer.state[f"account {100 + counter}"]
        state = store.load(writer.commit(counter)).fragments["a"].state
        assert state is not None
        assert {key: msgspec.msgpack.decode(value) for key, value in keyed_items(state)} == dict(writer.state)
        assert all(100 * len(delta) < len(state.data) for delta in state.deltas)
        lengths.append(len(state.deltas))
    assert lengths == [0, 1, 2, 0, 1]
