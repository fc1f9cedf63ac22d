"""The simulated world: an event queue, a seeded network, faults, and checkers.

A run has two phases. In the *safety* phase faults happen and no invariant may ever break. In the *liveness* phase the
world is healthy, and everything must converge: every snapshot gets its outcome, one more snapshot completes, buffers
are freed. Time is simulated, in whole microseconds. The same seed gives the same bytes on every machine.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop
from typing import TYPE_CHECKING, Any

import msgspec

from strobe.causality.proof import verify
from strobe.errors import ProtocolViolation, UsageError
from strobe.process import Random, System
from strobe.protocol import (
    PROTOCOLS,
    Lifecycle,
    Policy,
    Snapshot,
    SnapshotId,
    View,
)
from strobe.protocol.coordinator.messages import (
    CoordinatorEffect,
    InstallView,
    ProcessFailed,
    ProcessReturned,
    ReportSettled,
    SnapshotWanted,
)
from strobe.protocol.process.first_view import first_view
from strobe.protocol.values.log_entries import Abort, Begin, Commit, EpochStart, ReadEntry, ViewChange
from strobe.simulation.channel_queues import ChannelQueue, Item
from strobe.simulation.checkers.base import Violated
from strobe.simulation.checkers.snapshot_checkers import conserved_at_start
from strobe.simulation.coordinator import Coordinator, MemoryLog, StoreLog
from strobe.simulation.faults import Faults
from strobe.simulation.injector import Injector
from strobe.simulation.journal import Journal
from strobe.simulation.network import Addressed, Network
from strobe.simulation.node import Node
from strobe.simulation.recorder import Recorder
from strobe.simulation.restorable import RestorableNode
from strobe.simulation.rollbacks import Rollbacks
from strobe.simulation.scheduler import Scheduler
from strobe.storage import Store

if TYPE_CHECKING:
    from strobe.simulation.checkers import Checker

DEFAULT_POLICY = Policy(interval_us=50_000, overlapping_max=2, timeout_us=400_000, backoff_us=10_000)
ROLLBACKS_MAX = 1_000_000
"""With injected rollbacks, the limit on rollbacks must not stop the run."""
EXPIRY_TIMEOUTS = 4
"""A process frees its buffers by itself after this many coordinator time-outs."""


def _per_snapshot_us(policy: Policy) -> int:
    return 4 * max(policy.interval_us, policy.pause_us_min, 10_000)


class World:
    """A system under simulation."""

    def __init__(
        self,
        system: System,
        seed: int,
        *,
        faults: Faults | None = None,
        policy: Policy = DEFAULT_POLICY,
        store: Store | None = None,
        recorder: Recorder | None = None,
        checkers: "Sequence[Checker]" = (),
        protocol_class: Any = None,
        node_class: type[Node] | None = None,
        lifecycle_class: type[Lifecycle] | None = None,
        skip_verification: bool = False,
    ) -> None:
        if not system.processes:
            raise UsageError("the system has no processes; give System(processes={...}) at least one")
        self.system = system
        self.seed = seed
        self.faults = faults or Faults()
        self.recorder = recorder
        self.rollbacks = Rollbacks(self, store) if self.faults.rollback_every_us else None
        if self.rollbacks is not None:
            policy = msgspec.structs.replace(policy, rollbacks_max=ROLLBACKS_MAX)
        self.policy = policy
        self.checkers = checkers
        # Whether the host commits without verifying: mutants run in such a world, so that the checkers can catch them.
        self.skip_verification = skip_verification
        self.scheduler = Scheduler()
        self.events = 0
        # What really happened in each epoch; epoch 0 is for processes that have no orders yet.
        self.epoch = 1
        self.journals = {1: Journal()} if self.rollbacks is None else {0: Journal(0)}
        # For protocols with barriers: the queues of each channel, in each incarnation and epoch.
        self.channel_queues: dict[tuple[str, int, int], ChannelQueue] = {}
        self.emitted: list[tuple[str, Any]] = []
        self.violations: list[Violated] = []
        self.assembled: dict[str, Snapshot] = {}
        self.begun: dict[str, Begin] = {}
        self.outcomes: dict[str, Commit | Abort] = {}
        self.committed: list[str] = []
        self.on_commit: Callable[[Snapshot], None] | None = None
        self.injected: Counter[str] = Counter()
        self.converged = False
        self._traced: set[SnapshotId] = set()
        self.conserved_at_start = conserved_at_start(system)
        view = first_view(system)
        self.protocol_class = protocol_class or PROTOCOLS[system.protocol]
        self.views = {1: view}
        self.network = Network(
            self.scheduler,
            self.faults,
            f"{seed}/network",
            self._arrival,
            lambda _, item: self.coordinator.receive(item),
            self._at_process,
        )
        self.network.view_installed(view)
        self.node_class = node_class or (Node if self.rollbacks is None else RestorableNode)
        self.nodes: dict[str, Node] = {}
        for name, process in system.processes.items():
            if self.rollbacks is None:
                self.nodes[name] = self.node_class(self, name, process, view, Random(f"{seed}/{name}"))
            else:
                self.rollbacks.first_node(name)
        self.departed: dict[str, Node] = {}
        log = StoreLog(store) if store is not None else MemoryLog()
        self.injector = Injector(self, f"{seed}/faults", log)
        self.coordinator = Coordinator(self, log, view, policy, system.protocol, lifecycle_class or Lifecycle)
        self.coordinator.start()

    @property
    def journal(self) -> Journal:
        """What really happened in the current timeline."""
        return self.journals[self.epoch]

    @property
    def aborted(self) -> int:
        """How many snapshots were aborted."""
        return sum(isinstance(outcome, Abort) for outcome in self.outcomes.values())

    @property
    def retried(self) -> int:
        """How many of these were begun again, under a new id."""
        return len({begin.retries for begin in self.begun.values() if begin.retries is not None})

    @property
    def now_us(self) -> int:
        """The simulated time."""
        return self.scheduler.now_us

    # Time

    def run(self, snapshots: int, us_max: int | None = None) -> None:
        """Run both phases: until `snapshots` were committed under faults, then until no snapshot or change is pending.

        Running out of `us_max` simulated microseconds in the first phase is not a failure: the second phase completes
        the rest.
        """
        us_max = us_max or 10 * max(1, snapshots) * _per_snapshot_us(self.policy)
        for node in list(self.nodes.values()) if self.rollbacks is None else ():
            node.run_event("start", partial(node.process.start, node.context))
        self.injector.start()
        self._advance(lambda: len(self.committed) >= snapshots, us_max)
        self._converge(snapshots)
        for checker in self.checkers:
            for problem in checker.at_end(self):
                self.report(checker.name, "", problem)

    def _converge(self, snapshots: int) -> None:
        """Heal everything, request one more snapshot, and run for as long as a healthy world may need."""
        self.injector.stop()
        wanted = max(snapshots, len(self.committed) + 1)
        self.coordinator.handle(SnapshotWanted())
        missing = wanted - len(self.committed)
        converge_us = (EXPIRY_TIMEOUTS + 2) * self.policy.timeout_us + missing * _per_snapshot_us(self.policy)
        self._advance(lambda: len(self.committed) >= wanted, converge_us)
        self.converged = len(self.committed) >= wanted
        # Begin no new snapshots; those under way finish, and all processes receive their outcomes.
        self.coordinator.rest()
        self._advance(self._is_idle, (EXPIRY_TIMEOUTS + 1) * self.policy.timeout_us)
        self._advance(lambda: False, 2 * self.network.delay_us_max)

    def _is_idle(self) -> bool:
        lifecycle = self.coordinator.lifecycle
        calm = self.coordinator.up and lifecycle.settled and not lifecycle.rollback.pending
        return calm and set(self.begun) <= set(self.outcomes)

    def _advance(self, until: Callable[[], bool], us_max: int) -> None:
        scheduler, calls = self.scheduler, self.scheduler.calls
        end = scheduler.now_us + us_max
        committed = -1
        while calls and calls[0][0] <= end:
            # The condition changes only with the log; checking it at every event would cost more than the event.
            if self.coordinator.position != committed or not scheduler.scheduled & 63:
                committed = self.coordinator.position
                if until():
                    return
            scheduler.now_us, _, action, first, second = heappop(calls)
            action(first, second)
        if not until():
            scheduler.now_us = end

    # The network

    def transmit(self, channel: str, item: Item, epoch: int) -> None:
        self.network.transmit(channel, item if self.rollbacks is None else (epoch, item))

    def _arrival(self, target: str) -> Callable[[str, Any], None]:
        """Return the function that passes an item from a channel to `target`."""

        def arrive(channel: str, item: Item) -> None:
            node = self.nodes.get(target)
            if node is not None:  # otherwise it has left; its last counts were acknowledged, so no message is lost here
                node.take(channel, item)

        def arrive_in_epoch(channel: str, sent: tuple[int, Item]) -> None:
            node = self.nodes.get(target)
            if isinstance(node, RestorableNode):
                node.arrive(channel, *sent)

        return arrive if self.rollbacks is None else arrive_in_epoch

    def _at_process(self, process: str, order: CoordinatorEffect | Addressed) -> None:
        node = self.nodes.get(process)
        if node is None:
            return
        if not isinstance(order, tuple):
            node.apply(order)
        elif order[0] == node.instance:
            node.apply(order[1])

    # The coordinator

    def order(self, effect: CoordinatorEffect) -> None:
        """Send an order of the coordinator to the process it names."""
        process = effect.process  # type: ignore[union-attr]
        if isinstance(effect, ReportSettled | InstallView):
            self._admit(process, self.coordinator.lifecycle.view)
        if self.rollbacks is None:
            self.network.control_down(process, effect)
        elif process in self.coordinator.instances:
            self.network.control_down(process, (self.coordinator.instances[process], effect))

    def logged(self, entry: ReadEntry) -> None:
        """Handle an entry that the coordinator has read, for the first time or again after a restart."""
        match entry:
            case Begin():
                self.begun.setdefault(entry.snapshot, entry)
                self._abort_older_epochs(entry.at_us)
            case ViewChange():
                self._view_logged(entry.view)
            case EpochStart():
                if self.rollbacks is not None and entry.epoch not in self.journals:
                    self._begin_epoch(self.rollbacks, entry)
            case Commit() | Abort():
                self._outcome(entry)

    def _begin_epoch(self, rollbacks: Rollbacks, entry: EpochStart) -> None:
        """Start the journal of a new epoch with the surviving part of the epoch it goes back to."""
        if entry.restored is None:
            self.journals[entry.epoch] = Journal(entry.epoch)
        else:
            snapshot = rollbacks.load(entry.restored)
            self.journals[entry.epoch] = self.journals[snapshot.id.epoch].until(snapshot, entry.epoch)
        self.epoch = entry.epoch
        self._abort_older_epochs(entry.at_us)
        assert entry.view is not None
        self._view_logged(entry.view)
        rollbacks.epoch_began(entry)

    def _abort_older_epochs(self, at_us: int) -> None:
        for name in self.begun:
            if name not in self.outcomes and SnapshotId.parse(name).epoch < self.epoch:
                self.outcomes[name] = Abort(name, f"epoch {self.epoch} began", at_us)

    def _view_logged(self, view: View) -> None:
        if view.number in self.views:
            return
        self.views[view.number] = view
        self.network.view_installed(view)
        if self.recorder is not None:
            self.recorder.view_installed(view)

    def _outcome(self, entry: Commit | Abort) -> None:
        if entry.snapshot in self.outcomes:
            return
        self.outcomes[entry.snapshot] = entry
        snapshot = self.assembled.pop(entry.snapshot, None)
        if isinstance(entry, Abort) or snapshot is None:
            return
        self.committed.append(entry.snapshot)
        if self.rollbacks is not None:
            self.rollbacks.committed(snapshot)
        self._check(snapshot)
        if self.on_commit is not None:
            self.on_commit(snapshot)

    def _check(self, snapshot: Snapshot) -> None:
        for checker in self.checkers:
            for problem in checker.on_commit(self, snapshot):
                self.report(checker.name, str(snapshot.id), problem)

    def accepts(self, snapshot: Snapshot) -> bool:
        """Verify before the commit, as every host must. A snapshot that fails is checked here, and then aborted."""
        if self.skip_verification or verify(snapshot).holds:
            self.assembled[str(snapshot.id)] = snapshot
            return True
        self._check(snapshot)
        return False

    def coordinator_crashed(self) -> None:
        self.injector.coordinator_crashed()

    def report(self, checker: str, snapshot: str, problem: str) -> None:
        self.violations.append(Violated(checker, snapshot, problem, self.scheduler.now_us))

    def violated(self, node: Node, violation: ProtocolViolation) -> None:
        """Report a channel that broke its promise. In an old epoch it is ignored: its connections are being closed."""
        if node.epoch == self.epoch:
            self.report("channels-checked", "", str(violation))

    def stalled(self, process: str) -> None:
        for checker in self.checkers:
            for problem in checker.on_stall(self, process):
                self.report(checker.name, "", problem)

    def recorded(self, node: Node, snapshot: SnapshotId) -> None:
        if self.recorder is not None:
            self._trace_record(node, snapshot)
        if isinstance(node, RestorableNode) and self.rollbacks is not None:
            self.rollbacks.recorded(node, snapshot)
        self.free_later(node, snapshot)

    def free_later(self, node: Node, snapshot: SnapshotId) -> None:
        """Let the node free what it holds for `snapshot`, if no outcome comes for too long (E7)."""
        self.scheduler.after(EXPIRY_TIMEOUTS * self.policy.timeout_us, self._expire, node, snapshot)

    def _trace_record(self, node: Node, snapshot: SnapshotId) -> None:
        """Trace that `node` has recorded; with the first record, also the positions of processes not in the view.

        A trace names every process there ever was; the cut has all events of a departed process.
        """
        assert self.recorder is not None
        if snapshot not in self._traced:
            self._traced.add(snapshot)
            for absent in sorted(self.recorder.processes.keys() - set(node.protocol.view.processes)):
                self.recorder.recorded(self.departed.get(absent) or self.nodes[absent], snapshot)
        self.recorder.recorded(node, snapshot)

    def _expire(self, node: Node, snapshot: SnapshotId) -> None:
        node.expire(snapshot)

    # Membership and crashes

    def _admit(self, name: str, view: View) -> None:
        """Make the node of a joining process; it starts when its orders arrive."""
        if name in self.nodes or name not in view.processes:
            return
        before = self.departed.pop(name)
        alone = View(0, (name,), ())
        random = Random(f"{self.seed}/{name}/{view.number}")
        node = self.node_class(self, name, before.process, alone, random, self.epoch)
        node.position = before.position
        node.down = node.waiting = True
        self.nodes[name] = node
        if isinstance(node, RestorableNode) and self.rollbacks is not None:
            self.coordinator.instances[name] = self.rollbacks.admitted(node)

    def remove(self, name: str) -> None:
        self.departed[name] = self.nodes.pop(name)
        self.coordinator.instances.pop(name, None)

    def crash(self, name: str) -> None:
        self.nodes[name].crash()
        if self.rollbacks is not None:
            self.network.control_up(name, ProcessFailed(name))

    def lose_state(self, name: str) -> None:
        """Crash a process, and delete its state."""
        assert self.rollbacks is not None
        self.rollbacks.lose_state(name)
        self.network.control_up(name, ProcessFailed(name))

    def restart(self, name: str) -> None:
        if self.rollbacks is not None:
            self.rollbacks.restart(name)
            return
        self.nodes[name].restart()
        self.network.control_up(name, ProcessFailed(name))
        self.network.control_up(name, ProcessReturned(name))
