"""`strobe trace`: what a recorded run says of itself."""

from typing import Annotated

import typer

from strobe.causality.cuts import HOLDS, UNDECIDED, VIOLATED, CutVerdict, check_cuts
from strobe.causality.trace import Trace, read_trace
from strobe.cli.commands import JsonOption, new_app
from strobe.cli.output import Column, Progress, count, print_json, print_table, say

app = new_app("Check a recorded run: do its events fit together, are its cuts consistent?")

_ORPHANS_PRINTED_MAX = 10


@app.command("verify")
def verify_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A trace: JSON lines, as `simulate --trace` writes it.")],
    json: JsonOption = False,
) -> int:
    """Check every event of a trace, then whether each snapshot recorded in it is a consistent cut.

    \b
    Example:
      strobe simulate examples/bank.py:bank --trace run.jsonl
      strobe trace verify run.jsonl
    """
    with Progress() as progress:
        progress.show(f"reading {file}", now=True)
        trace = read_trace(file)
        progress.show(f"checking {len(trace):,} lines", now=True)
        trace.check()
        verdicts = check_cuts(trace)
    if json:
        print_json(_document(trace, verdicts))
    else:
        _print(trace, verdicts)
    return 1 if any(verdict.verdict == VIOLATED for verdict in verdicts) else 0


def _print(trace: Trace, verdicts: list[CutVerdict]) -> None:
    if verdicts:
        columns = [
            Column("snapshot", name=True),
            Column("cut", name=True),
            *(Column(process, number=True) for process in trace.processes),
        ]
        print_table([*columns, Column("")], [_row(trace, verdict) for verdict in verdicts])
        say()
    for verdict in verdicts:
        for orphan in verdict.orphans[:_ORPHANS_PRINTED_MAX]:
            say(f"{verdict.snapshot_id}: {orphan}")
        if len(verdict.orphans) > _ORPHANS_PRINTED_MAX:
            say(f"{verdict.snapshot_id}: and {len(verdict.orphans) - _ORPHANS_PRINTED_MAX} more; --json has all")
    events, messages = _counts(trace)
    processes = count(len(trace.processes), "process", "processes")
    say(f"{count(events, 'event')} of {processes}, {count(messages, 'message')}: they fit together")
    numbers = {kind: sum(verdict.verdict == kind for verdict in verdicts) for kind in (HOLDS, VIOLATED, UNDECIDED)}
    say(f"{count(len(verdicts), 'cut')}: " + ", ".join(f"{number} {_WORDS[kind]}" for kind, number in numbers.items()))


_WORDS = {HOLDS: "consistent", VIOLATED: "violated", UNDECIDED: "undecided (not every process has recorded)"}


def _row(trace: Trace, verdict: CutVerdict) -> list[str]:
    positions = [str(verdict.cut.get(process, "-")) for process in trace.processes]
    detail = ""
    if verdict.orphans:
        detail = f"{count(len(verdict.orphans), 'message')} received in it, sent outside it"
    elif verdict.missing:
        detail = f"no record by {', '.join(verdict.missing)}"
    word = verdict.verdict if verdict.verdict != HOLDS else "consistent"
    return [verdict.snapshot_id, word, *positions, detail]


def _counts(trace: Trace) -> tuple[int, int]:
    events = sum(trace.event_count(process) for process in trace.processes)
    return events, sum(len(table.sends) for table in trace.tables.channels)


def _document(trace: Trace, verdicts: list[CutVerdict]) -> dict[str, object]:
    events, messages = _counts(trace)
    return {
        "trace": trace.name,
        "processes": trace.processes,
        "events": events,
        "messages": messages,
        "holds": all(verdict.verdict != VIOLATED for verdict in verdicts),
        "cuts": verdicts,
    }
