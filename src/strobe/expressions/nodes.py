"""The nodes of an expression, and the error that points into one."""

import msgspec

from strobe.errors import UsageError
from strobe.expressions.values import Value

AND, OR, NOT, NEGATE = "and", "or", "not", "-"
EQUALITIES = ("==", "!=")
ORDERINGS = ("<", "<=", ">", ">=")
ARITHMETIC = ("+", "-", "*", "/", "%")

EVENTS, SENT, RECEIVED, IN_FLIGHT = "events", "sent", "received", "in_flight"
COUNTS = (EVENTS, SENT, RECEIVED, IN_FLIGHT)


class ExpressionError(UsageError):
    """An expression that cannot be parsed; `column` (from 1) is where the error is."""

    def __init__(self, text: str, column: int, problem: str) -> None:
        super().__init__(text, column, problem)
        self.text = text
        self.column = column
        self.problem = problem

    def __str__(self) -> str:
        begin, end = max(0, self.column - 61), self.column + 40
        before = "".join(character if character.isprintable() else " " for character in self.text[begin:end])
        mark = " " * (self.column - 1 - begin)
        return f"the expression is wrong at column {self.column}: {self.problem}\n    {before}\n    {mark}^"


class _Node(msgspec.Struct, frozen=True, gc=False):
    column: int


class Literal(_Node, frozen=True, gc=False):
    """A number, a string, true, false or null."""

    value: Value


class Variable(_Node, frozen=True, gc=False):
    """The value at `path` in the state of `process`."""

    process: str
    path: tuple[str, ...]


class Count(_Node, frozen=True, gc=False):
    """A count that every trace has: `events` of a process, `sent`, `received` or `in_flight` of a channel.

    `name` is that process or channel; None stands for the total.
    """

    kind: str
    name: str | None


class Operation(_Node, frozen=True):
    """`operator` applied to one or two operands; `and` and `or` take any number of them."""

    operator: str
    operands: tuple["Expression", ...]


Expression = Literal | Variable | Count | Operation


def count_text(kind: str, name: str | None) -> str:
    """Return a count as an expression has it: with quotes around a name that needs them, such as that of a channel."""
    if name is None or name.isidentifier():
        return f"{kind}({name or ''})"
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'{kind}("{escaped}")'


def is_condition(node: Expression) -> bool:
    """Whether a node can be true at all: a variable can, a sum cannot."""
    match node:
        case Literal(value=value):
            return isinstance(value, bool)
        case Variable():
            return True
        case Count():
            return False
        case Operation(operator=operator):
            return operator in (AND, OR, NOT, *EQUALITIES, *ORDERINGS)
