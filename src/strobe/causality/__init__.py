"""What happened before what: exact definitions over in-memory data, that everything else is checked against (M3)."""

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
from strobe.causality.proof import Finding, Verdict, require, verify
from strobe.causality.reordering import Reordering, reorder
from strobe.causality.trace import EventRef, Trace, TraceInvalid, parse_trace, read_trace

__all__ = [
    "Cut",
    "CutVerdict",
    "EventClocks",
    "EventRef",
    "Finding",
    "HybridTime",
    "InconsistentCut",
    "Reordering",
    "Trace",
    "TraceInvalid",
    "VectorClock",
    "Verdict",
    "channel_contents",
    "check_cuts",
    "cut_of",
    "is_consistent",
    "latest_consistent_cut",
    "parse_trace",
    "read_trace",
    "reorder",
    "require",
    "vector_clocks",
    "verify",
    "violating_messages",
]
