"""Evaluates a condition at many cuts at once with numpy, exactly. It uses numpy's numbers only if these are exact.

A program is a list of steps on a stack of columns, one row for each cut. A step loads what a process contributes in its
state, or applies an operator to the topmost columns.

Numbers are numpy's if each is a whole number of at most 53 bits or a float. Null among them is NaN, which passes
through arithmetic and is neither less than, greater than nor equal to anything. Other values that are compared are
replaced by numbers that compare in the same way: equal values by equal codes, ordered values by their rank. The rest is
evaluated in Python.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from strobe.causality.lattice.order import States
from strobe.causality.lattice.parts import Joined, Part, Table, parts_of, value_in_order
from strobe.expressions.evaluation import fold, function_of, operands_first
from strobe.expressions.nodes import AND, EQUALITIES, NEGATE, NOT, OR, ORDERINGS
from strobe.expressions.values import Value, is_number, is_true

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Column = npt.NDArray[Any]

_EXACT_MAX = 2**53
"""Up to this, a float holds every integer exactly."""


class CompiledCondition:
    """`part`, a condition, compiled for evaluation at the cuts of an order."""

    def __init__(self, part: Part) -> None:
        self._part = part

    def at(self, states: States) -> bool:
        """Whether the condition holds at one cut."""
        return is_true(value_in_order(self._in_order, states))

    @cached_property
    def _in_order(self) -> list[Part]:
        return operands_first(self._part, parts_of)

    def at_cuts(self, cuts: "Column") -> "npt.NDArray[np.bool_]":
        """Whether it holds at each of these cuts, given as rows."""
        import numpy as np

        stack: list[Column] = []
        for step in self._steps:
            if isinstance(step, _Load):
                stack.append(step.values if step.process is None else step.values[cuts[:, step.process]])
            else:
                value = stack[-step.operands] if step.operands > 1 else step.function(stack[-1])
                for other in stack[len(stack) - step.operands + 1 :]:
                    value = step.function(value, other)
                stack[-step.operands :] = [value]
        return np.broadcast_to(stack[0], len(cuts))

    @cached_property
    def _steps(self) -> "list[_Load | _Apply]":
        return _compiled(self._part)


class _Load(NamedTuple):
    values: "Column"
    process: int | None


class _Apply(NamedTuple):
    function: "Callable[..., Column]"
    operands: int


class _Kind(NamedTuple):
    """A part is a `number` of at most this size that numpy holds exactly, a `condition`, or `other`."""

    name: str
    size: float = 0
    may_be_null: bool = False


_NUMBER, _CONDITION, _OTHER = "number", "condition", "other"


def _compiled(root: Part) -> "list[_Load | _Apply]":
    """Return the steps of a condition, the operands of an operator before it."""
    kinds = _kinds(root)
    steps: list[_Load | _Apply] = []
    open_: list[tuple[Part, bool] | _Apply] = [(root, True)]
    while open_:
        entry = open_.pop()
        if isinstance(entry, _Apply):
            steps.append(entry)
            continue
        part, quick = entry
        if isinstance(part, Table):
            steps.append(_Load(_column(part.values, quick), part.process))
        elif quick and (coded := _coded(part, kinds)) is not None:
            steps += coded
        else:
            numeric = quick and kinds[id(part)].name != _OTHER
            if quick and not numeric:
                open_.append(_Apply(_truth, 1))
            open_.append(_Apply(_function(part, kinds, numeric), len(part.parts)))
            open_ += [(inner, numeric) for inner in reversed(part.parts)]
    return steps


def _kinds(root: Part) -> dict[int, _Kind]:
    """Return the kind of each part, by its identity."""
    found: dict[int, _Kind] = {}

    def kind(part: Part, kinds: list[_Kind]) -> _Kind:
        found[id(part)] = _kind_of_table(part) if isinstance(part, Table) else _kind_of_joined(part.operator, kinds)
        return found[id(part)]

    fold(root, parts_of, kind)
    return found


def _kind_of_joined(operator: str, kinds: list[_Kind]) -> _Kind:
    """Numpy is used if every operand is a number that it holds exactly, or true or false. Division may give null."""
    names = {kind.name for kind in kinds}
    if operator in (AND, OR, NOT):
        return _Kind(_CONDITION)  # of conditions, each evaluated in its own way
    if operator in EQUALITIES:
        return _Kind(_CONDITION if names in ({_NUMBER}, {_CONDITION}) else _OTHER)
    if operator in ORDERINGS:
        return _Kind(_CONDITION if names == {_NUMBER} else _OTHER)
    if names != {_NUMBER} or operator in ("/", "%"):
        return _Kind(_OTHER)
    sizes = [kind.size for kind in kinds]
    size = sizes[0] * sizes[1] if operator == "*" else sum(sizes)
    may_be_null = any(kind.may_be_null for kind in kinds)
    return _Kind(_NUMBER, size, may_be_null) if size <= _EXACT_MAX else _Kind(_OTHER)


def _kind_of_table(table: Table) -> _Kind:
    if all(isinstance(value, bool) for value in table.values):
        return _Kind(_CONDITION)
    known = [value for value in table.values if value is not None]
    if known and all(map(is_number, known)) and (size := max(map(abs, known))) <= _EXACT_MAX:
        return _Kind(_NUMBER, size, may_be_null=len(known) < len(table.values))
    return _Kind(_OTHER)


def _column(values: Sequence[Value], quick: bool) -> "Column":
    import numpy as np

    if quick:
        return np.array(values, float) if None in values else np.array(values)
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _coded(part: Joined, kinds: dict[int, _Kind]) -> "list[_Load | _Apply] | None":
    """Return the comparison of two tables by codes, if their values need codes and have them."""
    if part.operator not in (*EQUALITIES, *ORDERINGS) or not all(isinstance(inner, Table) for inner in part.parts):
        return None
    left, right = (inner for inner in part.parts if isinstance(inner, Table))
    if part.operator in ORDERINGS:
        codes = _ranks(left.values, right.values) if kinds[id(part)].name == _OTHER else None
    else:
        codes = _classes(left.values, right.values)
    if codes is None:
        return None
    loads = [_Load(column, table.process) for column, table in zip(codes, (left, right), strict=True)]
    return [*loads, _Apply(_numpy_function(part.operator, 2), 2)]


def _classes(left: Sequence[Value], right: Sequence[Value]) -> "tuple[Column, Column] | None":
    """Return numbers for two columns of values, equal exactly for equal values; None if there are lists or objects."""
    import numpy as np

    if any(isinstance(value, list | dict) for values in (left, right) for value in values):
        return None
    known: dict[tuple[bool, Value], int] = {}  # true is not 1, but 1 is 1.0

    def codes(values: Sequence[Value]) -> "Column":
        return np.array([known.setdefault((isinstance(value, bool), value), len(known)) for value in values], np.int64)

    return codes(left), codes(right)


def _ranks(left: Sequence[Value], right: Sequence[Value]) -> "tuple[Column, Column] | None":
    """Return numbers for two columns of values, in their order; None if strings and other values are mixed."""
    import numpy as np

    known = [value for values in (left, right) for value in values if value is not None]
    if not (all(isinstance(value, str) for value in known) or all(map(is_number, known))):
        return None
    rank: dict[Value, float] = {value: number for number, value in enumerate(sorted(set(known)))}
    rank[None] = np.nan
    return np.array([rank[value] for value in left], float), np.array([rank[value] for value in right], float)


def _function(part: Joined, kinds: dict[int, _Kind], numeric: bool) -> "Callable[..., Column]":
    import numpy as np

    if not numeric:
        arity = min(2, len(part.parts))
        function: Callable[..., Column] = np.frompyfunc(function_of(part.operator, arity), arity, 1)
        return function
    if part.operator in EQUALITIES and all(kinds[id(inner)].may_be_null for inner in part.parts):
        return _equal_or_null if part.operator == "==" else lambda left, right: ~_equal_or_null(left, right)
    return _numpy_function(part.operator, len(part.parts))


def _equal_or_null(left: "Column", right: "Column") -> "Column":
    both_null = (left != left) & (right != right)  # NaN differs from itself
    equal: Column = (left == right) | both_null
    return equal


def _truth(column: "Column") -> "Column":
    return column.astype(bool)  # Python's comparisons returned these: each is true or false


def _numpy_function(operator: str, count: int) -> "Callable[..., Column]":
    import numpy as np

    if operator == NEGATE and count == 1:
        return np.negative
    functions: dict[str, Callable[..., Column]] = {
        AND: np.logical_and,
        OR: np.logical_or,
        NOT: np.logical_not,
        "==": np.equal,
        "!=": np.not_equal,
        "<": np.less,
        "<=": np.less_equal,
        ">": np.greater,
        ">=": np.greater_equal,
        "+": np.add,
        "-": np.subtract,
        "*": np.multiply,
    }
    return functions[operator]
