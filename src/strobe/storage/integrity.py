"""Every byte of every file of a store, checked (S2): what is wrong is named, file by file, and checking goes on.

The header and each entry have a checksum over all their bytes, entries are chained, and a blob is named by the BLAKE3
of its bytes. What lies in tmp/ belongs to nobody yet, and what lies in run/ to those who run; neither is looked at.
What is anywhere else and is no file of ours is named. One loss leaves no trace: the newest entries gone together from
the end of the log, and their blobs with them.
"""

from collections.abc import Iterator

import msgspec

from strobe.errors import StoreCorrupt, StoreError
from strobe.protocol.log import BlobRef
from strobe.storage.blobs import BLOBS, Blobs, blob_directory, blob_name, directory_begin, is_digest
from strobe.storage.entries import LOG, decode_entry, entry_name, entry_position
from strobe.storage.fences import Fences
from strobe.storage.header import DIRECTORIES, HEADER, RUN, read_header
from strobe.storage.log_state import LogState
from strobe.storage.manifests import blobs_of
from strobe.storage.place import Place
from strobe.storage.terms import Terms


class Problem(msgspec.Struct, frozen=True):
    """Something wrong with the file `place` of the store."""

    place: str
    problem: str

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}"


def verify_bytes(place: Place) -> list[Problem]:
    """Return every problem found; none when every byte is as it was written."""
    problems: list[Problem] = []
    header: str | None = None
    try:
        header = read_header(place).blake3
    except StoreError as error:
        problems.append(_problem(HEADER, error))
    # The names before the log: whatever a writer adds meanwhile then has its begin in what is read.
    blobs = list(_blob_refs(place))
    state = _check_log(place, header, problems)
    damaged = _damaged_blobs(place, blobs, state)
    if damaged:
        # What retention has removed meanwhile is not damaged: the log as it is now says what is still needed.
        damaged = _without_removed(place, damaged, _check_log(place, header, []) or state)
    problems += damaged
    problems += _lost_begins(blobs, state)
    problems += [Problem(name, "is not a file of the store; move it elsewhere") for name in _unknown_names(place)]
    return problems


def _check_log(place: Place, header: str | None, problems: list[Problem]) -> LogState | None:
    """Add what is wrong with the log to `problems`; return its state, or None where it cannot be known."""
    state, terms, fences = LogState(), Terms(), Fences(place)
    previous = header
    damaged = header is None
    for position in range(_end(place)):
        raw: bytes | None = None
        try:
            raw = place.read(entry_name(position))
            decoded = decode_entry(_required(place, position, raw), place.url, position, previous)
        except StoreError as error:
            # The next entry is checked by itself: it is not to blame for what it follows.
            previous = None
            if fences.covers(position, raw):
                state.next_position += 1
                continue
            problems.append(_problem(entry_name(position), error))
            damaged = True
            continue
        previous = decoded.checksum
        if not damaged:
            state.apply(position, terms.take(position, decoded))
    return None if damaged else state


def _end(place: Place) -> int:
    """Return the position after the last entry that is there."""
    positions = (entry_position(name) for name in place.names(LOG))
    return max((position + 1 for position in positions if position is not None), default=0)


def _required(place: Place, position: int, raw: bytes | None) -> bytes:
    if raw is None:
        raise StoreCorrupt(place.url, entry_name(position), "is missing, though later entries exist")
    return raw


def _damaged_blobs(place: Place, found: list[BlobRef], state: LogState | None) -> list[Problem]:
    """Check those that are there, and, where the log is whole, that those that are needed are there."""
    needed = _needed(state)
    everything = {blob_name(ref): ref for ref in found} | needed
    blobs = Blobs(place)
    damaged: list[Problem] = []
    for name, ref in sorted(everything.items()):
        if name not in needed and place.size(name) is None:
            continue  # collected since it was listed
        try:
            blobs.read(ref)
        except StoreError as error:
            damaged.append(_problem(name, error))
    return damaged


def _without_removed(place: Place, damaged: list[Problem], state: LogState | None) -> list[Problem]:
    needed = _needed(state)
    return [problem for problem in damaged if problem.place in needed or place.size(problem.place) is not None]


def _needed(state: LogState | None) -> dict[str, BlobRef]:
    return {blob_name(ref): ref for manifest in state.roots() for ref in blobs_of(manifest)} if state else {}


def _lost_begins(found: list[BlobRef], state: LogState | None) -> Iterator[Problem]:
    for begin in sorted({ref.begin for ref in found}):
        if state is not None and begin >= state.next_position:
            problem = f"its snapshot began at log entry {begin}, but the log ends before: its newest entries are lost"
            yield Problem(blob_directory(begin), problem)


def _blob_refs(place: Place) -> Iterator[BlobRef]:
    """Every blob that is there, with the size that it has."""
    for directory in place.names(BLOBS):
        begin = directory_begin(directory)
        if begin is not None and place.is_directory(blob_directory(begin)):
            refs = (BlobRef(name, 0, begin) for name in place.names(blob_directory(begin)) if is_digest(name))
            for ref in refs:
                yield BlobRef(ref.blake3, place.size(blob_name(ref)) or 0, begin)


def _unknown_names(place: Place) -> Iterator[str]:
    yield from (name for name in place.names("") if name not in (HEADER, *DIRECTORIES, RUN))
    yield from (f"{LOG}/{name}" for name in place.names(LOG) if entry_position(name) is None)
    for name in place.names(BLOBS):
        directory = f"{BLOBS}/{name}"
        if directory_begin(name) is not None and place.is_directory(directory):
            yield from (f"{directory}/{blob}" for blob in place.names(directory) if not is_digest(blob))
        elif name in place.names(BLOBS):  # else a collector has emptied and removed it since
            yield directory


def _problem(place: str, error: StoreError) -> Problem:
    return Problem(place, error.problem.removeprefix(f"{place}: "))
