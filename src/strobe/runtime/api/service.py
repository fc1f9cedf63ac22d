"""The whole of `strobe coordinator`: the coordinator, the port for nodes, the API and the address file."""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from typing import Any

from strobe.errors import StoreError, UsageError
from strobe.runtime.addresses import parse_address, print_address
from strobe.runtime.api.client import running_for
from strobe.runtime.api.discovery import Discovered, announce, is_announced, withdraw
from strobe.runtime.api.http_server import HttpServer
from strobe.runtime.api.metrics import Metrics
from strobe.runtime.api.routes import Api
from strobe.runtime.coordinator.control_server import ControlServer
from strobe.runtime.coordinator.coordinator import Coordinator
from strobe.runtime.coordinator.health_monitor import TICK_S, HealthMonitor
from strobe.runtime.coordinator.live_verdicts import Judgement
from strobe.runtime.coordinator.log_writer import LogResult
from strobe.runtime.coordinator.node_sessions import NodeSessions
from strobe.runtime.coordinator.operations import Operations
from strobe.runtime.coordinator.status import dated_troubles, describe
from strobe.runtime.event_log import WARNING
from strobe.runtime.messages.api_documents import FinishedSnapshot, Status
from strobe.runtime.messages.control import Stop

FIRST_EPOCH_S_MAX = 5.0
STOP_S_MAX = 10.0


class CoordinatorService:
    """A running coordinator. `run` returns the exit code. Without `http` it is embedded in another program.

    `judge` is the command that starts the judge process; without it snapshots are not judged.
    """

    def __init__(self, coordinator: Coordinator, *, http: bool = True, judge: Sequence[str] = ()) -> None:
        self.coordinator = coordinator
        self.sessions = NodeSessions(coordinator)
        self.watch = HealthMonitor(
            coordinator.lifecycle, self.sessions, coordinator.log, coordinator.poll, coordinator.now_s
        )
        self.metrics = Metrics(lambda: coordinator.observer.rollback_count, self.status)
        self.operations = Operations(coordinator, self.stop)
        self.listen = coordinator.settings.listen
        self.api = coordinator.settings.api
        self.ready = asyncio.Event()
        coordinator.on_finished = self._finished
        # Judges the system's declared conditions; None if nothing judges them.
        self.judgement: Judgement | None = None
        if judge:
            self.judgement = Judgement(
                judge,
                coordinator.system,
                coordinator.settings.verdict_timeout_s,
                coordinator.state,
                coordinator.generations,
                coordinator.tracker.finished,
                coordinator.log,
                self.metrics.judged,
            )
            self.metrics.declare(self.judgement.conditions)
            coordinator.on_successor = self.judgement.judge.reload
        coordinator.on_halt = lambda report: self.stop(report, 1, halted=True)
        self._control = ControlServer(self.sessions)
        self._wants_http = http
        self._http: HttpServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._here: Discovered | None = None
        self._complained = False
        self._announced: Discovered | None = None
        self._announcing: asyncio.Future[list[LogResult]] | None = None
        self._loop = asyncio.get_running_loop()

    def status(self) -> Status:
        conditions = self.judgement.status() if self.judgement is not None else []
        return describe(self.coordinator, self.watch, self.listen, self.api, conditions)

    def _finished(self, snapshot: FinishedSnapshot) -> None:
        self.metrics.finished(snapshot)
        if self.judgement is not None:
            self.judgement.finished(snapshot)

    async def run(self) -> int:
        """Serve until ended or broken. It can be ended from the start."""
        starting = asyncio.create_task(self._start())
        try:
            either: set[asyncio.Future[Any]] = {starting, self.coordinator.ended}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
            return await self.coordinator.ended
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await self._close()

    def end(self, code: int) -> None:
        """End the coordinator; nodes keep running and wait for the next one."""
        self.coordinator.end(code)

    def stop(self, reason: str, code: int = 0, *, halted: bool = False) -> None:
        """Stop every node, then end. If the system was `halted`, the reason is already logged."""
        if self._stopping is None:
            self.coordinator.log.emit("stopping", reason=None if halted else reason)
            self._stopping = asyncio.get_running_loop().create_task(self._stop(reason, code))

    async def _stop(self, reason: str, code: int) -> None:
        self.sessions.stopping = True
        self.sessions.members.broadcast(Stop(reason, code))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.sessions.all_gone(), STOP_S_MAX)
        self.coordinator.end(code)

    async def _start(self) -> None:
        coordinator = self.coordinator
        listen = parse_address(coordinator.settings.listen, "listen")
        api = parse_address(coordinator.settings.api, "api")
        await asyncio.to_thread(_refuse_second, coordinator.store_url)
        # Bind the addresses first: an unreachable coordinator must not take over from a running one. Clients can then
        # see that it waits for the store.
        if self._wants_http:
            self._http = HttpServer(
                Api(self.operations, self.status, self.metrics, self.judgement).application(api[0]), api
            )
            self.api = self._http.address
            self._serving = asyncio.create_task(self._http.serve())
            self._serving.add_done_callback(self._served)
        self.listen = print_address(listen[0], await self._control.bind(*listen))
        await coordinator.start()
        if self.judgement is not None:
            self.judgement.start()
        await self._control.start()
        self._ticking = asyncio.create_task(self._tick())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(coordinator.observer.epoch_known.wait(), FIRST_EPOCH_S_MAX)
        self._here = Discovered(
            self.listen, self.api, os.getpid(), coordinator.started_us, coordinator.identity, coordinator.term
        )
        self._announce()
        coordinator.log.emit("listening", nodes=self.listen, api=f"http://{self.api}")
        self.ready.set()

    def _announce(self) -> list[LogResult]:
        """Write the address file if it is not up to date. Failing to write it is not fatal."""
        here, coordinator = self._here, self.coordinator
        assert here is not None, "it listens by now"
        coordinator.store.log.store.require_lead()
        try:
            if not is_announced(coordinator.store_url, here):
                announce(coordinator.store_url, here)
                self._announced = here
        except StoreError as error:
            self._loop.call_soon_threadsafe(self._complain, str(error))
        return []

    def _complain(self, reason: str) -> None:
        if not self._complained:
            self.coordinator.log.emit("cannot write the coordinator's address file", WARNING, reason=reason)
        self._complained = True

    def _keep_announced(self) -> None:
        """Check the address file again, right after a poll of the log.

        A suspended coordinator that resumes may overwrite the leader's address before it has read that there is one.
        """
        if self._here is not None and (self._announcing is None or self._announcing.done()):
            self._announcing = self.coordinator.store.work(self._announce)

    def _served(self, serving: "asyncio.Task[None]") -> None:
        if not serving.cancelled() and (error := serving.exception()) is not None:
            self.coordinator.fail(error)

    async def _tick(self) -> None:
        try:
            while True:
                if self.watch.look():
                    self._keep_announced()
                    dated_troubles(self.coordinator, self.watch)
                await asyncio.sleep(TICK_S)
        except Exception as error:  # noqa: BLE001 -- a bug of ours: `fail` ends the coordinator with it
            self.coordinator.fail(error)

    async def _close(self) -> None:
        self.coordinator.requests.close("the coordinator ends; start it, and send the request again")
        if self._announced is not None:
            withdraw(self.coordinator.store_url, self._announced)
        await self._control.close()
        if self._ticking is not None:
            self._ticking.cancel()
        if self._http is not None and self._serving is not None:
            self._http.should_exit = True
            await self._serving
        elif self._http is not None:
            self._http.close()
        if self.judgement is not None:
            await self.judgement.close()
        await self.coordinator.close()


def _refuse_second(store: str) -> None:
    """Refuse a second coordinator for a store. Two would not damage the store, but would keep taking over."""
    other = running_for(store)
    if other is None:
        return  # none, or it was killed, or hangs, or belongs to another system: take over
    raise UsageError(
        f"a coordinator runs for the store {store} already (pid {other.pid}, API {other.api}); stop it first"
    )
