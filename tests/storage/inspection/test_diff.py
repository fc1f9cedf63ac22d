"""The changes between two snapshots, field by field and key by key."""

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.samples import VIEW, begin, commit, sample

from strobe.keyed_state import KeyedState
from strobe.protocol.values.fragment import KEYED, LocalState, Snapshot
from strobe.protocol.values.view import ChannelSpec, View
from strobe.storage import Store
from strobe.storage.inspection.diff import Change, compare, compare_keyed
from strobe.storage.inspection.value_diff import FieldChange, changed_fields


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def test_fields_are_compared_by_their_path() -> None:
    before = {"balance": 5, "old": 1, "deep": {"list": [1, {"x": 2}], "same": "s"}}
    after = {"balance": 7, "deep": {"list": [1, {"x": 3}, 4], "same": "s"}, "new": None}
    assert list(changed_fields(before, after)) == [
        FieldChange("balance", "changed", 5, 7),
        FieldChange("old", "removed", before=1),
        FieldChange("deep.list[1].x", "changed", 2, 3),
        FieldChange("deep.list[2]", "added", after=4),
        FieldChange("new", "added"),
    ]


def test_a_shorter_list_has_lost_its_end() -> None:
    assert list(changed_fields([1, 2, 3], [1])) == [
        FieldChange("[1]", "removed", before=2),
        FieldChange("[2]", "removed", before=3),
    ]


def test_values_of_other_types_differ_and_nan_equals_itself() -> None:
    assert [one.change for one in changed_fields(True, 1)] == ["changed"]
    assert [one.change for one in changed_fields({"a": 1}, [1])] == ["changed"]
    assert list(changed_fields(math.nan, math.nan)) == []


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(plain, plain)
def test_nothing_changed_exactly_when_the_encodings_are_equal(before: object, after: object) -> None:
    encode = msgspec.msgpack.Encoder(order="deterministic").encode
    assert (not list(changed_fields(before, after))) == (encode(before) == encode(after))


def test_processes_and_channels_are_compared(store: Store) -> None:
    first, second = commit(store, sample(1)), commit(store, sample(2, balance=70))
    found = compare(store, first, second)
    assert (found.before, found.after) == (first, second)
    a, b, c = found.processes
    assert a.fields == [FieldChange("balance", "changed", 100, 70)]
    assert (b.same_state, c.same_state) == (True, True)
    assert [one.channel for one in found.channels] == [channel.id for channel in VIEW.channels]
    assert found.channels[0].sent == Change(5, 5)
    assert found.channels[0].in_flight == Change(2, 2)


def test_opaque_states_are_the_same_or_not(store: Store) -> None:
    whole = sample(2)
    other = msgspec.structs.replace(whole.fragments["c"].state, data=b"other")
    fragments = {**whole.fragments, "c": msgspec.structs.replace(whole.fragments["c"], state=other)}
    found = compare(store, commit(store, sample(1)), commit(store, msgspec.structs.replace(whole, fragments=fragments)))
    assert (found.processes[2].same_state, found.processes[2].fields) == (False, [])


def grown(counter: int) -> Snapshot:
    """The sample after c has left, d has joined, and a->b was opened again."""
    whole = sample(counter)
    renewed = ChannelSpec("a->b", "a", "b", incarnation=2)
    view = View(2, ("a", "b", "d"), (renewed, VIEW.channels[1]))
    fragments = {
        "a": whole.fragments["a"],
        "b": msgspec.structs.replace(whole.fragments["b"], sent={"b->a": whole.fragments["b"].sent["b->a"]}),
        "d": msgspec.structs.replace(whole.fragments["c"], process="d", received={}, in_flight={}),
    }
    return msgspec.structs.replace(whole, view=view, fragments=fragments)


def test_joined_and_departed_processes_and_new_channels_are_listed(store: Store) -> None:
    first = commit(store, sample(1))
    snapshot = grown(2)
    name = begin(store, 2)
    manifest = store.write_snapshot(snapshot)
    manifest = msgspec.structs.replace(manifest, view=msgspec.structs.replace(manifest.view, number=1))
    store.commit(name, manifest, store.state().next_position, at_us=0)
    found = compare(store, first, name)
    assert (found.processes_added, found.processes_removed) == (["d"], ["c"])
    assert (found.channels_added, found.channels_removed) == (["a->b"], ["a->b", "b~>c"])
    assert [one.process for one in found.processes] == ["a", "b"]
    assert [one.channel for one in found.channels] == ["b->a"]


def keyed(entries: dict[str, int]) -> KeyedState[int]:
    state: KeyedState[int] = KeyedState(int)
    state.update(entries)
    return state


def keyed_snapshot(counter: int, base: bytes, *deltas: bytes) -> Snapshot:
    whole = sample(counter)
    state = LocalState(4 + counter, KEYED, base, deltas=deltas, sources={"orders": counter}, sinks={"out": 1})
    fragments = {**whole.fragments, "a": msgspec.structs.replace(whole.fragments["a"], state=state)}
    return msgspec.structs.replace(whole, fragments=fragments)


def test_keyed_states_are_compared_key_by_key_through_their_deltas(store: Store) -> None:
    state = keyed({f"k{number}": number for number in range(20)})
    with state.freeze() as frozen:
        number, base = frozen.number, b"".join(frozen.slices())
    state["k1"], state["new"] = 100, 5
    del state["k2"], state["k3"]
    with state.freeze() as frozen:
        delta = b"".join(frozen.slices(number))
    first = commit(store, keyed_snapshot(1, base))
    second = commit(store, keyed_snapshot(2, base, delta), parent=first)
    process = compare(store, first, second).processes[0]
    change = process.keyed
    assert change is not None
    assert (change.added, change.changed, change.deleted) == (1, 1, 2)
    assert FieldChange("['k1']", "changed", 1, 100) in change.examples
    assert FieldChange("['new']", "added", after=5) in change.examples
    assert FieldChange("['k2']", "removed", before=2) in change.examples
    assert process.sources == [FieldChange("orders", "changed", 1, 2)]
    assert process.sinks == []
    assert process.state_bytes.by == len(delta)


@given(st.dictionaries(st.text(max_size=2), st.integers(0, 3)), st.dictionaries(st.text(max_size=2), st.integers(0, 3)))
def test_the_counts_of_changed_keys_match_the_dictionaries(before: dict[str, int], after: dict[str, int]) -> None:
    change = compare_keyed((keyed(before).encode(),), (keyed(after).encode(),))
    assert change.added == len(after.keys() - before.keys())
    assert change.deleted == len(before.keys() - after.keys())
    assert change.changed == sum(before[key] != after[key] for key in before.keys() & after.keys())
