"""Evaluates an expression in a scope, and walks over expressions, all without recursion.

An expression may have thousands of nested operations, too many for Python's stack. So every walk uses `operands_first`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from strobe.expressions.nodes import (
    AND,
    EQUALITIES,
    NEGATE,
    NOT,
    OR,
    Count,
    Expression,
    Literal,
    Operation,
    Variable,
)
from strobe.expressions.values import BINARY, Value, is_true, negated

N = TypeVar("N")
T = TypeVar("T")


class Scope(Protocol):
    """The values of the names in an expression, at one moment."""

    def variable(self, process: str, path: tuple[str, ...]) -> Value: ...

    def count(self, kind: str, name: str | None) -> int: ...


def operands_of(node: Expression) -> Sequence[Expression]:
    """Return the operands of an operation; other nodes have none."""
    return node.operands if isinstance(node, Operation) else ()


def operands_first(root: N, operands: Callable[[N], Sequence[N]]) -> list[N]:
    """Return all nodes of a tree, from left to right, each after its operands."""
    found: list[N] = []
    open_ = [root]
    while open_:  # finds each node before its operands, from right to left
        found.append(open_.pop())
        open_ += operands(found[-1])
    return found[::-1]


def fold(root: N, operands: Callable[[N], Sequence[N]], combine: Callable[[N, list[T]], T]) -> T:
    """Return `combine` of the root and of the combined values of its operands, from the leaves up."""
    made: list[T] = []
    for node in operands_first(root, operands):
        first = len(made) - len(operands(node))
        made[first:] = [combine(node, made[first:])]
    return made[0]


def evaluate(node: Expression, scope: Scope) -> Value:
    """Return the value of `node`."""

    def value(inner: Expression, values: list[Value]) -> Value:
        match inner:
            case Literal(value=literal):
                return literal
            case Variable(process=process, path=path):
                return scope.variable(process, path)
            case Count(kind=kind, name=name):
                return scope.count(kind, name)
            case Operation(operator=operator):
                return apply(operator, values)

    return fold(node, operands_of, value)


def function_of(operator: str, count: int) -> Callable[..., Value]:
    """Return the function of `operator` for one value or for two."""
    if operator == NOT:
        return _inverted
    if operator == NEGATE and count == 1:
        return negated
    return BINARY[operator]


def apply(operator: str, values: Sequence[Value]) -> Value:
    """Apply `operator` to these values; if there are more than two, from left to right."""
    function = function_of(operator, len(values))
    if len(values) == 1:
        return function(values[0])
    value = values[0]
    for other in values[1:]:
        value = function(value, other)
    return value


def _inverted(value: Value) -> bool:
    return not is_true(value)


def leaves(node: Expression) -> Iterator[Variable | Count]:
    """Yield every variable and every count in `node`, from left to right."""
    for inner in operands_first(node, operands_of):
        if isinstance(inner, Variable | Count):
            yield inner


def pushed_down(node: Expression) -> Expression:
    """Return the same condition with every `not` below the `and` and `or`."""
    return fold(node, operands_of, _both_ways)[0]


def _both_ways(node: Expression, operands: list[tuple[Expression, Expression]]) -> tuple[Expression, Expression]:
    """Return a condition and its negation, each with every `not` below the `and` and `or`."""
    if isinstance(node, Operation) and node.operator == NOT:
        ((positive, negative),) = operands
        return negative, positive
    if isinstance(node, Operation) and node.operator in (AND, OR):
        dual = OR if node.operator == AND else AND
        positives, negatives = zip(*operands, strict=True)
        return Operation(node.column, node.operator, positives), Operation(node.column, dual, negatives)
    if isinstance(node, Operation) and node.operator in EQUALITIES:
        return node, Operation(node.column, "!=" if node.operator == "==" else "==", node.operands)
    # Not by turning < into >=: if a value is null, neither holds.
    return node, Operation(node.column, NOT, (node,))
