"""The live coordinator: drives a `Lifecycle` and carries out its effects.

It keeps no durable state of its own (E7). Everything that must survive is in the store's log, and a restart reads that.
`Lifecycle` runs on the event loop only, one event at a time. One thread does all work on the store, in order, and its
results come back as events. Each node receives orders in the order in which `Lifecycle` gave them. A node that was away
receives what it missed when it reconnects.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import msgspec

from strobe.errors import LogReplaced, TakenOver
from strobe.process import System
from strobe.protocol import Lifecycle
from strobe.protocol.coordinator.memory import recall
from strobe.protocol.coordinator.messages import (
    Append,
    ChooseSnapshot,
    CommitSnapshot,
    CoordinatorEffect,
    CoordinatorEvent,
    Dismiss,
    EntryLogged,
    Halt,
    Recovered,
    RestoreRefused,
    RestoreState,
    TimePassed,
    WakeAt,
)
from strobe.protocol.coordinator.restart_messages import Resume
from strobe.protocol.coordinator.rollback import NEWEST, RollbackTarget
from strobe.protocol.process.first_view import first_view, who_must_stay
from strobe.protocol.values.log_entries import Begin, EntryRef, EpochStart, Manifest, Void
from strobe.runtime.coordinator.generations import Generations
from strobe.runtime.coordinator.log_writer import (
    MANIFESTS_KEPT,
    Appended,
    EntryFound,
    LogResult,
    Removed,
    Resumed,
    SnapshotSkipped,
)
from strobe.runtime.coordinator.node_registry import Members
from strobe.runtime.coordinator.pending_requests import PendingRequests
from strobe.runtime.coordinator.snapshot_observer import SnapshotObserver
from strobe.runtime.coordinator.store_thread import StoreThread
from strobe.runtime.event_log import ERROR, WARNING, EventLog
from strobe.runtime.messages.api_documents import COMMITTED, FinishedSnapshot
from strobe.runtime.recovery.restore_point import Topology
from strobe.runtime.recovery.topology import check_store
from strobe.runtime.settings import CoordinatorSettings, NodeSettings, RetentionSettings, check_together
from strobe.storage import LogState
from strobe.storage.checkpoints import checkpoint_writer
from strobe.storage.checkpoints.checkpoint_files import Loaded, Origin
from strobe.storage.checkpoints.folded_log import unfold
from strobe.storage.log.log import EntryMatch

RETAIN_EVERY_S = 5.0
SEARCHES_MAX = 256
"""Maximum number of entries that are searched for nodes, and that are remembered."""
COLLECT_EVERY_S = 60.0


class Clock:
    """Microseconds since 1970: starts at the time of day, then only moves forward."""

    def __init__(self) -> None:
        self._offset_us = time.time_ns() // 1000 - time.monotonic_ns() // 1000

    def now_us(self) -> int:
        return time.monotonic_ns() // 1000 + self._offset_us


class Coordinator:
    """Drives a `Lifecycle` for the connected nodes. Call `start` on the event loop on which it was made.

    `ended` resolves to the exit code. With an `identity`, it waits for the store with that identity. Without one, a
    store must exist, or is made if `create` is set. `known` is an entry that the log must have: an older copy of the
    store without it is not accepted.
    """

    def __init__(
        self,
        system: System,
        store: str,
        settings: CoordinatorSettings | None = None,
        node_settings: NodeSettings | None = None,
        retention: RetentionSettings | None = None,
        log: EventLog | None = None,
        identity: str = "",
        create: bool = False,
        known: EntryRef | None = None,
    ) -> None:
        self.system = system
        self.store_url = store
        self.settings = settings or CoordinatorSettings()
        self.node_settings = node_settings or NodeSettings()
        self.retention = retention or RetentionSettings()
        self.node_settings.check()
        self.retention.check()
        check_together(self.settings, self.node_settings)
        self.log = log or EventLog()
        self.clock = Clock()
        self.first_view = first_view(system)
        self.lifecycle = Lifecycle(
            self.first_view,
            self.settings.policy(),
            system.protocol,
            epoch=0,
            recovering=True,
            outputs={sink.process for sink in system.sinks.values()},
        )
        self.lifecycle.membership.staying = who_must_stay(system)
        # The state of the log as far as `Lifecycle` has read it, and how many of those entries other writers appended.
        self.state = LogState(self._read_manifest, MANIFESTS_KEPT)
        self.foreign = 0
        self.generations = Generations()
        # The snapshot that the current epoch was restored from, if any.
        self.origin: Origin | None = None
        self.identity = identity
        self._create = create
        self._known = known
        self.members = Members(self.settings.silence_s)
        self.requests = PendingRequests()
        # Why the last restore was refused, and why the system was halted, if so.
        self.refusal: str | None = None
        self.halted: str | None = None
        self.started_us = self.clock.now_us()
        # Called with each finished snapshot, when a successor takes over, and with the report of a halt.
        self.on_finished: Callable[[FinishedSnapshot], None] = lambda finished: None
        self.on_successor: Callable[[], None] = lambda: None
        self.on_halt: Callable[[str], None] = lambda report: None
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._choosing = NEWEST
        # Entries from before the checkpoint that nodes know: those that are being read, and what was found.
        self._searched: set[EntryRef] = set()
        self._found: dict[EntryRef, EntryMatch] = {}
        self._polling: asyncio.Future[list[LogResult]] | None = None
        self._waking: tuple[int, asyncio.TimerHandle] | None = None
        self.store = StoreThread(self._take, self.fail, self.log)
        self.observer = SnapshotObserver(self.lifecycle, self.state, self.requests, self.members, self.log)
        self.tracker = self.observer.tracker
        self._retained_s: float | None = None

    # Starting and ending

    async def start(self) -> None:
        """Open the store, read its log, and begin to lead."""
        await self.open()
        await self.take_over()

    async def open(self) -> None:
        """Open the store and read its log. UsageError: it belongs to another system."""
        await self.store.open(self.store_url, self.clock.now_us, self.identity, self._create, self._known)
        header = self.store.log.store.header
        self.identity, self.store_url = header.store, self.store.log.store.url
        if self.state.next_position:
            logged_first = self.lifecycle.rollback.first_view
            check_store(self.store_url, self.lifecycle.epoch, self.lifecycle.view, self.first_view, logged_first)

    async def take_over(self) -> None:
        """Begin a new term. This coordinator leads until another one begins a term (S1)."""
        await self.store.lead(f"{socket.gethostname()} pid {os.getpid()}")
        self.log.emit(
            "started",
            store=self.store_url,
            term=self.term,
            epoch=self.lifecycle.epoch,
            log_position=self.state.next_position,
        )
        self.handle(Recovered())
        self.work(self.store.log.checkpoint)  # the log may have been written by others, or without checkpoints

    @property
    def term(self) -> int:
        """The term in which this coordinator leads."""
        return self.state.term.term if self.state.term is not None else 0

    async def close(self) -> None:
        """Stop the store's thread. Nodes keep running without a coordinator."""
        if self._waking is not None:
            self._waking[1].cancel()
        await self.store.close()

    def end(self, code: int) -> None:
        if not self.ended.done():
            self.ended.set_result(code)

    def fail(self, error: BaseException) -> None:
        """End with `error` (a bug, a takeover, a replaced log): it is not safe to continue."""
        if self.ended.done():
            return
        self.ended.set_exception(error)
        if isinstance(error, TakenOver):
            self.log.emit("taken over", ERROR, term=error.term, coordinator=error.coordinator, own_term=error.own_term)
            self.requests.close(str(error))
        elif isinstance(error, LogReplaced):
            self.log.emit("the log was replaced", ERROR, problem=str(error))

    def now_s(self) -> float:
        return self._loop.time()

    # The store

    def poll(self) -> None:
        """Read what others wrote to the log. Skipped if a poll is pending, so that polls do not queue up."""
        if not self.ended.done() and (self._polling is None or self._polling.done()):
            self._polling = self.store.work(self.store.log.poll)

    async def catch_up(self, timeout_s: float) -> None:
        """Read everything that the log has by now; give up after `timeout_s`."""
        if not self.ended.done():
            await asyncio.wait([self.store.work(self.store.log.poll)], timeout=timeout_s)

    def find(self, entry: EntryRef) -> EntryMatch:
        """Return whether the log has this entry. One from before the checkpoint is read; until then it is UNREAD."""
        found = self._found.get(entry) or self.store.log.store.find(entry)
        if found is EntryMatch.UNREAD and len(self._searched) < SEARCHES_MAX and entry not in self._searched:
            self._searched.add(entry)
            self.work(self.store.log.look_up, entry)
        return found

    def work(self, job: Callable[..., list[LogResult]], *arguments: Any) -> None:
        """Queue a job for the store's thread. Its results are handled here."""
        if not self.ended.done():
            self.store.work(job, *arguments)

    def _read_manifest(self, position: int) -> Manifest:
        return self.store.log.store.read_manifest(position)

    def _take(self, result: LogResult) -> None:
        match result:
            case Appended():
                self._logged(result)
            case Resumed():
                self._resume(result.loaded)
            case SnapshotSkipped():
                self.log.emit("snapshot skipped", WARNING, reason=result.reason)
            case EntryFound():
                self._searched.discard(result.entry)
                if result.match is not EntryMatch.UNREAD:  # otherwise it is searched again
                    self._found[result.entry] = result.match
                    if len(self._found) > SEARCHES_MAX:
                        del self._found[next(iter(self._found))]
            case Removed():
                if result.snapshots:
                    self.log.emit("removed", snapshots=len(result.snapshots), bytes=result.bytes)
            case RestoreRefused():
                self._refused(result)
            case _:
                self.handle(result)

    # The log

    def _resume(self, loaded: Loaded) -> None:
        """Start from a checkpoint, as if all entries before it had been read."""
        checkpoint = loaded.checkpoint
        unfold(checkpoint.fold, loaded.segments, checkpoint.position, self.state)
        recall(self.lifecycle, checkpoint.memory)
        self.origin = checkpoint.origin
        self.observer.resumed()

    def _logged(self, result: Appended) -> None:
        """Handle the next log entry: first update the trackers, then `Lifecycle`."""
        entry, position = result.entry, self.state.next_position
        before = dict(self.state.open)
        if isinstance(entry, EpochStart) and entry.epoch > self.state.epoch:
            self.origin = result.origin
        self.state.apply(position, entry)
        self.generations.follow(self.state)
        self.foreign += result.foreign
        if isinstance(entry, Void):
            self.log.emit("ignored an entry of the log", WARNING, position=position, reason=entry.reason)
            return
        if isinstance(entry, Begin) and entry.snapshot in self.state.open and entry.snapshot not in before:
            self.observer.begun(position, entry)
        origin = result.origin
        self.handle(EntryLogged(entry, origin.departed, origin.joined) if origin is not None else EntryLogged(entry))
        for snapshot in before:
            if snapshot not in self.state.open:
                finished = self.observer.ended(snapshot, entry.at_us)
                if finished is not None:
                    self.on_finished(finished)
                    self._retain(finished.outcome == COMMITTED)
        if isinstance(entry, EpochStart) and entry.epoch == self.lifecycle.epoch:
            self.refusal = None
            self.observer.epoch_started(entry, self.origin.positions if self.origin is not None else {})
        if self.state.next_position % checkpoint_writer.EVERY == 0 and not self.lifecycle.recovering:
            self.work(self.store.log.checkpoint)

    def _retain(self, committed: bool) -> None:
        """Run retention now and then: after commits if retention is set, otherwise after aborts."""
        settings, now_s = self.retention, self.now_s()
        wanted = any((settings.keep_last, settings.keep_hourly, settings.keep_daily))
        if not wanted and committed:
            return
        every_s = RETAIN_EVERY_S if wanted else COLLECT_EVERY_S
        if self._retained_s is None or now_s - self._retained_s >= every_s:
            self._retained_s = now_s
            self.work(self.store.log.retain, settings)

    # The state machine

    def handle(self, event: CoordinatorEvent) -> None:
        """Pass an event to `Lifecycle` and carry out its effects. UsageError: invalid event; nothing was done."""
        for effect in self.lifecycle.handle(event, self.clock.now_us()):
            self._carry_out(effect)

    def _carry_out(self, effect: CoordinatorEffect) -> None:
        match effect:
            case Append():
                self.work(self.store.log.append, effect.entry, self.foreign)
            case CommitSnapshot():
                self.work(self.store.log.commit, effect)
            case ChooseSnapshot():
                self._choose(effect)
            case WakeAt():
                self._wake_at(effect.at_us)
            case Halt():
                self._halt(effect)
            case Dismiss():
                self.dismiss(effect)
            case RestoreState():
                # With the position of its commit, each node reads one entry instead of the whole log.
                commit = self.origin.commit if self.origin is not None else None
                # From its first moment in the epoch, the node names an entry that only this history has.
                newest = self.store.durable_entry
                self.members.send(effect.process, msgspec.structs.replace(effect, commit=commit, newest=newest))
            case Resume():
                self.members.send(effect.process, msgspec.structs.replace(effect, newest=self.store.durable_entry))
                self.on_successor()
            case _:
                self.members.send(effect.process, effect)

    def _wake_at(self, at_us: int) -> None:
        if self._waking is not None:
            if self._waking[0] <= at_us:
                return
            self._waking[1].cancel()
        wait_s = max(0.0, (at_us - self.clock.now_us()) / 1e6)
        self._waking = at_us, self._loop.call_later(wait_s, self._wake)

    def _wake(self) -> None:
        self._waking = None
        try:
            self.handle(TimePassed())
        except Exception as error:  # noqa: BLE001 -- a bug of ours: `fail` ends the coordinator with it
            self.fail(error)

    def _halt(self, halt: Halt) -> None:
        if self.halted is None:
            reason = self.members.last_failures.get(halt.blamed or "")
            self.halted = report = f"{halt.report}. Its last error: {reason}" if reason else halt.report
            self.log.emit("halted", ERROR, report=report)
            self.requests.close(f"everything is stopped: {report}")
            self.on_halt(report)

    # Rollback

    def _choose(self, order: ChooseSnapshot) -> None:
        self._choosing = RollbackTarget(order.wanted, order.fork)
        joined = self.lifecycle.membership.first_views()
        topology = Topology(self.system.protocol, (self.first_view, self.lifecycle.view), joined)
        self.work(self.store.log.choose, order.wanted, topology, order.fork, self.system)

    def _refused(self, refusal: RestoreRefused) -> None:
        self.refusal = refusal.reason
        self.log.emit("restore refused", WARNING, wanted=self._choosing.snapshot or "latest", reason=refusal.reason)
        self.requests.refused(self._choosing, refusal.reason)
        self.handle(refusal)
        if self.lifecycle.rollback.request is None:
            self.requests.fail_rollbacks(refusal.reason)

    # Nodes

    def dismiss(self, order: Dismiss) -> None:
        """Let a departed process end."""
        member = self.members.get(order.process)
        if not order.sinks:  # otherwise it is dismissed again once these sinks have released their output
            if member is not None:
                member.is_dismissed = True
            self.log.emit("left", process=order.process)
        self.members.send(order.process, order)
