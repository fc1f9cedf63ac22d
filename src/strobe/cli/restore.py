"""`strobe restore`: roll a running system back to a snapshot."""

from typing import Annotated

import typer

from strobe.cli.commands import JsonOption, new_app
from strobe.cli.output import Progress, print_json, say
from strobe.cli.running import ApiOption, RunningStore, TimeoutOption, find_coordinator

app = new_app()


@app.command()
def restore(
    id: Annotated[str, typer.Argument(metavar="[ID]", help="An id, the beginning of one, or latest.")] = "latest",  # noqa: A002
    store: RunningStore = None,
    api: ApiOption = None,
    fork: Annotated[
        bool, typer.Option(help="Restore also below output that was released; output then goes on in files of its own.")
    ] = False,
    timeout: TimeoutOption = 60.0,
    json: JsonOption = False,
) -> int:
    """Roll every process of a running system back to one snapshot, and let it go on from there.

    What happened since is undone: states, and messages on their way. What was handed out to the world cannot be: to
    restore below that is refused, unless it is a fork. A system that is not running goes on from its newest snapshot
    when it is started again.

    \b
    Example:
      strobe restore 000001-00000007 --store ./snapshots
    """
    client = find_coordinator(store, api)
    with Progress() as progress, progress.ticking("rolling back"):
        started = client.restore(id, fork, timeout)
    if json:
        print_json(started)
        return 0
    say(f"rolled back to {started.restored or 'the beginning'}; this is epoch {started.epoch}")
    for process, events in sorted(started.undone.items()):
        say(f"  {process}: {events:,} events undone")
    return 0
