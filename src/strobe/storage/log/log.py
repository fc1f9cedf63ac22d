"""`Log`: entry n is created only if absent, by a writer that has read entries 0..n-1 (S1).

The writer that creates entry n decides it permanently. A writer that finds its position taken reads the entry there and
decides again. The checksums of read entries are kept (32 bytes each), so only new entries are read later, and an entry
that is replaced afterwards is detected.

A coordinator leads in its own term. After it has read that another coordinator has started, every read or append here
raises TakenOver.

Old entries are removed (removed_entries.py). A reader at position p that finds that entries from p on may have been
removed gets LeftBehind; a coordinator gets TakenOver if another one has started since.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from functools import partial

from strobe.errors import (
    LeftBehind,
    LogConflict,
    LogReplaced,
    StoreCorrupt,
    StoreError,
    StoreFormatError,
    StrobeError,
    TakenOver,
    UsageError,
)
from strobe.protocol.values.log_entries import Entry, EntryRef, ReadEntry, Void
from strobe.storage.checkpoints.checkpoint_files import Checkpoint
from strobe.storage.checkpoints.checkpoint_writer import LogPosition
from strobe.storage.checkpoints.removed_entries import is_superseded, newer_checkpoint
from strobe.storage.entries.fences import Fences, with_remedy
from strobe.storage.entries.gaps import Gap, gap_at
from strobe.storage.entries.log_file import DecodedEntry, decode_entry, encode_entry, entry_name
from strobe.storage.files.backend import StorageBackend
from strobe.storage.files.checksummed_json import DIGITS, UNSEALED, check_seal, stated_checksum
from strobe.storage.files.commit_steps import ENTRY_STEPS, CommitStep
from strobe.storage.files.layout import LOG
from strobe.storage.log.log_end import last_position, probed_end, require_begun, require_newest
from strobe.storage.log.terms import Terms

_BYTES = DIGITS // 2


class EntryMatch(Enum):
    """What a log has at the position of an entry: that entry or another one; or it ends before it."""

    HELD = "held"
    OTHER = "other"
    BEYOND = "beyond"
    REMOVED = "removed"
    # It was not read, since reading began at a checkpoint.
    UNREAD = "unread"


class Log:
    """The log of one store, for one thread. Entry 0 refers to `header_checksum`.

    `lenient`: unreadable entries are skipped and recorded in `invalid`; a long gap ends the log and is recorded in
    `gap`. Only repairs read a log this way.
    """

    def __init__(self, backend: StorageBackend, header_checksum: str, *, lenient: bool = False) -> None:
        self._backend = backend
        self._header_checksum = header_checksum
        self._checksums = _Checksums()
        self._terms = Terms()
        self._fences = Fences(backend)
        self._lenient = lenient
        self.invalid: dict[int, StoreError] = {}
        # The last gap found.
        self.gap: Gap | None = None
        self._led: int | None = None
        self._durable = 0
        self._is_read = False
        self._is_listed = False
        self._looked_s = -float("inf")

    @property
    def term(self) -> int:
        """The highest term read: the term of the next entry written."""
        return self._terms.current

    def lead(self, term: int) -> None:
        """Append as the coordinator of `term`."""
        self._led = term

    def require_lead(self) -> None:
        """Raise TakenOver if this is the log of a coordinator, and a term higher than its own was read."""
        if self._led is not None and self.term > self._led:
            raise TakenOver(self._backend.url, self._led, self.term, self._terms.coordinator)

    @property
    def is_led(self) -> bool:
        """Whether a coordinator uses this log."""
        return self._led is not None

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint."""
        self._checksums = _Checksums(checkpoint.position, checkpoint.previous)
        self._terms = Terms.after(checkpoint)

    @property
    def base(self) -> int:
        """The position at which reading starts. A checkpoint covers the entries before it."""
        return self._checksums.base

    def read(self, start: int = 0) -> Iterator[tuple[int, ReadEntry]]:
        """Yield every entry from `start` on with its position; raise StoreCorrupt at the first damaged one."""
        self.require_lead()
        if start < self.base:
            yield from self._read_below(start)
        position = max(self.base, min(start, len(self._checksums)))
        new = len(self._checksums)
        while (decoded := self._next(position, new)) is not None:
            self._remember(position, decoded.checksum)
            entry = self._terms.take(position, decoded)
            self.require_lead()
            if position >= start:
                yield position, entry
            position += 1
        if position == 0 and not self._lenient:
            require_begun(self._backend)
        # The end was searched once. From here on, looking one entry ahead is enough.
        self._is_read = True

    def _next(self, position: int, new: int) -> DecodedEntry | None:
        """Return the entry at `position`, or None at the end of the log. Entries from `new` on were not read before."""
        try:
            decoded = self._decoded(position)
        except StoreCorrupt:
            self._require_current(new)
            self._require_same(position)
            raise
        if decoded is None and (position > new or self._must_look()):
            self._require_current(new)
        return decoded

    def _must_look(self) -> bool:
        """Return whether to check for newer checkpoints without new entries: for an object store, not each time."""
        return time.monotonic() - self._looked_s >= self._backend.guarded_s

    def _require_current(self, position: int) -> None:
        """Raise LeftBehind or TakenOver if entries from `position` on may have been removed."""
        self._looked_s = time.monotonic()
        if newer_checkpoint(self._backend, self._header_checksum, position) is not None:
            raise self._left_behind(position)

    def _require_same(self, position: int) -> None:
        """Raise LogReplaced if a coordinator finds entry `position` after an entry other than the one it read."""
        if self._led is None or not position or position != len(self._checksums) or self._previous(position) is None:
            return
        name, url = entry_name(position - 1), self._backend.url
        raw, following = self._backend.read(name), self._backend.read(entry_name(position))
        with suppress(StoreCorrupt, StoreFormatError):
            if raw is None or following is None:
                return
            # Only if both entries are valid: otherwise the entry is damaged, and may be restored.
            there = decode_entry(raw, url, position - 1, None).checksum
            decode_entry(following, url, position, there)
            if there != self._previous(position):
                raise LogReplaced(url, position - 1)

    def _left_behind(self, position: int) -> StrobeError:
        if self._led is not None:
            with suppress(StoreError, LeftBehind):
                now = self._from_newest()
                if now.term > self._led:
                    return TakenOver(self._backend.url, self._led, now.term, now._terms.coordinator)
        return LeftBehind(self._backend.url, position)

    def _from_newest(self) -> "Log":
        """Return the log as a new reader sees it."""
        log = Log(self._backend, self._header_checksum)
        loaded = newer_checkpoint(self._backend, self._header_checksum, 0)
        if loaded is not None:
            log.resume(loaded.checkpoint)
        for _ in log.read(log.base):
            pass
        return log

    def _decoded(self, position: int) -> DecodedEntry | None:
        """Return the entry at `position`, or None at the end of the log. An entry that was fenced off is a `Void`."""
        raw: bytes | None = None
        try:
            raw = self._present(position)
            if raw is None:
                return None
            decoded = decode_entry(raw, self._backend.url, position, self._previous(position))
            self._terms.require(position, decoded, self._backend.url)
            return decoded
        except (StoreCorrupt, StoreFormatError) as error:
            if isinstance(error, StoreCorrupt) and error.place != entry_name(position):
                raise  # the log directory itself: no single entry can be skipped
            if not (self._lenient or self._fences.covers(position, raw)):
                raise with_remedy(error) from error
            self.invalid[position] = error
            return DecodedEntry(Void(f"it was fenced off: {error.problem}"), UNSEALED, self.term)

    def append(self, entry: Entry, position: int) -> None:
        """Create entry `position`, or raise LogConflict. After a StoreError, read the log to see whether it exists."""
        self.require_lead()
        if position > len(self._checksums):
            list(self.read(position))  # all earlier entries must be read first
        self._require_end(position)
        self._sync_predecessors(position)
        raw, checksum = encode_entry(entry, position, self._before(position), self.term)
        decoded = DecodedEntry(entry, checksum, self.term)
        if (problem := self._terms.problem(position, decoded)) is not None:
            raise UsageError(f"log entry {position} cannot be written: {problem}")
        if not self._create(position, raw):
            raise LogConflict(self._backend.url, position)
        self._backend.step(CommitStep.ENTRY_DURABLE, entry_name(position))
        # Only now: after an earlier check, the entry could be removed before its creation (removed_entries.py).
        if is_superseded(self._backend, position):
            raise self._left_behind(position)
        self._checksums.append(checksum)
        self._terms.take(position, decoded)
        self._durable = len(self._checksums)

    def _require_end(self, position: int) -> None:
        """Raise unless `position` is the end of the log, as far as that is known."""
        try:
            self._list_once()
        except StoreCorrupt:
            self._require_current(position)
            raise
        if position != len(self._checksums):
            raise self._conflict(position)

    def _create(self, position: int, raw: bytes) -> bool:
        """Create the entry behind its predecessor, durably; return False if it exists."""
        try:
            check = partial(self._check_predecessor, position)
            return self._backend.create(entry_name(position), [raw], ENTRY_STEPS, check)
        except StoreCorrupt:
            self._require_current(position)
            raise

    def ref(self, position: int) -> EntryRef:
        """Return the reference to an entry that was read."""
        return EntryRef(position, self._checksums[position])

    @property
    def newest(self) -> EntryRef | None:
        """The newest entry that was read; None if there is none, or if it was fenced off."""
        position = len(self._checksums)
        return self.ref(position - 1) if position and self._previous(position) is not None else None

    @property
    def durable(self) -> EntryRef | None:
        """The newest entry that is known to be on disk, if it was read."""
        position = self._durable - 1
        return self.ref(position) if position >= max(0, self.base - 1) and self._previous(self._durable) else None

    def find(self, entry: EntryRef) -> EntryMatch:
        """Return whether `entry` is in the log, as far as that was read. Any thread may call this.

        An entry that was fenced off may have been any.
        """
        if entry.position >= len(self._checksums):
            return EntryMatch.BEYOND
        if entry.position < self.base - 1:
            return EntryMatch.UNREAD
        return _match(self._checksums[entry.position] in (entry.blake3, UNSEALED))

    def look_up(self, entry: EntryRef) -> EntryMatch:
        """Return whether `entry` is in the log; an entry before the checkpoint is read. StoreError: it cannot be."""
        found = self.find(entry)
        name = entry_name(entry.position)
        if found is EntryMatch.UNREAD and (raw := self._backend.read(name)) is not None:
            with suppress(StoreCorrupt):  # a damaged entry may have been any
                found = _match(check_seal(raw, self._backend.url, name) == entry.blake3)
                return _match(self._fences.covers(entry.position, raw)) if found is EntryMatch.OTHER else found
            return EntryMatch.HELD
        if found is EntryMatch.UNREAD and is_superseded(self._backend, entry.position):
            return EntryMatch.REMOVED
        return found

    def taken(self, position: int) -> LogPosition:
        """Return the log position after an entry that was read, for a checkpoint there."""
        return LogPosition(self._checksums[position], self._terms.before(position + 1))

    def _read_below(self, start: int) -> Iterator[tuple[int, ReadEntry]]:
        """Yield the entries covered by the checkpoint; raise StoreCorrupt at an entry that was removed."""
        previous = self._header_checksum if start == 0 else None
        terms = Terms()
        for position in range(start, self.base):
            raw = self._backend.read(entry_name(position))
            if raw is None:
                problem = f"is missing; the log can be read from the checkpoint at {self.base} on"
                raise StoreCorrupt(self._backend.url, entry_name(position), problem)
            decoded = decode_entry(raw, self._backend.url, position, previous)
            previous = decoded.checksum
            yield position, terms.take(position, decoded)
        if previous != self._before(self.base):
            problem = f"does not fit the checkpoint at {self.base}: it was replaced"
            raise StoreCorrupt(self._backend.url, entry_name(self.base - 1), problem)

    def _before(self, position: int) -> str:
        return self._checksums[position - 1] if position else self._header_checksum

    def _previous(self, position: int) -> str | None:
        """Return the checksum that the entry must refer to; None if the entry before it is unreadable."""
        before = self._before(position)
        return before if before != UNSEALED else None

    def _remember(self, position: int, checksum: str) -> None:
        if position == len(self._checksums):
            self._checksums.append(checksum)
        elif self._checksums[position] != checksum:
            raise StoreCorrupt(self._backend.url, entry_name(position), "was replaced after it had been read")

    def _present(self, position: int) -> bytes | None:
        """Return the bytes of an entry, or None at the end of the log. Raises StoreCorrupt for a gap."""
        raw = self._backend.read(entry_name(position))
        if raw is None and self._reaches_beyond(position):
            # Another writer may have created both meanwhile. It is a gap only if the entry is still missing.
            raw = self._backend.read(entry_name(position))
            if raw is None:
                self.gap = self._gap_at(position)
                if not (self._lenient and self.gap.is_long):
                    raise StoreCorrupt(self._backend.url, entry_name(position), self.gap.problem)
        return raw

    def _gap_at(self, position: int) -> Gap:
        """Return the gap that contains `position`. Names are listed once per gap."""
        if self.gap is not None and position in range(self.gap.first, self.gap.end):
            return Gap(position, self.gap.end)
        return gap_at(self._backend, position) or Gap(position, position + 1)

    def _reaches_beyond(self, position: int) -> bool:
        if position < len(self._checksums) or self._backend.size(entry_name(position + 1)) is not None:
            return True
        if self.gap is not None and position in range(self.gap.first, self.gap.end):
            return True
        if self._is_read:
            return False
        end = probed_end(self._backend, position) if self.base else last_position(self._backend) + 1
        return end > position + 1

    def _list_once(self) -> None:
        """Before the first write, check that no entries exist or existed beyond the end of the log."""
        if not self._is_listed:
            end = len(self._checksums)
            require_newest(self._backend, end)
            if self.base and (gap := gap_at(self._backend, end)) is not None:
                raise StoreCorrupt(self._backend.url, entry_name(end), gap.problem)
            self._is_listed = True

    def _check_predecessor(self, position: int) -> None:
        """Check that the previous entry still exists, so that a truncated log is never continued."""
        if position and self._previous(position) is not None:
            raw = self._backend.read(entry_name(position - 1))
            if raw is None or stated_checksum(raw) != self._before(position):
                problem = "is missing" if raw is None else "was replaced"
                problem = f"{problem} after it had been read, as in an older copy of the store; put the newer one back"
                raise StoreCorrupt(self._backend.url, entry_name(position - 1), problem)

    def _sync_predecessors(self, position: int) -> None:
        """Make entries of other writers durable: they must not reach the disk after ours."""
        if position > self._durable:
            self._backend.sync_directory(LOG)
        elif position == 0:
            self._backend.sync_directory("")

    def _conflict(self, position: int) -> LogConflict:
        conflict = LogConflict(self._backend.url, position)
        if position > len(self._checksums):
            end = len(self._checksums)
            conflict.problem = f"log entry {position} cannot be written, the log ends before entry {end}; read it again"
        return conflict


def _match(held: bool) -> EntryMatch:
    return EntryMatch.HELD if held else EntryMatch.OTHER


class _Checksums:
    """Checksums by position in one byte array, since a log has millions of entries; the first is that of `base` - 1."""

    def __init__(self, base: int = 0, previous: str = "") -> None:
        self.base = base
        self._first = base - 1 if base else 0
        self._bytes = bytearray.fromhex(previous)

    def append(self, checksum: str) -> None:
        self._bytes += bytes.fromhex(checksum)

    def __getitem__(self, position: int) -> str:
        place = position - self._first
        assert place >= 0, f"entry {position} was not read"
        return self._bytes[place * _BYTES : (place + 1) * _BYTES].hex()

    def __len__(self) -> int:
        return self._first + len(self._bytes) // _BYTES
