"""Every byte of every file of a store, checked (S2): what is wrong is named, file by file, and checking goes on.

The header and each entry have a checksum over all their bytes, entries are chained, and a blob is named by the BLAKE3
of its bytes. What lies in tmp/ belongs to nobody yet, what lies in run/ to those who run, and what lies in aside/ was
moved out of the log; none of these is looked at. What is anywhere else and is no file of ours is named. One loss leaves
no trace: the newest entries gone together from the end of the log, and with them their blobs and the checkpoints after
them.
"""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import msgspec

from strobe.errors import StoreCorrupt, StoreError
from strobe.protocol.values.log_entries import BlobRef, ReadEntry, Void
from strobe.storage.checkpoints.checkpoint_files import manifest_at
from strobe.storage.checkpoints.checkpoint_integrity import Recomputed, unknown_names, unreferenced_damage
from strobe.storage.checkpoints.checkpoint_writer import Taken
from strobe.storage.checkpoints.folded_log import unfold
from strobe.storage.checkpoints.removed_entries import Required, how_far_removed, required
from strobe.storage.content.blobs import Blobs, blob_directory, blob_name, directory_begin, is_digest
from strobe.storage.content.manifests import blobs_of
from strobe.storage.entries.fences import Fences
from strobe.storage.entries.gaps import Gap, positions
from strobe.storage.entries.log_file import decode_entry, entry_name, entry_position
from strobe.storage.entries.log_state import LogState
from strobe.storage.files.backend import Place
from strobe.storage.files.checksummed_json import UNSEALED
from strobe.storage.files.header import read_header
from strobe.storage.files.layout import ASIDE, BLOBS, DIRECTORIES, HEADER, LOG, RUN
from strobe.storage.log.log_end import leftovers
from strobe.storage.log.terms import Terms


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
    blobs = list(_blob_refs(place))
    base, state = _check_log(place, header, problems)
    damaged = _damaged_blobs(place, blobs, state)
    if damaged:
        # What retention has removed meanwhile is not damaged: the log as it is now says what is still needed.
        damaged = _without_removed(place, damaged, _check_log(place, header, [])[1] or state)
    problems += damaged
    problems += _leftovers(place, base)
    unreferenced_damage(place, partial(_note, problems))
    problems += [Problem(name, "is not a file of the store; move it elsewhere") for name in _unknown_names(place)]
    return problems


def _check_log(place: Place, header: str | None, problems: list[Problem]) -> tuple[int, LogState | None]:
    """Add what is wrong with log and checkpoints to `problems`.

    Return the position of the checkpoint that readers need, or 0, and the state, or None if it cannot be known.
    """
    while True:
        before, found = how_far_removed(place), list[Problem]()
        result = _check_log_once(place, header, found)
        if not found or how_far_removed(place) == before:  # else entries may have been removed meanwhile
            problems += found
            return result


def _check_log_once(place: Place, header: str | None, problems: list[Problem]) -> tuple[int, LogState | None]:
    listed = positions(place)
    if header is None:
        return 0, _LogCheck(place, None, problems, LogState()).go_on(listed)
    note = partial(_note, problems)
    wanted = required(place, header)
    if wanted.loaded is None:
        return 0, _LogCheck(place, header, problems, LogState(), Recomputed(place, header, note)).go_on(listed)
    checkpoint = wanted.loaded.checkpoint
    state = LogState(partial(manifest_at, place))
    unfold(checkpoint.fold, wanted.loaded.segments, checkpoint.position, state)
    recomputed: Recomputed | None = Recomputed(place, header, note, wanted.loaded)
    damaged = list(_damaged_below(place, listed[: bisect_left(listed, wanted.start)], wanted))
    problems += damaged
    recomputed = None if damaged else recomputed  # it may read the commits among them
    check = _LogCheck(place, checkpoint.previous, problems, state, recomputed, Terms.after(checkpoint))
    return checkpoint.position, check.go_on(listed)


class _LogCheck:
    """Goes through the entries one by one, and on after one that is damaged or missing."""

    def __init__(
        self,
        place: Place,
        previous: str | None,
        problems: list[Problem],
        state: LogState,
        recomputed: Recomputed | None = None,
        terms: Terms | None = None,
    ) -> None:
        self._place = place
        self._previous = previous
        self._problems = problems
        self._state = state
        self._recomputed = recomputed
        self._terms = terms or Terms()
        self._fences = Fences(place)
        self._damaged = previous is None

    def go_on(self, listed: list[int]) -> LogState | None:
        """Check the entries that are `listed`, from where the state is on; return the state, if it is known."""
        before = self._state.next_position
        for position in listed[bisect_left(listed, before) :]:
            if before < position and not self._pass_gap(Gap(before, position)):
                break
            self._check(position)
            before = position + 1
        return None if self._damaged else self._state

    def _pass_gap(self, gap: Gap) -> bool:
        """Report what nobody has fenced off of a run of missing entries; return False if nothing beyond it counts."""
        self._previous = None
        uncovered = self._fences.uncovered(gap)
        for run in uncovered:
            name = entry_name(run.first)
            self._problems.append(_problem(name, StoreCorrupt(self._place.url, name, run.problem)))
            self._damaged = True
        if not gap.is_long:
            for position in range(gap.first, gap.end):
                self._take(position, Void("is missing"), UNSEALED)
        return not gap.is_long

    def _check(self, position: int) -> None:
        raw: bytes | None = None
        try:
            raw = self._place.read(entry_name(position))
            found = _required(self._place, position, raw)
            decoded = decode_entry(found, self._place.url, position, self._previous)
            self._terms.require(position, decoded, self._place.url)
        except StoreError as error:
            # The next entry is checked by itself: it is not to blame for what it follows.
            self._previous = None
            if self._fences.covers(position, raw):
                self._take(position, Void(error.problem), UNSEALED)
                return
            self._problems.append(_problem(entry_name(position), error))
            self._damaged = True
            return
        self._previous = decoded.checksum
        self._take(position, self._terms.take(position, decoded), decoded.checksum)

    def _take(self, position: int, entry: ReadEntry, checksum: str) -> None:
        if self._damaged:
            return
        if self._recomputed is None:
            self._state.apply(position, entry)
        else:
            self._recomputed.take(position, entry, Taken(checksum, self._terms.current), self._state)


def _damaged_below(place: Place, listed: list[int], wanted: Required) -> Iterator[Problem]:
    """Check the entries before a checkpoint that are still there; those that are needed must be."""
    fences = Fences(place)
    for position in sorted({*listed, *wanted.needed}):
        raw: bytes | None = None
        try:
            raw = place.read(entry_name(position))
            if raw is None and position not in wanted.needed:
                continue  # a collector has removed it since it was listed
            decoded = decode_entry(_required(place, position, raw), place.url, position, None)
        except StoreError as error:
            if not fences.covers(position, raw):
                yield _problem(entry_name(position), error)
            continue
        if wanted.needed.get(position) not in (None, decoded.checksum):
            yield Problem(entry_name(position), "is another entry than the checkpoint was made from: it was replaced")


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
    needed: dict[str, BlobRef] = {}
    for complete in state.rooted() if state is not None else ():
        with suppress(StoreError):  # its entry is damaged, which was reported
            needed |= {blob_name(ref): ref for ref in blobs_of(complete.manifest)}
    return needed


def _leftovers(place: Place, base: int) -> Iterator[Problem]:
    for one in leftovers(place, base):
        problem = f"is beyond the end of the log: it follows log entry {one.position}; the newest entries are lost"
        yield Problem(one.place, problem)


def _blob_refs(place: Place) -> Iterator[BlobRef]:
    """Every blob that is there, with the size that it has."""
    for directory in place.names(BLOBS):
        begin = directory_begin(directory)
        if begin is not None and place.is_directory(blob_directory(begin)):
            refs = (BlobRef(name, 0, begin) for name in place.names(blob_directory(begin)) if is_digest(name))
            for ref in refs:
                yield BlobRef(ref.blake3, place.size(blob_name(ref)) or 0, begin)


def _unknown_names(place: Place) -> Iterator[str]:
    yield from (name for name in place.names("") if name not in (HEADER, *DIRECTORIES, ASIDE, RUN))
    yield from (f"{LOG}/{name}" for name in place.names(LOG) if entry_position(name) is None)
    yield from unknown_names(place)
    for name in place.names(BLOBS):
        directory = f"{BLOBS}/{name}"
        if directory_begin(name) is not None and place.is_directory(directory):
            yield from (f"{directory}/{blob}" for blob in place.names(directory) if not is_digest(blob))
        elif name in place.names(BLOBS):  # else a collector has emptied and removed it since
            yield directory


def _note(problems: list[Problem], place: str, error: StoreError) -> None:
    """Add a problem, unless there is one with this file."""
    if all(problem.place != place for problem in problems):
        problems.append(_problem(place, error))


def _problem(place: str, error: StoreError) -> Problem:
    return Problem(place, error.problem.removeprefix(f"{place}: "))
