"""`strobe snapshot take`: have a running system photographed now."""

from typing import Annotated

import typer

from strobe.cli.commands import JsonOption
from strobe.cli.output import Progress, print_error, print_json, say
from strobe.cli.running import ApiOption, RunningStore, TimeoutOption, find_coordinator


def take(
    store: RunningStore = None,
    api: ApiOption = None,
    initiators: Annotated[
        list[str] | None, typer.Option("--from", metavar="NAME", help="The process to begin at; several are possible.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until it is committed or aborted.")] = True,
    timeout: TimeoutOption = 60.0,
    json: JsonOption = False,
) -> int:
    """Take a snapshot of a running system now.

    \b
    Example:
      strobe snapshot take --store ./snapshots
    """
    client = find_coordinator(store, api)
    with Progress() as progress, progress.ticking("the snapshot is being taken"):
        taken = client.take(wait, tuple(initiators or ()), timeout)
    if json:
        print_json(taken)
    elif taken.outcome == "aborted":
        print_error(f"snapshot {taken.id} was aborted: {taken.reason}")
    else:
        say(f"{taken.id or 'a snapshot'} {taken.outcome}")
    return 1 if taken.outcome == "aborted" else 0
