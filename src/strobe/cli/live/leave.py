"""`strobe leave`: let a process leave a running system."""

from typing import Annotated

import typer

from strobe.cli.arguments.stores import ApiOption, RunningStore, find_coordinator
from strobe.cli.shell.commands import JsonOption, new_app
from strobe.cli.shell.output import print_json, print_line

app = new_app()


@app.command()
def leave(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the process.")],
    store: RunningStore = None,
    api: ApiOption = None,
    json: JsonOption = False,
) -> int:
    """Let a process leave: it receives the messages on their way to it, hands over its state, and ends.

    To let it join again, start its node: `strobe node SYSTEM --name NAME`. If output of it was released, give its sink
    another file first, because a joining process begins at the beginning of its sink.

    \b
    Example:
      strobe leave d --store ./snapshots
    """
    accepted = find_coordinator(store, api).leave(name)
    if json:
        print_json(accepted)
    else:
        print_line(f"{name} is leaving")
    return 0
