"""Invariants that a system declares (G1, E12): what they see of a snapshot, and whether they hold in it."""

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
