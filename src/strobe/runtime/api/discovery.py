"""How commands find the coordinator of a store: it leaves its addresses in the store's run directory while it runs."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

import msgspec

from strobe.errors import UNREADABLE, StoreError, TransportError
from strobe.private_files import open_file
from strobe.storage.files.layout import HEADER
from strobe.storage.files.urls import is_object_url, locate, make_run_directory, run_directory

FILE = "coordinator.json"
_BYTES_MAX = 64 << 10


class Discovered(msgspec.Struct, frozen=True):
    """Where the coordinator listens for nodes, and where for people; `system` is the identity of its store.

    One that was killed leaves its word behind, and what it says may be the place of another system's by now.
    """

    listen: str
    api: str
    pid: int
    started_us: int
    system: str = ""
    term: int = 0


def announce(store: str, discovered: Discovered) -> None:
    """Write the address file; readers see this or what was there before, whole. StoreError: it cannot be written."""
    path = _path(store)
    new = path.with_name(f"{FILE}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        make_run_directory(store, discovered.system)
        with open_file(new, "wb") as file:
            file.write(msgspec.json.encode(discovered) + b"\n")
        new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        raise StoreError(store, f"cannot write {path}: {error.strerror or error}") from error


def is_announced(store: str, discovered: Discovered) -> bool:
    """Tell whether whoever looks for the coordinator of `store` finds this one."""
    with suppress(TransportError):
        return discover(store) == discovered
    return False


def withdraw(store: str, discovered: Discovered) -> None:
    """Take the word back, unless another coordinator has left its own since."""
    with suppress(OSError):
        if is_announced(store, discovered):
            _path(store).unlink()


def discover(store: str) -> Discovered:
    """Return what the coordinator of `store` has left; TransportError where there is nothing."""
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
