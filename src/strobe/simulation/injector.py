"""Injects faults at seeded random times; heals everything for the liveness phase."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from strobe.process import Process
from strobe.protocol import COORDINATOR
from strobe.protocol.coordinator.messages import JoinWanted, LeaveWanted, RestoreWanted
from strobe.simulation.coordinator import CoordinatorCrashed, MemoryLog, StoreLog
from strobe.simulation.network import Link

if TYPE_CHECKING:
    from strobe.simulation.world import World


REQUESTED_SHARE = 0.25
"""The share of rollbacks that are requested; the others follow from a crash."""


class Injector:
    """Injects faults from its own seeded generator."""

    def __init__(self, world: "World", seed: str, log: MemoryLog | StoreLog) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.active = False
        self.steps_left: int | None = None
        # The coordinator's crashes so far: what it was writing, and the step.
        self.crashed_at: list[str] = []
        self.blocked: list[list[Link]] = []
        # The process that left last.
        self.last_leaver: str | None = None
        log.on_step = self._step

    def start(self) -> None:
        faults = self.world.faults
        self.active = True
        self._every(faults.partition_every_us, self._partition)
        self._every(faults.crash_every_us, self._crash)
        self._every(faults.coordinator_crash_every_us, self._arm_coordinator_crash)
        self._every(faults.initiator_every_us, self._initiate)
        self._every(faults.rollback_every_us, self._roll_back)
        processes = self.world.system.processes.values()
        if all(type(process).leave is not Process.leave and not process.must_stay for process in processes):
            self._every(faults.membership_every_us, self._change_membership)

    def stop(self) -> None:
        """Heal everything and stop injecting faults."""
        self.active = False
        self.steps_left = None
        for links in list(self.blocked):
            self._heal(links, None)
        for name, node in list(self.world.nodes.items()):
            if node.down and not node.waiting:
                self._restart(name, None)
        if not self.world.coordinator.up:
            self.world.coordinator.start()

    def _every(self, mean_us: int, fault: Callable[[], None]) -> None:
        if mean_us:
            self.world.scheduler.after(self._draw(mean_us), self._repeat, mean_us, fault)

    def _repeat(self, mean_us: int, fault: Callable[[], None]) -> None:
        if self.active:
            fault()
            self._every(mean_us, fault)

    def _draw(self, mean_us: int) -> int:
        return 1 + int(self.random.expovariate(1 / mean_us))

    def _note(self, fault: str) -> None:
        self.world.injected[fault] += 1

    # Partitions

    def _partition(self) -> None:
        everyone = [*sorted(self.world.nodes), COORDINATOR]
        here = self.random.sample(everyone, self.random.randint(1, max(1, len(everyone) // 2)))
        links = self.world.network.links_between(here, [name for name in everyone if name not in here])
        for link in links:
            link.blocked += 1
        self.blocked.append(links)
        self._note("partitions")
        self._later(self.world.faults.partition_us, self._heal, links)

    def _heal(self, links: list[Link], _: None) -> None:
        if links in self.blocked:
            self.blocked.remove(links)
            for link in links:
                link.unblock()

    # Crashes

    def _crash(self) -> None:
        up = [name for name, node in sorted(self.world.nodes.items()) if not node.down]
        if up:
            name = self.random.choice(up)
            self.world.crash(name)
            self._note("process crashes")
            self._later(self.world.faults.crash_us, self._restart, name)

    def _restart(self, name: str, _: None) -> None:
        node = self.world.nodes.get(name)
        if node is not None and node.down and not node.waiting:
            self.world.restart(name)

    def _roll_back(self) -> None:
        """Crash one or more processes and delete their state, or request an older snapshot."""
        world = self.world
        if self.random.random() < REQUESTED_SHARE:
            wanted = self.random.choice([None, *world.committed[-8:]])
            world.coordinator.handle(RestoreWanted(wanted, "requested"))
            self._note("rollbacks asked for")
            return
        assert world.rollbacks is not None
        up = [name for name, node in sorted(world.nodes.items()) if not node.down]
        for name in self.random.sample(up, min(len(up), self.random.choice((1, 1, 1, 2, len(up))))):
            world.lose_state(name)
            self._note("crashes that take the state")
            self._later(world.faults.crash_us, self._restart, name)

    def _arm_coordinator_crash(self) -> None:
        if self.world.coordinator.up and self.steps_left is None:
            # Any step of the next commit: two blobs of four steps for each process, then their directory and the entry.
            self.steps_left = self.random.randrange(8 * len(self.world.nodes) + 12)

    def _step(self, step: str) -> None:
        if self.steps_left is None:
            return
        if self.steps_left == 0:
            self.steps_left = None
            self.crashed_at.append(step)
            raise CoordinatorCrashed(step)
        self.steps_left -= 1

    def coordinator_crashed(self) -> None:
        self.world.coordinator.crash()
        self._note("coordinator crashes")
        self._later(self.world.faults.coordinator_crash_us, self._restart_coordinator, None)

    def _restart_coordinator(self, _: None, __: None) -> None:
        if not self.world.coordinator.up:
            self.world.coordinator.start()

    # Membership and initiators

    def _change_membership(self) -> None:
        world = self.world
        if not world.coordinator.up or not world.coordinator.lifecycle.settled:
            return
        view = world.coordinator.lifecycle.view
        if world.departed:
            name = self.random.choice(sorted(world.departed))
            there = {*view.processes, name}
            channels = tuple(
                spec
                for spec in world.views[1].channels
                if name in (spec.source, spec.target) and there >= {spec.source, spec.target}
            )
            world.coordinator.handle(JoinWanted(name, channels))
            self._note("joins")
        elif len(world.nodes) > 2 and set(world.nodes) == set(view.processes):
            world.coordinator.handle(LeaveWanted(self._draw_leaver()))
            self._note("leaves")

    def _draw_leaver(self) -> str:
        """With rollbacks, always choose the same process: a leave may be repeated in a timeline that lacks others."""
        if self.last_leaver is None or self.world.rollbacks is None:
            self.last_leaver = self.random.choice(sorted(self.world.nodes))
        return self.last_leaver

    def _initiate(self) -> None:
        able = [node for _, node in sorted(self.world.nodes.items()) if not node.down and not node.departed]
        if able:
            node = self.random.choice(able)
            node.run_event("snapshot", node.context.snapshot)
            self._note("snapshots by a process")

    def _later(self, mean_us: int, action: Callable[[Any, Any], None], first: Any) -> None:
        self.world.scheduler.after(self._draw(mean_us), action, first)
