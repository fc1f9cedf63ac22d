"""State kept key by key: freezing and deltas (E4, E5)."""

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from tests.keyed_state.keyed_values import (
    Account,
    loaded,
    written,
)

from strobe import KeyedState
from strobe.errors import UsageError
from strobe.keyed_state import Frozen, merged_entries
from strobe.keyed_state.entries import DELETIONS_KEPT_MIN, shard_of
from strobe.keyed_state.segments import pack_header

keys = st.one_of(st.sampled_from(["a", "b", "é", "a long key"]), st.integers(-2, 2), st.sampled_from([b"a", b""]))


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.text(max_size=3), st.binary(max_size=3)
)


values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner))


def changes_kept(state: KeyedState[Any]) -> int:
    return sum(map(len, state._entries.changed))


class Writing:
    """A frozen state while it is written to the store, and the dict that reading it back must give."""

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
    """Any order of writes, deletions, freezes, slices and closes, compared with copies of a plain dict."""

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
        """Write a delta if possible, on any earlier freeze that was written; otherwise write everything."""
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
    def equals_the_dict(self) -> None:
        assert len(self.state) == len(self.model)
        assert bool(self.state) == bool(self.model)
        assert dict(self.state) == self.model


TestKeyedStateMachine = KeyedStateMachine.TestCase


TestKeyedStateMachine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def test_E4_changing_a_value_in_place_changes_no_map_and_no_snapshot() -> None:
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


def test_E4_several_freezes_at_once_are_each_correct() -> None:
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


def test_a_dropped_closed_or_written_freeze_costs_nothing() -> None:
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


def test_a_freeze_is_written_once_and_not_after_it_was_closed() -> None:
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


def test_E5_a_delta_of_one_percent_takes_at_most_three_percent() -> None:
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


def test_E5_change_sets_are_bounded_even_if_nothing_commits() -> None:
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


def test_forgotten_changes_are_freed_by_the_next_snapshot() -> None:
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
