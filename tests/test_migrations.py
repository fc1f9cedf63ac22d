"""A state type declares migrations, and stored states of older versions go through them (R3)."""

from typing import Any

import msgspec
import pytest

from strobe.errors import UsageError, UserCodeFailed
from strobe.keyed_state import KeyedState
from strobe.migrations import migrate, version_of_type
from strobe.process import Channel, Process, System
from strobe.protocol import LocalState
from strobe.protocol.values.fragment import KEYED
from strobe.storage.content.state_codec import captured_state, decode_captured, is_captured, upgraded


def with_currency(state: dict[str, Any]) -> dict[str, Any]:
    return {"money": state["balance"], "currency": "EUR"}


def in_cents(state: dict[str, Any]) -> dict[str, Any]:
    return {"cents": state["money"] * 100, "currency": state["currency"]}


class First(msgspec.Struct):
    balance: int = 0


class Second(msgspec.Struct):
    migrations = {1: with_currency}

    money: int = 0
    currency: str = "EUR"


class Third(msgspec.Struct):
    migrations = {1: with_currency, 2: in_cents}

    cents: int = 0
    currency: str = "EUR"


def stored(captured: Any) -> LocalState:
    return captured_state("a", captured)


def test_R3_the_version_of_a_state_is_one_above_its_last_migration() -> None:
    assert [stored(state).version for state in (First(), Second(), Third(), b"", [1])] == [1, 2, 3, 1, 1]
    assert [stored(KeyedState(kind)).version for kind in (First, Third, int, Any, int | None)] == [1, 3, 1, 1, 1]


@pytest.mark.parametrize("old", [First(5), Second(5, "EUR"), Third(500, "EUR")])
def test_R3_a_state_of_each_version_is_read_by_the_newest(old: Any) -> None:
    assert decode_captured(Third(), stored(old)) == Third(500, "EUR")


def test_R3_the_values_of_a_keyed_state_are_migrated_through_its_deltas() -> None:
    state = KeyedState(First)
    state["ada"], state["eve"], state[7] = First(1), First(2), First(3)
    before = state.freeze()
    base = b"".join(before.slices())
    state["eve"] = First(20)
    del state[7]
    delta = b"".join(state.freeze().slices(before.number))
    local = LocalState(4, KEYED, base, deltas=(delta,))
    found = decode_captured(KeyedState(Third), local)
    assert dict(found) == {"ada": Third(100), "eve": Third(2000)}
    current = upgraded(KeyedState(Third), local)
    assert (current.version, current.deltas, current.position) == (3, (), 4)


def test_R3_a_state_of_the_current_version_is_not_migrated() -> None:
    for captured in (Third(7), KeyedState(Third)):
        local = stored(captured)
        assert upgraded(captured, local) is local


def test_R3_a_process_is_compared_with_a_migrated_state() -> None:
    class Branch(Process):
        def capture(self) -> Any:
            return Third(500)

    assert is_captured("a", Branch(), stored(First(5)))
    assert not is_captured("a", Branch(), stored(First(6)))


@pytest.mark.parametrize("captured", [Second(), KeyedState(Second)], ids=["struct", "keyed"])
def test_R3_a_state_of_a_newer_program_is_refused(captured: Any) -> None:
    newer = msgspec.structs.replace(stored(captured), version=3)
    if isinstance(captured, KeyedState):
        full = KeyedState(Second)
        full["ada"] = Second()
        newer = msgspec.structs.replace(stored(full), version=3)
    with pytest.raises(UsageError, match=r"is of version 3 of Second, written by a newer program: this one knows .* 2"):
        decode_captured(captured, newer)


def test_E9_a_field_that_no_migration_removes_is_still_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="First has no such field"):
        decode_captured(First(), LocalState(0, "msgpack", msgspec.msgpack.encode({"balance": 1, "old": 2})))


def failing(state: dict[str, Any]) -> dict[str, Any]:
    return {"cents": state["no such field"]}


def forgetful(state: dict[str, Any]) -> None:
    state["cents"] = 5


def careless(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "cents": 5}


def strange(state: dict[str, Any]) -> dict[str, Any]:
    return {"cents": object()}


async def awaited(state: dict[str, Any]) -> dict[str, Any]:
    return state


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (failing, r"fails: KeyError: 'no such field' \(tests/test_migrations.py:\d+, in failing\(\)\)"),
        (forgetful, r"from version 1 returned None \(tests/test_migrations.py:\d+\); return the state of the next"),
        (
            careless,
            r"\(tests/test_migrations.py:\d+\): what it returned is no Account: `Account.balance` is in the data",
        ),
        (strange, r"\(tests/test_migrations.py:\d+\): what it returned cannot be encoded: dict\['cents'\]: object"),
    ],
)
@pytest.mark.parametrize("keyed", [False, True], ids=["struct", "keyed"])
def test_R3_a_migration_that_fails_is_named_with_its_place(function: Any, message: str, keyed: bool) -> None:
    class Account(msgspec.Struct):
        migrations = {1: function}

        cents: int

    example, old = (KeyedState(Account), KeyedState(First)) if keyed else (Account(0), First(5))
    if isinstance(old, KeyedState):
        old["ada"] = First(5)
    with pytest.raises(UserCodeFailed, match=message) as failed:
        decode_captured(example, stored(old))
    assert str(failed.value).startswith("the value of key 'ada': " if keyed else "the state: ")


def nothing() -> None: ...


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({2: with_currency}, r"Account.migrations has the keys 2; number the versions from 1 without gaps"),
        ({1: with_currency, 3: in_cents}, "has the keys 1, 3"),
        ({"1": with_currency}, "has the keys '1'"),
        ({True: with_currency}, "has the keys True"),
        ([with_currency], "Account.migrations is a list; write migrations = {1: up_to_2"),
        ({1: nothing}, r"Account.migrations\[1\] takes \(\) -> None \(tests/.*Strobe calls up_to_2\(state\)"),
        ({1: "up_to_2"}, r"Account.migrations\[1\] is a str, not something that can be called"),
        ({1: awaited}, r"Account.migrations\[1\] is async"),
    ],
    ids=["not from 1", "a gap", "text as key", "a flag as key", "a list", "no parameter", "a name", "async"],
)
def test_E13_wrong_declarations_are_refused(declared: Any, message: str) -> None:
    class Account(msgspec.Struct):
        migrations = declared

    for captured in (Account(), KeyedState(Account)):
        with pytest.raises(UsageError, match=message):
            stored(captured)


def test_E13_migrations_of_a_part_of_a_state_are_refused() -> None:
    class Whole(msgspec.Struct):
        parts: dict[str, list[Second]] = {}

    class Tagged(msgspec.Struct, tag=True):
        migrations = {1: with_currency}

    for captured in (Whole(), KeyedState(Tagged | int), KeyedState(list[Second])):
        with pytest.raises(UsageError, match=r"(Second|Tagged) declares migrations, and is only a part of "):
            stored(captured)


def test_a_field_called_migrations_is_no_declaration() -> None:
    class Fleet(msgspec.Struct):
        migrations: list[str] = []

    assert version_of_type(Fleet) == 1


def test_a_subclass_has_the_migrations_of_its_base() -> None:
    class Special(Second):
        note: str = ""

    assert decode_captured(Special(), stored(First(5))) == Special(5)


def test_R3_messages_have_no_migrations() -> None:
    class Coins(msgspec.Struct):
        migrations = {1: with_currency}

    with pytest.raises(UsageError, match="the message type Coins declares migrations, and messages have none"):
        System({"a": Process()}, [Channel("a", "a")], [Coins])


def test_a_migration_sees_plain_values() -> None:
    seen: list[Any] = []

    def note(state: Any) -> Any:
        seen.append(state)
        return state

    class Entry(msgspec.Struct):
        migrations = {1: note}

        places: list[tuple[int, str]]

    data = msgspec.msgpack.encode(Entry([(1, "x")]))
    assert migrate("the state", Entry, 1, data) == data
    assert seen == [{"places": [[1, "x"]]}]
