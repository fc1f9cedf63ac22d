"""The language of conditions on a whole system: small, safe, and never executed as code (docs/expressions.md).

    condition = parse('a.balance + b.balance < 400 and in_flight("a->b") == 0')

In: the text of a condition, and the scope in which it is evaluated: a cut of a trace, or the global state of a
snapshot. Out: a tree of nodes over the variables of processes and the counts of channels, and its value.
"""

from strobe.expressions.evaluation import Scope, evaluate
from strobe.expressions.nodes import Expression, ExpressionError
from strobe.expressions.parser import parse
from strobe.expressions.values import Value

__all__ = ["Expression", "ExpressionError", "Scope", "Value", "evaluate", "parse"]
