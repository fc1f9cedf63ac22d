"""Every byte of every file of a store, checked (S2): what is wrong is named, file by file, and checking goes on.

The header and each entry have a checksum over all their bytes, entries are chained, and a blob is named by the BLAKE3
of its bytes. What lies in tmp/ belongs to nobody yet, and what lies in run/ to those who run; neither is looked at.
What is anywhere else and is no file of ours is named. One loss leaves no trace: the newest entries gone together from
the end of the log, and their blobs with them.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from strobe.errors import StoreCorrupt, StoreError
from strobe.protocol.log import BlobRef
from strobe.storage.blobs import BLOBS, Blobs, blob_directory, blob_name, directory_begin, is_digest
from strobe.storage.disk import Disk
from strobe.storage.entries import LOG, decode_entry, entry_name, entry_position
from strobe.storage.header import DIRECTORIES, HEADER, RUN, read_header
from strobe.storage.log_state import LogState
from strobe.storage.manifests import blobs_of


class Problem(msgspec.Struct, frozen=True):
    """Something wrong with the file `place` of the store."""

    place: str
    problem: str

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}"


def verify_bytes(disk: Disk) -> list[Problem]:
    """Return every problem found; none when every byte is as it was written."""
    problems: list[Problem] = []
    header: str | None = None
    try:
        header = read_header(disk).blake3
    except StoreError as error:
        problems.append(_problem(HEADER, error))
    # The names before the log: whatever a writer adds meanwhile then has its begin in what is read.
    blobs = list(_blob_refs(disk))
    state = _check_log(disk, header, problems)
    _check_blobs(disk, blobs, state, problems)
    problems += [Problem(name, "is not a file of the store; move it elsewhere") for name in _unknown_names(disk)]
    return problems


def _check_log(disk: Disk, header: str | None, problems: list[Problem]) -> LogState | None:
    """Add what is wrong with the log to `problems`; return its state, or None where it cannot be known."""
    state = LogState()
    previous = header
    next_position = 0
    damaged = header is None
    for position in _positions(disk):
        if position != next_position:
            problems.append(Problem(entry_name(next_position), "is missing, though later entries exist"))
            previous, damaged = None, True
        next_position = position + 1
        try:
            entry, previous = decode_entry(_read_entry(disk, position), disk.url, position, previous)
        except StoreError as error:
            problems.append(_problem(entry_name(position), error))
            # The next entry is checked by itself: it is not to blame for what it follows.
            previous, damaged = None, True
            continue
        if not damaged:
            state.apply(position, entry)
    return None if damaged else state


def _positions(disk: Disk) -> list[int]:
    """Return the positions of the entries that are there, up to the last one at the time of the call."""
    first, second = ([entry_position(name) for name in disk.names(LOG)] for _ in range(2))
    last = max((position for position in first if position is not None), default=-1)
    # A listing may miss a file made while it runs. What precedes the last of the first is all in the second.
    return [position for position in second if position is not None and position <= last]


def _read_entry(disk: Disk, position: int) -> bytes:
    raw = disk.read(entry_name(position))
    if raw is None:
        raise StoreCorrupt(disk.url, entry_name(position), "is missing")
    return raw


def _check_blobs(disk: Disk, found: list[BlobRef], state: LogState | None, problems: list[Problem]) -> None:
    """Check those that are there, and, where the log is whole, that those that are needed are there."""
    needed = {blob_name(ref): ref for manifest in state.roots() for ref in blobs_of(manifest)} if state else {}
    everything = {blob_name(ref): ref for ref in found} | needed
    blobs = Blobs(disk)
    for name, ref in sorted(everything.items()):
        if name not in needed and disk.size(name) is None:
            continue  # collected since it was listed
        try:
            blobs.read(ref)
        except StoreError as error:
            problems.append(_problem(name, error))
    for begin in sorted({ref.begin for ref in found}):
        if state is not None and begin >= state.next_position:
            problem = f"its snapshot began at log entry {begin}, but the log ends before: its newest entries are lost"
            problems.append(Problem(blob_directory(begin), problem))


def _blob_refs(disk: Disk) -> Iterator[BlobRef]:
    """Every blob that is there, with the size that it has."""
    for directory in disk.names(BLOBS):
        begin = directory_begin(directory)
        if begin is not None and Path(disk.path(blob_directory(begin))).is_dir():
            refs = (BlobRef(name, 0, begin) for name in disk.names(blob_directory(begin)) if is_digest(name))
            for ref in refs:
                yield BlobRef(ref.blake3, disk.size(blob_name(ref)) or 0, begin)


def _unknown_names(disk: Disk) -> Iterator[str]:
    yield from (name for name in disk.names("") if name not in (HEADER, *DIRECTORIES, RUN))
    yield from (f"{LOG}/{name}" for name in disk.names(LOG) if entry_position(name) is None)
    for directory in disk.names(BLOBS):
        place = f"{BLOBS}/{directory}"
        if directory_begin(directory) is None or not Path(disk.path(place)).is_dir():
            yield place
        else:
            yield from (f"{place}/{name}" for name in disk.names(place) if not is_digest(name))


def _problem(place: str, error: StoreError) -> Problem:
    return Problem(place, error.problem.removeprefix(f"{place}: "))
