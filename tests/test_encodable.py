"""A value that cannot be encoded is named by its path and type: in a state, a message, a keyed state (E13)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.encodable import UNENCODABLE, encode_message, refusal
from strobe.errors import UsageError
from strobe.keyed_state import KeyedState
from strobe.storage.content.state_codec import encode_captured


class Account(msgspec.Struct):
    history: Any = None


@dataclass
class Data:
    history: Any


class Thing:
    pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Account([Thing()]), "Account.history[0]: Thing (msgspec does not encode such objects"),
        (Account({"x": [1, (2, Thing())]}), "Account.history['x'][1][1]: Thing ("),
        (Account(Data(Thing())), "Account.history.history: Thing ("),
        ({"a": {Thing: 1}}, "dict['a'] key <class"),
        ({"a": [1 << 70]}, "dict['a'][0]: int (can't serialize ints"),
        (Account(lambda: 1), "Account.history: function ("),
        (Thing(), "Thing: Thing ("),
    ],
)
def test_the_part_that_cannot_be_encoded_is_named_by_path_and_type(value: Any, expected: str) -> None:
    with pytest.raises(UsageError) as refused:
        encode_captured("a", value)
    assert str(refused.value).startswith(f"what capture() of process a returned cannot be encoded: {expected}")


def test_a_message_that_cannot_be_encoded_is_named_with_its_channel() -> None:
    with pytest.raises(
        UsageError, match=r"the message that process 'a' sends on 'a->b' cannot be encoded: list\[0\]: T"
    ):
        encode_message("a", "a->b", [Thing()])


def test_an_unencodable_value_of_a_keyed_state_is_named_with_its_key() -> None:
    with pytest.raises(UsageError, match=r"key 'ada': a Account cannot be encoded: Account.history\[0\]: Thing"):
        KeyedState()["ada"] = Account([Thing()])


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(UsageError, match="cannot be encoded: list"):
        encode_captured("a", value)


WRAPS: list[Callable[[Any], Any]] = [
    lambda part: [0, part],
    lambda part: {"k": part},
    lambda part: (part,),
    Account,
    Data,
]
STEPS = ["[1]", "['k']", "[0]", ".history", ".history"]


@given(st.lists(st.integers(0, len(WRAPS) - 1), max_size=8))
def test_the_path_leads_to_the_part_at_any_depth(wraps: list[int]) -> None:
    value: Any = Thing()
    for wrap in reversed(wraps):
        value = WRAPS[wrap](value)
    path = type(value).__name__ + "".join(STEPS[wrap] for wrap in wraps)
    with pytest.raises(UNENCODABLE) as raised:
        msgspec.msgpack.encode(value)
    assert str(refusal("it", value, raised.value)).startswith(f"it cannot be encoded: {path}: Thing (")
