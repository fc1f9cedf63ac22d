"""Judges a committed snapshot by its system's declared conditions (E12); runs in the judge process.

`conserved` is compared with its value in a **reference**:
- the initial states of the system, captured before anything runs, if the store is new and every process has a class;
- otherwise the oldest snapshot of the same generation. A generation ends when a process joins, since it brings new
  state. A rollback returns to the generation of the restored snapshot (generations.py).

The first snapshot of a generation without a reference becomes the reference, and holds.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from strobe.errors import StrobeError
from strobe.plain_text import plain
from strobe.process import System
from strobe.protocol import Snapshot
from strobe.runtime.connectors.system_file import ProgramWithOwnLoop
from strobe.runtime.messages.verdicts import ERROR, UNDECIDED, ConditionVerdict
from strobe.runtime.recovery.trial_restore import conserved_value
from strobe.storage.inspection.verification import HOLDS, VIOLATED
from strobe.user_code import RAISED, explain, is_failure

CONSERVED = "conserved"
TEXT_MAX = 200
"""Maximum number of characters shown of a value."""

Load = Callable[[str, int], Snapshot]
"""Returns the snapshot with this id, whose commit is at this log position."""


class Question(msgspec.Struct, frozen=True):
    """A snapshot to judge, by its log position, and the oldest other snapshot of its generation, if any.

    `initial`: the initial states are the reference of generation 0.
    """

    snapshot: str
    position: int
    generation: int = 0
    reference: tuple[str, int] | None = None
    initial: bool = False


class Evaluation(msgspec.Struct, frozen=True):
    """The verdicts on one snapshot, by condition."""

    snapshot: str
    verdicts: dict[str, ConditionVerdict]


class Ready(msgspec.Struct, frozen=True):
    """The judge process has loaded the system."""

    conditions: tuple[str, ...]


class NoValue(Exception):
    """The condition has no value here; `verdict` is the result."""

    def __init__(self, verdict: str, problem: str) -> None:
        super().__init__(verdict, problem)
        self.verdict = verdict
        self.problem = problem


def conditions_of(system: System) -> tuple[str, ...]:
    """Return the names of the conditions to judge."""
    return (CONSERVED,) if system.conserved is not None else ()


class ConservationCheck:
    """Judges `conserved` for one system, whose processes have not run."""

    def __init__(self, system: System, load: Load) -> None:
        self._system = system
        self._load = load
        self._references: dict[int, Any] = {}

    def judge(self, question: Question) -> ConditionVerdict:
        """Return the verdict on one snapshot; every failure is a verdict too."""
        try:
            found = self._value(question.snapshot, question.position)
            expected = self._reference(question, found)
            holds = _equal(expected, found)
        except NoValue as problem:
            return ConditionVerdict(problem.verdict, problem=problem.problem)
        except MemoryError:
            return ConditionVerdict(UNDECIDED, problem="it takes more memory than verdict_bytes_max allows")
        return ConditionVerdict(HOLDS if holds else VIOLATED, _shown(expected), _shown(found))

    def _reference(self, question: Question, found: Any) -> Any:
        """Return the value to compare with; `found` itself if there is no older one."""
        known = self._references
        if question.generation not in known:
            known[question.generation] = self._first_value(question, found)
        return known[question.generation]

    def _first_value(self, question: Question, found: Any) -> Any:
        own_loop = any(isinstance(process, ProgramWithOwnLoop) for process in self._system.processes.values())
        if question.initial and question.generation == 0 and not own_loop:
            return self._initial_value()
        if question.reference is not None:
            try:
                return self._value(*question.reference)
            except NoValue as problem:
                if problem.verdict != UNDECIDED:
                    raise
        return found

    def _initial_value(self) -> Any:
        try:
            states = {name: process.capture() for name, process in self._system.processes.items()}
            return self._system.conserved_value(states, [])
        except RAISED as error:
            if not is_failure(error):
                raise
            raise NoValue(ERROR, f"fails on the initial states: {explain(error)}") from error

    def _value(self, snapshot_id: str, position: int) -> Any:
        try:
            snapshot = self._load(snapshot_id, position)
        except (StrobeError, OSError) as error:
            raise NoValue(UNDECIDED, f"snapshot {snapshot_id} cannot be read: {error}") from error
        unknown = [name for name in snapshot.view.processes if name not in self._system.processes]
        if unknown:
            problem = (
                f"process {unknown[0]!r} joined with another system than the coordinator's, which does not have it"
            )
            raise NoValue(UNDECIDED, problem)
        value, findings = conserved_value(self._system, snapshot)
        if findings:
            raise NoValue(ERROR, "; ".join(f"{finding.subject}: {finding.problem}" for finding in findings))
        return value


def _equal(expected: Any, found: Any) -> bool:
    try:
        if expected == found:
            return True
        comparable = expected == expected and found == found
    except RAISED as error:  # the user's class may define its own comparison
        if not is_failure(error):
            raise
        raise NoValue(ERROR, f"values cannot be compared: {explain(error)}") from error
    if not comparable:
        raise NoValue(ERROR, f"the value {_shown(found)} does not equal itself, so nothing can be compared with it")
    return False


def _shown(value: Any) -> str:
    try:
        return plain(repr(value), TEXT_MAX)
    except RAISED as error:
        if not is_failure(error):
            raise
        return f"a {type(value).__name__} that cannot be shown"
