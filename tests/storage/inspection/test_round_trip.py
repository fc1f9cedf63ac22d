"""A state that is restored and captured again: equal states compare equal, however they are encoded (E13, S4)."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.keyed_state import KeyedState
from strobe.process import Process
from strobe.protocol import LocalState
from strobe.storage.content.state_codec import decode_captured, encode_captured
from strobe.storage.inspection.round_trip import round_trip


class Account(msgspec.Struct):
    balance: float = 0.0
    owners: set[str] = set()
    names: dict[str, int] = {}
    more: Any = None


class Older(msgspec.Struct):
    balance: float = 0.0
    owners: set[str] = set()


class Keeper(Process):
    """Keeps the state that it is given, after `spoil` has changed it."""

    def __init__(self, state: Any, spoil: Any = lambda state: state) -> None:
        self.state = state
        self.spoil = spoil

    def capture(self) -> Any:
        return self.state

    def restore(self, state: Any) -> None:
        self.state = self.spoil(state)


def difference_after_restore(before: Any, process: Process) -> str | None:
    """Restore the encoded `before`, and return how the state captured then differs."""
    local = LocalState(1, *encode_captured("a", before))
    return round_trip("a", process, local, decode_captured(process.capture(), local))


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=3), part, max_size=3),
    max_leaves=8,
)
ACCOUNTS = st.builds(
    Account, st.floats(), st.sets(st.text(max_size=3)), st.dictionaries(st.text(max_size=3), st.integers(0, 9)), PLAIN
)


def rewritten(state: Account) -> Account:
    """Return an equal state that is encoded differently: sets and dicts in another order."""
    names = dict(reversed(state.names.items()))
    return Account(state.balance, set(state.owners), names, state.more)


@given(ACCOUNTS)
def test_any_restored_state_compares_equal(state: Account) -> None:
    assert difference_after_restore(state, Keeper(Account())) is None
    assert difference_after_restore(state, Keeper(Account(), rewritten)) is None


@given(ACCOUNTS, ACCOUNTS)
def test_a_difference_is_found_exactly_if_the_states_differ(one: Account, other: Account) -> None:
    found = difference_after_restore(one, Keeper(Account(), lambda state: other))
    assert (found is None) is (comparable(one) == comparable(other))


def comparable(state: Account) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return sorted((key, plain(part)) for key, part in value.items())
        return [plain(part) for part in value] if isinstance(value, list) else value

    return repr((state.balance, sorted(state.owners), plain(state.names), plain(state.more)))


@given(st.dictionaries(st.text(max_size=3), ACCOUNTS, max_size=4))
def test_any_keyed_state_that_is_copied_entry_by_entry_compares_equal(entries: dict[str, Account]) -> None:
    before = KeyedState(Account)
    before.update(entries)

    def copied(state: KeyedState[Account]) -> KeyedState[Account]:
        again = KeyedState(Account)
        for key, value in reversed(list(state.items())):
            again[key] = rewritten(value)
        return again

    assert difference_after_restore(before, Keeper(KeyedState(Account), copied)) is None


def test_a_field_that_was_added_with_a_default_is_no_difference() -> None:
    assert difference_after_restore(Older(5.0, {"ada"}), Keeper(Account())) is None
    before = KeyedState(Older)
    before["ada"] = Older(5.0)
    assert difference_after_restore(before, Keeper(KeyedState(Account))) is None


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda state: Account(6.0, state.owners), "balance changed (5.0, then 6.0)"),
        (lambda state: Account(math.nan, state.owners), "balance changed (5.0, then nan)"),
        (lambda state: Account(5.0, set()), "owners[0] removed"),
        (lambda state: Account(5.0, state.owners, {}, True), "more changed (1, then True)"),
    ],
)
def test_the_first_field_that_differs_is_named(spoil: Any, expected: str) -> None:
    found = difference_after_restore(Account(5.0, {"ada"}, {}, 1), Keeper(Account(), spoil))
    assert found is not None
    assert found.startswith(f"capture() after restore() gives another state: {expected}")


def test_a_value_of_a_keyed_state_that_differs_is_named_by_its_key() -> None:
    before = KeyedState(Account)
    before["ada"] = Account(5.0)

    def spoil(state: KeyedState[Account]) -> KeyedState[Account]:
        state["ada"] = Account(6.0)
        return state

    found = difference_after_restore(before, Keeper(KeyedState(Account), spoil))
    assert found is not None
    assert "['ada'] changed" in found
