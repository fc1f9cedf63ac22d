"""The requests that users can make of the coordinator, and their timeouts."""

import asyncio
from collections.abc import Callable

from strobe.errors import SnapshotError, StoreError, StrobeError, UsageError
from strobe.outside import Sink
from strobe.protocol.coordinator.messages import LeaveWanted, RestoreWanted, SnapshotUnwanted, SnapshotWanted
from strobe.protocol.coordinator.restart_messages import RestartWanted
from strobe.protocol.coordinator.rollback import RollbackTarget
from strobe.runtime.coordinator.coordinator import Coordinator
from strobe.runtime.coordinator.pending_requests import TakeWait
from strobe.runtime.messages.api_documents import (
    BEGUN,
    WANTED,
    Accepted,
    RestoreRequest,
    RestoreStarted,
    StopRequest,
    TakeRequest,
    TakeResult,
    checked_timeout,
)
from strobe.storage.store.snapshot_names import LATEST, resolve

BEGIN_S_MAX = 2.0
"""How long a request that does not wait for the outcome waits for the snapshot's id."""


class NoSuchProcess(StrobeError):
    exit_code = 2


class NotNow(StrobeError):
    """The request is impossible in the current state."""


class NoAnswer(StrobeError):
    """The request was not done in the given time, but may still be."""

    exit_code = 3


class Operations:
    """The verbs of the API."""

    def __init__(self, coordinator: Coordinator, stop: Callable[[str], None]) -> None:
        self.coordinator = coordinator
        self._stop = stop

    async def take(self, request: TakeRequest) -> TakeResult:
        """Take a snapshot."""
        self._check_running()
        timeout_s = checked_timeout(request.timeout_s)
        for process in request.initiators:
            if process not in self.coordinator.lifecycle.view.processes:
                raise self._unknown(process)
        wait = self.coordinator.requests.take(request.initiators, self.coordinator.clock.now_us())
        self.coordinator.handle(SnapshotWanted(request.initiators, awaited=request.wait))
        try:
            if request.wait:
                return await asyncio.wait_for(wait.ended, timeout_s)
            await asyncio.wait_for(wait.begun, min(timeout_s, BEGIN_S_MAX))
            return TakeResult(wait.id, BEGUN)
        except TimeoutError:
            if request.wait:
                raise self._in_vain(wait, timeout_s) from None
            return TakeResult(None, WANTED, self._obstacle())
        finally:
            self.coordinator.requests.forget(wait)

    def _in_vain(self, wait: TakeWait, timeout_s: float) -> NoAnswer:
        """Give up on a request: a snapshot that has begun continues; otherwise it is cancelled."""
        if wait.id is not None:
            problem = f"snapshot {wait.id} has no outcome after {timeout_s:g} s"
            return NoAnswer(f"{problem}; it may still come, see `strobe snapshot list`")
        requests = self.coordinator.requests
        requests.forget(wait)
        self.coordinator.handle(SnapshotUnwanted(requests.waiting()))
        return NoAnswer(f"none has begun after {timeout_s:g} s ({self._obstacle()}); the request is withdrawn")

    async def restore(self, request: RestoreRequest) -> RestoreStarted:
        """Roll back all processes."""
        self._check_running()
        timeout_s = checked_timeout(request.timeout_s)
        coordinator = self.coordinator
        until_s = coordinator.now_s() + timeout_s
        wanted = await self._restorable(request.snapshot, timeout_s)
        self._check_running()  # the system may have been stopped meanwhile
        wait = coordinator.requests.restore(RollbackTarget(wanted, request.fork))
        reason = "a user requested a fork from it" if request.fork else "a user requested it"
        coordinator.handle(RestoreWanted(wanted, reason, request.fork))
        try:
            return await asyncio.wait_for(wait.done, until_s - coordinator.now_s())
        except TimeoutError:
            raise NoAnswer(f"the rollback has not begun after {timeout_s:g} s; it may still come") from None
        finally:
            coordinator.requests.forget(wait)

    async def _restorable(self, name: str | None, timeout_s: float) -> str | None:
        """Return the snapshot that `name` means. The latest one is known only once pending commits have ended."""
        if name is None:
            return None
        try:
            found = resolve(self.coordinator.state, name)
        except SnapshotError:  # the user may have seen it in the store a moment ago
            await self.coordinator.catch_up(timeout_s)
            found = resolve(self.coordinator.state, name)
        return LATEST if name == LATEST else found

    def leave(self, process: str) -> Accepted:
        """Let a process hand over its state and leave."""
        self._check_running()
        if process not in self.coordinator.lifecycle.view.processes:
            raise self._unknown(process)
        member = self.coordinator.members.get(process)
        if member is None or not member.connected:
            raise NotNow(f"process {process} is not running, so it cannot hand over its state; start it first")
        if member.shares_program:
            problem = f"process {process} cannot leave: it shares its program, pid {member.pid}, with others"
            raise NotNow(f"{problem}; run it in a program of its own, then let it leave")
        try:
            self.coordinator.handle(LeaveWanted(process))
        except UsageError as error:
            raise NotNow(str(error)) from error
        return Accepted(f"process {process} leaves as soon as the view is settled")

    def restart(self, process: str) -> Accepted:
        """Have a process hand over to its successor and end (E11)."""
        self._check_running()
        if process not in self.coordinator.lifecycle.view.processes:
            raise self._unknown(process)
        member = self.coordinator.members.get(process)
        if member is None or not member.connected:
            raise NotNow(f"process {process} is not running, so it cannot hand over its state; start it first")
        problem = self._no_hand_over(process)
        if problem:
            raise NotNow(f"process {process} cannot hand over: {problem}; end it, and the system rolls back")
        self.coordinator.handle(RestartWanted(process))
        return Accepted(f"process {process} hands over as soon as the view is settled, and ends")

    def _no_hand_over(self, process: str) -> str:
        """Return why a process can never hand over; empty if it can."""
        if self.coordinator.node_settings.trace != "off":
            return "it records a trace"
        member = self.coordinator.members.get(process)
        if member is not None and member.shares_program:
            return "it shares its program with other processes"
        sinks = self.coordinator.system.sinks.items()
        lacking = [name for name, sink in sinks if sink.process == process and type(sink).resume is Sink.resume]
        return f"its sink {lacking[0]} has no `resume`" if lacking else ""

    def stop(self, request: StopRequest) -> Accepted:
        """Stop every node, then the coordinator."""
        self._stop(request.reason)
        return Accepted("every node is stopped; then the coordinator ends")

    def check_started(self) -> None:
        """Raise StoreError if the log has not been read yet: nothing can be done before."""
        if self.coordinator.lifecycle.recovering:
            problem = self.coordinator.store.problem or "its log is being read"
            raise StoreError(self.coordinator.store_url, f"the coordinator is not ready yet: {problem}")

    def _check_running(self) -> None:
        self.check_started()
        if self.coordinator.halted is not None:
            raise NotNow(f"everything is stopped: {self.coordinator.halted}")

    def _unknown(self, process: str) -> NoSuchProcess:
        known = ", ".join(self.coordinator.lifecycle.view.processes)
        return NoSuchProcess(f"there is no process {process!r}; there are: {known}")

    def _obstacle(self) -> str:
        """Describe what a snapshot waits for."""
        coordinator, lifecycle = self.coordinator, self.coordinator.lifecycle
        if coordinator.store.problem is not None:
            return f"the store cannot be used: {coordinator.store.problem}"
        if lifecycle.rollback.pending:
            return "a rollback is under way"
        missing = [process for process in lifecycle.view.processes if process not in lifecycle.membership.drained]
        missing += [f"{process}, which is leaving with output," for process in lifecycle.membership.unstaged]
        if missing:
            return f"it waits for {', '.join(missing)} to run"
        return "others are under way, or the pause between them is not over"
