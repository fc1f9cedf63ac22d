"""What a process may send: a message of a declared type, or a plain value that decodes as one."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, NewType, TypedDict

import msgspec
import pytest

from strobe.errors import UsageError
from strobe.message_types import MessageTypes


class Deposit(msgspec.Struct):
    amount: int


class Audited(Deposit):
    auditor: str = ""


class Place(NamedTuple):
    row: int
    column: int


class Options(TypedDict):
    fast: bool


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Plain:
    amount: int


Amount = NewType("Amount", int)

ACCEPTED: list[tuple[list[Any], list[Any]]] = [
    ([Deposit], [Deposit(1), {"amount": 1}]),
    ([int | str], [1, "a", Level.LOW]),
    ([float], [1.5, 1]),
    ([list[int], None], [[1, 2], None, (1, 2)]),
    ([Annotated[int, msgspec.Meta(ge=0)]], [3]),
    ([Amount], [Amount(3)]),
    ([Options], [{"fast": True}]),
    ([Place], [Place(1, 2), [1, 2]]),
    ([Mapping[str, int]], [{"a": 1}]),
    ([Any], [Deposit(1), "a"]),
    ([], [Deposit(1), "a", 1]),
]
REFUSED: list[tuple[list[Any], Any]] = [
    ([Deposit], Audited(1, "x")),
    ([Deposit], Plain(1)),
    ([Deposit], {"amounts": 1}),
    ([Deposit], 7),
    ([int], "a"),
    ([int], True),
    ([int], None),
    ([Options], {"fast": 3.5}),
]


@pytest.mark.parametrize(("declared", "messages"), ACCEPTED, ids=lambda value: str(value)[:30])
def test_messages_of_declared_types_may_be_sent(declared: list[Any], messages: list[Any]) -> None:
    types = MessageTypes(tuple(declared))
    for message in messages:
        types.require("a", "a->b", message)
        types.decoder.decode(msgspec.msgpack.encode([message]))


@pytest.mark.parametrize(("declared", "message"), REFUSED, ids=str)
def test_a_message_of_another_type_is_refused_at_its_sender(declared: list[Any], message: Any) -> None:
    with pytest.raises(
        UsageError, match=f"process 'a' sends a message of type {type(message).__name__} on 'a->b', which is not one of"
    ):
        MessageTypes(tuple(declared)).require("a", "a->b", message)


def test_a_type_that_was_loaded_twice_is_one_type() -> None:
    """A program with its own loop has it in `__main__` too."""
    names: list[dict[str, Any]] = [{}, {}, {}]
    for one, field in zip(names, ("amount", "amount", "sum"), strict=True):
        exec(f"import msgspec\nclass Money(msgspec.Struct, tag=True):\n    {field}: int", one)
    declared, again, other = (one["Money"] for one in names)
    types = MessageTypes((declared,))
    assert not types.has(other)
    assert types.has(again)
    types.require("a", "a->b", again(1))
    with pytest.raises(UsageError, match="sends a message of type Money on 'a->b', which is not one of"):
        types.require("a", "a->b", other(1))


def test_the_error_names_the_declared_types_and_the_remedy() -> None:
    with pytest.raises(UsageError, match=r"message types: Deposit, str; add it to System\(messages=\[\.\.\.\]\)"):
        MessageTypes((Deposit, str)).require("a", "a->b", Audited(1))


def test_only_classes_whose_every_message_is_accepted_are_known() -> None:
    types = MessageTypes((Deposit, int))
    assert [kind for kind in (Deposit, int, dict, Audited, bool) if types.has(kind)] == [Deposit, int]
    assert MessageTypes(()).has(Plain)
