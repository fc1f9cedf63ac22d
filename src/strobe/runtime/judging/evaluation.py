"""Judges a committed snapshot by all that its system declares (E12); runs in the judge process.

The conditions are `conserved`, each invariant, and the stable predicates that processes declare something for. Each is
evaluated by itself: if one fails or takes too long, that is its verdict, and the others are still evaluated.
"""

from collections.abc import Callable, Iterator
from functools import partial

from strobe.causality.predicate_input import predicate_input_of
from strobe.causality.predicates import Predicate
from strobe.errors import StrobeError
from strobe.invariants import CONSERVED, DeclaredInvariant, GlobalState
from strobe.plain_text import plain
from strobe.process import System
from strobe.protocol import Snapshot
from strobe.runtime.judging.conservation import ConservationCheck
from strobe.runtime.judging.predicate_verdicts import declared_in, declared_predicates, has_programs, judge_predicate
from strobe.runtime.judging.questions import Evaluation, Question, Unreadable
from strobe.runtime.judging.time_limit import TimeIsUp, limited
from strobe.runtime.messages.verdicts import ERROR, TEXT_MAX, UNDECIDED, ConditionVerdict
from strobe.runtime.recovery.trial_restore import DecodedSnapshot, decode
from strobe.storage.inspection.verification import HOLDS, VIOLATED
from strobe.user_code import RAISED, explain, is_failure

Load = Callable[[str, int], Snapshot]
"""Returns the snapshot with this id, whose commit is at this log position."""


def conditions_of(system: System) -> tuple[str, ...]:
    """Return the names of the conditions to judge."""
    conserved = (CONSERVED,) if system.conserved is not None else ()
    return (*conserved, *(one.name for one in system.invariants), *map(str, declared_predicates(system)))


def needs_judge(system: System) -> bool:
    """Return whether snapshots of `system` must be judged. What a program declares shows only in its snapshots."""
    return bool(conditions_of(system)) or has_programs(system)


class Evaluator:
    """Judges snapshots of one system, whose processes have not run.

    A condition that takes longer than `timeout_s` has failed. With a limit, call it in the main thread only.
    """

    def __init__(self, system: System, load: Load, timeout_s: float | None = None) -> None:
        self._system = system
        self._load = load
        self._timeout_s = timeout_s
        self._conservation = ConservationCheck(system, lambda name, position: self._decode(self._read(name, position)))
        self._predicates = dict.fromkeys(declared_predicates(system))

    def judge(self, question: Question) -> Iterator[Evaluation]:
        """Yield the verdicts on one snapshot, one condition at a time; every failure is a verdict too."""
        checks = self._checks(question)
        # A condition that has ended the judge process before must not keep the others from being evaluated.
        order = sorted(checks, key=lambda name: name in question.last)
        yield Evaluation(question.snapshot, {}, order[0] if order else "")
        for name, following in zip(order, [*order[1:], ""], strict=False):
            yield Evaluation(question.snapshot, {name: self._verdict(checks[name])}, following)

    def _checks(self, question: Question) -> dict[str, Callable[[], ConditionVerdict]]:
        """Return the check of each condition, with what the snapshot is read for only once."""
        system = self._system
        try:
            snapshot = self._read(question.snapshot, question.position)
        except Unreadable as error:
            return dict.fromkeys(conditions_of(system), partial(_raise, error))
        checks: dict[str, Callable[[], ConditionVerdict]] = {}
        try:
            decoded = self._decode(snapshot) if system.conserved is not None or system.invariants else None
        except Unreadable as error:
            names = (name for name in conditions_of(system) if name not in self._predicates)
            checks = dict.fromkeys(names, partial(_raise, error))
        else:
            if decoded is not None:
                checks = self._checks_of_states(question, decoded)
        return checks | self._checks_of_predicates(snapshot)

    def _checks_of_states(
        self, question: Question, decoded: DecodedSnapshot
    ) -> dict[str, Callable[[], ConditionVerdict]]:
        checks: dict[str, Callable[[], ConditionVerdict]] = {}
        if self._system.conserved is not None:
            checks[CONSERVED] = partial(self._conservation.judge, question, decoded)
        for invariant in self._system.invariants:
            checks[invariant.name] = partial(_judge_invariant, invariant, decoded.state)
        return checks

    def _checks_of_predicates(self, snapshot: Snapshot) -> dict[str, Callable[[], ConditionVerdict]]:
        has_more = has_programs(self._system)
        if not (self._predicates or has_more):
            return {}
        try:
            facts = predicate_input_of(snapshot)
        except StrobeError as error:
            return dict.fromkeys(map(str, self._predicates), partial(_raise, Unreadable(UNDECIDED, str(error))))
        if has_more:
            self._predicates |= dict.fromkeys(declared_in(facts))
        return {str(one): partial(judge_predicate, one, facts) for one in Predicate if one in self._predicates}

    def _verdict(self, check: Callable[[], ConditionVerdict]) -> ConditionVerdict:
        try:
            return limited(self._timeout_s, check)
        except Unreadable as error:
            return ConditionVerdict(error.verdict, problem=error.problem)
        except MemoryError:
            return ConditionVerdict(UNDECIDED, problem=_NO_MEMORY)
        except TimeIsUp as error:
            return ConditionVerdict(ERROR, problem=f"fails: {explain(error)}")

    def _read(self, snapshot_id: str, position: int) -> Snapshot:
        try:
            snapshot = self._load(snapshot_id, position)
        except (StrobeError, OSError) as error:
            raise Unreadable(UNDECIDED, f"snapshot {snapshot_id} cannot be read: {error}") from error
        except MemoryError as error:
            raise Unreadable(UNDECIDED, _NO_MEMORY) from error
        unknown = [name for name in snapshot.view.processes if name not in self._system.processes]
        if unknown:
            problem = (
                f"process {unknown[0]!r} joined with another system than the coordinator's, which does not have it"
            )
            raise Unreadable(UNDECIDED, problem)
        return snapshot

    def _decode(self, snapshot: Snapshot) -> DecodedSnapshot:
        try:
            decoded = decode(self._system, snapshot)
        except MemoryError as error:
            raise Unreadable(UNDECIDED, _NO_MEMORY) from error
        if decoded.findings:
            raise Unreadable.by(decoded.findings)
        return decoded


_NO_MEMORY = "it takes more memory than verdict_bytes_max allows"


def _judge_invariant(invariant: DeclaredInvariant, state: GlobalState) -> ConditionVerdict:
    missing = invariant.missing(state)
    if missing is not None:
        raise Unreadable(UNDECIDED, f"{missing} is not in this snapshot: it has left, or has not joined yet")
    try:
        violation = invariant.violation(state)
    except RAISED as error:  # the user's own code
        if not is_failure(error):
            raise
        raise Unreadable(ERROR, f"fails: {explain(error)}") from error
    if violation is None:
        return ConditionVerdict(HOLDS)
    return ConditionVerdict(VIOLATED, found=plain(violation, TEXT_MAX))


def _raise(error: Unreadable) -> ConditionVerdict:
    raise error
