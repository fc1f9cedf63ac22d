"""The rollbacks of a simulated world: the snapshot to restore, the nodes to replace, a journal per timeline (R1).

A process that loses its state becomes a new object, copied from its initial state: anything that `capture` leaves out
is missing after `restore`. Nodes register with the coordinator as live ones do. Each run of a node is an instance, with
the epoch of its state. Orders to an earlier instance, or from an earlier run of the coordinator, do not reach it.
"""

from copy import deepcopy
from typing import TYPE_CHECKING

import msgspec

from strobe.causality.proof import verify
from strobe.errors import UsageError, UserCodeFailed
from strobe.process import Process, Random
from strobe.protocol import Snapshot, SnapshotId, View
from strobe.protocol.coordinator.messages import RestoreRefused, RestoreState, SnapshotChosen
from strobe.protocol.values.log_entries import EpochStart
from strobe.simulation.journal import AppliedMessage
from strobe.simulation.restorable import RestorableNode, restore_state
from strobe.storage import Store

if TYPE_CHECKING:
    from strobe.simulation.world import World


class Registered(msgspec.Struct, frozen=True):
    """A process registers this run of its program, with its state of `epoch` (0: none)."""

    process: str
    instance: int
    epoch: int


class Rollbacks:
    """The rollbacks of one world."""

    def __init__(self, world: "World", store: Store | None) -> None:
        for name, process in world.system.processes.items():
            if type(process).restore is Process.restore:
                raise UsageError(f"process {name!r} cannot be rolled back: {type(process).__name__} has no restore()")
        if world.recorder is not None:
            raise UsageError(
                "a trace has one history, and rollbacks make several: leave out the trace or the rollbacks"
            )
        self.world = world
        self.store = store
        self.templates = {name: _copy(name, process) for name, process in world.system.processes.items()}
        self.snapshots: dict[str, Snapshot] = {}
        # The newest complete snapshot of the current timeline, and for each snapshot its predecessor.
        self.newest: str | None = None
        self.before: dict[str, str | None] = {}
        # The messages that each process had applied when it recorded: an append-only list, and its length at that time.
        self.ledgers: dict[tuple[str, str], tuple[list[AppliedMessage], int]] = {}
        self.instances = 0

    # Snapshots

    def committed(self, snapshot: Snapshot) -> None:
        name = str(snapshot.id)
        self.snapshots[name] = snapshot
        self.before[name], self.newest = self.newest, name

    def load(self, name: str) -> Snapshot:
        return self.snapshots[name] if self.store is None else self.store.load(name)

    def choose(self, wanted: str | None) -> SnapshotChosen | RestoreRefused:
        """Answer `ChooseSnapshot`, as every host must: with a snapshot that verifies."""
        name = wanted or self.newest
        while name is not None:
            snapshot = self.load(name)
            if self.world.skip_verification or verify(snapshot).holds:
                return SnapshotChosen(name, snapshot.view)
            if wanted is not None:
                return RestoreRefused(f"the proof of {wanted} does not hold")
            name = self.before[name]
        return SnapshotChosen(None, None)

    def epoch_began(self, entry: EpochStart) -> None:
        """Continue from the restored snapshot, and bring back the processes of its view that have left since."""
        self.newest = entry.restored
        assert entry.view is not None
        for name in entry.view.processes:
            if name not in self.world.nodes:
                former = self.world.departed.pop(name)
                assert isinstance(former, RestorableNode)
                self._make_blank(name, former)
                self.restart(name)

    def recorded(self, node: RestorableNode, snapshot: SnapshotId) -> None:
        assert node.applied is not None
        self.ledgers[str(snapshot), node.name] = (node.applied, len(node.applied))

    def applied_at(self, snapshot: str, process: str) -> list[AppliedMessage]:
        """Return the messages that `process` had applied when it recorded for `snapshot`."""
        applied, count = self.ledgers[snapshot, process]
        return applied[:count]

    # Processes

    def first_node(self, name: str) -> RestorableNode:
        """Return the node of a process that has never run."""
        return self._make_blank(name, None)

    def register(self, name: str) -> None:
        node = self._node(name)
        self.world.network.control_up(name, Registered(name, node.instance, 0 if node.waiting else node.epoch))

    def register_all(self) -> None:
        """Connect all nodes that are up to a coordinator that has just started."""
        self.world.network.reset_control()
        for name, node in sorted(self.world.nodes.items()):
            if not node.down or node.waiting:
                self.register(name)

    def lose_state(self, name: str) -> None:
        """Crash a process, and delete its state."""
        node = self._node(name)
        node.crash()
        self._make_blank(name, node)

    def restart(self, name: str) -> None:
        """Restart a crashed process: with its state, or waiting for one."""
        node = self._node(name)
        self.instances += 1
        node.instance = self.instances
        node.waiting = node.blank
        self.register(name)
        if not node.blank:
            node.restart()

    def roll_back(self, former: RestorableNode, order: RestoreState) -> None:
        """Replace a node by one that restores what `order` names."""
        world, name = self.world, former.name
        random = Random(f"{world.seed}/{name}" if order.epoch == 1 else f"{world.seed}/{name}/epoch {order.epoch}")
        process = deepcopy(self.templates[name])
        node = world.node_class(world, name, process, order.view, random, order.epoch)
        assert isinstance(node, RestorableNode)
        former.down, former.waiting = True, False
        world.nodes[name] = node
        node.begin_epoch(former, order)

    def discard(self, name: str) -> None:
        """Remove a process that is not in the restored view; it gets its state as a non-member back.

        A process without such a state lost it while leaving, and nothing waited for its last event: it had no outputs.
        """
        node = self._node(name)
        node.process = deepcopy(self.templates[name])
        if node.nonmember_state is not None:
            restore_state(name, node.process, node.nonmember_state)
        node.down, node.waiting = True, False
        self.world.remove(name)

    def admitted(self, node: RestorableNode) -> int:
        """Return the number of the first run of a joining process."""
        self.instances += 1
        node.instance = self.instances
        node.nonmember_state = node.capture()
        return node.instance

    def _make_blank(self, name: str, former: RestorableNode | None) -> RestorableNode:
        world = self.world
        process = deepcopy(self.templates[name])
        node = world.node_class(world, name, process, View(0, (name,), ()), Random(0), 0)
        assert isinstance(node, RestorableNode)
        node.blank = node.down = True
        if former is None:
            node.waiting = True
        else:
            node.early_items, node.nonmember_state = former.early_items, former.nonmember_state
        world.nodes[name] = node
        return node

    def _node(self, name: str) -> RestorableNode:
        node = self.world.nodes[name]
        assert isinstance(node, RestorableNode)
        return node


def _copy(name: str, process: Process) -> Process:
    try:
        return deepcopy(process)
    except Exception as error:  # the user's own objects may not be copyable, for example a lock
        kind = type(process).__name__
        raise UserCodeFailed(
            f"process {name!r} cannot be copied, and in a run with rollbacks every crash needs a new one "
            f"({type(error).__name__}: {error}); give {kind} a __deepcopy__, or leave out the rollbacks"
        ) from error
