"""Planned restarts: a process hands over to its successor in the same epoch, without a rollback (E11).

    wanted ──HandOver──► stopping ──HandedOver──► handed over ──Resume──► resumed ──Drained──► over
                            │                          │                     └─ the successor crashed ─► rollback
                            └─ crash, time-out ──► rollback ◄── time-out ────┘

Why it is safe. A process that hands over stops between two events, and never runs on in that epoch. Only then does it
write the hand-over, and only when that is durable does it report it. So a complete hand-over of the current epoch has
the last state of its process, unless a successor has used it. A successor claims a hand-over before it uses it, by a
file that exactly one can create, so each is used at most once, whatever coordinators know. One that finds it claimed
reports that, and everything rolls back: an earlier successor has run on from it and crashed. A rollback begins a new
epoch, in which no earlier hand-over counts.

The coordinator keeps this in memory only. If it is lost between the hand-over and the registration of the successor,
the system rolls back as after a crash.
"""

from collections.abc import Collection

import msgspec

from strobe.protocol.coordinator.attempts import Attempts
from strobe.protocol.coordinator.membership import Membership
from strobe.protocol.coordinator.messages import CoordinatorEffect, ProcessWithoutState
from strobe.protocol.coordinator.restart_messages import (
    CannotHandOver,
    CannotResume,
    HandedOver,
    HandOver,
    HandOverRef,
    Relieve,
    Resume,
)
from strobe.protocol.coordinator.rollback import Rollback


class Restart(msgspec.Struct):
    """One restart under way. `given`: a successor was ordered to resume from the hand-over."""

    deadline_us: int
    hand_over: HandOverRef | None = None
    given: bool = False


class Restarts:
    """The restarts that are wanted or under way, by process."""

    def __init__(self, membership: Membership, attempts: Attempts, rollback: Rollback, timeout_us: int) -> None:
        self.wanted: dict[str, None] = {}
        self.under_way: dict[str, Restart] = {}
        self._membership = membership
        self._attempts = attempts
        self._rollback = rollback
        self._timeout_us = timeout_us

    def request(self, process: str) -> None:
        restart = self.under_way.get(process)
        if process in self._membership.view.members and (restart is None or restart.given):
            self.wanted[process] = None

    def begin_next(self, now_us: int) -> list[CoordinatorEffect]:
        """Order the wanted restarts, unless the view is changing or a rollback is pending."""
        if not self.wanted or self._rollback.pending or not self._membership.is_settled_but_for(self.under_way):
            return []
        due = [process for process in self.wanted if process not in self.under_way]
        self.wanted = {process: None for process in self.wanted if process in self.under_way}
        runs = self._rollback.present & self._rollback.started & self._membership.view.members
        effects: list[CoordinatorEffect] = []
        for process in filter(runs.__contains__, due):
            self.under_way[process] = Restart(now_us + self._timeout_us)
            # No snapshot begins and no view changes until the successor runs.
            self._membership.drained.discard(process)
            effects.append(HandOver(process))
        return effects

    def failed(self, process: str) -> None:
        """The connection of a process is lost."""
        self.wanted.pop(process, None)

    def handed_over(self, event: HandedOver, epoch: int, now_us: int) -> list[CoordinatorEffect]:
        """A process has handed over, perhaps on the order of a former coordinator."""
        process = event.process
        if event.epoch != epoch or self._rollback.pending or process not in self._membership.view.members:
            return []
        restart = self.under_way.setdefault(process, Restart(now_us + self._timeout_us))
        restart.hand_over = event.hand_over
        self.wanted.pop(process, None)
        self._membership.drained.discard(process)
        return [*self._attempts.failed(process, now_us, "restarts"), Relieve(process, event.hand_over.name)]

    def refused(self, event: CannotHandOver) -> None:
        """The process runs on; it has reported again that it has installed the view."""
        restart = self.under_way.get(event.process)
        if restart is not None and restart.hand_over is None:
            del self.under_way[event.process]

    def returned(self, process: str) -> list[CoordinatorEffect]:
        """A process has reconnected with its state: repeat the order that it may have missed."""
        restart = self.under_way.get(process)
        if restart is None or restart.given:
            return []
        hand_over = restart.hand_over
        return [HandOver(process) if hand_over is None else Relieve(process, hand_over.name)]

    def resume(self, event: ProcessWithoutState, epoch: int) -> list[CoordinatorEffect]:
        """A process is connected without state: return its order to resume; empty if it has crashed."""
        process, restart = event.process, self.under_way.get(event.process)
        if restart is None:
            return []
        if restart.hand_over is None or event.epoch or self._rollback.pending:
            self._forget(process)
            return []
        restart.given = True
        return [Resume(process, epoch, restart.hand_over)]

    def resumed(self, process: str) -> None:
        """A process has reported that it runs. From now on it has a later state than the hand-over."""
        restart = self.under_way.get(process)
        if restart is not None and restart.given:
            del self.under_way[process]

    def cannot_resume(self, event: CannotResume) -> bool:
        """Return whether this ends the restart: its hand-over cannot be used any more."""
        restart = self.under_way.get(event.process)
        if restart is None or restart.hand_over is None or restart.hand_over.name != event.name:
            return False
        del self.under_way[event.process]
        return True

    def epoch_started(self) -> None:
        """No hand-over of an earlier epoch counts."""
        self.under_way.clear()

    def expire(self, now_us: int) -> None:
        """Give up restarts past their deadline: as if the process had crashed, though nobody is to blame."""
        for process in [known for known, restart in self.under_way.items() if now_us >= restart.deadline_us]:
            stopping = self.under_way[process].hand_over is None
            self._forget(process)
            if stopping and process in self._rollback.present:
                self._rollback.require(f"{process} has not handed over in time")

    def deadlines_us(self) -> list[int]:
        return [restart.deadline_us for restart in self.under_way.values()]

    def is_restarting(self, process: str) -> bool:
        """Return whether the process has handed over, and its successor does not run yet."""
        restart = self.under_way.get(process)
        return restart is not None and restart.hand_over is not None

    @property
    def processes(self) -> Collection[str]:
        return self.under_way.keys()

    def _forget(self, process: str) -> None:
        restart = self.under_way.pop(process)
        if restart.hand_over is not None and not restart.given:
            self._rollback.assumed.add(process)  # nobody saw it crash
