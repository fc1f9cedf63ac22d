"""`strobe matrix`: shows which checker catches which broken protocol."""

from typing import Annotated

import typer

from strobe.cli.shell.commands import JsonOption, new_app
from strobe.cli.shell.output import Column, ProgressLine, print_json, print_line, print_table
from strobe.simulation.checkers import all_checkers
from strobe.simulation.checkers.exactly_once import ExactlyOnce
from strobe.simulation.checkers.snapshot_checkers import Conservation, Invariants
from strobe.simulation.faults import ROLLBACKS
from strobe.simulation.matrix import SEEDS, caught_by
from strobe.simulation.mutants.catalog import MUTANTS, Mutant

app = new_app()


@app.command()
def matrix_(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of runs of each mutant.")] = len(SEEDS),
    json: JsonOption = False,
) -> int:
    """Run each broken protocol in the simulator, and show which checker catches it.

    The exit code is 1 if a mutant is caught by no checker, or by other checkers than expected.

    \b
    Example:
      strobe matrix
    """
    caught: dict[str, set[str]] = {}
    with ProgressLine() as progress:
        for broken in MUTANTS:
            progress.show(f"{len(caught)} of {len(MUTANTS)} mutants: {broken.name}", now=True)
            caught[broken.name] = caught_by(broken, range(seeds))
    right = all(caught[broken.name] == set(broken.caught_by) for broken in MUTANTS)
    if json:
        print_json({"as_expected": right, "caught_by": {name: sorted(found) for name, found in caught.items()}})
    else:
        _print(caught, right)
    return 0 if right else 1


def _print(caught: dict[str, set[str]], right: bool) -> None:
    checkers = [checker.name for checker in all_checkers()]
    columns = [
        Column("mutant", name=True),
        *(Column(str(number)) for number in range(1, len(checkers) + 1)),
        Column("breaks"),
    ]
    rows = [
        [broken.name, *(_cell(broken, checker, caught[broken.name]) for checker in checkers), broken.rule]
        for broken in MUTANTS
    ]
    print_table(columns, rows)
    print_line()
    print_line("x caught   . not caught   - not run: the system declares nothing of the kind, or is not rolled back")
    print_line()
    for number, checker in enumerate(checkers, 1):
        alone = ", ".join(name for name, found in caught.items() if found == {checker})
        catches = sum(checker in found for found in caught.values())
        print_line(f"{number} {checker:<18} catches {catches:>2}, alone: {alone}")
    print_line()
    print_line(
        "every mutant is caught by the expected checkers" if right else "violated: the matrix is not the expected one"
    )


def _cell(broken: Mutant, checker: str, caught: set[str]) -> str:
    if checker == Conservation.name and not broken.conserved:
        return "-"
    if checker == Invariants.name and not broken.invariants:
        return "-"
    if checker == ExactlyOnce.name and ROLLBACKS not in broken.faults:
        return "-"
    return "x" if checker in caught else "."
