"""`strobe explain`: shows the algorithm step by step, with the real protocol code."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from strobe.cli.shell.commands import JsonOption, new_app
from strobe.cli.shell.output import print_json, print_line, print_wrapped, width
from strobe.errors import UsageError
from strobe.plain_text import json_of
from strobe.simulation.explain.diagram import LEGEND, draw
from strobe.simulation.explain.explanations import SYSTEMS, Outcome, Scene, explain

app = new_app()

_PLACE = "/* scenes */ []"


@app.command()
def explain_(
    system: Annotated[
        str, typer.Option("--system", help=f"The system to explain: {', '.join(SYSTEMS)}, or all.")
    ] = "all",
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write an HTML page to step through in a browser.")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Show the algorithm step by step on small systems, one rule for each step.

    \b
    bank3       Chandy-Lamport, with messages in flight
    token4      a token on a ring, found exactly once
    overlap     two snapshots at once
    reordering  Chandy-Lamport fails on a channel that reorders; Lai-Yang does not
    naive       three wrong methods: states without channels, states one after another, states by the clock
    wordcount   barriers on a dataflow: aligned, unaligned, and aligned with a time limit
    \b
    Examples:
      strobe explain --system bank3
      strobe explain --html explain.html
    """
    names = list(SYSTEMS) if system == "all" else [system]
    scenes = [scene for name in names for scene in explain(name)]
    if html is not None:
        _write(html, page(scenes))
        print_line(f"written: {html}; open it in a browser")
    elif json:
        print_json(scenes)
    else:
        for scene in scenes:
            _print(scene)
    return 0 if all(outcome.holds == scene.right for scene in scenes for outcome in scene.outcomes) else 1


def page(scenes: Sequence[Scene]) -> str:
    """Return the HTML page: every scene as a diagram to step through, drawn in the browser. It needs no server."""
    # Escape "<": "</" in a text would end the script element early, and "<!--" would begin a comment.
    data = json_of(list(scenes), str).replace("<", "\\u003c")
    return files("strobe.cli").joinpath("explain.html").read_text(encoding="utf-8").replace(_PLACE, data)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--html {path}: cannot write it ({error.strerror}); choose another file") from error


def _print(scene: Scene) -> None:
    print_line(scene.title)
    print_line("=" * len(scene.title))
    print_wrapped(scene.story)
    print_line()
    for line in draw(scene.processes, scene.moments, width=width()):
        print_line(line)
    print_line()
    for outcome in scene.outcomes:
        for line in recorded(outcome):
            print_wrapped(line)
    print_line(LEGEND)
    print_line()


def recorded(outcome: Outcome) -> list[str]:
    """Describe what a snapshot recorded, and its verdict."""
    states = "  ".join(f"{name} {balance}" for name, balance in sorted(outcome.balances.items()))
    wires = "  ".join(
        f"{name} {'+'.join(map(str, amounts))}" for name, amounts in sorted(outcome.in_flight.items()) if amounts
    )
    same = "=" if outcome.total == outcome.expected_total else "!="
    lines = [
        f"{outcome.snapshot}: states  {states}   in flight  {wires or 'nothing'}   "
        f"total {outcome.total} {same} {outcome.expected_total}",
    ]
    if outcome.holds:
        return [*lines, f"{outcome.snapshot}: the proof holds"]
    return [*lines, *(f"{outcome.snapshot}: the proof fails: {finding}" for finding in outcome.findings)]
