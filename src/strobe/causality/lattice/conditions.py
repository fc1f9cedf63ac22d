"""A condition on the cuts of a run, made quick to evaluate: what speaks of one process becomes a table of its states.

What a process can say of itself is looked up once for each of its states; what is left joins the tables of several
processes, and is evaluated for many cuts at once (`at_cuts`) or for one (`at`).
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from strobe.causality.expressions.evaluation import apply, conjuncts, disjuncts, evaluate, leaves
from strobe.causality.expressions.nodes import (
    AND,
    EQUALITIES,
    NEGATE,
    NOT,
    OR,
    ORDERINGS,
    Count,
    Node,
    Operation,
)
from strobe.causality.expressions.values import Value, is_number, is_true
from strobe.causality.lattice.run import Run, States
from strobe.causality.lattice.variables import Variables

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Column = npt.NDArray[Any]

_EXACT_MAX = 2**53
"""Up to here, a float holds every integer exactly."""


class Table(msgspec.Struct, frozen=True):
    """The value of a part of a condition in each state of `process`, or one value where it speaks of none."""

    process: int | None
    values: Sequence[Value]


class Joined(msgspec.Struct, frozen=True):
    """A part that speaks of several processes: two or more parts, joined by an operator."""

    operator: str
    parts: tuple["Table | Joined", ...]


class Condition:
    """`node`, made ready for the cuts of `run`. Names that the run does not have raise an ExpressionError."""

    def __init__(self, run: Run, node: Node, variables: Variables) -> None:
        self.run = run
        self.node = node
        self._variables = variables

    @cached_property
    def _root(self) -> Table | Joined:
        return self._made_ready(self.node)

    def at(self, states: States) -> bool:
        """Whether the condition holds at one cut, exactly."""
        return is_true(_value_at(self._root, states))

    def at_cuts(self, cuts: "Column") -> "npt.NDArray[np.bool_]":
        """Whether it holds at each of these cuts, which are rows; exactly too."""
        import numpy as np

        column = self._evaluator(cuts)
        if column.dtype != np.bool_:
            column = np.fromiter(map(is_true, column.tolist()), np.bool_, len(column))
        return np.broadcast_to(column, len(cuts)) if len(column) != len(cuts) else column

    @cached_property
    def _evaluator(self) -> "Callable[[Column], Column]":
        return _compile(self._root, quick=_kind(self._root).name == _CONDITION)

    def local_tables(self) -> tuple[dict[int, list[bool]], bool]:
        """Return, of the conditions on one process each that this is a conjunction of, in which states each process
        fulfils its own; and whether that is all of it. A process that they do not speak of is left out."""
        tables: dict[int, list[bool]] = {}
        whole = True
        for part in conjuncts(self.node):
            made = self._made_ready(part)
            if not isinstance(made, Table):
                whole = False
                continue
            process = 0 if made.process is None else made.process
            length = self.run.lengths[process] + 1
            values = made.values if made.process is not None else list(made.values) * length
            known = tables.get(process, [True] * length)
            tables[process] = [before and is_true(value) for before, value in zip(known, values, strict=True)]
        return tables, whole

    def alternatives(self) -> list["Condition"]:
        """Return conditions of which one holds exactly where this one holds."""
        return [Condition(self.run, node, self._variables) for node in disjuncts(self.node)]

    def values_at(self, states: States) -> dict[str, Value]:
        """Return what every variable and count in the condition is at a cut, under its name."""
        return {self._variables.name_of(leaf): _value_at(self._made_ready(leaf), states) for leaf in leaves(self.node)}

    def _made_ready(self, node: Node) -> Table | Joined:
        processes = {process for leaf in leaves(node) for process in self._variables.processes_of(leaf)}
        if not processes:
            return Table(None, [evaluate(node, _Nowhere())])
        if len(processes) == 1:
            (process,) = processes
            states = range(self.run.lengths[process] + 1)
            return Table(process, [evaluate(node, _At(self._variables, process, state)) for state in states])
        if isinstance(node, Count):
            return self._total(node, sorted(processes))
        assert isinstance(node, Operation), "a variable is of one process, and a literal of none"
        return Joined(node.operator, tuple(map(self._made_ready, node.operands)))

    def _total(self, count: Count, processes: list[int]) -> Joined:
        """Return a count over several processes as a sum: what is in flight is what was sent less what was received."""
        parts = [Table(process, self._variables.share(count, process)) for process in processes]
        return Joined("+", tuple(parts))


class _At:
    """One state of one process, as a scope."""

    def __init__(self, variables: Variables, process: int, state: int) -> None:
        self._variables, self._process, self._state = variables, process, state

    def variable(self, process: str, path: tuple[str, ...]) -> Value:
        return self._variables.values(process, path)[self._state]

    def count(self, kind: str, name: str | None) -> int:
        return self._variables.share(Count(0, kind, name), self._process)[self._state]


class _Nowhere:
    """A scope for what has no names."""

    def variable(self, process: str, path: tuple[str, ...]) -> Value:
        raise AssertionError(f"{process}.{path} has a process")

    def count(self, kind: str, name: str | None) -> int:
        return 0  # of no channels at all


def _value_at(part: Table | Joined, states: States) -> Value:
    if isinstance(part, Table):
        return part.values[0 if part.process is None else states[part.process]]
    values = [_value_at(inner, states) for inner in part.parts]
    if len(values) <= 2:
        return apply(part.operator, values)
    return sum(values)


class _Kind(msgspec.Struct, frozen=True):
    """Whether numpy's own numbers do for a part: it is a `number` of at most this size, a `condition`, or `other`.

    A number that `may_be_null` is a float there, and null is NaN: it goes through arithmetic, and neither equals nor is
    less or greater than any number. It does not equal itself either, as null does: for two such, numpy will not do.
    """

    name: str
    size: float = 0
    may_be_null: bool = False


_NUMBER, _CONDITION, _OTHER = "number", "condition", "other"


def _kind(part: Table | Joined) -> _Kind:
    """Numpy does where everything is a number that it holds exactly, or true or false. Division may give null."""
    if isinstance(part, Table):
        return _kind_of_table(part)
    kinds = [_kind(inner) for inner in part.parts]
    names, may_be_null = {kind.name for kind in kinds}, [kind.may_be_null for kind in kinds]
    if part.operator in (AND, OR, NOT):
        return _Kind(_CONDITION if names == {_CONDITION} else _OTHER)
    if part.operator in EQUALITIES:
        return _Kind(_CONDITION if names in ({_NUMBER}, {_CONDITION}) and not all(may_be_null) else _OTHER)
    if part.operator in ORDERINGS:
        return _Kind(_CONDITION if names == {_NUMBER} else _OTHER)
    if names != {_NUMBER} or part.operator in ("/", "%"):
        return _Kind(_OTHER)
    sizes = [kind.size for kind in kinds]
    size = sizes[0] * sizes[1] if part.operator == "*" else sum(sizes)
    return _Kind(_NUMBER, size, any(may_be_null)) if size <= _EXACT_MAX else _Kind(_OTHER)


def _kind_of_table(table: Table) -> _Kind:
    if all(isinstance(value, bool) for value in table.values):
        return _Kind(_CONDITION)
    known = [value for value in table.values if value is not None]
    if known and all(map(is_number, known)) and (size := max(map(abs, known))) <= _EXACT_MAX:
        return _Kind(_NUMBER, size, may_be_null=len(known) < len(table.values))
    return _Kind(_OTHER)


def _compile(part: Table | Joined, quick: bool) -> "Callable[[Column], Column]":
    """Return a function from cuts to the values of `part`; `quick` with numpy's numbers, else with Python's."""
    if isinstance(part, Table):
        values = _column(part.values, quick)
        process = part.process
        if process is None:
            return lambda _cuts: values
        return lambda cuts: values[cuts[:, process]]
    inner = [_compile(each, quick) for each in part.parts]
    function = _numpy_function(part.operator, len(inner)) if quick else _python_function(part.operator, len(inner))
    if len(inner) == 1:
        return lambda cuts: function(inner[0](cuts))

    def joined(cuts: "Column") -> "Column":
        column = inner[0](cuts)
        for other in inner[1:]:
            column = function(column, other(cuts))
        return column

    return joined


def _column(values: Sequence[Value], quick: bool) -> "Column":
    import numpy as np

    if quick:
        return np.array(values, float) if None in values else np.array(values)
    column = np.empty(len(values), object)
    column[:] = values
    return column


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


def _python_function(operator: str, count: int) -> "Callable[..., Column]":
    import numpy as np

    arity = 1 if count == 1 else 2
    function: Callable[..., Column] = np.frompyfunc(lambda *values: apply(operator, list(values)), arity, 1)
    return function
