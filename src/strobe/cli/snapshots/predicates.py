"""`strobe snapshot predicates`: evaluates deadlock, termination and garbage (G2)."""

from typing import Annotated

import msgspec
import typer

from strobe.causality.predicate_input import PredicateInput, predicate_input_of
from strobe.causality.predicates import Deadlock, Garbage, Predicate, Termination, deadlock, garbage, termination
from strobe.causality.proof import require
from strobe.cli.shell.commands import SNAPSHOT_NAME, JsonOption, StoreOption
from strobe.cli.shell.output import Column, print_json, print_line, print_table
from strobe.storage import Store

Found = Deadlock | Termination | Garbage


def predicates(
    store: StoreOption,
    id: Annotated[str, typer.Argument(metavar="[ID]", help=SNAPSHOT_NAME)] = "latest",  # noqa: A002
    json: JsonOption = False,
) -> int:
    """Evaluate the stable predicates on a snapshot: deadlock, termination, garbage.

    They use what processes declare. Once such a predicate holds, it holds for ever. A snapshot whose proof does not
    hold is refused: it may show a state that never existed. The exit code is 1 if a process is deadlocked.

    \b
    Example:
      strobe simulate examples/philosophers.py:greedy --snapshots 20 --store ./table
      strobe snapshot predicates latest --store ./table
    """
    snapshot = Store.open(store).load(id)
    require(snapshot)
    facts = predicate_input_of(snapshot)
    found: dict[str, Found] = {
        Predicate.DEADLOCK: deadlock(facts),
        Predicate.TERMINATION: termination(facts),
        Predicate.GARBAGE: garbage(facts),
    }
    if json:
        shown = {name: _document(one) for name, one in found.items()}
        print_json({"id": str(snapshot.id), "declares": facts.declares, **shown})
    else:
        _print(str(snapshot.id), facts, found)
    return 1 if found[Predicate.DEADLOCK].holds else 0


def _document(one: Found) -> dict[str, object]:
    return {"holds": one.holds, "because": str(one), **msgspec.structs.asdict(one)}


def _print(snapshot_id: str, facts: PredicateInput, found: dict[str, Found]) -> None:
    print_line(f"snapshot {snapshot_id}")
    rows = [[name, "yes" if one.holds else "no", str(one)] for name, one in found.items()]
    print_table([Column("predicate", name=True), Column("holds", name=True), Column("because")], rows)
    if not facts.declares:
        print_line()
        print_line(
            "no process declares anything, so each is assumed to be able to act at any time; see docs/predicates.md"
        )
