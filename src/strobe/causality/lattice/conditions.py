"""A condition on the cuts of a run: its dependencies, whether it holds at a cut, and the values of its names there."""

from functools import cached_property

from strobe.causality.lattice.order import States
from strobe.causality.lattice.parts import Conjunction, Part, Table, conjunction, joined, terms, value_at
from strobe.causality.lattice.run import TraceRun
from strobe.causality.lattice.variables import KnownStates, Variables
from strobe.expressions import parse
from strobe.expressions.evaluation import fold, leaves, operands_of, pushed_down
from strobe.expressions.nodes import Count, Expression, Literal, Operation, Variable, name_of
from strobe.expressions.values import Value, is_true


class Condition:
    """The condition in `text`, on the cuts of `run`. An unknown name raises ExpressionError."""

    def __init__(self, run: TraceRun, text: str, states: KnownStates | None = None) -> None:
        self.run = run
        self.text = text
        self._node = parse(text)
        self._variables = Variables(run, text, states)
        self._variables.check(self._node)

    @cached_property
    def part(self) -> Part:
        """The condition as tables of single processes, joined by operators."""
        return fold(pushed_down(self._node), operands_of, self._part)

    @cached_property
    def terms(self) -> list[Conjunction]:
        """Conjunctions; the condition holds exactly if one of them holds."""
        return terms(self.part, self.run.lengths)

    @cached_property
    def conjunction(self) -> Conjunction:
        """The condition as one conjunction."""
        return conjunction(self.part, self.run.lengths)

    def at(self, states: States) -> bool:
        """Whether the condition holds at one cut, exactly."""
        return is_true(value_at(self.part, states))

    def values_at(self, states: States) -> dict[str, Value]:
        """Return the value of every variable and count in the condition at a cut, by name."""
        return {name_of(leaf): value_at(self._part(leaf, []), states) for leaf in dict.fromkeys(leaves(self._node))}

    def _part(self, node: Expression, parts: list[Part]) -> Part:
        if isinstance(node, Operation):
            return joined(node.operator, parts)
        if isinstance(node, Literal):
            return Table(None, [node.value])
        processes = sorted(self._variables.processes_of(node))
        if isinstance(node, Variable):
            return Table(processes[0], self._variables.values(node.process, node.path))
        return self._total(node, processes)

    def _total(self, count: Count, processes: list[int]) -> Part:
        """Return a count as a sum over processes: in flight is sent minus received."""
        if not processes:
            return Table(None, [0])  # no channels at all
        tables = [Table(process, self._variables.share(count, process)) for process in processes]
        return tables[0] if len(tables) == 1 else joined("+", tables)
