"""Runs the measurements, prints a table, and writes bench/results.json; `--markdown` prints that file as Markdown."""

import importlib
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.figures import Figure

RESULTS = Path(__file__).parent / "results.json"
ROOMS = {
    "simulator": "simulation",
    "scale": "simulation",
    "self_check": "simulation",
    "explorer": "simulation",
    "proof": "causality",
    "keyed": "live",
    "live": "live",
    "mesh": "live",
    "actors": "live",
    "barriers": "live",
    "spark": "spark",
    "spark_read": "spark",
    "pipeline": "spark",
    "lattice": "causality",
    "predicates": "spark",
    "log_age": "storage",
    "restart": "live",
}
"""The measurements in the order in which they run, and the folder of each."""


def main(names: list[str]) -> int:
    if names == ["--markdown"]:
        _print_markdown(_known())
        return 0
    unknown = [name for name in names if name not in ROOMS]
    if unknown:
        print(f"error: there is no measurement {unknown[0]!r}; there are: {', '.join(ROOMS)}", file=sys.stderr)
        return 2
    figures: list[Figure] = []
    where = _where()
    for name in names or ROOMS:
        print(f"measuring: {name}", file=sys.stderr)
        measured = importlib.import_module(f"bench.{ROOMS[name]}.{name}").measure()
        figures += [msgspec.structs.replace(figure, where=where) for figure in measured]
    _print(figures)
    print(f"measured on: {where}")
    if names:  # only some were measured: keep the known figures of the others
        taken = {figure.command for figure in figures}
        figures = [figure for figure in _known() if figure.command not in taken] + figures
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
    return 0


def _known() -> list[Figure]:
    return msgspec.json.decode(RESULTS.read_bytes(), type=list[Figure]) if RESULTS.exists() else []


def _where() -> str:
    """Return the kind of machine, and the versions of the compared packages."""
    processors = f"{len(os.sched_getaffinity(0))} processors, {platform.system()}"
    packages = ("msgspec", "uvloop", "pyzmq", "grpcio", "pyarrow", "pyspark")
    return ", ".join(
        [processors, f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in packages)]
    )


def _print_markdown(figures: list[Figure]) -> None:
    print("| figure | value | goal | met | command |\n|---|---|---|---|---|")
    for figure in figures:
        cells = (
            figure.name,
            f"{_rounded(figure)} {figure.unit}".strip(),
            figure.goal,
            _met(figure),
            f"`{figure.command}`",
        )
        print(f"| {' | '.join(cells)} |")
    for where in dict.fromkeys(figure.where for figure in figures):
        print(f"\nMeasured on: {where}.")


def _met(figure: Figure) -> str:
    return {True: "yes", False: "NO", None: ""}[figure.met]


def _rounded(figure: Figure) -> str:
    return f"{figure.value:,.0f}" if abs(figure.value) >= 100 else f"{figure.value:.2f}"


def _print(figures: list[Figure]) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("figure", "value", "unit", "goal", "met", "command"):
        table.add_column(title, justify="right" if title == "value" else "left")
    for figure in figures:
        table.add_row(figure.name, _rounded(figure), figure.unit, figure.goal, _met(figure), figure.command)
    Console(width=160).print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
