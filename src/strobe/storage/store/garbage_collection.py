"""The collector: removes what no snapshot needs, and never what one needs or may come to need (S2, E8).

It decides nothing by itself: a snapshot goes by a Remove or an Abort entry, logged before. The collector reads the log
to its end, and then removes the blobs that nothing in the log keeps. Kept are those of every complete snapshot and of
the parents of open ones; the whole directory of each open one; and directories from beyond the end of the log as it was
read.

Why this is safe beside writers: it rests on facts that no later entry changes. What is swept lies in the directory of a
snapshot that has its outcome, and outcomes are final. Whoever begins later, in a directory of its own, can reuse only
blobs of a parent that was complete or open when the log was read, which are kept, or of one that began later itself.
On a damaged log nothing is removed.

Last come the entries of the log that nobody needs any more, since a checkpoint stands for them (removed_entries.py).

What is no file of the store is left alone (`verify` names it), and what cannot be removed keeps nothing else here.
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
    """What was removed, or would be (`dry_run`): names of files within the store, and their size together."""

    names: tuple[str, ...]
    bytes: int
    dry_run: bool


def collect(store: Store, dry_run: bool = False, foreseen: LogState | None = None) -> Collected:
    """Remove abandoned files of tmp/, the blobs that nothing keeps, and the directories that they leave empty; also
    what checkpoints make superfluous, after one was written if one is due: older checkpoints, and entries of the log.

    A dry run may ask what would go if the log said what is `foreseen`. StoreError: something could not be removed; all
    the rest is.
    """
    assert foreseen is None or dry_run, "only what is logged is ever removed"
    state = foreseen or store.state()
    listed = _over(_listed_blobs(store), state)
    doomed = _unneeded(listed, state)
    failures: list[StoreError] = []
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
    """Remove entries that checkpoints stand for, at most so many at once; return them with their sizes."""
    checkpoints = newest_first(store.backend)
    if checkpoints == store.swept:
        return {}  # listing the log takes long
    doomed = superfluous_entries(store.backend, store.header.blake3)
    going = dict(islice(doomed.items(), ENTRIES_AT_ONCE))
    if not dry_run:
        remove_entries(store.backend, going)
        if len(going) == len(doomed):
            store.swept = checkpoints
    return going


@contextmanager
def _noting(failures: list[StoreError]) -> Iterator[None]:
    """Let whoever sweeps go on with the next."""
    try:
        yield
    except StoreError as error:
        failures.append(error)


def _listed_blobs(store: Store) -> dict[int, list[str]]:
    """Return the names of all blobs, by the position of the begin of the snapshot that wrote them."""
    begins = (directory_begin(name) for name in store.backend.names(BLOBS))
    return {
        begin: [name for name in store.backend.names(blob_directory(begin)) if is_digest(name)]
        for begin in begins
        if begin is not None
    }


def _over(listed: dict[int, list[str]], state: LogState) -> dict[int, list[str]]:
    """Leave out where somebody may still write."""
    open_begins = {opened.position for opened in state.open.values()}
    return {
        begin: digests
        for begin, digests in listed.items()
        # From beyond the end: it began after the log was read, or the log has lost entries. Either way, hands off.
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
