"""Happens-before, clocks and cuts: the exact definitions, in memory. Everything else is checked against them (M3).

In: traces, snapshots, conditions. Out: whether a cut is consistent, a proof holds, or a predicate is true, with the
reason. There is no I/O, clock or randomness here.
"""

from strobe.causality.clocks import EventClocks, HybridTime, VectorClock, vector_clocks
from strobe.causality.cuts import (
    Cut,
    CutVerdict,
    InconsistentCut,
    channel_contents,
    check_cuts,
    cut_of,
    is_consistent,
    latest_consistent_cut,
    violating_messages,
)
from strobe.causality.predicate_input import PredicateInput, ProcessDeclaration, predicate_input_of
from strobe.causality.predicates import Deadlock, Garbage, Termination, deadlock, garbage, termination
from strobe.causality.proof import Finding, Verdict, require, verify
from strobe.causality.reordering import Reordering, reorder
from strobe.causality.trace import EventRef, Trace, TraceInvalid, parse_trace, read_trace

__all__ = [
    "Cut",
    "CutVerdict",
    "Deadlock",
    "EventClocks",
    "EventRef",
    "Finding",
    "Garbage",
    "HybridTime",
    "InconsistentCut",
    "PredicateInput",
    "ProcessDeclaration",
    "Reordering",
    "Termination",
    "Trace",
    "TraceInvalid",
    "VectorClock",
    "Verdict",
    "channel_contents",
    "check_cuts",
    "cut_of",
    "deadlock",
    "garbage",
    "is_consistent",
    "latest_consistent_cut",
    "parse_trace",
    "predicate_input_of",
    "read_trace",
    "reorder",
    "require",
    "termination",
    "vector_clocks",
    "verify",
    "violating_messages",
]
