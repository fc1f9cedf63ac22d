"""Garbage collection: removes files that no snapshot needs now or can need later (S2, E8).

It makes no decisions: a snapshot is removed by a Remove or an Abort entry in the log. The collector reads the log to
its end, and then removes the blobs that the log does not keep. It keeps the blobs of every complete snapshot and of the
parents of open ones; the whole directory of each open snapshot; and directories beyond the end of the log as read.

Why it is safe with concurrent writers: it relies on facts that no later entry changes. Removed blobs are in the
directory of a snapshot that has its outcome, and outcomes are final. A snapshot that begins later has its own
directory. It can reuse only blobs of a parent that was complete or open when the log was read, which are kept, or of a
parent that began later itself. If the log is damaged, nothing is removed.

Finally it removes the log entries that are covered by a checkpoint (removed_entries.py).

Foreign files are left alone (`verify` reports them). A file that cannot be removed does not stop the collection.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import msgspec

from strobe.errors import StoreError
from strobe.storage.checkpoints.checkpoint_collection import superfluous
from strobe.storage.checkpoints.checkpoint_files import newest_first
from strobe.storage.checkpoints.removed_entries import ENTRIES_AT_ONCE, remove_entries, superfluous_entries
from strobe.storage.content.blobs import blob_directory, directory_begin, is_digest
from strobe.storage.entries.log_state import LogState, blob_key
from strobe.storage.files.layout import BLOBS, UNFINISHED
from strobe.storage.store.store import Store


class Collected(msgspec.Struct, frozen=True):
    """The files that were removed, or would be (`dry_run`): their names within the store, and their total size."""

    names: tuple[str, ...]
    bytes: int
    dry_run: bool


def collect(store: Store, dry_run: bool = False, previewed: LogState | None = None) -> Collected:
    """Remove abandoned files of tmp/, unneeded blobs and their empty directories. Write a checkpoint if one is due,
    then remove older checkpoints and the log entries they cover.

    A dry run can use `previewed` as the state of the log. If some file cannot be removed, the rest is removed first,
    and then StoreError is raised.
    """
    assert previewed is None or dry_run, "only what is logged is ever removed"
    state = previewed or store.state()
    listed = _over(_listed_blobs(store), state)
    doomed = _unneeded(listed, state)
    failures: list[StoreError] = []
    if not dry_run:
        store.require_known_end()
    with _noting(failures):
        if not dry_run:
            store.write_checkpoint()
        doomed += superfluous(store.backend, store.header.blake3)
    removed: dict[str, int] = {}
    for name in (f"{UNFINISHED}/{name}" for name in store.backend.names(UNFINISHED)):
        with _noting(failures):
            size = store.backend.remove_abandoned(name, dry_run)
            if size is not None:
                removed[name] = size
    removed |= {name: store.backend.size(name) or 0 for name in doomed}
    if not dry_run:
        # Again, as late as possible: files that this log does not need may be needed by an older copy of the store.
        store.require_known_end()
        with _noting(failures):
            store.backend.remove(doomed)
        for begin in listed:
            store.backend.remove_empty_directory(blob_directory(begin))
    with _noting(failures):
        removed |= _sweep_entries(store, dry_run)
    if failures:
        raise failures[0]
    return Collected(tuple(removed), sum(removed.values()), dry_run)


def _sweep_entries(store: Store, dry_run: bool) -> dict[str, int]:
    """Remove a limited number of entries covered by checkpoints; return them with their sizes."""
    checkpoints = newest_first(store.backend)
    if checkpoints == store.swept:
        return {}  # listing the log is slow
    doomed = superfluous_entries(store.backend, store.header.blake3)
    going = dict(islice(doomed.items(), ENTRIES_AT_ONCE))
    if not dry_run:
        remove_entries(store.backend, going)
        if len(going) == len(doomed):
            store.swept = checkpoints
    return going


@contextmanager
def _noting(failures: list[StoreError]) -> Iterator[None]:
    """Collect a StoreError, so that the collection continues."""
    try:
        yield
    except StoreError as error:
        failures.append(error)


def _listed_blobs(store: Store) -> dict[int, list[str]]:
    """Return the names of all blobs, by the begin position of the snapshot that wrote them."""
    begins = (directory_begin(name) for name in store.backend.names(BLOBS))
    return {
        begin: [name for name in store.backend.names(blob_directory(begin)) if is_digest(name)]
        for begin in begins
        if begin is not None
    }


def _over(listed: dict[int, list[str]], state: LogState) -> dict[int, list[str]]:
    """Return only the directories that no snapshot can still write to."""
    open_begins = {opened.position for opened in state.open.values()}
    return {
        begin: digests
        for begin, digests in listed.items()
        # Beyond the end: the snapshot began after the log was read, or the log has lost entries. Keep both.
        if begin not in open_begins and begin < state.next_position
    }


def _unneeded(listed: dict[int, list[str]], state: LogState) -> list[str]:
    kept = set(state.kept_blobs())
    return [
        f"{blob_directory(begin)}/{digest}"
        for begin, digests in listed.items()
        for digest in digests
        if blob_key(begin, digest) not in kept
    ]
