"""`strobe trace lattice`: counts a run's consistent cuts, and decides what possibly or definitely held (G3)."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated

import typer

from strobe.causality.lattice import CutCount, Detection, count_cuts, definitely, possibly
from strobe.causality.lattice.detection import BY_MEMORY, LEVEL_CUTS_MAX
from strobe.causality.lattice.enumeration import CUTS_MAX
from strobe.causality.lattice.paths import LEVEL_BYTES_MAX
from strobe.causality.lattice.variables import KnownStates
from strobe.causality.trace import EventRef, Trace
from strobe.causality.trace_lines import Internal, Line, Receive
from strobe.cli.shell.commands import JsonOption
from strobe.cli.shell.output import (
    Column,
    ProgressLine,
    count,
    print_json,
    print_line,
    print_table,
    print_wrapped,
    size_text,
)
from strobe.cli.traces.trace_files import PathArgument, SinceOption, read_any
from strobe.errors import UsageError

EXIT_HOLDS, EXIT_DOES_NOT, EXIT_UNDECIDED = 0, 1, 4

_DEFAULTS = f"{CUTS_MAX:,}; with --definitely {LEVEL_CUTS_MAX:,}"
_PATH_STRETCHES_MAX = 40
_NO_ORDER = "no: an observer may never see it hold; this is certain, but no example was found in time"


def lattice(
    path: PathArgument,
    possibly_: Annotated[
        str | None, typer.Option("--possibly", metavar="EXPR", help="Does EXPR hold at some consistent cut?")
    ] = None,
    definitely_: Annotated[
        str | None, typer.Option("--definitely", metavar="EXPR", help="Does every observer see EXPR hold?")
    ] = None,
    count_: Annotated[bool, typer.Option("--count", help="How many consistent cuts are there?")] = False,
    cuts_max: Annotated[
        int | None,
        typer.Option(
            "--max-cuts", metavar="N", min=1, help=f"Maximum number of cuts to examine.  [default: {_DEFAULTS}]"
        ),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(
            "--system", metavar="SYSTEM", help="Replay a full trace of this system, to use its states in EXPR."
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="STORE", help="With --system: the store with its snapshots.")
    ] = None,
    since: SinceOption = None,
    json: JsonOption = False,
) -> int:
    """Examine all consistent cuts of a run: their number, and whether a condition holds at one or for every observer.

    EXPR combines PROCESS.VARIABLE, events(PROCESS), sent(CHANNEL), received(CHANNEL) and in_flight(CHANNEL) with
    + - * / %, == != < <= > >=, and, or, not. Put a channel in quotes: in_flight("a->b"). Exit code: 0 yes, 1 no, 4
    undecided.

    \b
    Example:
      strobe simulate examples/bank.py:bank --faults none --trace run.jsonl --trace-level full
      strobe trace lattice run.jsonl --count
      strobe trace lattice run.jsonl --possibly 'in_flight() == 0 and events(a) > 10'
      strobe trace lattice run.jsonl --system examples/bank.py:bank --definitely 'a.balance + b.balance < 300'
    """
    if sum((possibly_ is not None, definitely_ is not None, count_)) != 1:
        raise UsageError("ask one question: --possibly EXPR, --definitely EXPR or --count")
    with ProgressLine() as progress:
        progress.show(f"reading {path}", now=True)
        trace, states = _read(path, since, system, store)

        most = cuts_max or (CUTS_MAX if definitely_ is None else LEVEL_CUTS_MAX)

        def looked_at(cuts: int) -> None:
            progress.show(f"{cuts:,} of at most {most:,} cuts examined")

        if count_:
            counted = count_cuts(trace, most, looked_at)
        else:
            ask = possibly if possibly_ is not None else definitely
            found = ask(trace, possibly_ or definitely_ or "", most, states, looked_at)
    if count_:
        return _print_count(trace, counted, json)
    return _print_answer(trace, found, json)


def _read(path: str, since: str | None, system: str | None, store: str | None) -> tuple[Trace, KnownStates | None]:
    if system is None:
        return read_any(path, since)[0], None
    from strobe.cli.traces.replay import complete_in, find_store, states_of

    snapshots = find_store(path, store)
    trace, _ = read_any(path, since, complete_in(snapshots))
    return trace, states_of(trace, system, snapshots)


def _print_count(trace: Trace, counted: CutCount, json: bool) -> int:
    if json:
        print_json({"trace": trace.name, "cuts": counted.cuts, "complete": counted.complete})
    elif counted.complete:
        print_line(f"{count(counted.cuts, 'consistent cut')}")
    else:
        print_line(f"undecided: more than {count(counted.cuts, 'consistent cut')}; --max-cuts N examines more")
    return EXIT_HOLDS if counted.complete else EXIT_UNDECIDED


def _print_answer(trace: Trace, found: Detection, json: bool) -> int:
    if json:
        print_json(_document(trace, found))
    else:
        print_wrapped(_sentence(found))
        if found.cut is not None:
            _print_cut(trace, found)
        if found.path is not None:
            _print_path(found.path)
    if found.answer is None:
        return EXIT_UNDECIDED
    return EXIT_HOLDS if found.answer else EXIT_DOES_NOT


def _sentence(found: Detection) -> str:
    searched = f"{count(found.examined, 'cut')} examined" if found.method == "lattice" else "no search needed"
    if found.answer is None:
        return f"{found.question}: undecided after {count(found.examined, 'cut')}{_why_undecided(found)}"
    if found.question == "possibly":
        text = "yes: it holds at this consistent cut" if found.answer else "no: it holds at no consistent cut"
    elif found.answer:
        text = "yes: every observer sees it hold" + (", for example at this cut" if found.cut is not None else "")
    elif found.path is not None:
        text = "no: an observer may never see it hold, as in this order"
    else:  # a conjunction is decided before such an order is searched
        return f"{found.question}: {_NO_ORDER}"
    return f"{found.question}: {text} ({searched})"


def _why_undecided(found: Detection) -> str:
    if found.stopped_by == BY_MEMORY:
        most = size_text(LEVEL_BYTES_MAX)
        return f": the next level of the lattice needs more than {most} of memory, the maximum for one level"
    return "; --max-cuts N examines more"


def _print_cut(trace: Trace, found: Detection) -> None:
    assert found.cut is not None
    print_line()
    columns = [Column("process", name=True), Column("events", number=True), Column("of", number=True), Column("last")]
    rows = [
        [process, str(position), str(trace.event_count(process)), _last_event(trace, process, position)]
        for process, position in found.cut.items()
    ]
    print_table(columns, rows)
    if found.values:
        print_line()
        for name, value in found.values.items():
            print_line(f"{name} = {_shown(value)}")


def _last_event(trace: Trace, process: str, position: int) -> str:
    if position == trace.first_count(process):
        return "(before its first)"
    event = trace.event((process, position))
    sends = f", sends {count(len(event.sends), 'message')}" if event.sends else ""
    return f"{_lead_text(event.lead)}{sends}"


def _lead_text(lead: Line | None) -> str:
    if isinstance(lead, Receive):
        return f"receives message {lead.ordinal} of {lead.channel}"
    return (lead.name if isinstance(lead, Internal) and lead.name else "") or "an event of its own"


def _shown(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


def _print_path(path: Sequence[EventRef]) -> None:
    print_line()
    shown = list(_stretches(path))
    for line in shown[:_PATH_STRETCHES_MAX]:
        print_line(f"  {line}")
    if len(shown) > _PATH_STRETCHES_MAX:
        print_line(f"  and {len(shown) - _PATH_STRETCHES_MAX:,} more; --json shows all")


def _stretches(path: Sequence[EventRef]) -> Iterator[str]:
    """Group consecutive events of one process."""
    for process, events in groupby(path, key=lambda event: event.process):
        positions = [event.position for event in events]
        what = f"event {positions[0]}" if len(positions) == 1 else f"events {positions[0]} to {positions[-1]}"
        yield f"{what} of {process}"


def _document(trace: Trace, found: Detection) -> dict[str, object]:
    verdict = {True: "holds", False: "does not hold", None: "undecided"}[found.answer]
    return {
        "trace": trace.name,
        "question": found.question,
        "expression": found.expression,
        "answer": found.answer,
        "verdict": verdict,
        "method": found.method,
        "cuts_examined": found.examined,
        "cut": found.cut,
        "values": found.values,
        "path": found.path,
        "stopped_by": found.stopped_by,
    }
