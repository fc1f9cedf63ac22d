"""`strobe leave`: let a process leave a running system."""

from typing import Annotated

import typer

from strobe.cli.commands import JsonOption, new_app
from strobe.cli.output import print_json, say
from strobe.cli.running import ApiOption, RunningStore, find_coordinator

app = new_app()


@app.command()
def leave(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The process that shall leave.")],
    store: RunningStore = None,
    api: ApiOption = None,
    json: JsonOption = False,
) -> int:
    """Let a process leave: it receives what is on its way to it, hands over what it holds, and ends.

    It joins again when its node is started again: `strobe node SYSTEM --name NAME`. Where output of it was released, it
    needs another file for that: who joins begins at the beginning.

    \b
    Example:
      strobe leave d --store ./snapshots
    """
    accepted = find_coordinator(store, api).leave(name)
    if json:
        print_json(accepted)
    else:
        say(f"{name} is leaving")
    return 0
