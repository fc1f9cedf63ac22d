"""What is wrong with a log, entry by entry, and how an entry that nobody can read is fenced off."""

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
from strobe.storage.checkpoints.removed_entries import how_far_removed, required
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
    "epoch": "the start of an epoch: what was written after it counts to the epoch before",
    "pin": "a pin of snapshot {snapshot}",
    "remove": "the removal of snapshot {snapshot}: it is listed again, and its bytes may be gone",
    "release": "that all output of process {process} is released",
    "term": "the start of a coordinator",
    "fence": "a fence: the entry that it was for has no fence",
}
UNKNOWN = "not known: the entry cannot be read"


class LogFinding(msgspec.Struct, frozen=True):
    """An entry that is no good, or several that are missing: those from `position` to `last`.

    `lost` says what the log does without; `fenced`: that was decided already.
    """

    position: int
    last: int
    place: str
    problem: str
    lost: str
    fenced: bool


class Examined(msgspec.Struct, frozen=True):
    """A log, every entry of which was looked at.

    Readers start at the checkpoint at `base`, if it is not 0; `absent` entries before it are not there.
    `missing` reports the loss of the newest entries; empty: none are known to be lost. Beyond `gap`, if there is one,
    lie files that are no part of the log.
    """

    entries: int
    findings: tuple[LogFinding, ...]
    base: int = 0
    absent: int = 0
    missing: str = ""
    gap: Gap | None = None

    @property
    def open(self) -> tuple[LogFinding, ...]:
        """What nobody has decided on yet."""
        return tuple(finding for finding in self.findings if not finding.fenced)


def examine(backend: StorageBackend) -> Examined:
    """Check the seal, the chain, the values and the effect of every entry; StoreError if there is no log to look at."""
    for directory in DIRECTORIES:
        backend.is_directory(f"{directory}/-")  # raises if the directory is a symbolic link
    while True:
        before = how_far_removed(backend)
        examined = _examine(backend)
        if not examined.open or how_far_removed(backend) == before:  # else entries may have been removed meanwhile
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
    if gap is not None:
        findings.append(LogFinding(gap.first, gap.end - 1, entry_name(gap.first), gap.problem, UNKNOWN, False))
    entries = len(below) + state.next_position - log.base
    missing = _missing(backend, state.next_position)
    return Examined(entries, tuple(findings), log.base, log.base - len(below), missing, gap)


def _missing(backend: StorageBackend, end: int) -> str:
    """Return what is wrong with a log that ends before `end`, if that is known to be too soon."""
    try:
        require_newest(backend, end)
        if end == 0:
            require_begun(backend)
    except StoreCorrupt as error:
        return error.problem.removeprefix(f"{entry_name(end)}: ")
    return ""


def _findings(backend: StorageBackend, invalid: dict[int, StoreError]) -> list[LogFinding]:
    """Return what is wrong with these entries; missing ones that follow each other are one finding."""
    fences = Fences(backend)
    findings: list[LogFinding] = []
    absent = -1  # the last one that is missing
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
    """Yield what is wrong with the entries before the checkpoint at `base`. Some may have been removed."""
    wanted = required(backend, header)
    terms = Terms.after(wanted.loaded.checkpoint) if wanted.loaded is not None else Terms()
    must = {*range(wanted.start, base), *wanted.needed}
    before, checksum = wanted.start - 1, wanted.needed.get(wanted.start - 1, header)
    for position in sorted({*listed, *must}):
        # What lies before the start need not fit what lies beside it.
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
    """Append the entry by which the one at `position` has no effect; UsageError if that is a good one.

    If several are missing in a row, each of them gets an entry.
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
    for offset, one in enumerate(range(finding.position, finding.last + 1)):
        raw = found_bytes(_read(backend, one))
        log.append(Fence(one, raw, shortened(reason, TEXT_MAX), at_us), end + offset)
    return finding


def set_aside(backend: StorageBackend, position: int) -> list[str]:
    """Move entry `position` and all after it out of the log, into `ASIDE`, and return their new names.

    UsageError: they are part of the log, or may be. What lies beyond a long gap is not: nobody has ever read it there.
    """
    examined = examine(backend)
    gap = examined.gap
    if gap is None or position < gap.end:
        raise UsageError(
            f"entry {position} stays where it is: only files beyond a gap of more than {GAP_MAX:,} missing entries "
            "are no part of the log"
        )
    if examined.missing:
        raise UsageError(
            f"entries before {entry_name(gap.end)} are lost, so it may be part of the log: {examined.missing}"
        )
    listed = positions(backend)
    return [_move(backend, entry_name(one)) for one in listed[bisect_left(listed, position) :]]


def _move(backend: StorageBackend, name: str) -> str:
    """Give a file of the log another name, under which it is no part of the store."""
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
    """Return the log from the newest checkpoint on, and what it means there: readers start there."""
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
    except StoreCorrupt:  # no regular file: there are no bytes that could be an entry
        return None


def _lost(raw: bytes | None) -> str:
    """Return what is lost without the entry, as far as its bytes tell."""
    entry: Any = None
    with suppress(ValueError, RecursionError, AttributeError):
        entry = msgspec.json.decode(raw or b"").get("entry")
    kind = entry.get("type") if isinstance(entry, dict) else None
    if not isinstance(kind, str) or kind not in _LOST:
        return UNKNOWN
    named = {name: shown(str(entry.get(name, "unknown"))) for name in ("snapshot", "process")}
    return _LOST[kind].format(**named)
