"""What the coordinator asks the judge process, and what that answers: lines of JSON, one at a time."""

from collections.abc import Iterable

import msgspec

from strobe.causality.proof import Finding
from strobe.runtime.messages.verdicts import ERROR, ConditionVerdict


class Question(msgspec.Struct, frozen=True):
    """A snapshot to judge, by its log position, and the oldest other snapshot of its generation, if any.

    `initial`: the initial states are the reference of generation 0. `last` are conditions to evaluate after all others,
    because the judge process has ended over them before.
    """

    snapshot: str
    position: int
    generation: int = 0
    reference: tuple[str, int] | None = None
    initial: bool = False
    last: tuple[str, ...] = ()


class Evaluation(msgspec.Struct, frozen=True):
    """Verdicts on one snapshot, by condition. If a condition is `running`, more of them follow."""

    snapshot: str
    verdicts: dict[str, ConditionVerdict]
    running: str = ""


class Ready(msgspec.Struct, frozen=True):
    """The judge process has loaded the system."""

    conditions: tuple[str, ...]


class Unreadable(Exception):
    """A condition has no value in a snapshot; `verdict` is the result."""

    def __init__(self, verdict: str, problem: str) -> None:
        super().__init__(verdict, problem)
        self.verdict = verdict
        self.problem = problem

    @classmethod
    def by(cls, findings: Iterable[Finding]) -> "Unreadable":
        """Return the error for a snapshot with these findings, each of which the system's own code is to blame for."""
        return cls(ERROR, "; ".join(f"{finding.subject}: {finding.problem}" for finding in findings))
