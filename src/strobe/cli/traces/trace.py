"""`strobe trace`: verifies and replays a recorded run."""

from typing import Annotated, NamedTuple

import msgspec
import typer

from strobe.causality.cuts import HOLDS, UNDECIDED, VIOLATED, CutVerdict, check_cuts
from strobe.causality.trace import Trace
from strobe.cli.shell.commands import JsonOption, new_app
from strobe.cli.shell.output import Column, ProgressLine, count, print_json, print_line, print_table
from strobe.cli.traces.trace_export import export
from strobe.cli.traces.trace_files import EpochOption, PathArgument, SinceOption, epochs_of, read_any
from strobe.cli.traces.trace_import import import_
from strobe.cli.traces.trace_lattice import lattice
from strobe.errors import StrobeError, UsageError

app = new_app("Check a recorded run: do its events fit together, are its cuts consistent?")

app.command("lattice")(lattice)
app.command("import")(import_)
app.command("export")(export)

_ORPHANS_PRINTED_MAX = 10


@app.command("verify")
def verify_(path: PathArgument, since: SinceOption = None, epoch: EpochOption = None, json: JsonOption = False) -> int:
    """Check every event of a trace, then whether each snapshot recorded in it is a consistent cut.

    After a rollback of a live run, each epoch is a separate trace; they are checked one after the other.

    \b
    Example:
      strobe simulate examples/bank.py:bank --trace run.jsonl
      strobe trace verify run.jsonl
      strobe trace verify snapshots/run/trace
      strobe trace verify snapshots/run/trace --epoch 2
    """
    places = epochs_of(path, epoch)
    if len(places) > 1 and since is not None:
        raise UsageError(f"{path} has several epochs; choose with --epoch N the one that shall begin at {since}")
    if places and epoch is None:
        return _verify_each(path, places, since, json)
    verified = _verify(places[0] if places else path, since)
    if json:
        print_json(verified.document())
    else:
        _print(verified)
    return 0 if verified.holds else 1


class _Verified(NamedTuple):
    """A trace whose events are consistent, and the verdicts on its cuts."""

    trace: Trace
    verdicts: list[CutVerdict]
    left_out: dict[str, int]

    @property
    def holds(self) -> bool:
        return all(verdict.verdict != VIOLATED for verdict in self.verdicts)

    def document(self) -> dict[str, object]:
        events, messages = _counts(self.trace)
        return {
            "trace": self.trace.name,
            "begins_at": self.trace.header.start.snapshot,
            "left_out": self.left_out,
            "processes": self.trace.processes,
            "events": events,
            "messages": messages,
            "holds": self.holds,
            "cuts": self.verdicts,
        }


def _verify(path: str, since: str | None) -> _Verified:
    with ProgressLine() as progress:
        progress.show(f"reading {path}", now=True)
        trace, left_out = read_any(path, since)
        progress.show(f"checking {len(trace):,} lines", now=True)
        trace.check()
        return _Verified(trace, check_cuts(trace), left_out)


def _verify_each(path: str, places: list[str], since: str | None, json: bool) -> int:
    """Verify every epoch; an unreadable or inconsistent one does not stop the others."""
    documents: list[dict[str, object]] = []
    codes: list[int] = []
    for place in places:
        if not json:
            print_line(f"{place}:")
        try:
            verified = _verify(place, since)
        except StrobeError as error:
            documents.append({"trace": place, "holds": False, "error": str(error)})
            codes.append(error.exit_code)
            if not json:
                print_line(f"error: {error}")
        else:
            documents.append(verified.document())
            codes.append(0 if verified.holds else 1)
            if not json:
                _print(verified)
        if not json:
            print_line()
    if json:
        print_json({"trace": path, "holds": not any(codes), "epochs": documents})
    else:
        print_line(f"{count(len(places), 'epoch')}: {codes.count(0)} in order, {len(codes) - codes.count(0)} not")
    return 1 if 1 in codes else max(codes)


@app.command("replay")
def replay_(
    path: PathArgument,
    system: Annotated[
        str, typer.Option("--system", metavar="SYSTEM", help="The traced system: file.py:name or system.toml.")
    ],
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="STORE", help="The store with the snapshots, if the trace is not inside it."),
    ] = None,
    since: SinceOption = None,
    json: JsonOption = False,
) -> int:
    """Run the processes again along a full trace, and compare their states with the recorded snapshots.

    \b
    Example:
      strobe trace replay snapshots/run/trace/epoch-000001 --system examples/bank.py:bank
    """
    from strobe.cli.traces.replay import complete_in, find_store, replay

    snapshots = find_store(path, store)
    with ProgressLine() as progress:
        progress.show(f"reading {path}", now=True)
        trace, _ = read_any(path, since, complete_in(snapshots))
        progress.show(f"replaying {len(trace):,} lines", now=True)
        found = replay(trace, system, snapshots)
    if json:
        print_json({"trace": trace.name, "holds": not found.problems, **msgspec.structs.asdict(found)})
        return 1 if found.problems else 0
    for problem in found.problems:
        print_line(problem)
    print_line(f"{count(found.events, 'event')} replayed: every message is the same")
    same = f"{found.states - len(found.problems)} of {count(found.states, 'state')}"
    print_line(f"{count(len(found.snapshots), 'snapshot')}: {same} are as recorded")
    return 1 if found.problems else 0


def _print(verified: _Verified) -> None:
    trace, verdicts, left_out = verified
    if verdicts:
        columns = [
            Column("snapshot", name=True),
            Column("cut", name=True),
            *(Column(process, number=True) for process in trace.processes),
        ]
        print_table([*columns, Column("")], [_row(trace, verdict) for verdict in verdicts])
        print_line()
    for verdict in verdicts:
        for orphan in verdict.orphans[:_ORPHANS_PRINTED_MAX]:
            print_line(f"{verdict.snapshot_id}: {orphan}")
        if len(verdict.orphans) > _ORPHANS_PRINTED_MAX:
            print_line(
                f"{verdict.snapshot_id}: and {len(verdict.orphans) - _ORPHANS_PRINTED_MAX} more; --json shows all"
            )
    if trace.header.start.snapshot is not None:
        print_line(f"the trace begins at snapshot {trace.header.start.snapshot}")
    for process, number in left_out.items():
        print_line(f"{count(number, 'event')} of {process} left out at the end: the trace of a sender ends before them")
    events, messages = _counts(trace)
    processes = count(len(trace.processes), "process", "processes")
    print_line(f"{count(events, 'event')} of {processes}, {count(messages, 'message')}: they fit together")
    numbers = {kind: sum(verdict.verdict == kind for verdict in verdicts) for kind in (HOLDS, VIOLATED, UNDECIDED)}
    print_line(
        f"{count(len(verdicts), 'cut')}: " + ", ".join(f"{number} {_WORDS[kind]}" for kind, number in numbers.items())
    )


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
    events = sum(trace.event_count(process) - trace.first_count(process) for process in trace.processes)
    return events, sum(len(table.sends) for table in trace.tables.channels)
