"""Stores as commands use them: made anew for a run, and opened to look at."""

import secrets
import shutil

from strobe.errors import StoreError, StrobeError, UsageError
from strobe.runtime.client import running_for
from strobe.storage import Store
from strobe.storage.blobs import BLOBS
from strobe.storage.header import DIRECTORIES, HEADER, RUN
from strobe.storage.locating import is_object_url, locate, place_at, run_directory
from strobe.storage.place import Place


def fresh_store(url: str, maker: str) -> Store:
    """Make a store at `url` for the command `maker`, in place of one that the same command has left there.

    Anything else at `url` is not touched.
    """
    place = place_at(url)
    if place.unusable(creating=False) is None and place.size(HEADER) is not None:
        _remove_leftover(place, url, maker)
    try:
        return Store.create(place.url, identity=f"{maker}-{secrets.token_hex(12)}")
    except StoreError as error:
        if error.exit_code == UsageError.exit_code:
            raise UsageError(f"{error}, with --store") from error
        raise


def _remove_leftover(place: Place, url: str, maker: str) -> None:
    refusal = f"{url} is not the store of an earlier `strobe {maker}`, and is left alone; choose another: --store STORE"
    try:
        store = Store(place)
    except StrobeError as error:
        raise UsageError(f"{refusal} ({error})") from error
    foreign = [name for name in place.names("") if name not in (HEADER, *DIRECTORIES, RUN)]
    linked = not is_object_url(url) and locate(url).is_symlink()
    if not store.header.store.startswith(f"{maker}-") or foreign or linked:
        raise UsageError(refusal)
    if running_for(url) is not None:
        raise UsageError(f"a system runs on the store {url}; stop it first, or choose another: --store STORE")
    # The header last: until it goes, a removal that was interrupted can be taken up again.
    if is_object_url(url):
        for directory in (*(f"{BLOBS}/{name}" for name in place.names(BLOBS)), *DIRECTORIES):
            place.remove(f"{directory}/{name}" for name in place.names(directory))
    else:
        for directory in DIRECTORIES:
            shutil.rmtree(locate(url) / directory, ignore_errors=True)
    shutil.rmtree(run_directory(url), ignore_errors=True)
    place.remove([HEADER])
