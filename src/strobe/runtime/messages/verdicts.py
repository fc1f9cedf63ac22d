"""Verdicts on the declared conditions, snapshot by snapshot, and their counts (E12).

A condition is `conserved`, an invariant, or a stable predicate: `deadlock`, `termination` or `garbage`. A verdict is
about one snapshot: the condition holds, or is violated, or could not be evaluated because the user's function failed
(error), or because the snapshot could not be read or the judge process was killed (undecided). Termination and garbage
are never violated: they hold, or not yet. Snapshots that commit faster than they are judged are skipped.
"""

from collections.abc import Iterable, Mapping

import msgspec

from strobe.runtime.event_log import WARNING, EventLog
from strobe.storage.inspection.verification import HOLDS, VIOLATED

ERROR = "error"
UNDECIDED = "undecided"
NOT_YET = "not_yet"
VERDICTS = (HOLDS, VIOLATED, ERROR, UNDECIDED, NOT_YET)
TEXT_MAX = 200
"""Maximum number of characters shown of a value or an explanation."""
KEPT_MAX = 1024
"""Number of verdicts that the coordinator keeps, of the newest judged snapshots."""


class ConditionVerdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a condition in one snapshot.

    For `conserved`, `expected` and `found` are values as Python shows them. For other conditions, `found` says what was
    found, such as the values in a violated invariant or a cycle of processes; it may be empty if the condition holds.
    """

    verdict: str
    expected: str = ""
    found: str = ""
    problem: str = ""

    def __str__(self) -> str:
        if self.verdict in (ERROR, UNDECIDED):
            return self.problem
        is_other = self.verdict == VIOLATED and self.expected
        return f"{self.found}, expected {self.expected}" if is_other else self.found


class ConditionStatus(msgspec.Struct):
    """A condition, as this coordinator has judged it since it started: how many snapshots had which verdict.

    `latest` is the newest verdict, of the snapshot `snapshot`; `violation` is the first that was violated. `pending`:
    the newest snapshot has no verdict yet.
    """

    name: str
    holds: int = 0
    violated: int = 0
    error: int = 0
    undecided: int = 0
    not_yet: int = 0
    skipped: int = 0
    pending: bool = False
    snapshot: str = ""
    latest: ConditionVerdict | None = None
    violation_snapshot: str = ""
    violation: ConditionVerdict | None = None

    @property
    def judged(self) -> int:
        """The number of snapshots that the condition was evaluated on."""
        return self.holds + self.violated + self.not_yet

    @property
    def committed(self) -> int:
        """The number of snapshots to judge."""
        return self.judged + self.error + self.undecided + self.skipped

    @property
    def failed(self) -> bool:
        """Whether a snapshot violates the condition, or every evaluation failed because of its function."""
        return self.violated > 0 or (self.error > 0 and not self.judged)

    def note(self, snapshot: str, verdict: ConditionVerdict) -> None:
        setattr(self, verdict.verdict, getattr(self, verdict.verdict) + 1)
        self.snapshot, self.latest = snapshot, verdict
        if verdict.verdict == VIOLATED and self.violation is None:
            self.violation_snapshot, self.violation = snapshot, verdict

    def follow(self, later: "ConditionStatus") -> "ConditionStatus":
        """Return the combined status of this coordinator and a later one."""
        counts = {name: getattr(self, name) + getattr(later, name) for name in (*VERDICTS, "skipped")}
        latest, violation = (later if later.latest else self), (self if self.violation else later)
        return ConditionStatus(
            self.name,
            **counts,
            pending=later.pending,
            snapshot=latest.snapshot,
            latest=latest.latest,
            violation_snapshot=violation.violation_snapshot,
            violation=violation.violation,
        )


def merged(reports: Iterable[Iterable[ConditionStatus]]) -> list[ConditionStatus]:
    """Combine the conditions as judged by successive coordinators."""
    found: dict[str, ConditionStatus] = {}
    for conditions in reports:
        for condition in conditions:
            before = found.get(condition.name)
            found[condition.name] = before.follow(condition) if before is not None else condition
    return list(found.values())


class Verdicts:
    """The verdicts of one coordinator: counts, the newest verdicts, and log lines for failures."""

    def __init__(self, names: Iterable[str], log: EventLog) -> None:
        self.conditions = {name: ConditionStatus(name) for name in names}
        self._log = log
        # The conditions that are violated now, each with the first snapshot that violates it.
        self._violated: dict[str, str] = {}
        self._kept: dict[str, dict[str, ConditionVerdict]] = {}

    def note(self, snapshot: str, verdicts: Mapping[str, ConditionVerdict]) -> None:
        """Store the verdicts on one snapshot."""
        for name, verdict in verdicts.items():
            # A program with its own loop may declare something that no class shows.
            condition = self.conditions.setdefault(name, ConditionStatus(name))
            before = condition.latest
            condition.note(snapshot, verdict)
            self._report(name, snapshot, before, verdict)
        self._kept[snapshot] = dict(verdicts)
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]

    def skipped(self) -> None:
        """Count a snapshot that is not judged because a newer one has committed."""
        for condition in self.conditions.values():
            condition.skipped += 1

    def of(self, snapshot: str) -> dict[str, ConditionVerdict]:
        return self._kept.get(snapshot, {})

    def status(self, pending: bool) -> list[ConditionStatus]:
        return [msgspec.structs.replace(condition, pending=pending) for condition in self.conditions.values()]

    def _report(self, name: str, snapshot: str, before: ConditionVerdict | None, verdict: ConditionVerdict) -> None:
        """Log what has changed: a violation when it begins and when it is over, and other verdicts once."""
        facts = {"condition": name, "snapshot": snapshot, "found": verdict.found, "expected": verdict.expected}
        since = self._violated.get(name)
        if verdict.verdict == VIOLATED:
            if since is None:
                self._violated[name] = snapshot
                self._log.emit("violated", WARNING, **facts)
        elif verdict.verdict in (ERROR, UNDECIDED):
            if before is None or before.problem != verdict.problem:
                self._log.emit("not judged", WARNING, condition=name, snapshot=snapshot, reason=verdict.problem)
        elif since is not None:
            del self._violated[name]
            self._log.emit("holds again", **facts, violated_since=since)
        elif before is None or before.verdict != verdict.verdict:
            event = "holds" if verdict.verdict == HOLDS else "does not hold yet"
            self._log.emit(event, condition=name, snapshot=snapshot, found=verdict.found)
