"""`strobe explore`: runs the real protocol code through every interleaving of small systems."""

import multiprocessing
import signal
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from strobe.cli.shell.commands import JsonOption, new_app
from strobe.cli.shell.output import (
    Column,
    ProgressLine,
    count,
    print_json,
    print_line,
    print_table,
    print_wrapped,
    width,
)
from strobe.errors import UsageError
from strobe.simulation.explain.diagram import LEGEND, draw
from strobe.simulation.explorer import Explored, Scenario, explore, scenario, scenarios
from strobe.simulation.explorer.path_replay import play
from strobe.simulation.mutants.catalog import MUTANTS, Mutant, mutant

app = new_app()


@app.command()
def explore_(
    name: Annotated[str | None, typer.Argument(metavar="[SCENARIO]", help="One scenario; --list shows them.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Explore every scenario, also the large ones (minutes).")
    ] = False,
    listing: Annotated[bool, typer.Option("--list", help="List the scenarios.")] = False,
    list_mutants: Annotated[bool, typer.Option("--list-mutants", help="List the broken protocols.")] = False,
    mutant_name: Annotated[
        str | None, typer.Option("--mutant", metavar="NAME", help="Explore a broken protocol: it must be caught.")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Run the real protocol code through every interleaving of small systems, and check every snapshot.

    \b
    Examples:
      strobe explore                               the small scenarios, in seconds
      strobe explore --all                         all of them
      strobe explore --mutant marker-after-message a broken protocol, with its shortest counterexample
    """
    if listing or list_mutants:
        return _list(listing, list_mutants, json)
    if name is not None and everything:
        raise UsageError(f"give either --all or the scenario {name}, not both")
    if mutant_name is not None:
        return _explore_mutant(mutant(mutant_name), scenario(name) if name else None, json)
    chosen = [scenario(name)] if name else [known for known in scenarios() if everything or not known.large]
    return _explore(chosen, json)


def _list(listing: bool, list_mutants: bool, json: bool) -> int:
    rows = {known.name: known.title for known in scenarios()} if listing else {}
    broken = {known.name: f"breaks {known.rule}" for known in MUTANTS} if list_mutants else {}
    if json:
        print_json({"scenarios": rows, "mutants": broken})
    else:
        print_table([Column("name", name=True), Column("")], [[name, text] for name, text in (rows | broken).items()])
    return 0


def _explore(chosen: list[Scenario], json: bool) -> int:
    started_s = time.monotonic()
    found: list[Explored] = []
    with ProgressLine() as progress:
        for result in _results(chosen, progress):
            found.append(result)
            progress.show(f"{len(found)} of {len(chosen)} scenarios: {result.scenario.name} done", now=True)
    elapsed_s = time.monotonic() - started_s
    found.sort(key=lambda result: chosen.index(result.scenario))
    if json:
        print_json({"elapsed_s": elapsed_s, "scenarios": [_document(result) for result in found]})
    else:
        _print(found, elapsed_s)
    return 0 if all(result.holds for result in found) else 1


def _results(chosen: list[Scenario], progress: ProgressLine) -> Iterator[Explored]:
    """Explore the largest first, one scenario on each core."""
    if len(chosen) == 1:
        yield explore(chosen[0], on_progress=lambda states: progress.show(f"{chosen[0].name}: {states:,} states"))
        return
    ordered = sorted(chosen, key=lambda known: (not known.large, chosen.index(known)))
    progress.show(f"0 of {len(chosen)} scenarios", now=True)
    # Only this process handles an interrupt: the workers ignore it, and end with the pool.
    quiet = (signal.SIGINT, signal.SIG_IGN)
    with multiprocessing.get_context("spawn").Pool(initializer=signal.signal, initargs=quiet) as pool:
        yield from pool.imap_unordered(explore, ordered)


def _print(found: list[Explored], elapsed_s: float) -> None:
    columns = [
        Column("scenario", name=True),
        Column("states", number=True),
        Column("transitions", number=True),
        Column("handle calls", number=True),
        Column("ends", number=True),
        Column("verdict"),
    ]
    print_table(columns, [_row(result) for result in found])
    states = sum(result.states for result in found)
    print_line()
    rate = f"{states / elapsed_s:,.0f} states per second"
    print_line(f"{count(len(found), 'scenario')}, {states:,} states in {elapsed_s:.1f} s, {rate}")
    for result in found:
        if not result.holds:
            _print_counterexample(result, None)


def _row(result: Explored) -> list[str]:
    numbers = (result.states, result.transitions, result.handles, result.ends)
    return [result.scenario.name, *(f"{number:,}" for number in numbers), "holds" if result.holds else "violated"]


def _explore_mutant(broken: Mutant, where: Scenario | None, json: bool) -> int:
    if broken.explored_on is None:
        raise UsageError(
            f"the mutant {broken.name!r} breaks code that the explorer does not run: a host, or recovery from a loss; "
            f"the simulator catches it: strobe matrix"
        )
    where = where or scenario(broken.explored_on)
    where = where.reordering() if broken.reorder else where
    if where.protocol != broken.protocol:
        raise UsageError(
            f"{broken.name} is a broken {broken.protocol}, but the scenario {where.name} uses {where.protocol}"
        )
    result = explore(where, broken.protocol_class)
    if json:
        print_json(_document(result) | {"mutant": broken.name, "breaks": broken.rule})
    else:
        print_wrapped(f"{broken.name} breaks {broken.rule}")
        _print_counterexample(result, broken)
    return 0 if result.holds else 1


def _print_counterexample(result: Explored, broken: Mutant | None) -> None:
    if result.holds:
        print_line(f"{result.scenario.name}: holds in all {result.states:,} states; this mutant is not caught here")
        return
    stage = play(result.scenario, broken.protocol_class if broken else None, result.path)
    print_line(f"{result.scenario.name}: violated after {len(result.path)} steps, the shortest counterexample:")
    print_line()
    for line in draw(result.scenario.view.processes, stage.moments, width=width()):
        print_line(line)
    print_line()
    for problem in result.problem.splitlines():
        print_wrapped(f"violated: {problem}")
    print_line(LEGEND)


def _document(result: Explored) -> dict[str, Any]:
    return {
        "scenario": result.scenario.name,
        "states": result.states,
        "transitions": result.transitions,
        "handle_calls": result.handles,
        "ends": result.ends,
        "holds": result.holds,
        "problem": result.problem or None,
        "path": [f"{action.kind} {action.process} {action.channel}".strip() for action in result.path],
    }
