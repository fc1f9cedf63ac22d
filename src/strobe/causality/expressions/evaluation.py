"""The value of an expression in a scope, by its definition; and what an expression speaks of."""

from collections.abc import Iterator
from typing import Protocol

from strobe.causality.expressions.nodes import (
    AND,
    NEGATE,
    NOT,
    OR,
    Count,
    Literal,
    Node,
    Operation,
    Variable,
)
from strobe.causality.expressions.values import BINARY, Value, is_true, negated


class Scope(Protocol):
    """What the names in an expression stand for, at one moment."""

    def variable(self, process: str, path: tuple[str, ...]) -> Value: ...

    def count(self, kind: str, name: str | None) -> int: ...


def evaluate(node: Node, scope: Scope) -> Value:
    """Return the value of `node`."""
    match node:
        case Literal(value=value):
            return value
        case Variable(process=process, path=path):
            return scope.variable(process, path)
        case Count(kind=kind, name=name):
            return scope.count(kind, name)
        case Operation(operator=operator, operands=operands):
            return apply(operator, [evaluate(operand, scope) for operand in operands])


def apply(operator: str, values: list[Value]) -> Value:
    """Return what `operator` makes of these values."""
    if operator == NOT:
        return not is_true(values[0])
    if operator == NEGATE and len(values) == 1:
        return negated(values[0])
    return BINARY[operator](*values)


def leaves(node: Node) -> Iterator[Variable | Count]:
    """Yield every variable and every count in `node`, from left to right."""
    match node:
        case Variable() | Count():
            yield node
        case Operation(operands=operands):
            for operand in operands:
                yield from leaves(operand)


def conjuncts(node: Node) -> list[Node]:
    """Return conditions that hold together exactly where `node` holds, as many as can be."""
    return _parts(pushed_down(node), AND)


def disjuncts(node: Node) -> list[Node]:
    """Return conditions of which one holds exactly where `node` holds, as many as can be."""
    return _parts(pushed_down(node), OR)


def _parts(node: Node, operator: str) -> list[Node]:
    if isinstance(node, Operation) and node.operator == operator:
        return [part for operand in node.operands for part in _parts(operand, operator)]
    return [node]


def pushed_down(node: Node, negative: bool = False) -> Node:
    """Return `node`, or its negation, with every `not` below the `and` and `or`."""
    if isinstance(node, Operation) and node.operator == NOT:
        return pushed_down(node.operands[0], not negative)
    if isinstance(node, Operation) and node.operator in (AND, OR):
        operator = node.operator if not negative else OR if node.operator == AND else AND
        return Operation(node.column, operator, tuple(pushed_down(operand, negative) for operand in node.operands))
    # Not by turning < into >=: where a value is null, neither holds.
    return Operation(node.column, NOT, (node,)) if negative else node
