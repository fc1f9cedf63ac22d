"""A condition as the search needs it: tables of what each process contributes, joined by operators.

A part that depends on one process becomes a table with a value for each of its states. The other operations join the
tables of several processes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from strobe.expressions.evaluation import apply, fold, function_of, operands_first
from strobe.expressions.nodes import AND, OR
from strobe.expressions.values import Value, is_true

TERMS_MAX = 64
"""An `and` of several `or` is rewritten as an `or` of at most this many `and`."""
APART_MAX = 8
"""Up to this many terms on the same processes are searched one by one, more are searched together."""


class Table(msgspec.Struct, frozen=True, eq=False):
    """The value of a part of a condition in each state of `process`, or one value if it depends on no process."""

    process: int | None
    values: Sequence[Value]


class Joined(msgspec.Struct, frozen=True, eq=False):
    """A part that depends on several processes: parts joined by an operator."""

    operator: str
    parts: tuple["Table | Joined", ...]


Part = Table | Joined


class Conjunction(msgspec.Struct, frozen=True):
    """For some processes the states in which their own condition holds, and all other parts of the conjunction."""

    local: dict[int, list[bool]]
    joined: tuple[Joined, ...]

    @property
    def tables(self) -> list[Table]:
        """All tables that decide whether the term holds."""
        own = [Table(process, values) for process, values in self.local.items()]
        return own + [table for part in self.joined for table in tables_of(part)]

    @property
    def processes(self) -> frozenset[int]:
        """The processes that the term depends on."""
        return frozenset(table.process for table in self.tables if table.process is not None)

    def holds_at(self, states: Sequence[int]) -> bool:
        """Whether the term holds at a cut at which its local conditions hold."""
        return all(is_true(value_at(part, states)) for part in self.joined)

    @property
    def part(self) -> Part:
        """The whole term as one part."""
        return joined(AND, [*(Table(process, values) for process, values in self.local.items()), *self.joined])


def parts_of(part: Part) -> Sequence[Part]:
    return part.parts if isinstance(part, Joined) else ()


def tables_of(part: Part) -> list[Table]:
    """Return the tables in `part`, from left to right."""
    return [inner for inner in operands_first(part, parts_of) if isinstance(inner, Table)]


def joined(operator: str, parts: Sequence[Part]) -> Part:
    """Return parts joined by an operator: one table again if all depend on the same process."""
    if operator in (AND, OR):
        return _joined_conditions(operator, parts)
    tables = [part for part in parts if isinstance(part, Table)]
    if len(tables) == len(parts) and len({table.process for table in tables} - {None}) <= 1:
        return _by_state(operator, tables)
    return Joined(operator, tuple(parts))


def _by_state(operator: str, tables: Sequence[Table]) -> Table:
    process = next((table.process for table in tables if table.process is not None), None)
    length = max(len(table.values) for table in tables)
    columns = [table.values if table.process == process else list(table.values) * length for table in tables]
    return Table(process, list(map(function_of(operator, len(columns)), *columns)))


def _joined_conditions(operator: str, parts: Sequence[Part]) -> Part:
    """Join by `and` or `or`, in any order: all parts on one process become one table."""
    by_process: dict[int | None, Table] = {}
    others: list[Part] = []
    for part in parts:
        same = isinstance(part, Joined) and part.operator == operator
        for inner in parts_of(part) if same else (part,):
            if isinstance(inner, Joined):
                others.append(inner)
            elif inner.process in by_process:
                by_process[inner.process] = _by_state(operator, [by_process[inner.process], inner])
            else:
                by_process[inner.process] = Table(inner.process, list(map(is_true, inner.values)))
    if None in by_process and len(by_process) > 1:
        constant = by_process.pop(None)
        process, first = next(iter(by_process.items()))
        by_process[process] = _by_state(operator, [first, constant])
    everything = (*by_process.values(), *others)
    return everything[0] if len(everything) == 1 else Joined(operator, everything)


def terms(part: Part, lengths: Sequence[int]) -> list[Conjunction]:
    """Return conjunctions; `part`, a condition, holds exactly if one of them holds."""
    return [_term(conjuncts, lengths) for conjuncts in fold(part, parts_of, _alternatives)]


def conjunction(part: Part, lengths: Sequence[int]) -> Conjunction:
    """Return `part`, a condition, as one conjunction."""
    return _term(part.parts if isinstance(part, Joined) and part.operator == AND else (part,), lengths)


_Conjuncts = tuple[Part, ...]


def _alternatives(part: Part, inner: list[list[_Conjuncts]]) -> list[_Conjuncts]:
    if isinstance(part, Joined) and part.operator == OR:
        return [conjuncts for alternatives in inner for conjuncts in alternatives]
    if not isinstance(part, Joined) or part.operator != AND:
        return [(part,)]
    found: list[_Conjuncts] = [()]
    by_size = sorted(zip(inner, part.parts, strict=True), key=lambda entry: len(entry[0]))
    for alternatives, whole in by_size:
        if len(found) * len(alternatives) > TERMS_MAX:
            alternatives = [(whole,)]
        found = [(*before, *conjuncts) for before in found for conjuncts in alternatives]
    return found


def _term(conjuncts: Iterable[Part], lengths: Sequence[int]) -> Conjunction:
    local: dict[int, list[bool]] = {}
    others: list[Joined] = []
    for part in conjuncts:
        if isinstance(part, Joined):
            others.append(part)
            continue
        process = 0 if part.process is None else part.process
        length = lengths[process] + 1
        values = part.values if part.process is not None else list(part.values) * length
        known = local.get(process, [True] * length)
        local[process] = [before and is_true(value) for before, value in zip(known, values, strict=True)]
    return Conjunction(local, tuple(others))


def grouped(found: Iterable[Conjunction]) -> list[Conjunction]:
    """Return terms of which one holds exactly if one of `found` does, with few terms on the same processes."""
    by_processes: dict[frozenset[int], list[Conjunction]] = {}
    for term in found:
        by_processes.setdefault(term.processes, []).append(term)
    groups = by_processes.values()
    return [term for group in groups for term in (group if len(group) <= APART_MAX else [_either(group)])]


def _either(group: Sequence[Conjunction]) -> Conjunction:
    """Return several terms as one. Each process must be in a state that is good for one of them."""
    local = {
        process: [any(values) for values in zip(*(term.local[process] for term in group), strict=True)]
        for process in group[0].local
        if all(process in term.local for term in group)
    }
    whole = joined(OR, [term.part for term in group])
    assert isinstance(whole, Joined), "what depends on several processes is joined"
    return Conjunction(local, (whole,))


def size_of(part: Part) -> int:
    """Return how many tables and operators `part` has."""
    return len(operands_first(part, parts_of))


def translated(part: Part, table: Callable[[Table], Table]) -> Part:
    """Return `part` with every table replaced."""

    def replace(inner: Part, parts: list[Part]) -> Part:
        return Joined(inner.operator, tuple(parts)) if isinstance(inner, Joined) else table(inner)

    return fold(part, parts_of, replace)


def changes(tables: Iterable[Table]) -> Mapping[int, list[int]]:
    """Return, for each process in `tables`, state 0 and every state in which one of its tables has a new value."""
    found: dict[int, set[int]] = {}
    for table in tables:
        if table.process is not None:
            steps = enumerate(pairwise(table.values), 1)
            found.setdefault(table.process, {0}).update(state for state, pair in steps if _differ(*pair))
    return {process: sorted(states) for process, states in found.items()}


def _differ(before: Value, after: Value) -> bool:
    """Whether two values may differ. Lists and objects are not compared."""
    if before is after:
        return False
    return type(before) is not type(after) or isinstance(after, list | dict) or bool(before != after)


def value_at(part: Part, states: Sequence[int]) -> Value:
    """Return the value of `part` at one cut, exactly."""
    return value_in_order(operands_first(part, parts_of), states)


def value_in_order(parts: Iterable[Part], states: Sequence[int]) -> Value:
    """Return the value of the last of `parts` at one cut; all its parts come before it."""
    stack: list[Value] = []
    for part in parts:
        if isinstance(part, Table):
            stack.append(part.values[0 if part.process is None else states[part.process]])
        else:
            first = len(stack) - len(part.parts)
            stack[first:] = [apply(part.operator, stack[first:])]
    return stack[0]
