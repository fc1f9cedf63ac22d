"""A copy of a store's log that keeps every entry ever written, for tests that compare with the whole log."""

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from strobe.storage import Store
from strobe.storage.files.backend import StorageBackend
from strobe.storage.files.layout import HEADER, LOG


def keep_removed(backend: StorageBackend) -> None:
    """Copy the entries of a store's log to the kept log before they are removed."""
    remove = backend.remove

    def remove_and_keep(names: Iterable[str]) -> None:
        removed = list(names)
        for name in removed:
            if name.startswith(f"{LOG}/"):
                _keep(Path(backend.url), name)
        remove(removed)

    backend.remove = remove_and_keep  # type: ignore[method-assign]


def whole_log(url: str) -> Store:
    """Return a store that has all entries of the one at `url`, and no checkpoint."""
    root = Path(url)
    for name in (HEADER, *(f"{LOG}/{path.name}" for path in (root / LOG).iterdir())):
        _keep(root, name)
    return Store.open(_copy(root))


def _keep(root: Path, name: str) -> None:
    path = _copy(root) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    # Only the first file of a name is the entry; a later one was created after that was removed.
    with suppress(FileExistsError, FileNotFoundError):
        os.link(root / name, path)


def _copy(root: Path) -> Path:
    return root.with_name(f"{root.name}-unremoved")


def copy_store(root: Path, target: Path) -> None:
    """Copy a store, with all entries that were ever in it."""
    for source, copy in ((root, target), (_copy(root), _copy(target))):
        if source.exists():
            shutil.copytree(source, copy)


def move_store(root: Path, target: Path) -> None:
    """Move a store, with all entries that were ever in it, to `target`; replace a store that is there."""
    for source, place in ((root, target), (_copy(root), _copy(target))):
        shutil.rmtree(place, ignore_errors=True)
        if source.exists():
            source.rename(place)
