"""All of the coordinator's work on the store; runs on the store's thread only.

Each method returns the results for the coordinator, in order. `Lifecycle` may have decided something before it knew of
another writer's entries: `foreign_known` is the number of such entries it knew of. A decision made on fewer is not
appended but comes back as `AppendLost`, as if the other writer had been first (S1).

A failed append is retried without end: nothing can go on without the log, and nothing is lost meanwhile.

The coordinator leads in its own term. Once a later term has been read from the log, every method raises TakenOver:
nothing is appended, chosen, removed or collected any more.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any

import msgspec

from strobe.backoff import Backoff
from strobe.errors import LeftBehind, LogConflict, LogReplaced, StoreAway, StoreError, StrobeError, TakenOver
from strobe.process import System
from strobe.protocol.coordinator.messages import (
    AppendLost,
    CommitFailed,
    CommitSnapshot,
    RestoreRefused,
    SnapshotChosen,
)
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import (
    Commit,
    Entry,
    EntryRef,
    EpochStart,
    Fence,
    Manifest,
    Pin,
    ReadEntry,
    Remove,
    Term,
    Void,
)
from strobe.runtime.recovery.restore_point import Choice, Topology, below_released, choose
from strobe.runtime.retry import is_transient
from strobe.runtime.settings import RetentionSettings
from strobe.storage import Store, collect
from strobe.storage.checkpoints import checkpoint_writer
from strobe.storage.checkpoints.checkpoint_files import Loaded, Origin
from strobe.storage.files.checksummed_json import UNSEALED
from strobe.storage.inspection.fast_proof import prove_stored
from strobe.storage.log.log import EntryMatch
from strobe.storage.log.log_end import require_entry
from strobe.storage.store.optimistic_append import begin_term
from strobe.storage.store.retention import apply, plan

RETRY_S_MIN = 0.05
RETRY_S_MAX = 2.0
MANIFESTS_KEPT = 16
"""Only the newest manifests stay in memory, since the coordinator runs for months; others are read again on demand."""
ENTRIES_AT_ONCE = 1024


class Resumed(msgspec.Struct, frozen=True):
    """The log is read from this checkpoint on; it replaces all entries before it."""

    loaded: Loaded


class Appended(msgspec.Struct, frozen=True):
    """The next log entry; `foreign`: another writer decided it, and it matters to `Lifecycle`.

    `origin`: the snapshot that an epoch starts from, if it does.
    """

    entry: ReadEntry
    foreign: bool
    origin: Origin | None = None


class SnapshotSkipped(msgspec.Struct, frozen=True):
    """A snapshot was not usable for a rollback, so an older one was tried."""

    reason: str


class Removed(msgspec.Struct, frozen=True):
    """Retention removed these snapshots, and this many bytes of blobs."""

    snapshots: tuple[str, ...]
    bytes: int


class EntryFound(msgspec.Struct, frozen=True):
    """The result of a search for an entry; UNREAD: it could not be read now."""

    entry: EntryRef
    match: EntryMatch


LogResult = (
    Resumed
    | Appended
    | AppendLost
    | CommitFailed
    | SnapshotChosen
    | RestoreRefused
    | SnapshotSkipped
    | Removed
    | EntryFound
)


class Closing(Exception):
    """Raised when the log is closed while it waits for an unusable store."""


class CoordinatorLog:
    """The store and its log, as far as they have been read."""

    store: Store

    def __init__(self, url: str, now_us: Callable[[], int], report: Callable[[str | None], None]) -> None:
        self._url = url
        self._opened = False
        self.position = 0
        # The newest entry that was read or written.
        self.last: EntryRef | None = None
        self.foreign = 0
        self._is_begun = False
        self._now_us = now_us
        self._report = report
        self._closing = threading.Event()
        # Whether the last problem has been reported, and no success since.
        self._has_failed = False
        self._backoff = Backoff(RETRY_S_MIN, RETRY_S_MAX)

    def open(self, identity: str = "", create: bool = False, known: EntryRef | None = None) -> None:
        """Open the store with this identity, waiting for it. Without an identity: the existing store, or StoreMissing.

        `create`: make a store if there is none. `known`: the log must have this entry; a copy without it is refused.
        """

        def attempt() -> Store:
            every = checkpoint_writer.EVERY
            kept = MANIFESTS_KEPT
            store = Store.open(self._url, identity=identity, manifests_kept=kept, checkpoint_every=every)
            if known is not None:
                require_entry(store.backend, identity, known)
            return store

        if create:
            Store.open_or_create(self._url)
        self.store = self._with_retries(attempt, at_start=True) if identity else attempt()
        self._opened = True

    def close(self) -> None:
        """Stop waiting for the store; callable from any thread."""
        self._closing.set()

    def poll(self) -> list[LogResult]:
        """Read what others have appended."""
        results: list[LogResult] = self._with_retries(self._read)
        self._recovered()
        return results

    def read_some(self) -> list[LogResult]:
        """Read the next part of the log, to bound memory; an empty list means the end.

        StoreError: the log is damaged. It is raised, not retried: nothing depends on this coordinator yet.
        """
        if not self._is_begun:
            loaded = self._with_retries(self.store.resume, at_start=True)
            self._is_begun = True
            if loaded is not None:
                self.position = loaded.checkpoint.position
                self.last = EntryRef(self.position - 1, loaded.checkpoint.previous)
                return [Resumed(loaded)]
        results: list[LogResult] = self._with_retries(lambda: self._read(ENTRIES_AT_ONCE), at_start=True)
        return results

    def lead(self, coordinator: str) -> list[LogResult]:
        """Begin a term, before any other append; return what others appended up to then.

        StoreError: the log cannot be written, and waiting does not help.
        """
        self._with_retries(lambda: begin_term(self.store, coordinator, self._now_us()), at_start=True)
        results: list[LogResult] = self._with_retries(self._read)
        return results

    def look_up(self, entry: EntryRef) -> list[LogResult]:
        """Search for an entry that a node knows."""
        try:
            return [EntryFound(entry, self.store.look_up(entry))]
        except StoreError:
            return [EntryFound(entry, EntryMatch.UNREAD)]

    def checkpoint(self) -> list[LogResult]:
        """Write a checkpoint if one is due. If that fails, a later one replaces it."""
        try:
            self.store.write_checkpoint()
        except StoreError as error:
            self._fail(f"no checkpoint of the log can be written: {error}")
        return []

    def append(self, entry: Entry, foreign_known: int) -> list[LogResult]:
        """Append `entry`, or return `AppendLost` and the entries of the writer that was first."""
        results: list[LogResult] = self._with_retries(self._read)
        while self.foreign <= foreign_known and self._can_begin(entry):
            try:
                self.store.append(entry, self.position)
                self._recovered()
                return [*results, self._take(entry, False)]
            except LogConflict:
                results += self._with_retries(self._read)
            except StoreError as error:
                self._pause(error)
                # If the disk failed late, the entry may have been written nevertheless.
                found = self._with_retries(self._read)
                results += [self._as_own(one, entry) for one in found]
                if any(isinstance(one, Appended) and one.entry == entry for one in found):
                    return results
        return [*results, AppendLost(entry)]

    def commit(self, order: CommitSnapshot) -> list[LogResult]:
        """Prove the snapshot and append its commit, or return why that is impossible."""
        results: list[LogResult] = []
        name = str(order.snapshot)
        entry: Commit | None = None
        try:
            results += self._read()
            parent = self.store.state().opened(name).parent
            manifest = assemble(order, parent, self._now_us())
            overtaken = self._overtaken(order.snapshot, manifest)
            if overtaken is not None:
                return [*results, CommitFailed(order.snapshot, overtaken)]
            verdict = prove_stored(self.store, name, manifest)
            if not verdict.holds:
                reason = "; ".join(str(finding) for finding in verdict.findings)
                return [*results, CommitFailed(order.snapshot, f"its proof does not hold: {reason}")]
            entry = Commit(name, manifest, manifest.completed_us)
            self.store.commit(name, manifest, self.position, entry.at_us)
            return [*results, self._take(entry, False)]
        except LogConflict:
            assert entry is not None, "only the append itself can come into conflict"
            return [*results, *self._with_retries(self._read), AppendLost(entry)]
        except (TakenOver, LeftBehind, LogReplaced):
            raise
        except StrobeError as error:
            found = self._with_retries(self._read)
            if any(isinstance(one, Appended) and one.entry == entry for one in found):
                return results + [self._as_own(one, entry) for one in found]
            return [*results, *found, CommitFailed(order.snapshot, str(error))]

    def _overtaken(self, snapshot: SnapshotId, manifest: Manifest) -> str | None:
        """Return why a snapshot is too late: an overlapping one was committed first and has released more output.

        The newest complete snapshot must be restorable (R2).
        """
        state = self.store.known
        last = next(reversed(state.committed), None)
        if last is None or SnapshotId.parse(last).epoch != snapshot.epoch:
            return None
        earlier = state.committed[last].manifest
        # Each process records in its own view, so a snapshot of a later view does not overlap one of an earlier view. A
        # process in it that had left by then has joined again, and its output starts over.
        if manifest.view.number > earlier.view.number or below_released(manifest, earlier) is None:
            return None
        return f"snapshot {last} was complete before it, and has released more output: this one could not be restored"

    def choose(self, wanted: str | None, topology: Topology, fork: bool, system: System) -> list[LogResult]:
        """Find the snapshot to restore; wait while the store cannot be read."""
        results = self.poll()
        answer = self._with_retries(lambda: self._confirmed(lambda: choose(self.store, wanted, topology, fork, system)))
        skipped = [SnapshotSkipped(reason) for reason in answer.passed_over]
        return [*results, *skipped, answer.event]

    def _confirmed(self, decide: Callable[[], Choice]) -> Choice:
        """Return the choice. One that passes over or refuses a snapshot must come out twice, with the known log there.

        An older copy of the store may be in its place, for a moment, too. What it lacks is not damaged (S1).
        """
        answer, before = decide(), None
        while answer != before and (answer.passed_over or isinstance(answer.event, RestoreRefused)):
            self.store.require_known_end()
            before, answer = answer, decide()
        return answer

    def retain(self, settings: RetentionSettings) -> list[LogResult]:
        """Remove snapshots that retention does not keep, and unreferenced data (E8)."""
        try:
            numbers = (settings.keep_last, settings.keep_hourly, settings.keep_daily)
            applied = apply(self.store, plan(self.store.state(), *numbers, self._now_us()))
        except StoreError as error:
            self._fail(f"old snapshots cannot be removed: {error}")
            return []
        results: list[LogResult] = self._with_retries(self._read)
        return [*results, Removed(applied.removed, applied.collected.bytes)]

    def _read(self, entries_max: int | None = None) -> list[LogResult]:
        results: list[LogResult] = []
        try:
            for _, entry in islice(self.store.read_log(self.position), entries_max):
                foreign = not isinstance(entry, Pin | Remove | Term | Fence | Void)
                results.append(self._take(entry, foreign))
                self.foreign += foreign
        except StoreError:
            if not results:
                raise  # otherwise return what was read so far; the next read fails again
        return results

    def _can_begin(self, entry: Entry) -> bool:
        """Return whether the snapshot that an epoch is to start from still exists: it may have been removed (E9).

        Once the entry is logged, the snapshot is protected.
        """
        restored = entry.restored if isinstance(entry, EpochStart) else None
        return restored is None or restored in self._with_retries(self.store.state).committed

    def _take(self, entry: ReadEntry, foreign: bool) -> Appended:
        """Take in the next entry. On StoreError it remains the next one."""
        logged = Appended(entry, foreign, self.store.origin(entry))
        if self.store.entry_ref(self.position).blake3 != UNSEALED:
            self.last = self.store.entry_ref(self.position)
        self.position += 1
        return logged

    def _as_own(self, result: LogResult, entry: Entry | None) -> LogResult:
        """Clear the `foreign` flag if the entry read is our own."""
        if isinstance(result, Appended) and result.foreign and result.entry == entry:
            self.foreign -= 1
            return msgspec.structs.replace(result, foreign=False)
        return result

    def _with_retries(self, work: Callable[[], Any], *, at_start: bool = False) -> Any:
        """Retry `work` until the store allows it; with `at_start`, raise errors that waiting cannot fix."""
        failed = False
        while True:
            try:
                done = work()
            except StoreError as error:
                if at_start and not is_transient(self._away() or error):
                    raise
                self._pause(error)
                failed = True
                continue
            if failed:  # otherwise another problem may remain: a full store can still be read
                self._recovered()
            return done

    def _away(self) -> StoreError | None:
        """Return the error if the store is missing, or an older copy is in its place: it explains any other failure."""
        try:
            if self._opened:
                self.store.require()
                self.store.require_known_end()
        except StoreError as error:
            return error
        return None

    def _pause(self, error: StoreError) -> None:
        error = self._away() or error
        if isinstance(error, StoreAway):
            self._fail(f"waiting for the store {error.url} (identity {error.identity}): the path {error.found}")
        else:
            self._fail(str(error))
        if self._closing.wait(self._backoff.next()):
            raise Closing
        with suppress(StoreError):
            if self._opened:
                collect(self.store)  # the remains of aborted snapshots may be what fills the disk

    def _fail(self, problem: str) -> None:
        """Report a problem; the next success reports that the store works again."""
        self._has_failed = True
        self._report(problem)

    def _recovered(self) -> None:
        self._backoff.reset()
        if self._has_failed:
            self._has_failed = False
            self._report(None)


def assemble(order: CommitSnapshot, parent: str | None, completed_us: int) -> Manifest:
    """Return the manifest of a snapshot whose processes have all stored their part."""
    return Manifest(
        protocol=order.begin.protocol,
        initiators=order.begin.initiators,
        view=order.view,
        epoch=order.snapshot.epoch,
        started_us=order.begin.at_us,
        completed_us=completed_us,
        processes={process: order.records[process] for process in sorted(order.records)},
        retries=order.begin.retries,
        parent=parent,
        departed=order.departed,
        joined=order.joined,
    )
