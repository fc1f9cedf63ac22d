"""Finds the end of a log, and detects lost entries at the end.

The newest entries can be lost without a gap: deleted, or left out of a copy. Two kinds of files reveal that. Blobs are
written only after the begin of their snapshot is durable, into a directory named after its position. A checkpoint at n
is written only after entry n-1 is durable. Entries are never removed from the end of a log, so a blob directory or a
checkpoint beyond the end means that entries are missing. Continuing the log there would reuse ids.
"""

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from strobe.errors import LogReplaced, StoreAway, StoreCorrupt
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
_REMEDY = "put the newer one back; or, to continue from what is there, stop the system and start it again"


class Leftover(msgspec.Struct, frozen=True):
    """A blob directory or a checkpoint, `place`, that was written after the missing entry `position`."""

    position: int
    place: str


def last_position(backend: StorageBackend) -> int:
    """Return the highest position of an existing entry, from the names; -1 if there is none."""
    return max(positions(backend), default=-1)


def probed_end(backend: StorageBackend, start: int) -> int:
    """Return the position after some entry beyond `start`, without listing all names; `start` if none was found.

    The probed distance doubles each time. So in a log without gaps, the result is at least half of the way to the end,
    and a gap is noticed unless it is longer than everything after it.
    """
    steps = (start + (1 << step) for step in range(_PROBES))
    return max((position + 1 for position in steps if backend.size(entry_name(position)) is not None), default=start)


def leftovers(backend: StorageBackend, end: int) -> list[Leftover]:
    """Return the files that prove that a log read up to `end` has lost its newest entries, oldest first.

    Another writer may have appended since the log was read. So the entries are listed again, after the blobs and
    checkpoints: every file listed there had its entry by then. A file beyond a long gap is not an entry.
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
    """Raise StoreAway if the log lacks this entry, which it had before: the store was replaced by an older copy.

    Raise LogReplaced if the log has another entry there and continues after it. Then either the known entry was that of
    a copy, or a copy that was continued is here now: a coordinator that runs restarts on such a log, too.

    Blobs and checkpoints prove nothing here, because nodes may have written to the copy since.
    """
    raw = require_present(backend, identity, entry.position)
    name = entry_name(entry.position)
    with suppress(StoreCorrupt):  # a damaged entry is reported when the log is read
        if raw is not None and check_seal(raw, backend.url, name) != entry.blake3:
            if backend.size(entry_name(entry.position + 1)) is not None:
                raise LogReplaced(backend.url, entry.position)
            found = f"holds another copy of that store, in which {name} is another entry ({_REMEDY})"
            raise StoreAway(backend.url, identity, found)


def require_present(backend: StorageBackend, identity: str, position: int) -> bytes | None:
    """Return the bytes of the entry at `position`, which was there before, or None if it was removed below a
    checkpoint. Raise StoreAway if it is missing.
    """
    name = entry_name(position)
    raw = backend.read(name)
    if raw is None and not is_superseded(backend, position):
        found = f"holds an older copy of that store, or has lost entries of its log: {name} was there before"
        raise StoreAway(backend.url, identity, f"{found} ({_REMEDY})")
    return raw


def require_begun(backend: StorageBackend) -> None:
    """Raise StoreCorrupt if an empty log once had entries, or if its directory is missing.

    A copy of a new store may lack all its directories: some tools copy only files.
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
