"""What `strobe up` shows: a table that is drawn again on a terminal, a line for each thing that happened elsewhere."""

import re
import sys
from collections import deque
from types import TracebackType
from typing import Any, Self

from strobe.cli.output import note, size_text
from strobe.runtime.documents import FinishedSnapshot, ProcessStatus, RollbackReport, Status, Trouble

EVENTS_SHOWN = 6
SNAPSHOTS_SHOWN = 5
SEEN_MAX = 1024
"""Of so many snapshots and epochs it is known that they were told of: more than a status lists."""
STARTING_US = 5_000_000
"""For so long it is no news that not all processes are there yet."""
_WORDS = ("process", "state", "outcome", "snapshot")
_SECONDS = re.compile(r"\d+\.\d+ s\b")
_STATE_STYLES = {"running": "green", "missing": "bold red", "waiting": "yellow"}


class Watch:
    """Follows the status of a system; `quiet` shows nothing."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._events: deque[str] = deque(maxlen=EVENTS_SHOWN)
        self._seen: deque[str] = deque(maxlen=SEEN_MAX)
        self._troubles: set[str] = set()
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

    def tell(self, event: str) -> None:
        """Show that something has happened."""
        if self._events and self._events[-1] == event:
            return
        self._events.append(event)
        if self._live is None and not self._quiet:
            note(event)
        self._draw()

    def show(self, status: Status) -> None:
        """Show how things stand, and what is new since the last time."""
        self._status = status
        if self._since_us is None:
            self._since_us = status.started_us  # a coordinator that has read its log also knows of what was before
        for rollback in status.rollbacks:
            if rollback.at_us >= self._since_us and self._is_new(f"epoch {rollback.epoch}"):
                self.tell(rollback_text(rollback))
        for finished in status.finished:
            told = self._live is None or finished.outcome == "aborted"  # the table shows the others
            late = finished.started_us + finished.duration_us >= self._since_us
            if told and late and self._is_new(finished.id):
                self.tell(snapshot_text(finished))
        starting = status.now_us - status.started_us < STARTING_US
        self._show_troubles([one for one in status.troubles if not (starting and one.kind == "missing")])
        self._draw()

    def _is_new(self, name: str) -> bool:
        if name in self._seen:
            return False
        self._seen.append(name)
        return True

    def _show_troubles(self, troubles: list[Trouble]) -> None:
        """Tell of each trouble once while it lasts; for how long it has lasted changes all the time."""
        lasting = {_lasting(trouble): trouble for trouble in troubles}
        for problem, trouble in lasting.items():
            if problem not in self._troubles:
                self.tell(f"{trouble.kind}: {trouble.problem}")
        self._troubles = set(lasting)

    def _draw(self) -> None:
        if self._live is not None and self._status is not None:
            self._live.update(_picture(self._status, list(self._events)))


def _lasting(trouble: Trouble) -> str:
    """Return what stays the same of a trouble while it lasts."""
    return trouble.kind if trouble.kind == "snapshots" else _SECONDS.sub("", trouble.problem)


def rollback_text(rollback: RollbackReport) -> str:
    """Return what a rollback came to, in one line."""
    undone = ", ".join(f"{process} {events:,}" for process, events in rollback.undone.items() if events)
    lost = f"; undone events: {undone}" if undone else ""
    return f"rolled back to {rollback.restored or 'the beginning'}, epoch {rollback.epoch}: {rollback.reason}{lost}"


def snapshot_text(finished: FinishedSnapshot) -> str:
    if finished.outcome == "aborted":
        return f"snapshot {finished.id} aborted: {finished.reason}"
    size = size_text(finished.state_bytes + finished.in_flight_bytes)
    flight = f"{finished.in_flight_messages:,} in flight"
    return f"snapshot {finished.id} committed in {finished.duration_us / 1000:.0f} ms, {size}, {flight}"


def _picture(status: Status, events: list[str]) -> Any:
    from rich.console import Group
    from rich.text import Text

    head = (
        f"epoch {status.epoch}, view {status.view} · {status.committed:,} snapshots, {status.aborted:,} aborted · "
        f"log {status.log_position:,} · {status.api}"
    )
    lines = [Text(event, overflow="fold") for event in events]
    return Group(Text(head, style="bold"), _processes(status.processes), _snapshots(status), *lines)


def _processes(processes: list[ProcessStatus]) -> Any:
    from rich.text import Text

    table = _table("process", "state", "pid", "events/s", "events", "backlog", "memory", "cpu s")
    for one in processes:
        table.add_row(
            Text(one.name),
            Text(one.state, style=_STATE_STYLES.get(one.state, "")),
            str(one.pid or ""),
            f"{one.events_per_s:,.0f}",
            f"{one.position:,}",
            size_text(one.backlog_bytes),
            size_text(one.memory_bytes),
            f"{one.cpu_s:,.1f}",
        )
    return table


def _snapshots(status: Status) -> Any:
    from rich.text import Text

    table = _table("snapshot", "outcome", "ms", "state", "in flight", "messages", "slowest")
    for one in status.finished[-SNAPSHOTS_SHOWN:]:
        stored = [part for part in one.parts if part.stored]
        slowest = max(stored, key=lambda part: part.duration_us, default=None)
        table.add_row(
            Text(one.id),  # as text: names of processes are no markup, whatever they have in brackets
            one.outcome,
            f"{one.duration_us / 1000:,.0f}",
            size_text(one.state_bytes),
            size_text(one.in_flight_bytes),
            f"{one.in_flight_messages:,}",
            Text(f"{slowest.process} {slowest.duration_us / 1000:,.0f} ms" if slowest else ""),
        )
    return table


def _table(*titles: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        table.add_column(title, no_wrap=True, justify="left" if title in _WORDS else "right")
    return table
