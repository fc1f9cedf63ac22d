"""Judges the stable predicates (G2) that the processes of a system declare something for.

A deadlock is a violation. Termination and garbage are facts: they hold, or do not hold yet.
"""

from collections.abc import Iterator

from strobe.causality.predicate_input import PredicateInput
from strobe.causality.predicates import Predicate, deadlock, garbage, termination
from strobe.detection import Detecting
from strobe.plain_text import plain
from strobe.process import Process, System
from strobe.runtime.connectors.system_file import ProgramWithOwnLoop
from strobe.runtime.messages.verdicts import NOT_YET, TEXT_MAX, ConditionVerdict
from strobe.storage.inspection.verification import HOLDS, VIOLATED

_METHODS = {Predicate.DEADLOCK: "waits_for", Predicate.TERMINATION: "active", Predicate.GARBAGE: "references"}


def declared_predicates(system: System) -> tuple[Predicate, ...]:
    """Return the predicates that the class of a process declares something for."""
    classes = {type(_inner(process)) for process in system.processes.values()}
    return tuple(
        predicate
        for predicate, method in _METHODS.items()
        if any(getattr(kind, method) is not getattr(Process, method) for kind in classes)
    )


def declared_in(facts: PredicateInput) -> Iterator[Predicate]:
    """Yield the predicates that a process declares something for at this cut. A program's class is not known."""
    declared = [declaration.declared for declaration in facts.declarations.values()]
    if any(one.waits is not None for one in declared):
        yield Predicate.DEADLOCK
    if not all(one.active for one in declared):
        yield Predicate.TERMINATION
    if any(one.references for one in declared):
        yield Predicate.GARBAGE


def has_programs(system: System) -> bool:
    """Return whether a process is a program with its own loop, whose declarations only its snapshots show."""
    return any(isinstance(process, ProgramWithOwnLoop) for process in system.processes.values())


def judge_predicate(predicate: Predicate, facts: PredicateInput) -> ConditionVerdict:
    """Return the verdict on one predicate."""
    if predicate is Predicate.DEADLOCK:
        stuck = deadlock(facts)
        return ConditionVerdict(VIOLATED if stuck.holds else HOLDS, found=plain(stuck.brief(), TEXT_MAX))
    found = termination(facts) if predicate is Predicate.TERMINATION else garbage(facts)
    return ConditionVerdict(HOLDS if found.holds else NOT_YET, found=plain(str(found), TEXT_MAX))


def _inner(process: Process) -> Process:
    """Return the process under wrappers that pass its declarations on."""
    while isinstance(process, Detecting):
        process = process.process
    return process
