"""The language of conditions: what it means, what it refuses and where, and that hostile input does no harm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.errors import UsageError
from strobe.expressions import ExpressionError, evaluate, parse
from strobe.expressions.evaluation import operands_first, operands_of, pushed_down
from strobe.expressions.nodes import Operation

STATES = {
    "a": {"x": 3, "up": True, "name": "leader", "nothing": None, "inner": {"deep": 2}, "list": [1, {"k": 1.0}]},
    "node-1": {"x": 4, "and": 5},
}


class SampleScope:
    """A scope with the states above; every count is the length of its name."""

    def variable(self, process, path):
        value = STATES[process]
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def count(self, kind, name):
        return len(name) if name is not None else -1


def holds(text):
    return evaluate(parse(text), SampleScope())


@pytest.mark.parametrize(
    "text",
    [
        "a.x == 3",
        "a.x == 3.0",
        "a.x + 2 * 4 == 11",
        "(a.x + 2) * 4 == 20",
        "10 - 3 - 2 == 5",
        "7 % 4 == a.x",
        "-7 % 4 == 1",
        "7 / 2 == 3.5",
        "-a.x < --a.x",
        "a.up",
        "a.up == true",
        "not a.nothing",
        "not (a.x == 4)",
        "not a.x == 4",
        "a.name == \"leader\" and a.name == 'leader'",
        'a.name < "m"',
        'a.name != "a\\"b\\n"',
        "a.inner.deep == 2",
        "a.inner.missing == null",
        "a.x.missing == null",
        "`node-1`.x == 4",
        "`node-1`.`and` == 5",
        "true or false and false",
        "(true or false) and not false",
        'events("abc") == 3 and sent(ab) == 2 and received(`a->b`) == 4 and in_flight() == -1',
        "1e3 == 1000",
        "a.x\n>=\t3",
    ],
)
def test_a_condition_that_holds_is_true(text):
    assert holds(text) is True


@pytest.mark.parametrize(
    "text",
    [
        "a.up == 1",  # true is not a number
        "a.x == true",
        "a.nothing < 1",  # null is neither less nor greater, nor equal to another
        "a.nothing >= 1",
        "a.nothing == 0",
        "1 / 0 == 1 / 0 and 1 / 0 < 5",
        "5 % 0 >= 0",
        'a.name + "x" == "leaderx"',  # arithmetic is for numbers
        "a.name < 3",
        "a.x and true",  # only true is true
        "a.x",
        "a.list == 1",
    ],
)
def test_a_condition_that_does_not_hold_is_not_true(text):
    assert holds(text) is not True


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("", 1, "a value is missing here"),
        ("a.x == ", 8, "a value is missing here"),
        ("a.x = 3", 5, "to compare, write =="),
        ("a.x == 3 & b.x", 10, "write and"),
        ("a.x == 3 || true", 10, "write or"),
        ("!a.x", 1, "write not"),
        ("a.x == 'open", 8, "does not end"),
        ("`a.x == 3", 1, "does not end"),
        ("a.x == (3", 10, "the bracket of column 8 is not closed"),
        ("a.x == 3)", 9, "instead of ')'"),
        ("a.x == 3 a.y", 10, "instead of 'a'"),
        ("a == 3", 1, "write PROCESS.VARIABLE"),
        ("a. == 3", 4, "after the dot"),
        ("1 < a.x < 3", 9, "two values are compared at a time"),
        ("a.x + 1", 5, "not a condition"),
        ("(a.x + 1) and true", 6, "not a condition"),
        ("not 3", 5, "not a condition"),
        ("events(a)", 1, "not a condition"),
        ("open('/etc/passwd') == 1", 1, "there is no open(...)"),
        ("sent(a->b) == 1", 7, 'takes one name of a channel, or nothing; write sent("a->b")'),
        ("events(node 1) == 1", 13, 'takes one name of a process, or nothing; write events("node 1")'),
        ("events(node-1) == 1", 12, 'takes one name of a process, or nothing; write events("node-1")'),
        ("events(a, b) == 1", 9, 'takes one name of a process, or nothing; write events("a")'),
        ("in_flight(a~>b) == 1", 12, "no meaning here; put a name that has it in quotes"),
        ("a.x == 1" + "0" * 30, 8, "at most"),
        ("a.x == '\\q'", 9, "stands for nothing"),
        ("a.x == 3;", 9, "no meaning here"),
        ("a.__class__ == (lambda: 1)", 23, "no meaning here"),
        ("a.x == __import__", 8, "alone is no value"),
        ("and", 1, "a value is missing here, instead of 'and'"),
        ("(" * 60 + "true" + ")" * 60, 52, "too many"),
        ("not " * 60 + "true", 205, "too many"),
        (" + ".join(["1"] * 5002) + " == 1", 20_003, "at most 5,000 operations"),
        ("a" * 300_000, 200_000, "200,000 characters"),
    ],
)
def test_a_malformed_condition_is_refused_with_its_place(text, column, problem):
    with pytest.raises(ExpressionError) as error:
        parse(text)
    assert (error.value.column, problem in error.value.problem) == (column, True), error.value
    assert issubclass(ExpressionError, UsageError)


def test_the_message_points_at_the_place():
    with pytest.raises(ExpressionError) as error:
        parse("a.x = 3")
    assert str(error.value).splitlines()[1:] == ["    a.x = 3", "        ^"]


def test_a_number_that_grows_too_large_is_null():
    text = "*".join(["999999999999999999999999"] * 190)
    assert holds(f"{text} == null") is True


@given(st.text(alphabet="ab.x()`'\"\\ =<>!+-*/%0159andortueflsi\n\u00e9\u0000", max_size=60))
def test_any_text_is_either_parsed_or_refused(text):
    try:
        node = parse(text)
    except ExpressionError as error:
        str(error)
    else:
        evaluate(node, ConstantScope())


class ConstantScope:
    def variable(self, process, path):
        return 1

    def count(self, kind, name):
        return 1


@st.composite
def logic(draw, depth=3):
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from(["a.x == 3", "a.x < 3", "a.nothing < 1", "a.up", "a.x", "a.nothing"]))
    if draw(st.booleans()):
        return f"not ({draw(logic(depth - 1))})"
    return f"({draw(logic(depth - 1))}) {draw(st.sampled_from(['and', 'or']))} ({draw(logic(depth - 1))})"


@given(logic())
def test_a_condition_with_its_nots_pushed_down_is_the_same(text):
    node = parse(text)
    pushed = pushed_down(node)
    assert (evaluate(pushed, SampleScope()) is True) == (evaluate(node, SampleScope()) is True)
    for inner in operands_first(pushed, operands_of):
        if isinstance(inner, Operation) and inner.operator == "not":
            assert not any(isinstance(part, Operation) and part.operator in ("and", "or") for part in inner.operands)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" + ".join(["a.x"] * 5000) + " == 15000", True),
        (" - ".join(["1"] * 4998) + " == -4996", True),
        (" and ".join(["a.x == 3"] * 2500), True),
        (" or ".join(["a.x == 4"] * 2500), False),
        (" or ".join(["not (a.x == 3 and a.up)"] * 1250), False),
        ("not (" * 25 + " or ".join(["a.x == 4"] * 2400) + ")" * 25, True),
    ],
    ids=["sum", "difference", "and", "or", "not", "nested"],
)
def test_five_thousand_operations_are_evaluated(text, expected):
    assert holds(text) is expected
    assert (evaluate(pushed_down(parse(text)), SampleScope()) is True) is expected
