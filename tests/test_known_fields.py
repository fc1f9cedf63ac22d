"""Unknown fields are found at any place in the data, for any type of the user (E9)."""

from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from strobe.errors import UsageError
from strobe.keyed_state import KeyedState
from strobe.known_fields import decode_known, finder_of

T = TypeVar("T")
encode = msgspec.msgpack.encode


class Inner(msgspec.Struct, frozen=True):
    amount: int = 0


class Listed(msgspec.Struct, array_like=True):
    amount: int = 0
    inner: Inner = Inner()


class Credit(msgspec.Struct, tag=True):
    amount: int = 0


class Debit(msgspec.Struct, tag=True):
    amount: int = 0
    fee: int = 0


class Short(msgspec.Struct, tag="s", array_like=True):
    amount: int = 0


class Box(msgspec.Struct, Generic[T]):
    value: T


class Camel(msgspec.Struct, rename="camel"):
    long_name: int = 0


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    inner: Inner = Inner()


class Pair(NamedTuple):
    left: int
    right: Inner


class Plain(TypedDict, total=False):
    amount: int


@dataclass
class Data:
    amount: int = 0
    inner: Inner = field(default_factory=Inner)


class Tree(msgspec.Struct):
    amount: int = 0
    children: list["Tree"] = []


class Renaming(msgspec.Struct):
    """How a field is renamed: the old name stays known and is read, but is never written again."""

    amount: int = 0
    balance: int | UnsetType = UNSET


def refusal(kind: Any, data: Any) -> str:
    with pytest.raises(msgspec.ValidationError) as refused:
        decode_known(encode(data), kind)
    return str(refused.value)


@pytest.mark.parametrize(
    ("kind", "data", "path", "owner"),
    [
        (Inner, {"balance": 5}, "Inner.balance", "Inner"),
        (Listed, [1, {}, 3], "Listed[2]", "Listed"),
        (Listed, [1, {"old": 1}], "Listed.inner.old", "Inner"),
        (Data, {"inner": {"old": 1}}, "Data.inner.old", "Inner"),
        (Data, {"old": 1}, "Data.old", "Data"),
        (Plain, {"old": 1}, "Plain.old", "Plain"),
        (Pair, [1, {"old": 1}], "Pair.right.old", "Inner"),
        (Closed, {"inner": {"old": 1}}, "Closed.inner.old", "Inner"),
        (Camel, {"long_name": 1}, "Camel.long_name", "Camel"),
        (Tree, {"children": [{}, {"children": [{"old": 1}]}]}, "Tree.children[1].children[0].old", "Tree"),
        (Box[dict[str, Inner]], {"value": {"k": {"old": 1}}}, "value['k'].old", "Inner"),
        (Box[tuple[int, Inner]], {"value": [1, {"old": 1}]}, "value[1].old", "Inner"),
        (Box[tuple[Inner, ...]], {"value": [{}, {"old": 1}]}, "value[1].old", "Inner"),
        (Box[Inner | None], {"value": {"old": 1}}, "value.old", "Inner"),
        (Box[Inner | int | list[Listed]], {"value": [[1, {}, 2]]}, "value[0][2]", "Listed"),
        (list[Credit | Debit], [{"type": "Debit", "fee": 1}, {"type": "Credit", "fee": 1}], "list[1].fee", "Credit"),
        (list[Short | None], [None, ["s", 1, 2]], "list[1][2]", "Short"),
    ],
    ids=str,
)
def test_an_unknown_field_is_named_by_path_and_type(kind: Any, data: Any, path: str, owner: str) -> None:
    decode_plainly = msgspec.msgpack.Decoder(kind).decode
    decode_plainly(encode(data))  # msgspec itself accepts the data, and drops the field
    error = refusal(kind, data)
    assert f"{path}` is in the data, and {owner} has no such field" in error


@pytest.mark.parametrize("kind", [dict, list, int, dict[str, int], list[tuple[int, str]], Any, set[str], int | None])
def test_types_without_fields_are_not_searched(kind: Any) -> None:
    assert finder_of(kind) is None


def test_a_field_that_is_kept_for_old_states_is_known_and_never_written() -> None:
    old = decode_known(encode({"balance": 5}), Renaming)
    assert old.balance == 5
    assert encode(Renaming(amount=5)) == encode({"amount": 5})


def test_an_unknown_field_of_a_value_in_a_keyed_state_is_refused() -> None:
    state = KeyedState(dict)
    state["ada"] = {"balance": 5}
    with pytest.raises(UsageError, match=r"value of key 'ada' .*`Inner.balance` is in the data, and Inner has no such"):
        KeyedState.from_segments((state.encode(),), Inner)


# Any type made of these; then a field is renamed at any place in the data.

NAMES = st.sampled_from(["amount", "balance", "owner", "entries", "total"])


@st.composite
def structs(draw: st.DrawFn, depth: int = 0) -> type[msgspec.Struct]:
    """Return a struct type in which every field has a default."""
    fields = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)):
        shape = draw(st.sampled_from(["int", "struct", "list", "dict", "optional"] if depth < 3 else ["int"]))
        inner: Any = int if shape == "int" else draw(structs(depth + 1))
        kind: Any = {"list": list[inner], "dict": dict[str, inner], "optional": inner | None}.get(shape, inner)
        fields.append((name, kind, msgspec.field(default_factory=lambda kind=kind: value_of(kind))))
    return msgspec.defstruct("Struct", fields, array_like=draw(st.booleans()))


def value_of(kind: Any) -> Any:
    """Return a value of `kind` that contains all structs that it can."""
    if kind is int:
        return 7
    members = getattr(kind, "__args__", ())
    if type(kind).__name__ == "UnionType":
        return value_of(members[0])
    if members:
        return [value_of(members[0])] if kind.__origin__ is list else {"k": value_of(members[1])}
    return kind()


def places(plain: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all containers in `plain`."""
    if not isinstance(plain, (dict, list)):
        return []
    steps = plain.items() if isinstance(plain, dict) else enumerate(plain)
    return [path, *(found for step, part in steps for found in places(part, (*path, step)))]


@given(structs(), st.data())
def test_all_data_is_read_for_every_type(kind: Any, data: st.DataObject) -> None:
    whole = kind()
    encoded = encode(whole)
    assert decode_known(encoded, kind) == whole
    plain = msgspec.msgpack.decode(encoded)
    place = plain
    for step in data.draw(st.sampled_from(places(plain))):
        place = place[step]
    if isinstance(place, list):
        place.append("more")
    else:
        place["renamed"] = place.pop(data.draw(st.sampled_from(sorted(place))))
    try:
        decoded = decode_known(encode(plain), kind)
    except msgspec.ValidationError:
        return
    assert has(msgspec.msgpack.decode(encode(decoded)), plain)


def has(whole: Any, part: Any) -> bool:
    """Return whether all of `part` is in `whole`, at the same places."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(key in whole and has(whole[key], value) for key, value in part.items())
    if isinstance(whole, list) and isinstance(part, list):
        return len(whole) >= len(part) and all(map(has, whole, part))
    return bool(whole == part)
