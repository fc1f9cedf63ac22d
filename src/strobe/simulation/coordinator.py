"""The simulated coordinator: its `Lifecycle`, its fragments in memory, and the log it writes.

A crash loses the `Lifecycle` and the fragments. A restart rebuilds everything from the log.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from strobe.errors import LogConflict
from strobe.protocol import Fragment, Lifecycle, Policy, Snapshot, SnapshotId, View
from strobe.protocol.coordinator.messages import (
    Append,
    AppendLost,
    ChooseSnapshot,
    CommitFailed,
    CommitSnapshot,
    CoordinatorEffect,
    CoordinatorEvent,
    EntryLogged,
    FragmentArrived,
    Halt,
    ProcessReturned,
    ProcessWithoutState,
    Recovered,
    ReportOutcome,
    TimePassed,
    WakeAt,
)
from strobe.protocol.values.log_entries import Begin, Commit, Entry, EpochStart, Manifest, ReadEntry
from strobe.simulation.network import Network
from strobe.simulation.rollbacks import Registered, Rollbacks
from strobe.storage import Store


class CoordinatorCrashed(Exception):
    """Raised inside a step of a commit, to crash there."""


class MemoryLog:
    """A log in memory."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.on_step: Callable[[str], None] = lambda step: None

    def append(self, entry: Entry, position: int) -> None:
        self.on_step("before the entry")
        if position != len(self.log):
            raise LogConflict("memory", position)
        self.log.append(entry)
        self.on_step("after the entry")

    def entries(self, start: int) -> Iterator[ReadEntry]:
        yield from self.log[start:]

    def write(self, snapshot: Snapshot) -> Manifest:
        self.on_step("before the blobs")
        return Manifest(
            snapshot.protocol,
            snapshot.initiators,
            snapshot.view,
            snapshot.id.epoch,
            snapshot.started_us,
            snapshot.completed_us,
            {},
        )


class StoreLog:
    """A log in a store on disk, with the snapshots' blobs beside it. Step names state what is written and the step."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.on_step: Callable[[str], None] = lambda step: None
        self.writing = ""
        store.on_step = lambda step, path: self.on_step(f"{self.writing} {step.name}")

    def append(self, entry: Entry, position: int) -> None:
        self.writing = type(entry).__name__
        self.store.append(entry, position)

    def entries(self, start: int) -> Iterator[ReadEntry]:
        for _, entry in self.store.read_log(start):
            yield entry

    def write(self, snapshot: Snapshot) -> Manifest:
        self.writing = "blobs"
        return self.store.write_snapshot(snapshot)


class CoordinatorWorld(Protocol):
    """What the coordinator uses of its world."""

    network: Network
    rollbacks: Rollbacks | None
    views: dict[int, View]

    def order(self, effect: CoordinatorEffect) -> None: ...
    def logged(self, entry: ReadEntry) -> None: ...
    def accepts(self, snapshot: Snapshot) -> bool: ...
    def coordinator_crashed(self) -> None: ...


class Coordinator:
    """Drives a `Lifecycle`, and recovers from crashes."""

    def __init__(
        self,
        world: CoordinatorWorld,
        log: MemoryLog | StoreLog,
        view: View,
        policy: Policy,
        protocol: str,
        lifecycle_class: type[Lifecycle],
    ) -> None:
        self.world = world
        self.scheduler = world.network.scheduler
        self.log = log
        self.first_view = view
        self.policy = policy
        self.protocol = protocol
        self.lifecycle_class = lifecycle_class
        self.up = False
        self.halted: str | None = None
        self.position = 0
        self.waking_at_us: int | None = None
        self.lifecycle = lifecycle_class(view, policy, protocol)
        self.fragments: dict[SnapshotId, dict[str, Fragment]] = {}
        # With rollbacks: the run of each process that receives orders.
        self.instances: dict[str, int] = {}

    def start(self) -> None:
        """Start or restart, from the log alone."""
        rollbacks = self.world.rollbacks
        first_epoch = 1 if rollbacks is None else 0  # with rollbacks, processes start when they are ordered to
        self.lifecycle = self.lifecycle_class(
            self.first_view, self.policy, self.protocol, epoch=first_epoch, recovering=True
        )
        self.fragments = {}
        self.instances = {}
        self.position = 0
        self.waking_at_us = None
        self.up = True
        if rollbacks is not None:
            rollbacks.register_all()
        self._read()
        self.handle(Recovered())

    def receive(self, item: CoordinatorEvent | Fragment | Registered) -> None:
        """Handle what a process sends. A crashed coordinator ignores it."""
        if not self.up:
            return
        match item:
            case Fragment():
                self.fragments.setdefault(item.snapshot, {})[item.process] = item
                self.handle(FragmentArrived(item.snapshot, item.process, item.view))
            case Registered():
                self._registered(item)
            case _:
                self.handle(item)

    def _registered(self, item: Registered) -> None:
        """Handle a registration: the process continues, or needs a state to restore."""
        process, epoch = item.process, item.epoch
        self.instances[process] = item.instance
        if epoch == 0 and process not in self.lifecycle.membership.everyone:
            assert self.world.rollbacks is not None
            self.world.rollbacks.discard(process)  # it was dismissed, and missed that order
        elif epoch == self.lifecycle.epoch:
            self.handle(ProcessReturned(process))
        else:
            self.handle(ProcessWithoutState(process, epoch))

    def crash(self) -> None:
        self.up = False

    def rest(self) -> None:
        """Begin no more snapshots."""
        self.lifecycle.schedule.rest()

    def handle(self, event: CoordinatorEvent) -> None:
        """Pass an event to the `Lifecycle` and carry out its effects. A crashed coordinator ignores it."""
        if not self.up:
            return
        try:
            self._carry_out(self.lifecycle.handle(event, self.scheduler.now_us))
        except CoordinatorCrashed:
            self.world.coordinator_crashed()

    def _carry_out(self, effects: list[CoordinatorEffect]) -> None:
        for effect in effects:
            if not self.up:
                return
            match effect:
                case Append():
                    self._append(effect.entry)
                case CommitSnapshot():
                    self._commit(effect.snapshot, effect.begin)
                case WakeAt():
                    self._wake_at(effect.at_us)
                case ChooseSnapshot():
                    delay_us = self.world.network.draw_delay_us()
                    self.scheduler.after(delay_us, self._choose, self.lifecycle, effect.wanted)
                case Halt():
                    self.halted = effect.report
                case ReportOutcome():
                    self.fragments.pop(effect.snapshot, None)
                    self.world.order(effect)
                case _:
                    self.world.order(effect)

    def _append(self, entry: Entry) -> None:
        try:
            self.log.append(entry, self.position)
        except LogConflict:
            self._read()
            self.handle(AppendLost(entry))
            return
        self._read()

    def _read(self) -> None:
        """Pass new log entries to the `Lifecycle`, from any writer."""
        for entry in list(self.log.entries(self.position)):
            self.position += 1
            self.world.logged(entry)
            if isinstance(entry, EpochStart):
                self.fragments = {known: parts for known, parts in self.fragments.items() if known.epoch >= entry.epoch}
            self.handle(EntryLogged(entry))

    def _commit(self, snapshot: SnapshotId, begin: Begin) -> None:
        retries = SnapshotId.parse(begin.retries) if begin.retries else None
        fragments = self.fragments[snapshot]
        whole = Snapshot(
            snapshot,
            self.protocol,
            begin.initiators,
            self.world.views[begin.view],
            {process: fragments[process] for process in sorted(fragments)},
            begin.at_us,
            self.scheduler.now_us,
            retries,
        )
        if not self.world.accepts(whole):
            self.handle(CommitFailed(snapshot, "its proof does not hold"))
            return
        manifest = self.log.write(whole)
        self._append(Commit(str(snapshot), manifest, self.scheduler.now_us))

    def _choose(self, lifecycle: Lifecycle, wanted: str | None) -> None:
        if lifecycle is self.lifecycle and self.world.rollbacks is not None:
            self.handle(self.world.rollbacks.choose(wanted))

    def _wake_at(self, at_us: int) -> None:
        if self.waking_at_us is None or at_us < self.waking_at_us:
            self.waking_at_us = at_us
            self.scheduler.at(at_us, self._wake, self.lifecycle)

    def _wake(self, lifecycle: Lifecycle, _: None) -> None:
        if lifecycle is self.lifecycle:
            self.waking_at_us = None
            self.handle(TimePassed())
