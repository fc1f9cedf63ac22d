"""Judges `conserved` (E12): its value is compared with its value in a **reference**.

- The initial states of the system, captured before anything runs, if the store is new and every process has a class;
- otherwise the oldest snapshot of the same generation. A generation ends when a process joins, since it brings new
  state. A rollback returns to the generation of the restored snapshot (generations.py).

The first snapshot of a generation without a reference becomes the reference, and holds.
"""

from collections.abc import Callable
from typing import Any

from strobe.plain_text import plain
from strobe.process import System
from strobe.runtime.connectors.system_file import ProgramWithOwnLoop
from strobe.runtime.judging.questions import Question, Unreadable
from strobe.runtime.messages.verdicts import ERROR, TEXT_MAX, UNDECIDED, ConditionVerdict
from strobe.runtime.recovery.trial_restore import DecodedSnapshot, conserved_value
from strobe.storage.inspection.verification import HOLDS, VIOLATED
from strobe.user_code import RAISED, explain, is_failure

Read = Callable[[str, int], DecodedSnapshot]
"""Returns the snapshot with this id, whose commit is at this log position; raises Unreadable."""


class ConservationCheck:
    """Judges `conserved` for one system, whose processes have not run."""

    def __init__(self, system: System, read: Read) -> None:
        self._system = system
        self._read = read
        self._references: dict[int, Any] = {}

    def judge(self, question: Question, decoded: DecodedSnapshot) -> ConditionVerdict:
        """Return the verdict on one snapshot; raise Unreadable if there is no value to compare."""
        found = self._value(decoded)
        expected = self._reference(question, found)
        return ConditionVerdict(HOLDS if _equal(expected, found) else VIOLATED, _shown(expected), _shown(found))

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
                return self._value(self._read(*question.reference))
            except Unreadable as problem:
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
            raise Unreadable(ERROR, f"fails on the initial states: {explain(error)}") from error

    def _value(self, decoded: DecodedSnapshot) -> Any:
        value, findings = conserved_value(self._system, decoded)
        if findings:
            raise Unreadable.by(findings)
        return value


def _equal(expected: Any, found: Any) -> bool:
    try:
        if expected == found:
            return True
        comparable = expected == expected and found == found
    except RAISED as error:  # the user's class may define its own comparison
        if not is_failure(error):
            raise
        raise Unreadable(ERROR, f"values cannot be compared: {explain(error)}") from error
    if not comparable:
        raise Unreadable(ERROR, f"the value {_shown(found)} does not equal itself, so nothing can be compared with it")
    return False


def _shown(value: Any) -> str:
    try:
        return plain(repr(value), TEXT_MAX)
    except RAISED as error:
        if not is_failure(error):
            raise
        return f"a {type(value).__name__} that cannot be shown"
