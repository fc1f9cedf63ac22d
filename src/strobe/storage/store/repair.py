"""Examines a log entry by entry, and repairs it: fences off unreadable entries, moves foreign ones aside."""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from strobe.errors import StoreCorrupt, StoreError, StoreFormatError, UsageError
from strobe.names import shown
from strobe.plain_text import shortened
from strobe.protocol.values.bounds import TEXT_MAX
from strobe.protocol.values.log_entries import Fence
from strobe.storage.checkpoints.checkpoint_files import manifest_at, usable
from strobe.storage.checkpoints.folded_log import unfold
from strobe.storage.checkpoints.removed_entries import removal_state, required
from strobe.storage.entries.fences import Fences, found_bytes
from strobe.storage.entries.gaps import GAP_MAX, Gap, gap_at, positions
from strobe.storage.entries.log_file import decode_entry, entry_name
from strobe.storage.entries.log_state import LogState
from strobe.storage.files.backend import DOCUMENT_BYTES_MAX, StorageBackend
from strobe.storage.files.header import read_header
from strobe.storage.files.layout import ASIDE, DIRECTORIES, LOG
from strobe.storage.log.log import Log
from strobe.storage.log.log_end import require_begun, require_newest
from strobe.storage.log.terms import Terms

_LOST = {
    "begin": "the begin of snapshot {snapshot}: that snapshot counts as never begun, and is lost if it was committed",
    "commit": "the commit of snapshot {snapshot}: that snapshot is lost",
    "abort": "the abort of snapshot {snapshot}: it stays open until the next epoch, or until a coordinator aborts it",
    "view": "a change of view: processes that joined or left with it are not known",
    "epoch": "the start of an epoch: what was written after it is assigned to the previous epoch",
    "pin": "a pin of snapshot {snapshot}",
    "remove": "the removal of snapshot {snapshot}: it is listed again, and its bytes may be gone",
    "release": "that all output of process {process} is released",
    "term": "the start of a coordinator",
    "fence": "a fence: the entry that it was for has no fence",
}
UNKNOWN = "not known: the entry cannot be read"


class LogFinding(msgspec.Struct, frozen=True):
    """An unreadable entry, or a run of missing ones, from `position` to `last`.

    `lost` describes the effect of the loss; `fenced`: the entry is already fenced off.
    """

    position: int
    last: int
    place: str
    problem: str
    lost: str
    fenced: bool


class Examined(msgspec.Struct, frozen=True):
    """The result of examining every entry of a log.

    Readers start at the checkpoint at `base`, if it is not 0; `absent` is the number of missing entries before it.
    `missing` reports the loss of the newest entries; it is empty if no loss is known. Files beyond `gap`, if there is
    one, are not part of the log.
    """

    entries: int
    findings: tuple[LogFinding, ...]
    base: int = 0
    absent: int = 0
    missing: str = ""
    gap: Gap | None = None
    beginning_lost: bool = False
    """There are entries, but no entry 0 and no checkpoint that stands for it. Only a copy of the store can help."""

    @property
    def open(self) -> tuple[LogFinding, ...]:
        """The findings that are not fenced off yet."""
        return tuple(finding for finding in self.findings if not finding.fenced)


def examine(backend: StorageBackend) -> Examined:
    """Check the checksum, chain, values and effect of every entry; raise StoreError if there is no log."""
    for directory in DIRECTORIES:
        backend.is_directory(f"{directory}/-")  # raises if the directory is a symbolic link
    while True:
        before = removal_state(backend)
        examined = _examine(backend)
        if not examined.open or removal_state(backend) == before:  # otherwise entries may have been removed meanwhile
            return examined


def _examine(backend: StorageBackend) -> Examined:
    log, state = _lenient(backend)
    listed = positions(backend)
    below = listed[: bisect_left(listed, log.base)]
    invalid = dict(_invalid_below(backend, read_header(backend).blake3, below, log.base))
    for position, entry in log.read(log.base):
        state.apply(position, entry)
    findings = _findings(backend, invalid | log.invalid)
    gap = gap_at(backend, state.next_position)
    missing = _missing(backend, state.next_position)
    if gap is not None:
        if gap.is_beginning:
            missing = ""  # what proves a loss is about the entries beyond the gap, too
        problem = gap.loss if missing else gap.problem
        findings.append(LogFinding(gap.first, gap.end - 1, entry_name(gap.first), problem, UNKNOWN, False))
    entries = len(below) + sum(log.base <= position < state.next_position for position in listed)
    beginning_lost = bool(listed) and listed[0] > 0 and log.base == 0
    return Examined(entries, tuple(findings), log.base, log.base - len(below), missing, gap, beginning_lost)


def _missing(backend: StorageBackend, end: int) -> str:
    """Return the problem if the log, which ends before `end`, is known to have lost entries; otherwise empty."""
    try:
        require_newest(backend, end)
        if end == 0:
            require_begun(backend)
    except StoreCorrupt as error:
        return error.problem.removeprefix(f"{entry_name(end)}: ")
    return ""


def _findings(backend: StorageBackend, invalid: dict[int, StoreError]) -> list[LogFinding]:
    """Return the findings for these entries; consecutive missing entries are one finding."""
    fences = Fences(backend)
    findings: list[LogFinding] = []
    absent = -1  # position of the last missing entry
    for position, error in sorted(invalid.items()):
        found = _finding(backend, fences, position, error)
        if backend.size(found.place) is None:
            if findings and absent == position - 1 and findings[-1].fenced == found.fenced:
                found = _with_next(findings.pop(), position)
            absent = position
        findings.append(found)
    return findings


def _with_next(run: LogFinding, position: int) -> LogFinding:
    problem = Gap(run.position, position + 1).problem
    return msgspec.structs.replace(run, last=position, problem=problem)


def _invalid_below(
    backend: StorageBackend, header: str, listed: list[int], base: int
) -> Iterator[tuple[int, StoreError]]:
    """Yield the problems of the entries before the checkpoint at `base`. Some entries may have been removed."""
    wanted = required(backend, header)
    terms = Terms.after(wanted.loaded.checkpoint) if wanted.loaded is not None else Terms()
    must = {*range(wanted.start, base), *wanted.needed}
    before, checksum = wanted.start - 1, wanted.needed.get(wanted.start - 1, header)
    for position in sorted({*listed, *must}):
        # Entries before the start need not be chained to their neighbours.
        previous = checksum if position == before + 1 and position >= wanted.start else None
        before, checksum = position, None
        try:
            raw = backend.read(entry_name(position))
            if raw is not None:
                decoded = decode_entry(raw, backend.url, position, previous)
                checksum = decoded.checksum
                if position >= wanted.start:
                    terms.require(position, decoded, backend.url)
                    terms.take(position, decoded)
            elif position in must:
                raise StoreCorrupt(backend.url, entry_name(position), Gap(position, position + 1).problem)
        except (StoreCorrupt, StoreFormatError) as error:
            yield position, error


def fence_off(backend: StorageBackend, position: int, reason: str, at_us: int) -> LogFinding:
    """Append a fence, so that the entry at `position` has no effect; raise UsageError if that entry is valid.

    If it is in a run of missing entries, each of them gets a fence.
    """
    log, _ = _lenient(backend)
    end = log.base + sum(1 for _ in log.read(log.base))
    if position < log.base:
        raise UsageError(f"entry {position} needs no fence: readers start at the checkpoint at {log.base}")
    if (gap := gap_at(backend, end)) is not None:
        raise UsageError(f"nothing can be appended to the log: {gap.problem}")
    if position >= end:
        raise UsageError(f"there is no entry {position}: the log has {end} entries")
    if position not in log.invalid:
        raise UsageError(f"{entry_name(position)} is valid, and stays in effect; only a bad entry can be fenced off")
    found = _findings(backend, log.invalid)
    finding = next(one for one in found if one.position <= position <= one.last)
    if finding.fenced:
        raise UsageError(f"{entry_name(position)} was fenced off already")
    if finding.position == 0 and backend.size(entry_name(0)) is None:
        raise UsageError(f"nothing is fenced off: {entry_name(0)}: {finding.problem}")
    for offset, one in enumerate(range(finding.position, finding.last + 1)):
        raw = found_bytes(_read(backend, one))
        log.append(Fence(one, raw, shortened(reason, TEXT_MAX), at_us), end + offset)
    return finding


def set_aside(backend: StorageBackend, position: int) -> list[str]:
    """Move entry `position` and all after it out of the log, into `ASIDE`, and return their new names.

    Raises UsageError if they are or may be part of the log. Files beyond a long gap are not: no reader ever reads them.
    """
    examined = examine(backend)
    gap = examined.gap
    if gap is None or position < gap.end:
        raise UsageError(
            f"entry {position} stays where it is: only files beyond a gap of more than {GAP_MAX:,} missing entries "
            "are no part of the log"
        )
    if gap.is_beginning:
        raise UsageError(f"nothing is moved: {entry_name(0)}: {gap.problem}")
    if examined.missing:
        raise UsageError(
            f"entries before {entry_name(gap.end)} are lost, so it may be part of the log: {examined.missing}"
        )
    listed = positions(backend)
    return [_move(backend, entry_name(one)) for one in listed[bisect_left(listed, position) :]]


def _move(backend: StorageBackend, name: str) -> str:
    """Move a file of the log to `ASIDE`, where it is not part of the store."""
    raw = backend.read(name) or b""
    if len(raw) > DOCUMENT_BYTES_MAX:
        raise UsageError(f"{name} is longer than any entry; move it elsewhere yourself")
    aside = f"{ASIDE}/{name.rpartition('/')[2]}-{found_bytes(raw)}"
    backend.make_directory(ASIDE)
    backend.create(aside, [raw])
    backend.sync_directory(ASIDE)
    backend.remove([name])
    backend.sync_directory(LOG)
    return aside


def _lenient(backend: StorageBackend) -> tuple[Log, LogState]:
    """Return the log from the newest checkpoint on, where readers start, and its state there."""
    header = read_header(backend).blake3
    log, state = Log(backend, header, lenient=True), LogState()
    loaded = next(usable(backend, header, partial(manifest_at, backend), []), None)
    if loaded is not None:
        checkpoint = loaded.checkpoint
        unfold(checkpoint.fold, loaded.segments, checkpoint.position, state)
        log.resume(checkpoint)
    return log, state


def _finding(backend: StorageBackend, fences: Fences, position: int, error: StoreError) -> LogFinding:
    raw = _read(backend, position)
    name = entry_name(position)
    return LogFinding(
        position, position, name, error.problem.removeprefix(f"{name}: "), _lost(raw), fences.covers(position, raw)
    )


def _read(backend: StorageBackend, position: int) -> bytes | None:
    try:
        return backend.read(entry_name(position))
    except StoreCorrupt:  # not a regular file, so there are no bytes of an entry
        return None


def _lost(raw: bytes | None) -> str:
    """Return what is lost without the entry, as far as its bytes show."""
    entry: Any = None
    with suppress(ValueError, RecursionError, AttributeError):
        entry = msgspec.json.decode(raw or b"").get("entry")
    kind = entry.get("type") if isinstance(entry, dict) else None
    if not isinstance(kind, str) or kind not in _LOST:
        return UNKNOWN
    named = {name: shown(str(entry.get(name, "unknown"))) for name in ("snapshot", "process")}
    return _LOST[kind].format(**named)
