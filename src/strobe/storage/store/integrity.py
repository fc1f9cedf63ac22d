"""Verifies every byte of every file of a store, and reports all damaged files (S2).

The header and each entry have a checksum over all their bytes, entries are chained, and a blob is named by the BLAKE3
of its bytes. Four directories are not checked: tmp/ (unfinished files), run/ (files of running programs), restarts/
(hand-overs) and aside/ (files moved out of the log). Foreign files elsewhere are reported. One loss cannot be detected:
the newest entries missing from the end of the log together with their blobs and the checkpoints after them.
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
from strobe.storage.checkpoints.checkpoint_writer import LogPosition
from strobe.storage.checkpoints.folded_log import unfold
from strobe.storage.checkpoints.removed_entries import Required, removal_state, required
from strobe.storage.content.blobs import Blobs, blob_directory, blob_name, directory_begin, is_digest
from strobe.storage.content.manifests import blobs_of
from strobe.storage.entries.fences import Fences
from strobe.storage.entries.gaps import Gap, positions
from strobe.storage.entries.log_file import decode_entry, entry_name, entry_position
from strobe.storage.entries.log_state import LogState
from strobe.storage.files.backend import StorageBackend
from strobe.storage.files.checksummed_json import UNSEALED
from strobe.storage.files.header import read_header
from strobe.storage.files.layout import ASIDE, BLOBS, DIRECTORIES, HEADER, LOG, RESTARTS, RUN
from strobe.storage.log.log_end import leftovers
from strobe.storage.log.terms import Terms


class Problem(msgspec.Struct, frozen=True):
    """A problem with the file `place` of the store."""

    place: str
    problem: str

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}"


def verify_bytes(backend: StorageBackend) -> list[Problem]:
    """Return every problem found; an empty list if every byte is as it was written."""
    problems: list[Problem] = []
    header: str | None = None
    try:
        header = read_header(backend).blake3
    except StoreError as error:
        problems.append(_problem(HEADER, error))
    blobs = list(_blob_refs(backend))
    base, state = _check_log(backend, header, problems)
    damaged = _damaged_blobs(backend, blobs, state)
    if damaged:
        # A blob that retention has removed meanwhile is not damaged. The current log shows which are still needed.
        damaged = _without_removed(backend, damaged, _check_log(backend, header, [])[1] or state)
    problems += damaged
    problems += _leftovers(backend, base)
    unreferenced_damage(backend, partial(_note, problems))
    problems += [Problem(name, "is not a file of the store; move it elsewhere") for name in _unknown_names(backend)]
    return problems


def _check_log(backend: StorageBackend, header: str | None, problems: list[Problem]) -> tuple[int, LogState | None]:
    """Add the problems of the log and the checkpoints to `problems`.

    Return the position of the checkpoint that readers need, or 0, and the state, or None if it is unknown.
    """
    while True:
        before, found = removal_state(backend), list[Problem]()
        result = _check_log_once(backend, header, found)
        if not found or removal_state(backend) == before:  # otherwise entries may have been removed meanwhile
            problems += found
            return result


def _check_log_once(
    backend: StorageBackend, header: str | None, problems: list[Problem]
) -> tuple[int, LogState | None]:
    listed = positions(backend)
    if header is None:
        return 0, _LogCheck(backend, None, problems, LogState()).go_on(listed)
    note = partial(_note, problems)
    wanted = required(backend, header)
    if wanted.loaded is None:
        return 0, _LogCheck(backend, header, problems, LogState(), Recomputed(backend, header, note)).go_on(listed)
    checkpoint = wanted.loaded.checkpoint
    state = LogState(partial(manifest_at, backend))
    unfold(checkpoint.fold, wanted.loaded.segments, checkpoint.position, state)
    recomputed: Recomputed | None = Recomputed(backend, header, note, wanted.loaded)
    damaged = list(_damaged_below(backend, listed[: bisect_left(listed, wanted.start)], wanted))
    problems += damaged
    recomputed = None if damaged else recomputed  # it may need to read the damaged commits
    check = _LogCheck(backend, checkpoint.previous, problems, state, recomputed, Terms.after(checkpoint))
    return checkpoint.position, check.go_on(listed)


class _LogCheck:
    """Checks the entries one by one, and continues after a damaged or missing one."""

    def __init__(
        self,
        backend: StorageBackend,
        previous: str | None,
        problems: list[Problem],
        state: LogState,
        recomputed: Recomputed | None = None,
        terms: Terms | None = None,
    ) -> None:
        self._backend = backend
        self._previous = previous
        self._problems = problems
        self._state = state
        self._recomputed = recomputed
        self._terms = terms or Terms()
        self._fences = Fences(backend)
        self._damaged = previous is None

    def go_on(self, listed: list[int]) -> LogState | None:
        """Check the `listed` entries from the position of the state on; return the state, or None if it is unknown."""
        before = self._state.next_position
        for position in listed[bisect_left(listed, before) :]:
            if before < position and not self._pass_gap(Gap(before, position)):
                break
            self._check(position)
            before = position + 1
        return None if self._damaged else self._state

    def _pass_gap(self, gap: Gap) -> bool:
        """Report the parts of a gap that are not fenced off; return False if the log ends at the gap."""
        self._previous = None
        uncovered = self._fences.uncovered(gap)
        for run in uncovered:
            name = entry_name(run.first)
            self._problems.append(_problem(name, StoreCorrupt(self._backend.url, name, run.problem)))
            self._damaged = True
        if not gap.is_long:
            for position in range(gap.first, gap.end):
                self._take(position, Void("is missing"), UNSEALED)
        return not gap.is_long

    def _check(self, position: int) -> None:
        raw: bytes | None = None
        try:
            raw = self._backend.read(entry_name(position))
            found = _required(self._backend, position, raw)
            decoded = decode_entry(found, self._backend.url, position, self._previous)
            self._terms.require(position, decoded, self._backend.url)
        except StoreError as error:
            # Check the next entry on its own, because the checksum of this one is not known.
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
            self._recomputed.take(position, entry, LogPosition(checksum, self._terms.current), self._state)


def _damaged_below(backend: StorageBackend, listed: list[int], wanted: Required) -> Iterator[Problem]:
    """Check the existing entries before a checkpoint, and that the needed ones exist."""
    fences = Fences(backend)
    for position in sorted({*listed, *wanted.needed}):
        raw: bytes | None = None
        try:
            raw = backend.read(entry_name(position))
            if raw is None and position not in wanted.needed:
                continue  # garbage collection has removed it since it was listed
            decoded = decode_entry(_required(backend, position, raw), backend.url, position, None)
        except StoreError as error:
            if not fences.covers(position, raw):
                yield _problem(entry_name(position), error)
            continue
        if wanted.needed.get(position) not in (None, decoded.checksum):
            yield Problem(entry_name(position), "differs from the entry in the checkpoint: it was replaced")


def _required(backend: StorageBackend, position: int, raw: bytes | None) -> bytes:
    if raw is None:
        raise StoreCorrupt(backend.url, entry_name(position), "is missing, though later entries exist")
    return raw


def _damaged_blobs(backend: StorageBackend, found: list[BlobRef], state: LogState | None) -> list[Problem]:
    """Check the existing blobs and, if the log is intact, that the needed ones exist."""
    needed = _needed(state)
    everything = {blob_name(ref): ref for ref in found} | needed
    blobs = Blobs(backend)
    damaged: list[Problem] = []
    for name, ref in sorted(everything.items()):
        if name not in needed and backend.size(name) is None:
            continue  # garbage collection has removed it since it was listed
        try:
            blobs.read(ref)
        except StoreError as error:
            damaged.append(_problem(name, error))
    return damaged


def _without_removed(backend: StorageBackend, damaged: list[Problem], state: LogState | None) -> list[Problem]:
    needed = _needed(state)
    return [problem for problem in damaged if problem.place in needed or backend.size(problem.place) is not None]


def _needed(state: LogState | None) -> dict[str, BlobRef]:
    needed: dict[str, BlobRef] = {}
    for complete in state.rooted() if state is not None else ():
        with suppress(StoreError):  # its entry is damaged, which was already reported
            needed |= {blob_name(ref): ref for ref in blobs_of(complete.manifest)}
    return needed


def _leftovers(backend: StorageBackend, base: int) -> Iterator[Problem]:
    for one in leftovers(backend, base):
        problem = f"is beyond the end of the log: it follows log entry {one.position}; the newest entries are lost"
        yield Problem(one.place, problem)


def _blob_refs(backend: StorageBackend) -> Iterator[BlobRef]:
    """Yield every existing blob with its actual size."""
    for directory in backend.names(BLOBS):
        begin = directory_begin(directory)
        if begin is not None and backend.is_directory(blob_directory(begin)):
            refs = (BlobRef(name, 0, begin) for name in backend.names(blob_directory(begin)) if is_digest(name))
            for ref in refs:
                yield BlobRef(ref.blake3, backend.size(blob_name(ref)) or 0, begin)


def _unknown_names(backend: StorageBackend) -> Iterator[str]:
    yield from (name for name in backend.names("") if name not in (HEADER, *DIRECTORIES, RESTARTS, ASIDE, RUN))
    yield from (f"{LOG}/{name}" for name in backend.names(LOG) if entry_position(name) is None)
    yield from unknown_names(backend)
    for name in backend.names(BLOBS):
        directory = f"{BLOBS}/{name}"
        if directory_begin(name) is not None and backend.is_directory(directory):
            yield from (f"{directory}/{blob}" for blob in backend.names(directory) if not is_digest(blob))
        elif name in backend.names(BLOBS):  # otherwise garbage collection has emptied and removed it
            yield directory


def _note(problems: list[Problem], place: str, error: StoreError) -> None:
    """Add a problem, unless this file already has one."""
    if all(problem.place != place for problem in problems):
        problems.append(_problem(place, error))


def _problem(place: str, error: StoreError) -> Problem:
    return Problem(place, error.problem.removeprefix(f"{place}: "))
