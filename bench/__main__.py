"""Runs the measurements, prints a table, and writes bench/results.json."""

import importlib
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.figures import Figure

NAMES = ("simulator", "explorer", "proof", "keyed", "live", "mesh", "spark", "pipeline")


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"error: there is no measurement {unknown[0]!r}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    figures: list[Figure] = []
    for name in names or NAMES:
        print(f"measuring: {name}", file=sys.stderr)
        figures += importlib.import_module(f"bench.{name}").measure()
    _print(figures)
    results = Path(__file__).parent / "results.json"
    if names and results.exists():  # some were measured: keep what is known of the others
        taken = {figure.command for figure in figures}
        known = msgspec.json.decode(results.read_bytes(), type=list[Figure])
        figures = [figure for figure in known if figure.command not in taken] + figures
    results.write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
    return 0


def _print(figures: list[Figure]) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("figure", "value", "unit", "goal", "met", "command"):
        table.add_column(title, justify="right" if title == "value" else "left")
    for figure in figures:
        met = {True: "yes", False: "NO", None: ""}[figure.met]
        value = f"{figure.value:,.0f}" if abs(figure.value) >= 100 else f"{figure.value:.2f}"
        table.add_row(figure.name, value, figure.unit, figure.goal, met, figure.command)
    Console(width=160).print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
