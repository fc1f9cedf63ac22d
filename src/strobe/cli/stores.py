"""Stores as commands use them: made anew for a run, and opened to look at."""

import secrets
import shutil
from pathlib import Path

from strobe.errors import StoreError, StrobeError, UsageError
from strobe.storage import Store
from strobe.storage.header import DIRECTORIES, HEADER, RUN, locate


def fresh_store(url: str, maker: str) -> Store:
    """Make a store at `url` for the command `maker`, in place of one that the same command has left there.

    Anything else at `url` is not touched.
    """
    root = locate(url)
    if (root / HEADER).exists():
        _remove_leftover(root, url, maker)
    try:
        return Store.create(root, identity=f"{maker}-{secrets.token_hex(12)}")
    except StoreError as error:
        if error.exit_code == UsageError.exit_code:
            raise UsageError(f"{error}, with --store") from error
        raise


def _remove_leftover(root: Path, url: str, maker: str) -> None:
    refusal = f"{url} is not the store of an earlier `strobe {maker}`, and is left alone; choose another: --store DIR"
    try:
        store = Store.open(root)
    except StrobeError as error:
        raise UsageError(f"{refusal} ({error})") from error
    foreign = [path.name for path in root.iterdir() if path.name not in (HEADER, *DIRECTORIES, RUN)]
    if not store.header.store.startswith(f"{maker}-") or foreign or root.is_symlink():
        raise UsageError(refusal)
    # The header last: until it goes, a removal that was interrupted can be taken up again.
    for directory in (*DIRECTORIES, RUN):
        shutil.rmtree(root / directory, ignore_errors=True)
    (root / HEADER).unlink()
