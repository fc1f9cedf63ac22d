"""`strobe init`: writes a project that runs."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from strobe.cli.project.environment import is_complete
from strobe.cli.project.templates import FILES
from strobe.cli.shell.commands import JsonOption, new_app
from strobe.cli.shell.output import print_json, print_line, program
from strobe.errors import UsageError

app = new_app()


@app.command()
def init(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="The directory of the project (default: this one).")
    ] = ".",
    json: JsonOption = False,
) -> int:
    """Write a project that runs: a system, its tests, its system.toml and a readme. Existing files are never changed.

    \b
    Example:
      strobe init bank
    """
    directory = Path(name)
    write_project(directory)
    steps = next_steps(directory)
    if json:
        print_json({"directory": str(directory.absolute()), "files": list(FILES), "next": steps})
        return 0
    print_line(f"wrote {', '.join(str(directory / file) for file in FILES)}")
    print_line("next:")
    for step in steps:
        print_line(f"  {step}")
    return 0


def write_project(directory: Path) -> None:
    """Write the files of a project; UsageError, and nothing written, if one of them exists."""
    there = [str(directory / file) for file in FILES if (directory / file).exists()]
    if there:
        raise UsageError(f"{there[0]} exists already, so nothing was written; give the name of a new directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in FILES.items():
            with (directory / file).open("x", encoding="utf-8") as opened:
                opened.write(text)
    except OSError as error:
        raise UsageError(
            f"cannot write {error.filename or directory}: {error.strerror}; choose another place"
        ) from error


def next_steps(directory: Path) -> list[str]:
    """Return commands to paste, in order; those that install something missing come first."""
    found = program("strobe")
    strobe = found if found == "strobe" else shlex.quote(str(Path(sys.executable).parent / "strobe"))
    python = "python" if found == "strobe" else shlex.quote(sys.executable)
    steps = [] if is_complete("live") else [f"{python} -m pip install 'strobe-snapshots[live]'"]
    if directory.resolve() != Path.cwd():
        steps.append(f"cd {shlex.quote(str(directory))}")
    return [
        *steps,
        f"{strobe} simulate system.py:system --seeds 20",
        f"{strobe} up system.py:system --store ./snapshots --create --for 5",
        f"{strobe} snapshot show latest --store ./snapshots",
        f"{python} -m pytest",
    ]
