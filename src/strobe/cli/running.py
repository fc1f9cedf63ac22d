"""Commands that speak to a running system find its coordinator by its store, or by its address."""

from typing import Annotated

import typer

from strobe.errors import UsageError
from strobe.runtime.client import Client

RunningStore = Annotated[str | None, typer.Option("--store", metavar="STORE", help="The store of the running system.")]
ApiOption = Annotated[
    str | None, typer.Option("--api", metavar="HOST:PORT", help="Where the coordinator's API is, instead of --store.")
]
TimeoutOption = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Wait no longer than that.")]


def find_coordinator(store: str | None, api: str | None) -> Client:
    """Return a client for the coordinator that is meant."""
    if (store is None) == (api is None):
        raise UsageError("say which system: --store DIR, or --api HOST:PORT")
    return Client(api) if api is not None else Client.of_store(store or "")
