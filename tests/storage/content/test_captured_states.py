"""E4, E13: a captured state shares nothing with the process, and each process restores its own objects."""

from typing import Any

import msgspec
import pytest

from strobe.keyed_state import KeyedState
from strobe.storage.content.state_codec import captured_state, decode_captured


class Account(msgspec.Struct):
    history: list[int] = []
    raw: bytearray = bytearray()


def keyed() -> KeyedState[Any]:
    state: KeyedState[Any] = KeyedState(Account)
    state["ada"] = Account([1])
    return state


def changed(state: Any) -> None:
    """Change the state in place, as a process does that has returned it from `capture`."""
    if isinstance(state, KeyedState):
        account = state["ada"]
        account.history.append(2)
        state["ada"] = account
        state["eve"] = account
    elif isinstance(state, Account):
        state.history.append(2)
        state.raw += b"x"
    elif isinstance(state, dict):
        state["x"].append(2)
    else:
        memoryview(state)[0] = 7


@pytest.mark.parametrize(
    "state",
    [Account([1], bytearray(b"ab")), keyed(), {"x": [1]}, bytearray(b"ab"), memoryview(bytearray(b"ab"))],
    ids=lambda state: type(state).__name__,
)
def test_E4_what_a_process_changes_after_its_capture_is_not_in_the_state(state: Any) -> None:
    local = captured_state("a", state)
    before = bytes(local.data)
    restored = decode_captured(state, local)
    changed(state)
    assert local.data == before
    assert captured_state("a", restored).data == before


@pytest.mark.parametrize("state", [Account([1]), keyed(), {"x": [1]}], ids=lambda state: type(state).__name__)
def test_E13_each_restore_gets_objects_of_its_own(state: Any) -> None:
    local = captured_state("a", state)
    first, second = decode_captured(state, local), decode_captured(state, local)
    changed(first)
    assert captured_state("a", second).data == local.data
    assert captured_state("a", first).data != local.data
