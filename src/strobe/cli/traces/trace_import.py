"""`strobe trace import`: checks a log of vector clocks, and converts its executions to traces (D7)."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from strobe.causality.trace_lines import Line, Send, TraceHeader, encode_header, encode_lines
from strobe.cli.shell.commands import JsonOption
from strobe.cli.shell.output import ProgressLine, count, print_json, print_line
from strobe.errors import UsageError
from strobe.traces.clock_logs import DEFAULT_PARSER, ClockLogInvalid, Execution, import_log, read_log

_MATCHING_S_MAX = 5.0
"""Maximum time for a regular expression to find one event."""
_HOSTS_LISTED_MAX = 20


def import_(
    log: Annotated[
        Path, typer.Argument(metavar="LOG", help="A log with vector clocks, in a format that ShiViz reads.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the trace here; without it, the log is only checked."),
    ] = None,
    parser: Annotated[
        str,
        typer.Option("--parser", metavar="REGEX", help="Matches an event: (?<host>), (?<clock>), (?<event>)."),
    ] = DEFAULT_PARSER,
    delimiter: Annotated[
        str | None,
        typer.Option(
            "--delimiter",
            metavar="REGEX",
            help="Matches the line between two executions; (?<trace>) is the name of the next one.",
        ),
    ] = None,
    execution: Annotated[
        str | None, typer.Option("--execution", metavar="NAME", help="Import only this execution.")
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename", metavar="OLD=NEW", help="Rename a host in the trace; repeatable."),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Check a log of vector clocks and convert it to a trace; several executions become FILE-1, FILE-2 and so on.

    A log with impossible clocks is refused, with every line that breaks a rule. Parser and delimiter are regular
    expressions as in ShiViz: ^ and $ match at the ends of a line.

    \b
    Example:
      strobe trace import chord.log --parser '(?<host>\\S*) (?<clock>{.*})\\n(?<event>.*)' --out chord.jsonl
      strobe trace lattice chord.jsonl --possibly 'events("front-end") > 3'
    """
    with ProgressLine() as progress:
        progress.show(f"reading {log}", now=True)
        text = _text(log)
        with _watched_search(str(log), parser == DEFAULT_PARSER and delimiter is None) as watch:
            executions = read_log(text, parser, delimiter, str(log), watch, execution)
        progress.show(f"checking {sum(len(each.events) for each in executions):,} events", now=True)
        traces = _import_all(executions, str(log), _renamed(rename or [], executions, str(log)))
    files = _files(out, len(traces))
    for file, (header, lines) in zip(files, traces, strict=True):
        if file is not None:
            _write(file, encode_header(header) + encode_lines(lines))
    rows = [_row(*each) for each in zip(executions, traces, files, strict=True)]
    if json:
        print_json({"log": str(log), "executions": rows})
    else:
        for row in rows:
            print_line(_sentence(row))
    return 0


def _text(log: Path) -> str:
    try:
        data = log.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {log}: {error.strerror or error}") from error
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{log}, line {line}: not UTF-8: {error.reason}; convert the log first") from None


@contextmanager
def _watched_search(log: str, by_default: bool) -> "Iterator[_SearchProgress]":
    """Stop a regular expression that searches one event forever: it may have exponentially many ways to fail.

    Python's regular expression engine checks for signals while it matches. Without a timer, an interrupt stops it too.
    """
    watch = _SearchProgress(log, by_default)
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield watch
        return
    before = signal.signal(signal.SIGALRM, watch.check)
    signal.setitimer(signal.ITIMER_REAL, _MATCHING_S_MAX, _MATCHING_S_MAX)
    try:
        yield watch
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _SearchProgress:
    """Tracks the line that the search has reached, and checks from time to time whether it advances."""

    def __init__(self, log: str, by_default: bool) -> None:
        self._log = log
        self._by_default = by_default
        self._line = 1
        self._seen = -1
        self._steps = 0

    def __call__(self, line: int) -> None:
        self._line = line
        self._steps += 1

    def check(self, *_signal: object) -> None:
        if self._steps == self._seen:
            raise UsageError(f"{self._log}, from line {self._line} on: {self._why()}")
        self._seen = self._steps

    def _why(self) -> str:
        searched = f"has searched for one event for {_MATCHING_S_MAX:.0f} seconds"
        if self._by_default:
            return f"the parser {searched}: a line there is too long for a log"
        return (
            f"the regular expression {searched}: it may have exponentially many ways to fail, or a line there is very "
            "long; avoid repetitions within repetitions, as in (a+)+ or (.*)*"
        )


def _renamed(options: list[str], executions: list[Execution], log: str) -> dict[str, str]:
    """Return the new names by the old ones; old names may contain "="."""
    hosts = {event.host for execution in executions for event in execution.events}
    renamed: dict[str, str] = {}
    for option in options:
        old, _, new = option.rpartition("=")
        if not old or not new:
            raise UsageError(f"--rename {option}: not of the form OLD=NEW")
        if old not in hosts:
            raise UsageError(f"--rename {option}: {log} has no host {old!r}; its hosts are: {_listed(hosts)}")
        if renamed.setdefault(old, new) != new:
            raise UsageError(f"--rename {option}: {old!r} is already renamed to {renamed[old]!r}")
    return renamed


def _listed(hosts: set[str]) -> str:
    shown = [repr(host) for host in sorted(hosts)[:_HOSTS_LISTED_MAX]]
    return ", ".join(shown) + (f" and {len(hosts) - len(shown)} more" if len(hosts) > len(shown) else "")


def _import_all(executions: list[Execution], log: str, renamed: dict[str, str]) -> list[tuple[TraceHeader, list[Line]]]:
    """Return all traces; raise one ClockLogInvalid with the impossible lines of all executions."""
    traces: list[tuple[TraceHeader, list[Line]]] = []
    refused: list[ClockLogInvalid] = []
    for execution in executions:
        try:
            traces.append(import_log(execution, log, renamed))
        except ClockLogInvalid as error:
            refused.append(error)
    if refused:
        raise ClockLogInvalid(log, tuple(each for error in refused for each in error.impossible))
    return traces


def _files(out: Path | None, number: int) -> list[Path | None]:
    if out is None or number == 1:
        return [out] * number
    return [out.with_name(f"{out.stem}-{place}{out.suffix}") for place in range(1, number + 1)]


def _write(file: Path, data: bytes) -> None:
    try:
        file.write_bytes(data)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror or error}") from error


def _row(execution: Execution, trace: tuple[TraceHeader, list[Line]], file: Path | None) -> dict[str, object]:
    header, lines = trace
    return {
        "execution": execution.label,
        "file": str(file) if file is not None else None,
        "processes": header.processes,
        "events": len(execution.events),
        "messages": sum(isinstance(line, Send) for line in lines),
    }


def _sentence(row: dict[str, object]) -> str:
    label = f"{row['execution']}: " if row["execution"] else ""
    processes = row["processes"]
    assert isinstance(processes, tuple)
    events, messages = row["events"], row["messages"]
    assert isinstance(events, int)
    assert isinstance(messages, int)
    hosts = count(len(processes), "process", "processes")
    written = f", written to {row['file']}" if row["file"] else ""
    return f"{label}{count(events, 'event')} of {hosts}, {count(messages, 'message')}: the clocks hold{written}"
