"""The display of `strobe up`: a live table on a terminal, otherwise one line per event."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from strobe.causality.predicates import Predicate
from strobe.cli.live.notices import Notices
from strobe.cli.shell.output import Column, cell_of, count, note, size_text, table
from strobe.protocol.values.ids import short_names
from strobe.runtime.messages.api_documents import FinishedSnapshot, ProcessStatus, RollbackReport, Status, Trouble
from strobe.runtime.messages.verdicts import ERROR, UNDECIDED, ConditionStatus, ConditionVerdict
from strobe.storage.inspection.verification import HOLDS, VIOLATED

SNAPSHOTS_SHOWN = 5
PROCESSES_SHOWN = 40
SEEN_MAX = 1024
"""Number of snapshots and epochs remembered as reported; more than a status lists."""
STARTING_US = 5_000_000
"""Missing processes are not reported during this time after the start."""
_CONDITION, _TROUBLE = "condition ", "trouble "
"""Beginnings of the matters of notices."""
_FACTS = (Predicate.TERMINATION, Predicate.GARBAGE)
"""Predicates that are neither good nor bad."""
_NONE = {str(Predicate.DEADLOCK): "none"}
_WORDS = ("process", "state", "outcome", "snapshot")
_STATE_STYLES = {"running": "green", "missing": "bold red", "blocked": "bold red", "waiting": "yellow"}


class UpDisplay:
    """Shows the status of a system; `quiet` shows nothing."""

    def __init__(self, quiet: bool = False, clock_s: Callable[[], float] = time.time) -> None:
        self._quiet = quiet
        self._notices = Notices(clock_s)
        self._seen: deque[str] = deque(maxlen=SEEN_MAX)
        self._verdicts: dict[str, ConditionVerdict] = {}
        self._since_us: int | None = None
        self._live: Any = None
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if sys.stdout.isatty() and not self._quiet:
            from rich.live import Live

            self._live = Live(refresh_per_second=4, transient=False)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)
            self._live = None

    def show_event(self, event: str, at_us: int | None = None) -> None:
        """Show an event."""
        self._print(self._notices.happened(event, at_us / 1e6 if at_us is not None else None))

    def show_notice(self, matter: str, text: str, since_us: int | None = None) -> None:
        """Show a notice about `matter` until it is over."""
        self._print(self._notices.begin(matter, text, since_us / 1e6 if since_us else None))

    def end_notice(self, matter: str) -> None:
        """Show that the matter of a notice is over: on a terminal, its line goes."""
        self._print(self._notices.end(matter))

    def _print(self, line: str | None) -> None:
        if line is not None and self._live is None and not self._quiet:
            note(line)
        self._draw()

    def show(self, status: Status) -> None:
        """Show the status, and what is new since the last one."""
        self._status = status
        if self._since_us is None:
            self._since_us = status.started_us  # a coordinator that has read its log also knows about earlier runs
        for rollback in status.rollbacks:
            if rollback.at_us >= self._since_us and self._is_new(f"epoch {rollback.epoch}"):
                self.show_event(rollback_text(rollback), rollback.at_us)
        for finished in status.finished:
            is_shown = self._live is None or finished.outcome == "aborted"  # the table shows the others
            ended_us = finished.started_us + finished.duration_us
            if is_shown and ended_us >= self._since_us and self._is_new(finished.id):
                self.show_event(snapshot_text(finished), ended_us)
        for condition in status.conditions:
            self._show_condition(condition)
        starting = status.now_us - status.started_us < STARTING_US
        self._show_troubles([one for one in status.troubles if not (starting and one.kind == "missing")])
        self._draw()

    def _show_condition(self, condition: ConditionStatus) -> None:
        """Show a change of a condition's verdict, not every snapshot."""
        latest = condition.latest
        if latest is None:
            return
        before = self._verdicts.get(condition.name)
        self._verdicts[condition.name] = latest
        if before is not None and before.verdict == latest.verdict:
            return
        where = f"snapshot {condition.snapshot}: {condition_text(condition)}"
        # Of a verdict that replaces another, only the new one is shown; on a terminal, the table has what holds.
        self._notices.end(_CONDITION + condition.name)
        if latest.verdict in (VIOLATED, ERROR, UNDECIDED):
            self.show_notice(_CONDITION + condition.name, where)
        elif self._live is None or (latest.verdict == HOLDS and condition.name in _FACTS):
            self.show_event(where)

    def _is_new(self, name: str) -> bool:
        if name in self._seen:
            return False
        self._seen.append(name)
        return True

    def _show_troubles(self, troubles: list[Trouble]) -> None:
        """Show each trouble while it lasts; its duration changes all the time."""
        # The table shows blocked processes itself, with the time.
        shown = [one for one in troubles if self._live is None or one.kind != "blocked"]
        lasting = {_TROUBLE + trouble.matter: trouble for trouble in shown}
        for matter in sorted(self._notices.matters):
            if matter.startswith(_TROUBLE) and matter not in lasting:
                self.end_notice(matter)
        for matter, trouble in lasting.items():
            self.show_notice(matter, f"{trouble.kind}: {trouble.problem}", trouble.since_us)

    def _draw(self) -> None:
        if self._live is not None and self._status is not None:
            self._live.update(_rendered(self._status, self._notices.lines))


def rollback_text(rollback: RollbackReport) -> str:
    """Describe a rollback in one line."""
    undone = ", ".join(f"{process} {events:,}" for process, events in rollback.undone.items() if events)
    lost = f"; undone events: {undone}" if undone else ""
    return f"rolled back to {rollback.restored or 'the beginning'}, epoch {rollback.epoch}: {rollback.reason}{lost}"


def snapshot_text(finished: FinishedSnapshot) -> str:
    if finished.outcome == "aborted":
        return f"snapshot {finished.id} aborted: {finished.reason}"
    size = size_text(finished.state_bytes + finished.in_flight_bytes)
    flight = f"{finished.in_flight_messages:,} in flight"
    return f"snapshot {finished.id} committed in {finished.duration_us / 1000:.0f} ms, {size}, {flight}"


def condition_text(condition: ConditionStatus) -> str:
    """Describe the newest verdict on a condition in one line: `conserved ✓ 800`, `deadlock: a→b→a`."""
    latest, name = condition.latest, condition.name
    if latest is None:
        return f"{name}: not judged yet"
    if latest.verdict in (ERROR, UNDECIDED):
        return f"{name} {latest.verdict}: {latest.problem}"
    if name in _FACTS or (name == Predicate.DEADLOCK and latest.verdict == VIOLATED):
        return f"{name}: {latest.found}"
    if latest.verdict == HOLDS:
        return f"{name} ✓ {latest.found or _NONE.get(name, '')}".rstrip()
    return f"{name} ✗ {violation_text(latest)}"


def violation_text(verdict: ConditionVerdict) -> str:
    """Describe what violates a condition."""
    return f"{verdict.found} ≠ {verdict.expected}" if verdict.expected else verdict.found


def judged_text(condition: ConditionStatus) -> str:
    """Return how many snapshots a condition was judged on."""
    return f"judged {condition.judged:,} of {condition.committed:,}"


def condition_summary(condition: ConditionStatus) -> str:
    """Summarize a condition in one line, with the first violation if there is one."""
    known = [f"{condition_text(condition)} (judged {condition.judged:,} of {count(condition.committed, 'snapshot')}"]
    if condition.violation is not None:
        first = violation_text(condition.violation)
        known.append(f"{condition.violated:,} violated, the first {condition.violation_snapshot} with {first}")
    known += [
        f"{number:,} {name}"
        for name, number in (("error", condition.error), ("undecided", condition.undecided))
        if number
    ]
    return ", ".join(known) + ")"


def failure_text(condition: ConditionStatus) -> str:
    """Describe in a few words why a condition has failed."""
    if condition.violated:
        return f"{condition.name} violated in {condition.violated:,} of {count(condition.judged, 'snapshot')}"
    return f"{condition.name} failed on every snapshot"


def _conditions(conditions: list[ConditionStatus]) -> list[Any]:
    styles = {HOLDS: "green", VIOLATED: "bold red"}
    return [
        cell_of(f"{condition_text(one)} ({judged_text(one)})", styles.get(one.latest.verdict if one.latest else "", ""))
        for one in conditions
    ]


def _rendered(status: Status, notices: list[str]) -> Any:
    from rich.console import Group

    head = (
        f"epoch {status.epoch}, view {status.view} · {count(status.committed, 'snapshot')}, {status.aborted:,} aborted"
        f" · log {status.log_position:,} · {status.api}"
    )
    lines = [cell_of(one.blocked, "bold red") for one in status.processes if one.blocked]
    lines += [cell_of(line, "") for line in notices]
    shown = _most_interesting(status.processes)
    hidden = len(status.processes) - len(shown)
    more = [cell_of(f"and {hidden:,} more processes", "")] if hidden else []
    return Group(
        cell_of(head, "bold"), _processes(shown), *more, _snapshots(status), *_conditions(status.conditions), *lines
    )


def _most_interesting(processes: list[ProcessStatus]) -> list[ProcessStatus]:
    """Return as many as a screen can show: first those that do not run as they should."""
    if len(processes) <= PROCESSES_SHOWN:
        return processes
    return sorted(processes, key=lambda one: one.state == "running" and not one.blocked)[:PROCESSES_SHOWN]


def _processes(processes: list[ProcessStatus]) -> Any:
    def cells(one: ProcessStatus) -> Iterator[str]:
        yield str(one.pid or "")
        yield f"{one.events_per_s:,.0f}"
        yield f"{one.position:,}"
        yield size_text(one.backlog_bytes)
        yield size_text(one.memory_bytes)
        yield f"{one.cpu_s:,.1f}"

    titles = ("process", "state", "pid", "events/s", "events", "backlog", "memory", "cpu s")
    shown = ("blocked" if one.blocked else one.state for one in processes)
    states = (cell_of(state, _STATE_STYLES.get(state, "")) for state in shown)
    rows = zip(processes, states, strict=True)
    return _table(titles, [[cell_of(one.name, ""), state, *map(cell_of, cells(one))] for one, state in rows])


def _snapshots(status: Status) -> Any:
    name = short_names([*(one.id for one in status.finished), *(one.id for one in status.open)])

    def cells(one: FinishedSnapshot) -> Iterator[str]:
        stored = [part for part in one.parts if part.stored]
        slowest = max(stored, key=lambda part: part.duration_us, default=None)
        yield name(one.id)
        yield one.outcome
        yield f"{one.duration_us / 1000:,.0f}"
        yield size_text(one.state_bytes)
        yield size_text(one.in_flight_bytes)
        yield f"{one.in_flight_messages:,}"
        yield f"{slowest.process} {slowest.duration_us / 1000:,.0f} ms" if slowest else ""

    titles = ("snapshot", "outcome", "ms", "state", "in flight", "messages", "slowest")
    rows = status.finished[-SNAPSHOTS_SHOWN:]
    return _table(titles, [[cell_of(cell, "") for cell in cells(one)] for one in rows])


def _table(titles: Sequence[str], rows: list[list[Any]]) -> Any:
    return table([Column(title, number=title not in _WORDS, name=title in _WORDS) for title in titles], rows)
