"""Options that select a running coordinator: its store, or its address."""

from typing import Annotated

import typer

from strobe.errors import UsageError
from strobe.runtime.api.client import Client

RunningStore = Annotated[str | None, typer.Option("--store", metavar="STORE", help="The store of the running system.")]
ApiOption = Annotated[
    str | None, typer.Option("--api", metavar="HOST:PORT", help="Address of the coordinator's API, instead of --store.")
]
TimeoutOption = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Maximum time to wait.")]


def find_coordinator(store: str | None, api: str | None) -> Client:
    """Return a client for the selected coordinator."""
    if (store is None) == (api is None):
        raise UsageError("name the system: --store DIR, or --api HOST:PORT")
    return Client(api) if api is not None else Client.of_store(store or "")
