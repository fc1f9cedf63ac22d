"""State kept key by key: slices, encoding and segments (E4, E9)."""

import datetime
import gc
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.keyed_state.keyed_values import (
    Account,
    loaded,
    written,
)

from strobe import KeyedState
from strobe.errors import UsageError
from strobe.keyed_state import entries, merged_entries
from strobe.keyed_state.entries import shard_of
from strobe.keyed_state.frozen import SLICE_BYTES
from strobe.keyed_state.segments import pack_header, pack_part


class Fixed(msgspec.Struct, frozen=True):
    amount: int


def part(content: Any) -> bytes:
    return b"".join(pack_part(content))


def test_slices_are_small_if_nothing_has_changed() -> None:
    state: KeyedState[bytes] = KeyedState(bytes)
    state.update({str(number): bytes(1000) for number in range(10_000)})
    first = state.freeze()
    sizes = [len(piece) for piece in first.slices()]
    assert max(sizes) < 1.5 * SLICE_BYTES
    assert len(list(state.freeze().slices(first.number))) > 4


def test_E4_slices_read_few_keys_even_if_most_are_stale() -> None:
    state: KeyedState[int] = KeyedState(int)
    state.freeze().close()
    state.update(dict.fromkeys(map(str, range(40_000)), 1))
    first = state.freeze()
    written(first)
    state.forget_changes(first.number)
    state["one more"] = 1
    assert len(list(state.freeze().slices(first.number))) > 12


@pytest.mark.parametrize("value_bytes", [10, 1000, 100_000])
def test_E4_slices_are_small_even_if_shards_are_large(monkeypatch: pytest.MonkeyPatch, value_bytes: int) -> None:
    monkeypatch.setattr(entries, "_MASK", 0)  # everything is in one shard
    state = KeyedState(bytes)
    count = 8_000_000 // (value_bytes + 10)
    for number in range(count):
        state[number] = bytes(value_bytes)
    before = dict(state)
    slices = []
    for piece in state.freeze().slices():
        slices.append(piece)
        state[len(slices)] = b"later"
    assert max(map(len, slices)) <= 1.5 * SLICE_BYTES
    assert loaded(b"".join(slices), value_type=bytes) == before


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95, 1.0, 1.3, 1.9, 2.4])
def test_E4_slices_are_equal_for_any_content_of_a_shard(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    monkeypatch.setattr(entries, "_MASK", 15)
    state: KeyedState[bytes] = KeyedState(bytes)
    for number in range(int(16 * share * SLICE_BYTES / 1000)):
        state[f"{number:05}"] = bytes(990)
    sizes = [len(piece) for piece in state.freeze().slices()]
    assert max(sizes) <= 1.3 * SLICE_BYTES
    assert len(sizes) <= 2.5 * sum(sizes) / SLICE_BYTES + 2  # and not many tiny ones


def test_E4_slices_are_small_also_behind_a_shard_with_deletions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "_MASK", 1)
    state: KeyedState[bytes] = KeyedState(bytes)
    first, second = ([key for key in range(400) if shard_of(key) == shard] for shard in (0, 1))
    state.update((key, b"") for key in first)
    before = state.freeze()
    before.close()
    for key in first[:40]:
        del state[key]
    state.update((key, bytes(20_000)) for key in second)
    assert max(len(piece) for piece in state.freeze().slices(before.number)) <= 1.5 * SLICE_BYTES


def test_iteration_is_in_the_order_of_the_keys() -> None:
    state = KeyedState(int)
    state.update({"b": 1, "é": 2, "a": 3})
    assert list(state.items()) == [("a", 3), ("b", 1), ("é", 2)]
    state.update({3: 1, b"x": 2, 1: 4})
    assert list(state) == [b"x", 1, 3, "a", "b", "é"]


def test_equal_states_with_any_history_encode_alike() -> None:
    one, other = KeyedState(), KeyedState()
    one.update({f"key {number}": [number] for number in range(5000)})
    other.update({f"key {number}": [number] for number in reversed(range(5001))})
    del other["key 5000"]
    assert one.encode() == other.encode()
    assert loaded(other.encode()) == dict(one)
    assert one == other
    assert repr(one) == "<KeyedState of 5000 entries>"


@pytest.mark.parametrize(
    ("value_type", "value"),
    [
        (int, 5),
        (float, 1),
        (float, math.inf),
        (str, "tëxt"),
        (bytes, b"\x00"),
        (bool, True),
        (int | None, None),
        (int | Account, Account(3, ["x"])),
        (Account, Account(3, ["x"])),
        (Fixed, Fixed(4)),
        (dict[str, list[int]], {"x": [1]}),
        (tuple[int, str], (1, "x")),
        (datetime.date, datetime.date(2026, 1, 2)),
        (Any, {"x": [1, None, b"y", {"z": 1.5}]}),
        (Any, [1, 2]),
        (Any, msgspec.msgpack.Ext(5, b"x")),
    ],
)
def test_a_value_reads_the_same_before_and_after_a_restore(value_type: Any, value: Any) -> None:
    state: KeyedState[Any] = KeyedState(value_type)
    state["key"] = value
    assert state["key"] == value
    frozen = state.freeze()
    for segment in (state.encode(), written(frozen)):
        restored = KeyedState.from_segments([memoryview(segment)], value_type)["key"]
        assert restored == value
        assert type(restored) is type(state["key"])


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        (1.5, 1, "are str, int or bytes"),
        (True, 1, "are str, int or bytes"),
        (("a",), 1, "are str, int or bytes"),
        (2**64, 1, "does not fit into 64 bits"),
        ("\ud800", 1, "UTF-8"),
        ("k", 2**64, "'k': .* does not fit into 64 bits"),
        ("k", "\ud800", "'k' is text that UTF-8"),
        ("k", object(), "'k': a object cannot be encoded: object: object"),
        ("k", [2**64], r"'k': a list cannot be encoded: list\[0\]: int \(can't serialize ints"),
        ("k", msgspec.Raw(b"\xc1"), "'k': a Raw cannot be kept"),
    ],
)
def test_a_value_that_no_snapshot_can_hold_is_refused_when_set(key: Any, value: Any, problem: str) -> None:
    state = KeyedState()
    with pytest.raises(UsageError, match=problem):
        state[key] = value
    assert not state


def test_a_value_of_another_type_is_refused_when_it_is_set() -> None:
    with pytest.raises(UsageError, match="'k': a str cannot be kept as int"):
        KeyedState(int)["k"] = "text"  # type: ignore[assignment]
    with pytest.raises(UsageError, match="cannot have values of the type"):
        KeyedState(int | str | bytes)
    with pytest.raises(UsageError, match="written by another version"):
        KeyedState.from_segments([pack_header("base") + part({"k": "text"})], int)


def test_missing_keys_behave_as_in_a_dict() -> None:
    state = KeyedState(int)
    with pytest.raises(KeyError):
        state["a"]
    with pytest.raises(KeyError):
        del state["a"]
    assert state.get("a") is None
    assert state.pop("a", 1) == 1
    assert state.setdefault("a", 2) == 2
    assert "a" in state


def test_the_garbage_collector_follows_no_entry() -> None:
    """A full collection over millions of entries would stall the process."""
    for value_type, value in ((bytes, b"x"), (Account, Account(1)), (Fixed, Fixed(1)), (Any, [1])):
        state: KeyedState[Any] = KeyedState(value_type)
        state.update({str(number): value for number in range(5000)})
        first = state.freeze()
        second = state.freeze()
        state.update({str(number): value for number in range(5000)})
        assert not any(map(gc.is_tracked, (*state._entries.shards, *state._entries.changed)))
        aside = (*second._view._values.values(), *second._view._numbers.values())
        assert aside
        assert not any(map(gc.is_tracked, aside))
        first.close()


def test_key_hashes_that_end_alike_do_not_share_a_shard() -> None:
    assert len({shard_of(number << 40) for number in range(100)}) > 50


@given(st.binary(max_size=60))
def test_bytes_that_are_no_segment_are_refused(garbage: bytes) -> None:
    for segment in (garbage, pack_header("base") + garbage):
        if garbage:
            with pytest.raises((ValueError, UsageError)):
                loaded(segment)


def test_damaged_segments_are_errors_with_a_reason() -> None:
    base = pack_header("base") + part({"a": 1})
    for segment, problem in (
        (b"", "does not begin"),
        (base[:3], "in the middle of a length"),
        (base[:-1], "a length is missing"),
        (pack_header("delta"), "was expected"),
        (base + part({1.5: 1}), "a key is of the type float"),
        (base + part([None]), "a key is of the type NoneType"),
        (base + part([{}]), "a key is of the type dict"),
        (base + b"\xce\0\0\0\1\xc0", "cannot be read"),
    ):
        with pytest.raises(ValueError, match=problem):
            loaded(segment)
        with pytest.raises(ValueError, match=problem):
            list(merged_entries([segment]))
    assert loaded(base, pack_header("delta") + part(["a", "never there"])) == {}


def test_E9_values_of_another_version_are_refused_on_reading() -> None:
    state: KeyedState[Fixed] = KeyedState(Fixed)
    state["ada"] = Fixed(5)
    with pytest.raises(UsageError, match=r"the value of key 'ada' is no .*Account.*balance.*another version"):
        KeyedState.from_segments([state.encode()], Account)
