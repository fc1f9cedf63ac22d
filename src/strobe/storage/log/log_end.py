"""Where a log ends: by the names of its entries, and by what was written only after entries that may be gone by now.

The newest entries can be lost without a hole: deleted, or left out of a copy. Two kinds of files give that away. Blobs
are written only when the begin of their snapshot is durable, into a directory named after its position. A checkpoint
at n is written only when entry n-1 is durable. Nobody removes entries from the end of a log, so a blob directory or a
checkpoint from beyond the end means that entries are missing. A log that is continued there would use ids again.
"""

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from strobe.errors import StoreAway, StoreCorrupt
from strobe.protocol.values.log_entries import EntryRef
from strobe.storage.checkpoints.checkpoint_files import checkpoint_position
from strobe.storage.checkpoints.removed_entries import is_superseded
from strobe.storage.content.blobs import blob_directory, directory_begin
from strobe.storage.entries.gaps import near, positions
from strobe.storage.entries.log_file import entry_name
from strobe.storage.files.backend import StorageBackend
from strobe.storage.files.checksummed_json import check_seal
from strobe.storage.files.layout import BLOBS, CHECKPOINTS, DIRECTORIES, LOG

_PROBES = 32
_NAMED_MAX = 3


class Leftover(msgspec.Struct, frozen=True):
    """A blob directory or a checkpoint, `place`, which was written after entry `position`. That entry is missing."""

    position: int
    place: str


def last_position(backend: StorageBackend) -> int:
    """Return the highest position of an entry that is there, by the names alone; -1: there is none."""
    return max(positions(backend), default=-1)


def probed_end(backend: StorageBackend, start: int) -> int:
    """Return a position after an entry beyond `start`, found without listing all names; `start`: none was found.

    Entries are looked for twice as far away each time. So a log without a gap is found to go at least half as far from
    there as it does, and a gap is noticed unless it is longer than all that follows it.
    """
    steps = (start + (1 << step) for step in range(_PROBES))
    return max((position + 1 for position in steps if backend.size(entry_name(position)) is not None), default=start)


def leftovers(backend: StorageBackend, end: int) -> list[Leftover]:
    """Return what shows that a log which was read up to `end` has lost its newest entries, oldest first; none: nothing.

    Another writer may have appended since the log was read. So the names of the entries are listed again, after those
    of blobs and checkpoints: whatever is listed there had its entry by then. A file beyond a long gap is no entry.
    """
    found = [one for one in _written_after_entries(backend) if one.position >= end]
    if found:
        end = max([end, *(position + 1 for position in near(positions(backend), end))])
    return sorted((one for one in found if one.position >= end), key=lambda one: (one.position, one.place))


def require_newest(backend: StorageBackend, end: int) -> None:
    """Raise StoreCorrupt if the log, which was read up to `end`, has lost its newest entries."""
    found = leftovers(backend, end)
    if found:
        raise StoreCorrupt(backend.url, entry_name(end), _missing_problem(end, found))


def require_entry(backend: StorageBackend, identity: str, entry: EntryRef) -> None:
    """Raise StoreAway if the log lacks this entry, which it had before: an older copy of the store is in its place.

    Blobs and checkpoints show nothing here: nodes may have written to the copy by now.
    """
    name = entry_name(entry.position)
    raw = backend.read(name)
    if raw is None and not is_superseded(backend, entry.position):
        found = f"holds an older copy of that store, or has lost entries of its log: {name} was there before"
        raise StoreAway(backend.url, identity, found)
    with suppress(StoreCorrupt):  # a damaged one is reported when the log is read
        if raw is not None and check_seal(raw, backend.url, name) != entry.blake3:
            raise StoreAway(
                backend.url, identity, f"holds another copy of that store, in which {name} is another entry"
            )


def require_begun(backend: StorageBackend) -> None:
    """Raise StoreCorrupt if a log without entries has had some, or if its directory is missing.

    A copy of a new store may have none of its directories: some tools copy files only.
    """
    require_newest(backend, 0)
    if backend.lacks_directory(LOG) and not all(map(backend.lacks_directory, DIRECTORIES)):
        problem = (
            "is missing, and with it all entries of the log; restore it from a copy of the store, or, if nothing was "
            "ever written to this store, make the directory again"
        )
        raise StoreCorrupt(backend.url, LOG, problem)


def _missing_problem(end: int, found: list[Leftover]) -> str:
    """Return what is wrong with a log that ends before `end`, and what to do."""
    named = ", ".join(one.place for one in found[:_NAMED_MAX])
    more = f" and {len(found) - _NAMED_MAX} more" if len(found) > _NAMED_MAX else ""
    return (
        f"the log ends before entry {end}, but {named}{more} can only be there after entry {found[-1].position}: the "
        "newest entries are missing; restore them from a copy of the store, or, if this is a copy that was made file "
        f"by file while the system ran, remove {named}{more} (blobs and checkpoints from beyond entry {end}) and start "
        "again"
    )


def _written_after_entries(backend: StorageBackend) -> Iterator[Leftover]:
    for name in backend.names(BLOBS):
        begin = directory_begin(name)
        if begin is not None:
            yield Leftover(begin, blob_directory(begin))
    for name in backend.names(CHECKPOINTS):
        position = checkpoint_position(name)
        if position is not None:
            yield Leftover(position - 1, f"{CHECKPOINTS}/{name}")
