"""`strobe restore`: roll a running system back to a snapshot."""

from typing import Annotated

import typer

from strobe.cli.arguments.stores import ApiOption, RunningStore, TimeoutOption, find_coordinator
from strobe.cli.shell.commands import SNAPSHOT_NAME, JsonOption, new_app
from strobe.cli.shell.output import ProgressLine, print_json, print_line

app = new_app()


@app.command()
def restore(
    id: Annotated[str, typer.Argument(metavar="[ID]", help=SNAPSHOT_NAME)] = "latest",  # noqa: A002
    store: RunningStore = None,
    api: ApiOption = None,
    fork: Annotated[
        bool, typer.Option(help="Restore even if output was released since; output then continues in a new file.")
    ] = False,
    timeout: TimeoutOption = 60.0,
    json: JsonOption = False,
) -> int:
    """Roll every process of a running system back to one snapshot; the system continues from there.

    Everything since is undone: states and messages in flight. Released output cannot be undone: a snapshot from before
    it is refused, unless you give --fork. A system that is not running continues from its newest snapshot when it is
    started again; to choose another one, use `strobe up SYSTEM --restore ID`.

    \b
    Example:
      strobe restore 1.7 --store ./snapshots
    """
    client = find_coordinator(store, api)
    with ProgressLine() as progress, progress.ticking("rolling back"):
        started = client.restore(id, fork, timeout)
    if json:
        print_json(started)
        return 0
    print_line(f"rolled back to {started.restored or 'the beginning'}; this is epoch {started.epoch}")
    for process, events in sorted(started.undone.items()):
        print_line(f"  {process}: {events:,} events undone")
    return 0
