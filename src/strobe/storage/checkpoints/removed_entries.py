"""Entries of the log that were removed because a checkpoint stands for them (S1, S2).

Which: with two checkpoints that are whole in every file, at m and a later n, the entries before m, except for those
that a reader which begins at m needs: the commits that are complete at m, the commits of removed snapshots that are the
parent of an open one at m, and entry m-1, by which the checkpoint is known to fit. What m needs, a later checkpoint
needs or does not need any more. So a collector that goes on late removes nothing that is needed by then.

In which order: first both checkpoints are durable; then entry 0 goes, durably; then all others in any order. So in a
log with entry 0, nothing was removed, and a missing entry is lost. In one without it, all entries from m on must be
there, and those that m needs.

Why nobody takes the place of a removed entry for the end of the log: checkpoints are removed only when two newer ones
are there, that are whole. So from the moment when entry p was removed, there are always two checkpoints beyond p. A
writer that was stopped for long may create entry p again, because its name is free. It looks at the names of the
checkpoints *after* it has created the entry: if p was removed before, it finds two beyond p, and knows that what it
has created is no entry of the log (`is_superseded`). If it does not find two, nothing had been removed at p: it has
created the one and only entry p. What such a writer leaves behind lies before m: no reader looks at it, and
the next collection removes it.

A reader looks at the names of the checkpoints when it has read to what seems to be the end, and when it finds an entry
missing or not fitting. If entries from where it began to read may have been removed before, it begins again with
the newest checkpoint (`fresher`). So it does not matter what it has found in their places.
"""

from collections.abc import Collection, Hashable
from functools import partial

import msgspec

from strobe.errors import StoreError
from strobe.storage.checkpoints.checkpoint_collection import KEPT, kept
from strobe.storage.checkpoints.checkpoint_files import Loaded, checkpoint_position, manifest_at, newest_first, usable
from strobe.storage.entries.log_file import decode_entry, entry_name, entry_position
from strobe.storage.files.backend import StorageBackend
from strobe.storage.files.checksummed_json import stated_checksum
from strobe.storage.files.layout import CHECKPOINTS, LOG

ENTRIES_AT_ONCE = 16_384
"""The most entries that are removed in one collection: meanwhile, a coordinator does nothing else with its store."""


class Required(msgspec.Struct, frozen=True):
    """Which entries must be there: all from `start` on, and the `needed` ones before, with their checksums if known.

    `loaded` is the checkpoint at `start`; None: nothing was removed, or no checkpoint can be used.
    """

    start: int = 0
    needed: dict[int, str | None] = {}
    loaded: Loaded | None = None


def is_superseded(backend: StorageBackend, position: int) -> bool:
    """Tell whether entry `position` may have been removed by now, by the names of the checkpoints alone."""
    found = {at for name in backend.names(CHECKPOINTS) if (at := checkpoint_position(name)) is not None}
    # Somebody may have removed a damaged one: the one that is left then counts by itself.
    newest = sorted(found)[-KEPT:]
    return bool(newest) and position < newest[0]


def fresher(backend: StorageBackend, header: str, position: int) -> Loaded | None:
    """Return a checkpoint beyond `position` if the log must be read on from there: entries before may be removed."""
    if not is_superseded(backend, position):
        return None
    loaded = next(usable(backend, header, partial(manifest_at, backend), []), None)
    return loaded if loaded is not None and loaded.checkpoint.position > position else None


def is_untouched(backend: StorageBackend) -> bool:
    """Tell whether nothing was removed from the log yet: entry 0 is there, and is the one that entry 1 follows.

    A writer that was stopped before it could begin the log may have created another entry 0.
    """
    first, second = backend.read(entry_name(0)), backend.read(entry_name(1))
    if first is None or second is None:
        return False
    try:
        decode_entry(second, backend.url, 1, stated_checksum(first))
    except StoreError:
        return False
    return True


def how_far_removed(backend: StorageBackend) -> Hashable:
    """Return what differs when entries may have been removed since; one that was found missing may be one of them."""
    return tuple(newest_first(backend)), is_untouched(backend)


def required(backend: StorageBackend, header: str) -> Required:
    """Return which entries must be there. Others were removed on purpose if they are missing."""
    if is_untouched(backend):
        return Required()
    found = kept(backend, header)
    return _required_by(found[-1]) if found else Required()


def superfluous_entries(backend: StorageBackend, header: str) -> dict[str, int]:
    """Return the entries that nobody needs any more, with their sizes; entry 0 first."""
    found = kept(backend, header)
    if len(found) < KEPT:
        return {}
    wanted = _required_by(found[-1])
    doomed: dict[str, int] = {}
    for name, size in sorted(backend.sizes(LOG).items()):
        position = entry_position(name)
        if position is not None and position < wanted.start and position not in wanted.needed:
            doomed[entry_name(position)] = size
    return doomed


def remove_entries(backend: StorageBackend, doomed: Collection[str]) -> None:
    """Remove these entries. StoreError: some may be left; the next collection removes them."""
    if entry_name(0) in doomed:
        backend.remove([entry_name(0)])
        backend.sync_directory(LOG)
    backend.remove(name for name in doomed if name != entry_name(0))


def _required_by(loaded: Loaded) -> Required:
    checkpoint = loaded.checkpoint
    needed: dict[int, str | None] = {parent.position: None for parent in checkpoint.fold.removed_parents}
    needed[checkpoint.position - 1] = checkpoint.previous
    for segment in loaded.segments:
        columns, removed = segment.commits, set(segment.removed_since)
        live = zip(columns.positions, columns.snapshots, columns.checksums, strict=True)
        needed.update((position, checksum.hex()) for position, snapshot, checksum in live if snapshot not in removed)
    return Required(checkpoint.position, needed, loaded)
