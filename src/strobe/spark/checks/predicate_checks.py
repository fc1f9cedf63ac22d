"""Stable predicates as checks of the pipeline (G2): which results are violations, and which are only information.

A deadlock is a violation. A system that has not terminated, or that has garbage, is not at fault: the verdict is
`undecided`, and the reason lists what was found.
"""

from collections.abc import Callable
from typing import NamedTuple

from strobe.causality.predicate_input import PredicateInput
from strobe.causality.predicates import Predicate, deadlock, garbage, listed, termination
from strobe.causality.proof import Finding
from strobe.spark.schema import columns as c


class PredicateResult(NamedTuple):
    """The verdict on one check of one snapshot, its reason, and the findings."""

    verdict: str
    reason: str
    findings: tuple[Finding, ...] = ()


NOTHING_DECLARED = PredicateResult(c.UNDECIDED, "no process declares anything")


def _deadlock(facts: PredicateInput) -> PredicateResult:
    found = deadlock(facts)
    findings = (
        Finding(Predicate.DEADLOCK, one, f"waits for {listed(names)}, which will never answer")
        for one, names in found.waits.items()
    )
    return PredicateResult(c.VIOLATED if found.holds else c.HOLDS, str(found), tuple(findings))


def _termination(facts: PredicateInput) -> PredicateResult:
    found = termination(facts)
    return PredicateResult(c.HOLDS if found.holds else c.UNDECIDED, str(found))


def _garbage(facts: PredicateInput) -> PredicateResult:
    found = garbage(facts)
    return PredicateResult(c.UNDECIDED if found.holds else c.HOLDS, str(found))


CHECKS: dict[str, Callable[[PredicateInput], PredicateResult]] = {
    Predicate.DEADLOCK: _deadlock,
    Predicate.TERMINATION: _termination,
    Predicate.GARBAGE: _garbage,
}
