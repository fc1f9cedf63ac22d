"""Discovery: a running coordinator writes its addresses to the store's run directory, and commands read them."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

import msgspec

from strobe.errors import UNREADABLE, StoreError, TransportError
from strobe.private_files import open_file, replace_file
from strobe.storage.files.layout import HEADER
from strobe.storage.files.urls import is_object_url, locate, make_run_directory, run_directory

FILE = "coordinator.json"
_BYTES_MAX = 64 << 10


class Discovered(msgspec.Struct, frozen=True):
    """The coordinator's addresses for nodes and for the API; `system` is the identity of its store.

    A killed coordinator leaves its address file behind. Another system may use that address by now.
    """

    listen: str
    api: str
    pid: int
    started_us: int
    system: str = ""
    term: int = 0


def announce(store: str, discovered: Discovered) -> None:
    """Write the address file atomically. StoreError: it cannot be written."""
    path = _path(store)
    unfinished = path.with_name(f"{FILE}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        make_run_directory(store, discovered.system)
        replace_file(path, msgspec.json.encode(discovered) + b"\n", unfinished)
    except OSError as error:
        raise StoreError(store, f"cannot write {path}: {error.strerror or error}") from error


def is_announced(store: str, discovered: Discovered) -> bool:
    """Return whether the address file of `store` names this coordinator."""
    with suppress(TransportError):
        return discover(store) == discovered
    return False


def withdraw(store: str, discovered: Discovered) -> None:
    """Remove the address file, unless another coordinator has replaced it."""
    with suppress(OSError):
        if is_announced(store, discovered):
            _path(store).unlink()


def discover(store: str) -> Discovered:
    """Return the addresses of the coordinator of `store`; TransportError if there are none."""
    path = _path(store)
    start = f"start one with `strobe coordinator SYSTEM --store {store}`"
    try:
        with open_file(path) as file:
            return msgspec.json.decode(file.read(_BYTES_MAX), type=Discovered)
    except FileNotFoundError as error:
        if not is_object_url(store) and not (locate(store) / HEADER).exists():
            raise TransportError(
                f"there is no store at {store} at the moment: it was moved away, or its file system is not mounted. "
                "Bring it back; a coordinator that runs for it waits, and answers at its address: --api HOST:PORT"
            ) from error
        raise TransportError(f"no coordinator runs for the store {store}; {start}") from error
    except OSError as error:
        raise TransportError(f"{path} cannot be read: {error.strerror or error}; {start}") from error
    except UNREADABLE as error:
        raise TransportError(f"{path} does not say where the coordinator is ({error}); {start}") from error


def _path(store: str) -> Path:
    return run_directory(store) / FILE
