"""`strobe doctor`: checks what Strobe needs of this machine."""

from typing import Annotated

import typer

from strobe.cli.project.environment import MISSING, diagnose
from strobe.cli.shell.commands import JsonOption, new_app
from strobe.cli.shell.output import count, print_json, print_line, print_wrapped
from strobe.errors import MissingComponent

app = new_app()


@app.command()
def doctor(
    store: Annotated[str | None, typer.Option(metavar="STORE", help="Check this store too.")] = None,
    json: JsonOption = False,
) -> int:
    """Check Python, the extras, Java, ports, disk, clock and limits of this machine, and say what to do.

    The exit code is 3 if something needed is missing. What is optional is only a note.

    \b
    Example:
      strobe doctor --store ./snapshots
    """
    found = list(diagnose(store))
    missing = [one for one in found if one.verdict == MISSING]
    if json:
        print_json({"holds": not missing, "checks": found})
    else:
        for one in found:
            remedy = f"; {one.remedy}" if one.remedy else ""
            print_wrapped(f"{one.verdict:<8} {one.name:<14} {one.found}{remedy}", " " * 24)
        print_line(f"missing: {', '.join(one.name for one in missing)}" if missing else _summary(len(found)))
    return MissingComponent.exit_code if missing else 0


def _summary(checked: int) -> str:
    return f"{count(checked, 'check')}: nothing that is needed is missing"
