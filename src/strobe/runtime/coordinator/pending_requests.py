"""What people have asked the coordinator for and wait for: a snapshot, a rollback.

A request for a snapshot is answered by the first one that begins after it, from those initiators it names that have not
left; where that one is aborted and tried again, by the next.

There is one rollback at a time, and the last request that says whereto decides where it goes. Those before it are told
so at once: what they asked for will not come.
"""

import asyncio
from collections.abc import Collection
from typing import Any

import msgspec

from strobe.errors import StrobeError
from strobe.protocol.coordinator.rollback import NEWEST, RollbackTarget
from strobe.protocol.values.log_entries import Begin
from strobe.runtime.messages.api_documents import ABORTED, COMMITTED, RestoreStarted, TakeResult
from strobe.storage.store.snapshot_names import LATEST


class RestoreFailed(StrobeError):
    """What was asked for cannot be restored; the system goes on as before (E9)."""


class Superseded(StrobeError):
    """Someone has asked since for a rollback to elsewhere, and there is only one."""


class Stopped(StrobeError):
    """All is stopped, or the coordinator ends: what was asked for will not come."""


class TakeWait:
    """Someone waits for a snapshot."""

    def __init__(self, initiators: tuple[str, ...], asked_us: int) -> None:
        loop = asyncio.get_running_loop()
        self.initiators = frozenset(initiators)
        self.asked_us = asked_us
        self.id: str | None = None
        self.begun: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[TakeResult] = loop.create_future()

    def is_answered_by(self, begin: Begin, processes: Collection[str]) -> bool:
        if self.id is not None:
            return begin.retries == self.id
        return begin.at_us >= self.asked_us and self.initiators.intersection(processes).issubset(begin.initiators)


class RestoreWait(msgspec.Struct):
    """Someone waits for a rollback to `goal`, or to the latest; without a snapshot, to whatever can be restored."""

    goal: RollbackTarget
    done: "asyncio.Future[RestoreStarted]"


class Requests:
    """Who waits for what."""

    def __init__(self) -> None:
        self.takes: list[TakeWait] = []
        self.restores: list[RestoreWait] = []

    def take(self, initiators: tuple[str, ...], asked_us: int) -> TakeWait:
        wait = TakeWait(initiators, asked_us)
        self.takes.append(wait)
        return wait

    def restore(self, goal: RollbackTarget) -> RestoreWait:
        if goal != NEWEST:
            instead = f"{goal.snapshot or 'the newest'}{' as a fork' if goal.fork else ''}"
            problem = f"someone has asked for {instead} since, and the rollback goes there; ask again if it shall not"
            self._fail([wait for wait in self.restores if wait.goal not in (goal, NEWEST)], Superseded(problem))
        wait = RestoreWait(goal, asyncio.get_running_loop().create_future())
        self.restores.append(wait)
        return wait

    def waiting(self) -> tuple[tuple[str, ...], ...]:
        """Return the initiators of what is waited for and has not begun."""
        return tuple(tuple(wait.initiators) for wait in self.takes if wait.id is None)

    def begun(self, begin: Begin, processes: Collection[str]) -> None:
        """A snapshot of these processes has begun."""
        for wait in self.takes:
            if wait.is_answered_by(begin, processes):
                wait.id = begin.snapshot
                if not wait.begun.done():
                    wait.begun.set_result(None)

    def ended(self, snapshot: str, committed: bool, reason: str) -> None:
        """A snapshot has its final outcome: it will not be tried again."""
        for wait in [wait for wait in self.takes if wait.id == snapshot]:
            self.takes.remove(wait)
            if not wait.ended.done():
                wait.ended.set_result(TakeResult(snapshot, COMMITTED if committed else ABORTED, reason))

    def restored(self, started: RestoreStarted) -> None:
        for wait in [wait for wait in self.restores if wait.goal.snapshot in (None, LATEST, started.restored)]:
            self.restores.remove(wait)
            if not wait.done.done():
                wait.done.set_result(started)

    def refused(self, goal: RollbackTarget, reason: str) -> None:
        self._fail([wait for wait in self.restores if wait.goal == goal], RestoreFailed(reason))

    def nothing_comes(self, reason: str) -> None:
        """There will be no rollback: who asked before for the newest was to be content with what was asked for last."""
        problem = f"someone has asked for another snapshot since, and that was refused: {reason}; ask again"
        self._fail(list(self.restores), RestoreFailed(problem))

    def _fail(self, waits: list[RestoreWait], error: StrobeError) -> None:
        for wait in waits:
            self.restores.remove(wait)
            if not wait.done.done():
                wait.done.set_exception(error)

    def forget(self, wait: TakeWait | RestoreWait) -> None:
        """Nobody waits any more."""
        if isinstance(wait, TakeWait):
            if wait in self.takes:
                self.takes.remove(wait)
        elif wait in self.restores:
            self.restores.remove(wait)

    def close(self, reason: str) -> None:
        """Nothing comes any more: nobody shall wait on."""
        futures: list[asyncio.Future[Any]] = [wait.done for wait in self.restores]
        for take in self.takes:
            futures += [take.begun, take.ended]
        for future in futures:
            if not future.done():
                future.set_exception(Stopped(reason))
                future.exception()  # of a begin and an end, one is waited for: the other is no oversight
