"""`strobe snapshot take`: takes a snapshot of a running system now."""

import contextlib
from concurrent.futures import wait as wait_for
from typing import Annotated

import typer

from strobe.cli.arguments.stores import ApiOption, RunningStore, TimeoutOption, find_coordinator
from strobe.cli.shell.commands import JsonOption
from strobe.cli.shell.output import ProgressLine, print_error, print_json, print_line
from strobe.cli.shell.waiting import ask
from strobe.errors import TransportError
from strobe.runtime.api.client import Client
from strobe.runtime.messages.api_documents import Status

SOON_S = 2.0
"""After this time the reason for the delay is shown, because the user may be able to act on it."""


def take(
    store: RunningStore = None,
    api: ApiOption = None,
    initiators: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="NAME", help="Initiate the snapshot at this process; repeatable."),
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
    with ProgressLine() as progress, progress.ticking("taking a snapshot"):
        asked = ask(lambda: client.take(wait, tuple(initiators or ()), timeout))
        if not wait_for([asked], SOON_S).done:
            _show_obstacle(client, progress)
        taken = asked.result()
    if json:
        print_json(taken)
    elif taken.outcome == "aborted":
        print_error(f"snapshot {taken.id} was aborted: {taken.reason}")
    else:
        print_line(f"{taken.id or 'a snapshot'} {taken.outcome}")
    return 1 if taken.outcome == "aborted" else 0


def _show_obstacle(client: Client, progress: ProgressLine) -> None:
    with contextlib.suppress(TransportError):  # the snapshot request reports the same failure soon
        obstacle = _obstacle(client.status())
        if obstacle:
            progress.note(f"the snapshot is not complete yet: {obstacle}")


def _obstacle(status: Status) -> str:
    """Describe what a snapshot waits for; empty if it is only slow."""
    obstacles = [trouble.problem for trouble in status.troubles if trouble.kind != "missing"]
    waiting = [process.name for process in status.processes if process.state not in ("running", "leaving")]
    if waiting:
        obstacles.append(f"it waits for {', '.join(waiting)} to run")
    return "; ".join(obstacles) or ("a rollback is in progress" if status.rolling_back else "")
