"""Removal of log entries that are covered by a checkpoint (S1, S2).

Which entries: given two checkpoints that are complete in every file, at m and a later n, the entries before m may be
removed, except those that a reader starting at m needs. These are the commits of snapshots complete at m, the commits
of removed snapshots that are the parent of an open one at m, and entry m-1, which shows that the checkpoint fits the
log. A later checkpoint needs no entries before m beyond these. So a delayed collector never removes a needed entry.

In which order: first both checkpoints are made durable; then entry 0 is removed durably; then all others in any order.
So if entry 0 exists, nothing was removed, and a missing entry is lost. If it does not exist, all entries from m on must
exist, and those that m needs.

Why the position of a removed entry is never mistaken for the end of the log: checkpoints are removed only when two
newer complete ones exist. So once entry p was removed, there are always two checkpoints beyond p. A writer that was
paused for long may create entry p again, because its name is free. It lists the checkpoints *after* it has created the
entry. If p was removed before, it finds two beyond p, and knows that its file is not part of the log (`is_superseded`).
If it does not find two, nothing was removed at p, and it has created the one and only entry p. The file of such a late
writer is before m: no reader reads it, and the next garbage collection removes it.

A reader lists the checkpoints when it reaches the apparent end of the log, and when an entry is missing or does not
fit. If entries from its starting position on may have been removed, it starts again from the newest checkpoint
(`newer_checkpoint`). So files found at those positions do no harm.
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
"""Maximum number of entries removed per collection: it blocks the coordinator's access to its store."""


class Required(msgspec.Struct, frozen=True):
    """The entries that must exist: all from `start` on, and the `needed` ones before, with their checksums if known.

    `loaded` is the checkpoint at `start`; None if nothing was removed, or no checkpoint is usable.
    """

    start: int = 0
    needed: dict[int, str | None] = {}
    loaded: Loaded | None = None


def is_superseded(backend: StorageBackend, position: int) -> bool:
    """Return whether entry `position` may have been removed by now, judging by the names of the checkpoints."""
    found = {at for name in backend.names(CHECKPOINTS) if (at := checkpoint_position(name)) is not None}
    # A user may have removed a damaged checkpoint: then the remaining one decides.
    newest = sorted(found)[-KEPT:]
    return bool(newest) and position < newest[0]


def newer_checkpoint(backend: StorageBackend, header: str, position: int) -> Loaded | None:
    """Return a checkpoint beyond `position` if reading must continue there because entries may have been removed."""
    if not is_superseded(backend, position):
        return None
    loaded = next(usable(backend, header, partial(manifest_at, backend), []), None)
    return loaded if loaded is not None and loaded.checkpoint.position > position else None


def has_all_entries(backend: StorageBackend) -> bool:
    """Return whether nothing was removed from the log yet: entry 0 exists, and entry 1 refers to it.

    A writer that was paused before it began the log may have created another entry 0.
    """
    first, second = backend.read(entry_name(0)), backend.read(entry_name(1))
    if first is None or second is None:
        return False
    try:
        decode_entry(second, backend.url, 1, stated_checksum(first))
    except StoreError:
        return False
    return True


def removal_state(backend: StorageBackend) -> Hashable:
    """Return a value that changes when entries may have been removed, which would explain a missing entry."""
    return tuple(newest_first(backend)), has_all_entries(backend)


def required(backend: StorageBackend, header: str) -> Required:
    """Return the entries that must exist. If others are missing, they were removed on purpose."""
    if has_all_entries(backend):
        return Required()
    found = kept(backend, header)
    return _required_by(found[-1]) if found else Required()


def superfluous_entries(backend: StorageBackend, header: str) -> dict[str, int]:
    """Return the obsolete entries with their sizes, entry 0 first."""
    found = kept(backend, header)
    if len(found) < KEPT:
        return {}
    wanted = _required_by(found[-1])
    obsolete: dict[str, int] = {}
    for name, size in sorted(backend.sizes(LOG).items()):
        position = entry_position(name)
        if position is not None and position < wanted.start and position not in wanted.needed:
            obsolete[entry_name(position)] = size
    return obsolete


def remove_entries(backend: StorageBackend, obsolete: Collection[str]) -> None:
    """Remove these entries. After a StoreError some may be left; the next collection removes them."""
    if entry_name(0) in obsolete:
        backend.remove([entry_name(0)])
        backend.sync_directory(LOG)
    backend.remove(name for name in obsolete if name != entry_name(0))


def _required_by(loaded: Loaded) -> Required:
    checkpoint = loaded.checkpoint
    needed: dict[int, str | None] = {parent.position: None for parent in checkpoint.fold.removed_parents}
    needed[checkpoint.position - 1] = checkpoint.previous
    for segment in loaded.segments:
        columns, removed = segment.commits, set(segment.removed_since)
        live = zip(columns.positions, columns.snapshots, columns.checksums, strict=True)
        needed.update((position, checksum.hex()) for position, snapshot, checksum in live if snapshot not in removed)
    return Required(checkpoint.position, needed, loaded)
