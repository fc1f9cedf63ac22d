"""A coordinator under random faults, simulated step by step; all random choices come from one seed.

The coordinator, its sessions, its log and the store are real. The nodes, the connections, the store's thread and the
clock are modelled. First there is a phase with faults, in which no promise may be broken. Then there is one without,
in which the system must recover.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.runtime.modelled_nodes import Node
from tests.runtime.modelled_outside import NAMES, Line, Outside, Wrong
from tests.runtime.modelled_station import Station
from tests.runtime.stepped_coordinator import SteppedCoordinator
from tests.runtime.unremoved import copy_store

from strobe.errors import UsageError
from strobe.protocol.coordinator.messages import LeaveWanted, RestoreWanted, SnapshotWanted
from strobe.protocol.coordinator.restart_messages import RestartWanted
from strobe.protocol.values.log_entries import EpochStart
from strobe.storage.entries.log_file import encode_entry, entry_name
from strobe.storage.files.commit_steps import ENTRY_STEPS

STEP_US_MAX = 20_000
QUIET_US = 1_500_000
"""Processes write output for this long, then pause for as long: without new output, older snapshots can be restored."""
STOPPED_US_MAX = 3_000_000
STEPS_ON_A_COPY = 300
ROUNDS_MAX = 60
STEPS_OF_A_ROUND = 150


@dataclass(frozen=True)
class Mix:
    """Which faults occur, each as often as it is named in `faults`, and in how many percent of the steps."""

    faults: str
    percent: float = 6.0
    # The weight of one job of the store's thread; a node that has something to read has weight 3.
    store_pace: int = 4


class World:
    """The coordinator, the nodes and their connections. Needs a running event loop, but runs nothing on it."""

    def __init__(self, mix: Mix, seed: int, directory: Path) -> None:
        self.mix = mix
        self.outside = Outside(directory, seed)
        self.random = self.outside.random
        self.nodes = {process: Node(self.outside, process) for process in NAMES}
        # Number of process starts without state and of requested restores.
        self.rollback_reasons = 0
        self._files = dict.fromkeys(NAMES, 0)
        self.leader = Station(self.outside)
        # Coordinators that were paused while another was started, and have not noticed the takeover yet.
        self.formers: list[Station] = []

    @property
    def coordinator(self) -> SteppedCoordinator:
        """The leading coordinator."""
        return self.leader.coordinator

    @property
    def epoch(self) -> int:
        return self.coordinator.lifecycle.epoch

    # Steps

    def run(self, steps: int) -> None:
        """Run `steps` steps with faults, then as many without faults as recovery needs."""
        for _ in range(steps):
            if self.random.random() * 100 < self.mix.percent:
                getattr(self, "_" + self.random.choice(self.mix.faults.split()))()
            else:
                self._step()
        self._recover()

    def _step(self) -> None:
        self.outside.now_us += self.random.randrange(1, STEP_US_MAX)
        self.random.choice(self._possible_steps())()

    def _possible_steps(self) -> list[Callable[[], None]]:
        """The possible next steps; a more likely one is listed several times."""
        steps = self.leader.possible_steps(self.mix.store_pace)
        self.formers = [former for former in self.formers if not former.has_ended]
        for former in self.formers:
            if former.stopped_until_us <= self.outside.now_us:
                steps += former.possible_steps(store_pace=1)
        for node in self.nodes.values():
            if not node.has_ended:
                steps += self._steps_of(node)
        return steps

    def _steps_of(self, node: Node) -> list[Callable[[], None]]:
        if node.is_relieved:
            return [partial(self._start_successor, node)]
        line = node.line
        steps: list[Callable[[], None]] = [partial(node.record, snapshot) for snapshot in node.recordable()]
        if line is not None and line.to_node:
            steps += [partial(self._deliver, node, line)] * 3
        elif line is None or line.is_over:
            steps.append(partial(self._connect, node))
        # Output that is released while a copy of the store is in place cannot be taken back.
        if node.sink and node.runs and "copy" not in self.mix.faults and self.outside.now_us // QUIET_US % 2 == 0:
            steps.append(node.write)
        if node.must_release:
            steps.append(node.release_output)
        if node.runs:
            steps.append(node.work)
        return steps

    def _connect(self, node: Node) -> None:
        """Connect to a coordinator, perhaps a former one: nodes still know its address."""
        station = self.random.choice([*self.formers, *[self.leader] * 3])
        station.lines.append(node.connect())

    def _deliver(self, node: Node, line: Line) -> None:
        node.handle(line.to_node.popleft())

    # Faults, and actions of operators

    def _want(self) -> None:
        self.coordinator.handle(SnapshotWanted())

    def _leave(self) -> None:
        process = self.random.choice(NAMES)
        member = self.coordinator.members.get(process)
        if process not in self.coordinator.lifecycle.view.processes or member is None or not member.connected:
            return
        try:
            self.coordinator.handle(LeaveWanted(process))
        except UsageError:
            return  # the last process cannot leave
        self.outside.note(f"{process} shall leave")

    def _hand_over(self) -> None:
        """A planned restart (E11)."""
        process = self.random.choice(NAMES)
        self.outside.note(f"{process} shall hand over")
        self.coordinator.handle(RestartWanted(process))

    def _start_successor(self, node: Node) -> None:
        self.outside.note(f"{node.process} of epoch {node.epoch} ends, and its successor is started")
        self._cut(node)
        self.nodes[node.process] = Node(self.outside, node.process, node.file)

    def _rejoin(self) -> None:
        ended = [node for node in self.nodes.values() if node.has_ended]
        if ended:
            self._start_again(self.random.choice(ended))

    def _crash(self) -> None:
        node = self.nodes[self.random.choice(NAMES)]
        if node.has_ended:
            return
        self.outside.note(f"{node.process} of epoch {node.epoch} crashes")
        self._cut(node)
        self._start_without_state(node.process, node.file)

    def _break(self) -> None:
        node = self.nodes[self.random.choice(NAMES)]
        if node.line is not None:
            self.outside.note(f"the connection of {node.process} breaks")
            self._cut(node)

    def _cut(self, node: Node) -> None:
        if node.line is not None:
            node.line.cut(keep_sent=self.random.random() < 0.5)
        node.line = None

    def _restart(self) -> None:
        self.outside.note("the coordinator is killed and started again")
        for node in self.nodes.values():
            if node.line is not None:
                node.line.cut(keep_sent=False)
            node.line = None
        self.leader = Station(self.outside)

    def _take_over(self) -> None:
        """Pause the coordinator, and start another one. Some nodes lose their connection, the others keep it."""
        self.outside.note("the coordinator is stopped, and another one is started")
        former = self.leader
        former.is_former, former.stopped_until_us = True, self.outside.now_us + self.random.randrange(STOPPED_US_MAX)
        self.formers.append(former)
        for node in self.nodes.values():
            if self.random.random() < 0.5:
                self._cut(node)
        self.leader = Station(self.outside)

    def _copy(self) -> None:
        """Copy the store. If there is a copy already, run the system on that for a while, then put the store back."""
        place = Path(self.outside.store_url)
        copy = place.with_name("copy")
        if not copy.exists():
            self.outside.note("somebody copies the store")
            copy_store(place, copy)
            return
        self.outside.note("an older copy of the store is in its place, and everything is started on it")
        end = self.outside.store.state().next_position
        with self.outside.older_copy(copy):
            self._start_everything()
            for _ in range(STEPS_ON_A_COPY):
                self._step()
            is_longer = self.outside.store.state().next_position >= end
        self.outside.note("the store is back in its place")
        if is_longer:  # the copy has as many entries, so nobody can see which is newer: operators restart everything
            self._start_everything()
        else:
            self._restart()

    def _start_everything(self) -> None:
        self.formers.clear()
        self._restart()
        for process in NAMES:
            self._start_without_state(process, 0)

    def _stray(self) -> None:
        """Append an entry of an old term, as a writer that did not read the log first: every reader must ignore it."""
        store = self.outside.store
        end = store.state().next_position
        ours = EpochStart(store.known.epoch + 1, self.outside.now_us, reason="it did not read the log first")
        raw, _ = encode_entry(ours, end, store.entry_ref(end - 1).blake3, store.term - 1)
        store.backend.create(entry_name(end), [raw], ENTRY_STEPS)
        self.outside.note("somebody writes in a term that is over")

    def _restore(self) -> None:
        committed = [*self.coordinator.state.committed, None]
        snapshot = self.random.choice(committed)
        self.outside.note(f"somebody asks for {snapshot or 'the newest'}")
        self.rollback_reasons += 1
        self.coordinator.handle(RestoreWanted(snapshot, "somebody has asked for it"))

    def _start_again(self, node: Node) -> None:
        """Restart a node. If it has to join and has released output before, give it another output file (R2)."""
        process, file = node.process, node.file
        membership = self.coordinator.lifecycle.membership
        joins = not membership.includes(process) and not membership.unreleased(process)
        if joins and node.released:
            self._files[process] += 1
            file = self._files[process]
        self.outside.note(f"{process} is started again, with file {file}")
        self._start_without_state(process, file)

    def _start_without_state(self, process: str, file: int) -> None:
        self.rollback_reasons += 1
        self.nodes[process] = Node(self.outside, process, file)

    # Recovery

    def _recover(self) -> None:
        """Without faults, snapshots complete again, leaving processes end, and all others run in the same epoch."""
        self.outside.note("no more faults")
        before = len(self.coordinator.state.committed)
        for _ in range(ROUNDS_MAX):
            self._round()
            if len(self.coordinator.state.committed) > before + 2 and self._is_at_rest():
                break
        else:
            raise Wrong(f"it does not come right again: {self._summary()}")
        for process in self.coordinator.lifecycle.view.processes:
            node = self.nodes[process]
            if node.epoch != self.epoch or node.has_ended:
                raise Wrong(f"{process} is in the view, but does not live in epoch {self.epoch}: {self._summary()}")
            if node.history != self.outside.history:
                raise Wrong(f"{process} lives with the state of a copy of the store (S1): {self._summary()}")

    def _round(self) -> None:
        for _ in range(STEPS_OF_A_ROUND):
            self._step()
        self.outside.now_us += 1_000_000
        for process in self.coordinator.lifecycle.membership.everyone:
            if self.nodes[process].has_ended:
                self._start_again(self.nodes[process])
        self._want()

    def _is_at_rest(self) -> bool:
        lifecycle = self.coordinator.lifecycle
        settled = all(node.has_ended or node.process in lifecycle.view.members for node in self.nodes.values())
        return settled and not lifecycle.rollback.pending and not lifecycle.membership.leaving and not self.formers

    def _summary(self) -> str:
        lifecycle, membership = self.coordinator.lifecycle, self.coordinator.lifecycle.membership
        states = {node.process: (node.epoch, node.has_ended) for node in self.nodes.values()}
        return (
            f"view {membership.view.number} of {membership.view.processes}, installed by {sorted(membership.drained)}; "
            f"leaving {membership.leaving}, staged {membership.staged}, to be changed {list(membership.changes)}; "
            f"epoch {lifecycle.epoch}, rollback {lifecycle.rollback.request}, started "
            f"{sorted(lifecycle.rollback.started)}, present {sorted(lifecycle.rollback.present)}; "
            f"open {list(lifecycle.open)}; nodes, their epochs and ends: {states}; "
            f"{len(self.formers)} former coordinators"
        )
