"""The simulated world: an event queue, a seeded network, faults, and checkers.

A run has two phases. In the *safety* phase faults happen and no invariant may ever break. In the *liveness* phase the
world is healthy, and everything must converge: every snapshot gets its outcome, one more snapshot completes, buffers
are freed. Time is simulated, in whole microseconds. The same seed gives the same bytes on every machine.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import msgspec

from strobe.causality.proof import verify
from strobe.errors import ProtocolViolation, UsageError
from strobe.process import Random, System
from strobe.protocol import (
    PROTOCOLS,
    Fragment,
    Lifecycle,
    Policy,
    Snapshot,
    SnapshotId,
    View,
)
from strobe.protocol.coordinator.messages import (
    CoordinatorEffect,
    CoordinatorEvent,
    ProcessFailed,
    ProcessReturned,
    SnapshotWanted,
    TellSettled,
    TellView,
)
from strobe.protocol.process.first_view import first_view
from strobe.protocol.values.log_entries import Abort, Begin, Commit, EpochStart, ReadEntry, ViewChange
from strobe.simulation.coordinator import Coordinator, MemoryLog, StoreLog
from strobe.simulation.faults import Faults
from strobe.simulation.injector import Injector
from strobe.simulation.journal import Journal
from strobe.simulation.network import Due, Network
from strobe.simulation.node import Node
from strobe.simulation.queues import ChannelQueue, Item
from strobe.simulation.recorder import Recorder
from strobe.simulation.restorable import RestorableNode
from strobe.simulation.rollbacks import Rollbacks
from strobe.storage import Store

if TYPE_CHECKING:
    from strobe.simulation.checkers import Checker

DEFAULT_POLICY = Policy(interval_us=50_000, overlapping_max=2, timeout_us=400_000, backoff_us=10_000)
ROLLBACKS_MAX = 1_000_000
"""With injected rollbacks, the limit on rollbacks must not stop the run."""
PATIENCE = 4
"""A process frees its buffers by itself after this many coordinator time-outs."""


class Violated(msgspec.Struct, frozen=True):
    """A violation that a checker found."""

    checker: str
    snapshot: str
    problem: str
    at_us: int

    def __str__(self) -> str:
        where = f" {self.snapshot}" if self.snapshot else ""
        return f"{self.checker}:{where} {self.problem} (at {self.at_us / 1_000_000:.6f} s)"


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
        trusting: bool = False,
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
        self.halted: str | None = None
        self.checkers = checkers
        # Whether the host commits without verifying: mutants run in such a world, so that the checkers can catch them.
        self.trusting = trusting
        self.now_us = 0
        self.queue: list[Due] = []
        self.sequence = 0
        self.events = 0
        # What really happened in each epoch; epoch 0 is for processes that have no orders yet.
        self.epoch = 1
        self.journals = {1: Journal()} if self.rollbacks is None else {0: Journal(0)}
        # For protocols with barriers: the queues of each channel, in each incarnation and epoch.
        self.queues: dict[tuple[str, int, int], ChannelQueue] = {}
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
        initial = {name: process.capture() for name, process in system.processes.items()}
        self.conserved_at_start = system.conserved_value(initial, []) if system.conserved is not None else None
        view = first_view(system)
        self.protocol_class = protocol_class or PROTOCOLS[system.protocol]
        self.views = {1: view}
        self.network = Network(self, f"{seed}/network")
        self.network.view_installed(view)
        self.node_class = node_class or (Node if self.rollbacks is None else RestorableNode)
        self.nodes: dict[str, Node] = {}
        for name, process in system.processes.items():
            if self.rollbacks is None:
                self.nodes[name] = self.node_class(self, name, process, view, Random(f"{seed}/{name}"))
            else:
                self.rollbacks.first_node(name)
        self.gone: dict[str, Node] = {}
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

    # Time

    def schedule(self, at_us: int, action: Callable[[Any, Any], None], first: Any, second: Any) -> None:
        self.sequence += 1
        heappush(self.queue, (at_us, self.sequence, action, first, second))

    def run(self, snapshots: int, us_max: int | None = None) -> None:
        """Run both phases: until `snapshots` were committed under faults, then until no snapshot or change is pending.

        Running out of `us_max` simulated microseconds in the first phase is not a failure: the second phase completes
        the rest.
        """
        us_max = us_max or 10 * max(1, snapshots) * _per_snapshot_us(self.policy)
        for node in list(self.nodes.values()) if self.rollbacks is None else ():
            node.run_event("start", lambda node=node: node.process.start(node.context))
        self.injector.start()
        self._advance(lambda: len(self.committed) >= snapshots, us_max)
        self._converge(snapshots)
        for checker in self.checkers:
            for problem in checker.at_end(self):
                self.complain(checker.name, "", problem)

    def _converge(self, snapshots: int) -> None:
        """Heal everything, request one more snapshot, and run for as long as a healthy world may need."""
        self.injector.stop()
        wanted = max(snapshots, len(self.committed) + 1)
        self.coordinator.handle(SnapshotWanted())
        missing = wanted - len(self.committed)
        patience_us = (PATIENCE + 2) * self.policy.timeout_us + missing * _per_snapshot_us(self.policy)
        self._advance(lambda: len(self.committed) >= wanted, patience_us)
        self.converged = len(self.committed) >= wanted
        # Begin no new snapshots; those under way finish, and all processes receive their outcomes.
        self.coordinator.rest()
        self._advance(self._calm, (PATIENCE + 1) * self.policy.timeout_us)
        self._advance(lambda: False, 2 * self.network.delay_us_max)

    def _calm(self) -> bool:
        brain = self.coordinator.brain
        calm = self.coordinator.up and brain.settled and not brain.rollback.pending
        return calm and set(self.begun) <= set(self.outcomes)

    def _advance(self, until: Callable[[], bool], us_max: int) -> None:
        queue = self.queue
        end = self.now_us + us_max
        committed = -1
        while queue and queue[0][0] <= end:
            # The condition changes only with the log; checking it at every event would cost more than the event.
            if self.coordinator.position != committed or not self.sequence & 63:
                committed = self.coordinator.position
                if until():
                    return
            self.now_us, _, action, first, second = heappop(queue)
            action(first, second)
        if not until():
            self.now_us = end

    # The network

    def transmit(self, channel: str, item: Item, epoch: int) -> None:
        self.network.transmit(channel, item if self.rollbacks is None else (epoch, item))

    def arrival(self, target: str) -> Callable[[str, Any], None]:
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

    # The coordinator

    def tell_coordinator(self, process: str, event: CoordinatorEvent) -> None:
        self.network.control_up(process, event)

    def hand_over(self, process: str, fragment: Fragment) -> None:
        self.network.control_up(process, fragment)

    def order(self, effect: CoordinatorEffect) -> None:
        """Send an order of the coordinator to the process it names."""
        process = effect.process  # type: ignore[union-attr]
        if isinstance(effect, TellSettled | TellView):
            self._admit(process, self.coordinator.brain.view)
        if self.rollbacks is None:
            self.network.control_down(process, effect)
        elif process in self.coordinator.instances:
            self.network.control_down(process, (self.coordinator.instances[process], effect))

    def logged(self, entry: ReadEntry) -> None:
        """Handle an entry that the coordinator has read, for the first time or again after a restart."""
        match entry:
            case Begin():
                self.begun.setdefault(entry.snapshot, entry)
                if self.rollbacks is not None:
                    self.rollbacks.fence_off(entry.at_us)
            case ViewChange():
                self.view_logged(entry.view)
            case EpochStart():
                if self.rollbacks is not None:
                    self.rollbacks.epoch_logged(entry)
            case Commit() | Abort():
                self._outcome(entry)

    def view_logged(self, view: View) -> None:
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
                self.complain(checker.name, str(snapshot.id), problem)

    def accepts(self, snapshot: Snapshot) -> bool:
        """Verify before the commit, as every host must. A snapshot that fails is checked here, and then aborted."""
        if self.trusting or verify(snapshot).holds:
            return True
        self._check(snapshot)
        return False

    def coordinator_crashed(self) -> None:
        self.injector.coordinator_crashed()

    def complain(self, checker: str, snapshot: str, problem: str) -> None:
        self.violations.append(Violated(checker, snapshot, problem, self.now_us))

    def violated(self, node: Node, violation: ProtocolViolation) -> None:
        """Report a channel that broke its promise. In an old epoch it is ignored: its connections are being closed."""
        if node.epoch == self.epoch:
            self.complain("channels-checked", "", str(violation))

    def stalled(self, process: str) -> None:
        for checker in self.checkers:
            for problem in checker.on_stall(self, process):
                self.complain(checker.name, "", problem)

    def recorded(self, node: Node, snapshot: SnapshotId) -> None:
        if self.recorder is not None:
            self._trace_record(node, snapshot)
        if isinstance(node, RestorableNode) and self.rollbacks is not None:
            self.rollbacks.recorded(node, snapshot)
        self.free_later(node, snapshot)

    def free_later(self, node: Node, snapshot: SnapshotId) -> None:
        """Let the node free what it holds for `snapshot`, if no outcome comes for too long (E7)."""
        self.schedule(self.now_us + PATIENCE * self.policy.timeout_us, self._expire, node, snapshot)

    def _trace_record(self, node: Node, snapshot: SnapshotId) -> None:
        """Trace that `node` has recorded; with the first record, also the positions of processes not in the view.

        A trace names every process there ever was; the cut has all events of a departed process.
        """
        assert self.recorder is not None
        if snapshot not in self._traced:
            self._traced.add(snapshot)
            for absent in sorted(self.recorder.processes.keys() - set(node.protocol.view.processes)):
                self.recorder.recorded(self.gone.get(absent) or self.nodes[absent], snapshot)
        self.recorder.recorded(node, snapshot)

    def _expire(self, node: Node, snapshot: SnapshotId) -> None:
        node.expire(snapshot)

    # Membership and crashes

    def _admit(self, name: str, view: View) -> None:
        """Make the node of a joining process; it starts when its orders arrive."""
        if name in self.nodes or name not in view.processes:
            return
        before = self.gone.pop(name)
        alone = View(0, (name,), ())
        random = Random(f"{self.seed}/{name}/{view.number}")
        node = self.node_class(self, name, before.process, alone, random, self.epoch)
        node.position = before.position
        node.down = node.waiting = True
        self.nodes[name] = node
        if isinstance(node, RestorableNode) and self.rollbacks is not None:
            self.rollbacks.admitted(node)

    def remove(self, name: str) -> None:
        self.gone[name] = self.nodes.pop(name)
        self.coordinator.instances.pop(name, None)

    def crash(self, name: str) -> None:
        self.nodes[name].crash()
        if self.rollbacks is not None:
            self.tell_coordinator(name, ProcessFailed(name))

    def lose(self, name: str) -> None:
        """Crash a process, and delete its state."""
        assert self.rollbacks is not None
        self.rollbacks.lose(name)
        self.tell_coordinator(name, ProcessFailed(name))

    def forget(self, name: str) -> None:
        """Remove a process that has no state and is not needed."""
        node = self.nodes[name]
        assert self.rollbacks is not None
        assert isinstance(node, RestorableNode)
        self.rollbacks.forget(node)

    def restart(self, name: str) -> None:
        if self.rollbacks is not None:
            self.rollbacks.restart(name)
            return
        self.nodes[name].restart()
        self.tell_coordinator(name, ProcessFailed(name))
        self.tell_coordinator(name, ProcessReturned(name))
