"""`strobe restart`: planned restarts of running processes, one after the other (E11)."""

import time
from typing import Annotated

import msgspec
import typer

from strobe.cli.arguments.stores import ApiOption, RunningStore, find_coordinator
from strobe.cli.shell.commands import JsonOption, new_app
from strobe.cli.shell.output import note, print_json, print_line
from strobe.errors import TransportError, UsageError
from strobe.runtime.api.client import Client
from strobe.runtime.coordinator.status import RUNNING
from strobe.runtime.messages.api_documents import ProcessStatus, Status

app = new_app()

POLL_S = 0.05


class ReplacedProcess(msgspec.Struct):
    """One restarted process. `epoch` and `rolled_back`: whether its successor goes on in the same epoch."""

    process: str
    seconds: float
    epoch: int
    rolled_back: bool


@app.command()
def restart(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The names of the processes.")],
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="Wait for each successor for at most this long.")
    ] = 300.0,
    store: RunningStore = None,
    api: ApiOption = None,
    json: JsonOption = False,
) -> int:
    """Restart processes one after the other, for example to deploy a new program, without a rollback.

    Each process hands over its state and its messages, and ends. `strobe up` starts its successor at once. For a node
    that you run yourself, your service manager does; it must restart a program that ends with exit code 0. The exit
    code is 1 if the system had to roll back.

    \b
    Example:
      strobe restart a b c --store ./snapshots
    """
    if timeout <= 0:
        raise UsageError(f"--timeout {timeout:g} makes no sense: it must be above 0")
    client = find_coordinator(store, api)
    restarted = []
    for name in dict.fromkeys(names):
        one = _restart(client, name, timeout)
        restarted.append(one)
        if not json:
            how = "after a rollback" if one.rolled_back else "without a rollback"
            print_line(f"{name} was restarted in {one.seconds:.1f} s, {how}")
    if json:
        print_json(restarted)
    return 1 if any(one.rolled_back for one in restarted) else 0


def _restart(client: Client, name: str, timeout_s: float) -> ReplacedProcess:
    """Restart one process, and wait until its successor runs."""
    before = client.status()
    instance = next((one.instance for one in before.processes if one.name == name), "")
    client.restart(name)
    began_s = time.monotonic()
    while time.monotonic() < began_s + timeout_s:
        time.sleep(POLL_S)
        status = _status(client)
        found = _process(status, name) if status is not None else None
        if status is not None and found is not None and found.state == RUNNING and found.instance != instance:
            return ReplacedProcess(
                name, round(time.monotonic() - began_s, 3), status.epoch, status.epoch != before.epoch
            )
    note(f"the others continue, and wait for {name}: start its node if nothing else does")
    raise TransportError(f"no successor of {name} runs after {timeout_s:g} s; see its log")


def _status(client: Client) -> Status | None:
    try:
        return client.status()
    except TransportError:  # the coordinator may be restarted meanwhile
        return None


def _process(status: Status, name: str) -> ProcessStatus | None:
    return next((one for one in status.processes if one.name == name), None)
