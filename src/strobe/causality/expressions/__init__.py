"""The language of conditions on a whole system: small, safe, and never executed as code (docs/expressions.md).

    condition = parse('a.balance + b.balance < 400 and in_flight("a->b") == 0')

A condition is a tree of nodes over the variables of processes and the counts of channels. Their values come from the
scope in which it is evaluated: a cut of a trace, or the state that a breakpoint sees.
"""

from strobe.causality.expressions.evaluation import Scope, evaluate
from strobe.causality.expressions.nodes import Expression, ExpressionError
from strobe.causality.expressions.parser import parse
from strobe.causality.expressions.values import Value

__all__ = ["Expression", "ExpressionError", "Scope", "Value", "evaluate", "parse"]
