"""The nodes of an expression, how they are written, and the error that points into one."""

from collections.abc import Collection
from difflib import get_close_matches
from itertools import islice

import msgspec

from strobe.errors import UsageError
from strobe.expressions.values import Value

AND, OR, NOT, NEGATE = "and", "or", "not", "-"
EQUALITIES = ("==", "!=")
ORDERINGS = ("<", "<=", ">", ">=")
ARITHMETIC = ("+", "-", "*", "/", "%")

EVENTS, SENT, RECEIVED, IN_FLIGHT = "events", "sent", "received", "in_flight"
COUNTS = (EVENTS, SENT, RECEIVED, IN_FLIGHT)

_NAMES_SHOWN_MAX = 12


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


def name_of(leaf: Variable | Count) -> str:
    """Return a variable or count as written in an expression."""
    if isinstance(leaf, Variable):
        return ".".join(name if name.isidentifier() else f"`{name}`" for name in (leaf.process, *leaf.path))
    return count_text(leaf.kind, leaf.name)


def unknown_name(text: str, leaf: Variable | Count, problem: str, name: str, known: Collection[str]) -> ExpressionError:
    """Return an error that points at `leaf` in `text`, with the closest known name, or the known names."""
    close = get_close_matches(name, known, 1)
    if close:
        meant = count_text(leaf.kind, close[0]) if isinstance(leaf, Count) else repr(close[0])
        return ExpressionError(text, leaf.column, f"{problem}; did you mean {meant}?")
    shown = ", ".join(islice(known, _NAMES_SHOWN_MAX)) + (", ..." if len(known) > _NAMES_SHOWN_MAX else "")
    return ExpressionError(text, leaf.column, f"{problem}; there are: {shown or 'none'}")
