"""The pending requests of users: for a snapshot or a rollback.

A snapshot request is answered by the first snapshot that begins after it, from its named initiators that have not left.
If that snapshot is aborted and retried, the retry answers it.

There is one rollback at a time, and the last request that names a target decides it. Earlier requests for another
target fail at once.
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
    """The requested snapshot cannot be restored; the system continues as before (E9)."""


class Superseded(StrobeError):
    """A later request names another rollback target, and there is only one rollback."""


class Stopped(StrobeError):
    """The system is stopped, or the coordinator ends: the request will not be done."""


class TakeWait:
    """A pending request for a snapshot."""

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
    """A pending request for a rollback to `target`; without a snapshot, to the newest that can be restored."""

    target: RollbackTarget
    done: "asyncio.Future[RestoreStarted]"


class PendingRequests:
    """All pending requests."""

    def __init__(self) -> None:
        self.takes: list[TakeWait] = []
        self.restores: list[RestoreWait] = []

    def take(self, initiators: tuple[str, ...], asked_us: int) -> TakeWait:
        wait = TakeWait(initiators, asked_us)
        self.takes.append(wait)
        return wait

    def restore(self, target: RollbackTarget) -> RestoreWait:
        if target != NEWEST:
            instead = f"{target.snapshot or 'the newest'}{' as a fork' if target.fork else ''}"
            problem = f"a later request names {instead}, and the rollback goes there; repeat yours if you still need it"
            self._fail([wait for wait in self.restores if wait.target not in (target, NEWEST)], Superseded(problem))
        wait = RestoreWait(target, asyncio.get_running_loop().create_future())
        self.restores.append(wait)
        return wait

    def waiting(self) -> tuple[tuple[str, ...], ...]:
        """Return the initiators of each requested snapshot that has not begun."""
        return tuple(tuple(wait.initiators) for wait in self.takes if wait.id is None)

    def begun(self, begin: Begin, processes: Collection[str]) -> None:
        """A snapshot of these processes has begun."""
        for wait in self.takes:
            if wait.is_answered_by(begin, processes):
                wait.id = begin.snapshot
                if not wait.begun.done():
                    wait.begun.set_result(None)

    def ended(self, snapshot: str, committed: bool, reason: str) -> None:
        """A snapshot has its final outcome: it will not be retried."""
        for wait in [wait for wait in self.takes if wait.id == snapshot]:
            self.takes.remove(wait)
            if not wait.ended.done():
                wait.ended.set_result(TakeResult(snapshot, COMMITTED if committed else ABORTED, reason))

    def restored(self, started: RestoreStarted) -> None:
        for wait in [wait for wait in self.restores if wait.target.snapshot in (None, LATEST, started.restored)]:
            self.restores.remove(wait)
            if not wait.done.done():
                wait.done.set_result(started)

    def refused(self, target: RollbackTarget, reason: str) -> None:
        self._fail([wait for wait in self.restores if wait.target == target], RestoreFailed(reason))

    def fail_rollbacks(self, reason: str) -> None:
        """Fail all rollback requests: requests for the newest had accepted the last target, and that was refused."""
        problem = f"a later request named another snapshot, and that was refused: {reason}; repeat yours"
        self._fail(list(self.restores), RestoreFailed(problem))

    def _fail(self, waits: list[RestoreWait], error: StrobeError) -> None:
        for wait in waits:
            self.restores.remove(wait)
            if not wait.done.done():
                wait.done.set_exception(error)

    def forget(self, wait: TakeWait | RestoreWait) -> None:
        """Drop a request that nobody waits for any more."""
        if isinstance(wait, TakeWait):
            if wait in self.takes:
                self.takes.remove(wait)
        elif wait in self.restores:
            self.restores.remove(wait)

    def close(self, reason: str) -> None:
        """Fail every pending request."""
        futures: list[asyncio.Future[Any]] = [wait.done for wait in self.restores]
        for take in self.takes:
            futures += [take.begun, take.ended]
        for future in futures:
            if not future.done():
                future.set_exception(Stopped(reason))
                future.exception()  # only one of begin and end may be awaited: do not warn about the other
