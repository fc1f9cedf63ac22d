"""Opens and creates the stores that commands use, and finds the coordinator that runs on one."""

import secrets
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from strobe.cli.shell.output import program
from strobe.errors import StoreAway, StoreError, StoreMissing, StrobeError, UsageError
from strobe.runtime.api.client import Client, running_for
from strobe.storage import Store
from strobe.storage.files.backend import StorageBackend
from strobe.storage.files.header import may_create
from strobe.storage.files.layout import BLOBS, DIRECTORIES, HEADER, RUN
from strobe.storage.files.urls import backend_at, is_object_url, locate, run_directory

CreateOption = Annotated[
    bool, typer.Option("--create", help="Create the store if there is none: for the first start of a system.")
]
StoreIdOption = Annotated[
    str | None,
    typer.Option(
        "--store-id",
        metavar="ID",
        help="Use only the store with this identity (`store` in its strobe.json), and wait for it.",
    ),
]


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


@contextmanager
def way_to_create(url: str, command: str, system: str) -> Iterator[None]:
    """If there is no store for `command` to run `system` on, explain how to create one.

    A store is created only on request. Otherwise a system would start from nothing whenever its store is not visible:
    its file system is not mounted, it was moved away, or the path is wrong.
    """
    try:
        yield
    except StoreAway:
        raise
    except StoreMissing as error:
        if not may_create(backend_at(url)):
            raise
        there, _, advice = error.problem.partition(";")
        mount = ", or mount the file system" if "mount" in advice else ""
        words = [program("strobe"), command, shlex.quote(system), "--store", shlex.quote(url), "--create"]
        raise StoreMissing(
            error.url,
            f"{there}; check the path{mount}. If this is the first start of the system, create the store:\n"
            f"    {' '.join(words)}",
        ) from None


def live_store(url: str, create: bool, command: str, system: str) -> Store:
    """Open the store that `command` runs `system` on; create it if there is none and `create` is set."""
    with way_to_create(url, command, system):
        return Store.open_or_create(url) if create else Store.open(url)


def fresh_store(url: str, maker: str) -> Store:
    """Create a store at `url` for the command `maker`; replaces one that the same command has left there.

    Anything else at `url` is not touched.
    """
    backend = backend_at(url)
    if backend.unusable(creating=False) is None and backend.size(HEADER) is not None:
        _remove_leftover(backend, url, maker)
    try:
        return Store.create(backend.url, identity=f"{maker}-{secrets.token_hex(12)}")
    except StoreError as error:
        if error.exit_code == UsageError.exit_code:
            raise UsageError(f"{error}, with --store") from error
        raise


def _remove_leftover(backend: StorageBackend, url: str, maker: str) -> None:
    refusal = (
        f"{url} is not the store of an earlier `strobe {maker}`, and is not changed; choose another: --store STORE"
    )
    try:
        store = Store(backend)
    except StrobeError as error:
        raise UsageError(f"{refusal} ({error})") from error
    foreign = [name for name in backend.names("") if name not in (HEADER, *DIRECTORIES, RUN)]
    linked = not is_object_url(url) and locate(url).is_symlink()
    if not store.header.store.startswith(f"{maker}-") or foreign or linked:
        raise UsageError(refusal)
    if running_for(url) is not None:
        raise UsageError(f"a system is running on the store {url}; stop it first, or choose another: --store STORE")
    # Remove the header last: until then, an interrupted removal can be resumed.
    if is_object_url(url):
        for directory in (*(f"{BLOBS}/{name}" for name in backend.names(BLOBS)), *DIRECTORIES):
            backend.remove(f"{directory}/{name}" for name in backend.names(directory))
    else:
        for directory in DIRECTORIES:
            shutil.rmtree(locate(url) / directory, ignore_errors=True)
    shutil.rmtree(run_directory(url), ignore_errors=True)
    backend.remove([HEADER])
