"""A coordinator in a world of faults, one step at a time, all of it drawn from a seed.

The coordinator, its sessions and its log are the real ones, on a real store; the nodes are modelled, and so are
the connections, the store's thread and the clock. First there are faults, and nothing may go wrong; then there are none
any more, and everything must come right again.
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
from strobe.protocol.values.log_entries import EpochStart
from strobe.storage.entries.log_file import encode_entry, entry_name
from strobe.storage.files.commit_steps import ENTRY_STEPS

STEP_US_MAX = 20_000
QUIET_US = 1_500_000
"""So long there is output, and so long none: then snapshots that are older can be gone back to."""
STOPPED_US_MAX = 3_000_000
STEPS_ON_A_COPY = 300
ROUNDS_MAX = 60
STEPS_OF_A_ROUND = 150


@dataclass(frozen=True)
class Mix:
    """Which faults there are, each as often as it is named, and how many of them to a hundred steps."""

    faults: str
    percent: float = 6.0
    # How much the store's thread gets done, against each node that has something to read.
    store_pace: int = 4


class World:
    """The coordinator, the nodes, and what goes on between them. Wants a running loop, on which nothing runs."""

    def __init__(self, mix: Mix, seed: int, directory: Path) -> None:
        self.mix = mix
        self.outside = Outside(directory, seed)
        self.random = self.outside.random
        self.nodes = {process: Node(self.outside, process) for process in NAMES}
        # How often a process has begun from nothing, or somebody has asked that all go back.
        self.reasons_to_go_back = 0
        self._files = dict.fromkeys(NAMES, 0)
        self.leader = Station(self.outside)
        # Coordinators that were stopped while another was started, and that do not know it yet.
        self.formers: list[Station] = []

    @property
    def coordinator(self) -> SteppedCoordinator:
        """The one that leads."""
        return self.leader.coordinator

    @property
    def epoch(self) -> int:
        return self.coordinator.lifecycle.epoch

    # Steps

    def run(self, steps: int) -> None:
        """Let `steps` pass with faults, and after that so many without them as it takes."""
        for _ in range(steps):
            if self.random.random() * 100 < self.mix.percent:
                getattr(self, "_" + self.random.choice(self.mix.faults.split()))()
            else:
                self._step()
        self._come_right()

    def _step(self) -> None:
        self.outside.now_us += self.random.randrange(1, STEP_US_MAX)
        self.random.choice(self._what_can_happen())()

    def _what_can_happen(self) -> list[Callable[[], None]]:
        """What can happen next, things that are more likely more than once."""
        can = self.leader.what_can_happen(self.mix.store_pace)
        self.formers = [former for former in self.formers if not former.has_ended]
        for former in self.formers:
            if former.stopped_until_us <= self.outside.now_us:
                can += former.what_can_happen(store_pace=1)
        for node in self.nodes.values():
            if not node.has_ended:
                can += self._what_can_do(node)
        return can

    def _what_can_do(self, node: Node) -> list[Callable[[], None]]:
        line = node.line
        can: list[Callable[[], None]] = [partial(node.record, snapshot) for snapshot in node.recordable()]
        if line is not None and line.to_node:
            can += [partial(self._hear, node, line)] * 3
        elif line is None or line.is_over:
            can.append(partial(self._connect, node))
        # Output that is let out on a copy of the store cannot be taken back.
        if node.sink and node.runs and "copy" not in self.mix.faults and self.outside.now_us // QUIET_US % 2 == 0:
            can.append(node.write)
        if node.to_let_out:
            can.append(node.dismissal)
        return can

    def _connect(self, node: Node) -> None:
        """Find a coordinator; one that was stopped still has the address that nodes know."""
        station = self.random.choice([*self.formers, *[self.leader] * 3])
        station.lines.append(node.connect())

    def _hear(self, node: Node, line: Line) -> None:
        node.handle(line.to_node.popleft())

    # Faults, and what people do

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
            return  # the last one cannot leave
        self.outside.note(f"{process} shall leave")

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
        self._begin_from_nothing(node.process, node.file)

    def _break(self) -> None:
        node = self.nodes[self.random.choice(NAMES)]
        if node.line is not None:
            self.outside.note(f"the connection of {node.process} breaks")
            self._cut(node)

    def _cut(self, node: Node) -> None:
        if node.line is not None:
            node.line.cut(with_last_words=self.random.random() < 0.5)
        node.line = None

    def _restart(self) -> None:
        self.outside.note("the coordinator is killed and started again")
        for node in self.nodes.values():
            if node.line is not None:
                node.line.cut(with_last_words=False)
            node.line = None
        self.leader = Station(self.outside)

    def _take_over(self) -> None:
        """Stop the coordinator, and start another one; some of the nodes find that, others keep their connection."""
        self.outside.note("the coordinator is stopped, and another one is started")
        former = self.leader
        former.is_former, former.stopped_until_us = True, self.outside.now_us + self.random.randrange(STOPPED_US_MAX)
        self.formers.append(former)
        for node in self.nodes.values():
            if self.random.random() < 0.5:
                self._cut(node)
        self.leader = Station(self.outside)

    def _copy(self) -> None:
        """Copy the store; or have the system begin on the copy of before, and then put the store back."""
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
        if is_longer:  # nobody can tell that it is the newer one: people start everything again
            self._start_everything()
        else:
            self._restart()

    def _start_everything(self) -> None:
        self.formers.clear()
        self._restart()
        for process in NAMES:
            self._begin_from_nothing(process, 0)

    def _stray(self) -> None:
        """Somebody who did not read the log first writes in a term that is over: it must not count for anybody."""
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
        self.reasons_to_go_back += 1
        self.coordinator.handle(RestoreWanted(snapshot, "somebody has asked for it"))

    def _start_again(self, node: Node) -> None:
        """Start a program once more; one that has to join, and has let out output, with another file (R2)."""
        process, file = node.process, node.file
        membership = self.coordinator.lifecycle.membership
        joins = not membership.includes(process) and not membership.unreleased(process)
        if joins and node.released:
            self._files[process] += 1
            file = self._files[process]
        self.outside.note(f"{process} is started again, with file {file}")
        self._begin_from_nothing(process, file)

    def _begin_from_nothing(self, process: str, file: int) -> None:
        self.reasons_to_go_back += 1
        self.nodes[process] = Node(self.outside, process, file)

    # Coming right

    def _come_right(self) -> None:
        """Without faults, snapshots complete again, who leaves gets away, and all others live in the same epoch."""
        self.outside.note("no more faults")
        before = len(self.coordinator.state.committed)
        for _ in range(ROUNDS_MAX):
            self._round()
            if len(self.coordinator.state.committed) > before + 2 and self._is_at_rest():
                break
        else:
            raise Wrong(f"it does not come right again: {self._picture()}")
        for process in self.coordinator.lifecycle.view.processes:
            node = self.nodes[process]
            if node.epoch != self.epoch or node.has_ended:
                raise Wrong(f"{process} is in the view, but does not live in epoch {self.epoch}: {self._picture()}")
            if node.history != self.outside.history:
                raise Wrong(f"{process} lives with the state of a copy of the store (S1): {self._picture()}")

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
        away = all(node.has_ended or node.process in lifecycle.view.members for node in self.nodes.values())
        return away and not lifecycle.rollback.pending and not lifecycle.membership.leaving and not self.formers

    def _picture(self) -> str:
        lifecycle, membership = self.coordinator.lifecycle, self.coordinator.lifecycle.membership
        nodes = {node.process: (node.epoch, node.has_ended) for node in self.nodes.values()}
        return (
            f"view {membership.view.number} of {membership.view.processes}, installed by {sorted(membership.drained)}; "
            f"leaving {membership.leaving}, staged {membership.staged}, to be changed {list(membership.changes)}; "
            f"epoch {lifecycle.epoch}, rollback {lifecycle.rollback.request}, started "
            f"{sorted(lifecycle.rollback.started)}, present {sorted(lifecycle.rollback.present)}; "
            f"open {list(lifecycle.open)}; nodes, their epochs and ends: {nodes}; "
            f"{len(self.formers)} former coordinators"
        )
