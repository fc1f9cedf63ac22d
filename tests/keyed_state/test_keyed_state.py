"""KeyedState against plain dicts: what is frozen stays as it was, and what is written comes back (E4, E5)."""

import datetime
import gc
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from strobe import KeyedState
from strobe.errors import UsageError
from strobe.keyed_state import Frozen, entries, merged_entries
from strobe.keyed_state.entries import DELETIONS_KEPT_MIN, shard_of
from strobe.keyed_state.frozen import SLICE_BYTES
from strobe.keyed_state.segments import pack_header, pack_part

keys = st.one_of(st.sampled_from(["a", "b", "é", "a long key"]), st.integers(-2, 2), st.sampled_from([b"a", b""]))
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.text(max_size=3), st.binary(max_size=3)
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner))


class Account(msgspec.Struct):
    """A value that can be changed in place."""

    balance: int
    notes: list[str] = []


class Fixed(msgspec.Struct, frozen=True):
    amount: int


def written(frozen: Frozen, since: int | None = None) -> bytes:
    return b"".join(frozen.slices(since))


def loaded(*segments: bytes, value_type: Any = Any) -> dict[Any, Any]:
    return dict(KeyedState.from_segments(segments, value_type))


def part(content: Any) -> bytes:
    return b"".join(pack_part(content))


def changes_kept(state: KeyedState[Any]) -> int:
    return sum(map(len, state._entries.changed))


class Writing:
    """A frozen state on its way to the store, with the dict that it must come out as."""

    def __init__(self, frozen: Frozen, expected: dict[Any, Any]) -> None:
        self.frozen = frozen
        self.number = frozen.number
        self.expected = expected
        self.parent: Writing | None = None
        self.pieces: list[bytes] = []
        self.rest: Any = None

    def chain(self) -> list[bytes]:
        return [*(self.parent.chain() if self.parent else []), b"".join(self.pieces)]


class KeyedStateMachine(RuleBasedStateMachine):
    """Any order of writes, deletions, freezes, slices and closes, beside plain dicts that are copied."""

    frozen = Bundle("frozen")
    underway = Bundle("underway")
    finished = Bundle("finished")

    @initialize()
    def begin(self) -> None:
        self.state: KeyedState[Any] = KeyedState()
        self.model: dict[Any, Any] = {}

    @rule(key=keys, value=values)
    def write(self, key: Any, value: Any) -> None:
        self.state[key] = value
        self.model[key] = value

    @rule(key=keys)
    def delete(self, key: Any) -> None:
        assert (key in self.state) == (key in self.model)
        if key in self.model:
            del self.state[key], self.model[key]

    @rule()
    def clear(self) -> None:
        self.state.clear()
        self.model.clear()

    @rule(target=frozen)
    def freeze(self) -> Writing:
        return Writing(self.state.freeze(), dict(self.model))

    @rule(target=underway, writing=consumes(frozen))
    def write_all(self, writing: Writing) -> Writing:
        writing.rest = writing.frozen.slices()
        return writing

    @rule(target=underway, writing=consumes(frozen), parent=finished)
    def write_changes(self, writing: Writing, parent: Writing) -> Writing:
        """A delta where it can be, on any earlier one that was written; else everything."""
        if writing.frozen.can_delta(parent.number):
            writing.parent = parent
        writing.rest = writing.frozen.slices(parent.number if writing.parent else None)
        return writing

    @rule(writing=underway)
    def slice(self, writing: Writing) -> None:
        writing.pieces += [piece for piece in [next(writing.rest, None)] if piece is not None]

    @rule(target=finished, writing=consumes(underway))
    def finish(self, writing: Writing) -> Writing:
        writing.pieces += writing.rest
        assert loaded(*writing.chain()) == writing.expected
        return writing

    @rule(writing=consumes(frozen))
    def close(self, writing: Writing) -> None:
        writing.frozen.close()

    @rule(writing=consumes(underway))
    def drop(self, writing: Writing) -> None:
        writing.rest = writing.frozen = None  # type: ignore[assignment]

    @rule(writing=finished)
    def forget(self, writing: Writing) -> None:
        self.state.forget_changes(writing.number)

    @invariant()
    def is_as_the_dict(self) -> None:
        assert len(self.state) == len(self.model)
        assert bool(self.state) == bool(self.model)
        assert dict(self.state) == self.model


TestKeyedStateMachine = KeyedStateMachine.TestCase
TestKeyedStateMachine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def test_E4_a_value_changed_in_place_shows_up_neither_in_the_map_nor_in_a_snapshot() -> None:
    for state in (KeyedState(Account), KeyedState()):
        account = Account(5)
        state["ada"] = account
        frozen = state.freeze()
        account.balance = 6
        account.notes.append("written to after it was set")
        read: Any = state["ada"]
        assert read == (account.__class__(5) if state.value_type is Account else {"balance": 5, "notes": []})
        if isinstance(read, Account):
            read.notes.append("written to after it was read")
        assert msgspec.convert(state["ada"], Account) == Account(5)
        assert loaded(written(frozen), value_type=Account) == {"ada": Account(5)}


def test_E4_a_write_right_after_the_freeze_never_shows_up_in_it() -> None:
    state = KeyedState(int)
    state.update({f"key {number}": number for number in range(10_000)})
    expected = dict(state)
    frozen = state.freeze()
    slices = frozen.slices()
    pieces = [next(slices)]
    for number in range(10_000):
        state[f"key {number}"] = -1
    state["new"] = 1
    del state["key 7"]
    pieces += slices
    assert len(pieces) > 1
    assert loaded(b"".join(pieces), value_type=int) == expected


def test_E4_several_are_frozen_at_once_and_each_is_right() -> None:
    state: KeyedState[int] = KeyedState(int)
    frozen, expected = [], []
    for turn in range(5):
        state.update({f"key {number}": turn for number in range(turn, 20)})
        if turn:
            del state[f"key {turn - 1}"]
        frozen.append(state.freeze())
        expected.append(dict(state))
    state.clear()
    frozen.pop(2).close()
    del expected[2]
    assert [loaded(written(one), value_type=int) for one in reversed(frozen)] == expected[::-1]


def test_one_that_is_dropped_or_closed_or_written_costs_nothing_any_more() -> None:
    state: KeyedState[int] = KeyedState(int)
    dropped, closed, done = state.freeze(), state.freeze(), state.freeze()
    state["a"] = 1
    assert len(state._entries.views) == 3
    del dropped
    closed.close()
    with state.freeze():
        pass
    written(done)
    assert state._entries.views == []


def test_one_is_written_once_and_not_after_it_was_closed() -> None:
    state: KeyedState[int] = KeyedState(int)
    frozen = state.freeze()
    slices = frozen.slices()
    with pytest.raises(UsageError, match="was written or closed already"):
        frozen.slices()
    frozen.close()
    with pytest.raises(UsageError, match="closed while it was written"):
        next(slices)


def test_E5_deltas_on_deltas_restore_exactly() -> None:
    state: KeyedState[bytes] = KeyedState(bytes)
    state.update({f"key {number}": bytes(20) for number in range(3000)})
    frozen = state.freeze()
    segments = [written(frozen)]
    for turn in range(1, 6):
        state.update({f"key {number}": bytes([turn]) * 20 for number in range(0, 3000, 100 * turn)})
        state.update({f"new {turn}": b"new"})
        state.pop(f"key {turn}")
        before, frozen = frozen.number, state.freeze()
        segments.append(written(frozen, before))
        state.forget_changes(frozen.number)
    assert loaded(*segments, value_type=bytes) == dict(state)
    assert {key: msgspec.msgpack.decode(value) for key, value in merged_entries(segments)} == dict(state)
    assert max(map(len, segments[1:])) < len(segments[0]) / 20


def test_E5_after_one_percent_has_changed_the_second_snapshot_has_at_most_three_percent_of_the_bytes() -> None:
    state: KeyedState[bytes] = KeyedState(bytes)
    state.update({f"account-{number:08d}": bytes(200) for number in range(50_000)})
    first = state.freeze()
    base = written(first)
    state.update({f"account-{number:08d}": bytes([1]) * 200 for number in range(7, 50_000, 100)})
    delta = written(state.freeze(), first.number)
    assert len(delta) <= 0.03 * len(base)
    assert loaded(base, delta, value_type=bytes) == dict(state)


def test_a_delta_may_be_written_on_any_freeze_that_is_remembered() -> None:
    state: KeyedState[int] = KeyedState(int)
    numbers, bases = [], []
    for turn in range(4):
        state[f"key {turn}"] = turn
        frozen = state.freeze()
        numbers.append(frozen.number)
        bases.append(written(frozen))
    state.forget_changes(numbers[1])
    last = state.freeze()
    assert [last.can_delta(number) for number in numbers] == [False, True, True, True]
    assert loaded(bases[1], written(last, numbers[1]), value_type=int) == dict(state)
    with pytest.raises(UsageError, match="are not known; write everything"):
        state.freeze().slices(numbers[0])


def test_changes_after_a_freeze_are_not_in_its_delta() -> None:
    state: KeyedState[int] = KeyedState(int)
    state.update({"a": 1, "b": 1, "c": 1})
    first = state.freeze()
    state["a"] = 2
    second = state.freeze()
    state.update({"a": 3, "b": 3})
    assert loaded(pack_header("base"), written(second, first.number), value_type=int) == {"a": 2}


def test_numbers_of_another_state_are_not_taken_for_its_own() -> None:
    one, other = KeyedState(int), KeyedState(int)
    numbers = [one.freeze().number for _ in range(5)]
    other.freeze()
    assert not any(other.freeze().can_delta(number) for number in numbers)
    other.forget_changes(max(numbers) + 10**15)
    before = other.freeze().number
    assert other.freeze().can_delta(before)


def test_E5_change_sets_are_bounded_also_where_nothing_ever_commits() -> None:
    state: KeyedState[int] = KeyedState(int)
    first = state.freeze().number
    same_shard = [number for number in range(2_000_000) if shard_of(number) == 0]
    for number in same_shard:
        state[number] = 1
        del state[number]
        state["stays"] = number
        state.freeze().close()
    assert len(same_shard) > 2 * DELETIONS_KEPT_MIN
    assert changes_kept(state) <= DELETIONS_KEPT_MIN + 3
    last = state.freeze()
    assert not last.can_delta(first)
    assert loaded(written(last), value_type=int) == {"stays": same_shard[-1]}
    assert state.freeze().can_delta(last.number)


def test_forgotten_changes_are_let_go_by_the_next_snapshot() -> None:
    state: KeyedState[int] = KeyedState(int)
    state.freeze()
    state.update(dict.fromkeys(map(str, range(1000)), 1))
    frozen = state.freeze()
    assert changes_kept(state) == 1000
    state.forget_changes(frozen.number)
    state["one more"] = 1
    written(frozen)
    assert changes_kept(state) == 1


def test_before_the_first_freeze_no_changes_are_kept() -> None:
    state: KeyedState[int] = KeyedState(int)
    state.update({"a": 1, "b": 2})
    del state["a"]
    assert changes_kept(state) == 0


def test_slices_are_small_also_where_nothing_has_changed() -> None:
    state: KeyedState[bytes] = KeyedState(bytes)
    state.update({str(number): bytes(1000) for number in range(10_000)})
    first = state.freeze()
    sizes = [len(piece) for piece in first.slices()]
    assert max(sizes) < 1.5 * SLICE_BYTES
    assert len(list(state.freeze().slices(first.number))) > 4


def test_E4_slices_look_at_few_keys_also_where_most_of_them_are_stale() -> None:
    state: KeyedState[int] = KeyedState(int)
    state.freeze().close()
    state.update(dict.fromkeys(map(str, range(40_000)), 1))
    first = state.freeze()
    written(first)
    state.forget_changes(first.number)
    state["one more"] = 1
    assert len(list(state.freeze().slices(first.number))) > 12


@pytest.mark.parametrize("value_bytes", [10, 1000, 100_000])
def test_E4_slices_are_small_also_where_shards_are_large(monkeypatch: pytest.MonkeyPatch, value_bytes: int) -> None:
    monkeypatch.setattr(entries, "_MASK", 0)  # everything is in one
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
def test_E4_slices_are_alike_whatever_a_shard_holds(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
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


def test_equal_states_encode_alike_whatever_happened_to_them() -> None:
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
def test_what_no_snapshot_could_hold_is_refused_when_it_is_set(key: Any, value: Any, problem: str) -> None:
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


def test_missing_keys_are_missing() -> None:
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
def test_what_is_no_segment_is_refused(garbage: bytes) -> None:
    for segment in (garbage, pack_header("base") + garbage):
        if garbage:
            with pytest.raises((ValueError, UsageError)):
                loaded(segment)


def test_damaged_segments_say_what_is_wrong() -> None:
    base = pack_header("base") + part({"a": 1})
    for segment, problem in (
        (b"", "does not begin"),
        (base[:3], "within a length"),
        (base[:-1], "no length of what follows"),
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


def test_E9_values_of_another_version_are_refused_when_they_are_read_back_and_not_when_they_are_used() -> None:
    state: KeyedState[Fixed] = KeyedState(Fixed)
    state["ada"] = Fixed(5)
    with pytest.raises(UsageError, match=r"the value of key 'ada' is no .*Account.*balance.*another version"):
        KeyedState.from_segments([state.encode()], Account)
