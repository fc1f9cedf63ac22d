"""Declared invariants: functions of a snapshot and conditions, what they find, and how mistakes are named (G1, E12)."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strobe import Channel, GlobalState, KeyedState, Process, System
from strobe.errors import UsageError
from strobe.expressions import ExpressionError

HERE = Path(__file__).relative_to(Path.cwd())


class Limit(msgspec.Struct):
    amount: int = 5


class Account(msgspec.Struct):
    balance: int
    limit: Limit | None = None


class Branch(Process):
    def capture(self) -> Account:
        return Account(7)


def system(*invariants: Any) -> System:
    return System({"a": Branch(), "b": Branch()}, [Channel("a", "b")], invariants=invariants)


def state(balance: int = 7, in_flight: int = 2, **changes: Any) -> GlobalState:
    """Return a state of the system above: `balance` at a, 3 at b, messages in flight from a to b."""
    fields: dict[str, Any] = {
        "states": {"a": Account(balance), "b": Account(3, Limit())},
        "in_flight": {"a->b": ["coin"] * in_flight},
        "events": {"a": 4, "b": 1},
        "sent": {"a->b": in_flight + 1},
        "received": {"a->b": 1},
    }
    return GlobalState(**{**fields, **changes})


def violation(invariant: Any, snapshot: GlobalState) -> str | None:
    (declared,) = system(invariant).invariants
    return declared.violation(snapshot)


def no_overdraft(snapshot: GlobalState) -> bool:
    return all(account.balance >= 0 for account in snapshot.states.values())


def explained(snapshot: GlobalState) -> bool | str:
    debtors = [name for name, account in snapshot.states.items() if account.balance < 0]
    return f"in debt: {', '.join(debtors)}" if debtors else True


def asserted_with_text(snapshot: GlobalState) -> bool:
    assert len(snapshot.messages) < 3, f"{len(snapshot.messages)} in flight"
    return True


def line_of(function: Any, offset: int) -> str:
    return f"{HERE}:{function.__code__.co_firstlineno + offset}, in {function.__name__}()"


def test_a_function_that_returns_true_holds_and_false_shows_the_states() -> None:
    assert violation(no_overdraft, state()) is None
    assert violation(no_overdraft, state(-1)) == (
        "a = Account(balance=-1, limit=None), b = Account(balance=3, limit=Limit(amount=5)); 2 in flight"
    )


def test_a_text_or_a_failed_assert_explains_the_violation() -> None:
    assert violation(explained, state()) is None
    assert violation(explained, state(-1)) == "in debt: a"
    text = violation(asserted_with_text, state(in_flight=3))
    assert text is not None
    assert text.startswith("3 in flight")
    assert text.endswith(f"({line_of(asserted_with_text, 1)})")


def test_a_failed_assert_without_a_text_shows_its_line(tmp_path: Path) -> None:
    """In a file of its own: pytest gives the asserts of a test a text."""
    file = tmp_path / "mine.py"
    file.write_text("def sound(snapshot):\n    assert snapshot.states['a'].balance >= 0\n    return True\n")
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), file, "exec"), names)
    assert violation(names["sound"], state()) is None
    found = violation(names["sound"], state(-1))
    assert found == f"assert snapshot.states['a'].balance >= 0 ({file}:2, in sound())"


def test_what_a_function_raises_is_its_mistake_and_not_a_violation() -> None:
    def broken(snapshot: GlobalState) -> bool:
        return bool(snapshot.states["c"])

    with pytest.raises(KeyError):
        violation(broken, state())


@pytest.mark.parametrize(
    ("returned", "shown"), [(None, "None"), (1, "a int"), ("", "an empty text"), ([], "a list")], ids=repr
)
def test_anything_but_true_false_or_a_text_is_refused(returned: Any, shown: str) -> None:
    def odd(snapshot: GlobalState) -> Any:
        return returned

    with pytest.raises(UsageError, match=re.escape(f"the invariant odd ({HERE}:")) as refused:
        violation(odd, state())
    assert str(refused.value).endswith(f"returned {shown}; return True if it holds, else False or a text that explains")


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("a.balance + b.balance == 10", True),
        ("b.limit.amount == 5 and a.limit == null", True),
        ('in_flight("a->b") == 2 and in_flight() == 2', True),
        ('sent("a->b") == 3 and received("a->b") == 1 and events(a) == 4 and events() == 5', True),
        ("a.balance < 0", False),
        ("a.balance", False),  # only true is true
    ],
)
def test_a_condition_sees_fields_and_counts(condition: str, holds: bool) -> None:
    assert (violation(condition, state()) is None) is holds


def test_a_violated_condition_shows_the_values_in_it() -> None:
    found = violation('a.balance >= 0 and in_flight("a->b") < 2 and a.limit == null', state(-3))
    assert found == 'a.balance = -3, in_flight("a->b") = 2, a.limit = null'


def test_a_condition_reads_structs_dataclasses_dicts_and_keyed_states() -> None:
    @dataclasses.dataclass
    class Box:
        inner: dict[str, int]

    accounts: KeyedState[Account] = KeyedState(Account)
    accounts["ada"] = Account(4)
    snapshot = state(states={"a": Box({"x": 1}), "b": accounts})
    assert violation("a.inner.x == 1 and b.ada.balance == 4 and b.bob.balance == null", snapshot) is None


@pytest.mark.parametrize(
    ("condition", "column", "problem"),
    [
        ("a.balance >= 0 and c.balance >= 0", 20, "the system has no process 'c'; there are: a, b"),
        ('in_flight("a->c") == 0', 1, "the system has no channel 'a->c'; did you mean in_flight(\"a->b\")?"),
        ("events(c) > 0", 1, "the system has no process 'c'"),
        ("a.balance >=", 13, "a value is missing here"),
        ("a.balance + 1", 11, "this is a value, not a condition"),
    ],
)
def test_a_wrong_condition_is_refused_with_its_place(condition: str, column: int, problem: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(f"in `invariants`: {problem}")) as refused:
        system(condition)
    assert refused.value.column == column


@pytest.mark.parametrize(
    ("condition", "column", "problem"),
    [
        ("a.balnce >= 0", 1, "the state of a (Account) has no field 'balnce'; did you mean 'balance'?"),
        ("1 == 1 and b.limit.amont < 3", 12, "b.limit (Limit) has no field 'amont'; did you mean 'amount'?"),
        ("a.balance.x == 1", 1, "a.balance is a value of type int, which has no field 'x'"),
    ],
)
def test_a_field_that_a_state_cannot_have_is_refused(condition: str, column: int, problem: str) -> None:
    (declared,) = system(condition).invariants
    with pytest.raises(ExpressionError, match=re.escape(problem)) as refused:
        declared.check(state().states)
    assert refused.value.column == column


def test_a_field_that_may_appear_later_is_not_refused() -> None:
    (declared,) = system("a.limit.amount < 3 and b.later.x == 1").invariants
    declared.check({"a": Account(1), "b": {}})


def test_a_departed_process_or_channel_is_named() -> None:
    (declared,) = system("a.balance >= 0 and b.balance >= 0").invariants
    assert declared.missing(state()) is None
    assert declared.missing(state(states={"a": Account(1)})) == "process 'b'"
    (declared,) = system('in_flight("a->b") < 3').invariants
    assert declared.missing(GlobalState(state().states)) == "channel 'a->b'"


def conserved(snapshot: GlobalState) -> bool:
    return True


async def awaited(snapshot: GlobalState) -> bool:
    return True


def of_two(states: Any, messages: Any) -> bool:
    return True


@pytest.mark.parametrize(
    ("invariants", "problem"),
    [
        ("a.balance >= 0", "not a list; write invariants=['a.balance >= 0']"),
        (no_overdraft, "`invariants` is no_overdraft, not a list; write invariants=[no_overdraft]"),
        ([3], "the invariant int is a int, not something that can be called"),
        ([lambda snapshot: True], "has no name to show; write it as def NAME(snapshot)"),
        ([conserved], "an invariant is named 'conserved', which is a condition of Strobe's own; rename it"),
        ([no_overdraft, no_overdraft], "two invariants are named 'no_overdraft'"),
        (["a.balance > 0", "a.balance  > 0"], "two invariants are named 'a.balance > 0'"),
        ([awaited], "is async"),
        ([of_two], "Strobe calls of_two(snapshot)"),
    ],
)
def test_a_mistake_in_the_list_is_refused(invariants: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=re.escape(problem)):
        System({"a": Branch(), "b": Branch()}, [Channel("a", "b")], invariants=invariants)


def test_names_are_those_of_the_functions_and_conditions() -> None:
    names = [
        one.name
        for one in system(no_overdraft, "a.balance  >=\n 0", f"a.balance < {'1' * 20} or " * 5 + "true").invariants
    ]
    assert names[:2] == ["no_overdraft", "a.balance >= 0"]
    assert len(names[2]) == 80
    assert names[2].endswith("...")


def test_a_state_that_cannot_be_shown_is_described_by_its_type() -> None:
    class Nameless:
        def __repr__(self) -> str:
            raise ValueError("nameless")

    assert state(states={"a": Nameless()}).brief() == "a = a Nameless; 2 in flight"
    many = state(states={f"p{number}": number for number in range(10)}).brief()
    assert many == "p0 = 0, p1 = 1, p2 = 2, p3 = 3, p4 = 4, p5 = 5, p6 = 6, p7 = 7, 2 more; 2 in flight"
