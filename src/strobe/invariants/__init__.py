"""Invariants that a system declares (G1, E12): plain Python functions of a snapshot, and conditions.

In: the functions and conditions that a user gives to `System`, and the global state of a snapshot. Out: for each
invariant None if it holds, else an explanation. `global_state` is what they see, `scope` is what the names in a
condition mean in it, and `declared` evaluates them.
"""

from strobe.invariants.declared import (
    CONSERVED,
    RESERVED,
    ConditionInvariant,
    DeclaredInvariant,
    FunctionInvariant,
    declared_invariants,
)
from strobe.invariants.global_state import GlobalState

__all__ = [
    "CONSERVED",
    "RESERVED",
    "ConditionInvariant",
    "DeclaredInvariant",
    "FunctionInvariant",
    "GlobalState",
    "declared_invariants",
]
