"""One node: hosts a process, handles the coordinator's orders, and begins a new timeline for each epoch.

new ──Register──► welcome ──RestoreState──► running ──RestoreState──► running, in a later epoch
                     └──────InstallView──────► running (it joined)          └──Dismiss, Stop, failure──► ended
"""

import asyncio
import logging
import math
import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from strobe.errors import NotACoordinator, StrobeError, UsageError
from strobe.process import System
from strobe.protocol import View
from strobe.protocol.coordinator.messages import CannotRestore, Dismiss, InstallView, ReportSettled, Reset, RestoreState
from strobe.protocol.coordinator.restart_messages import CannotResume, HandOver, Relieve, Resume
from strobe.protocol.process.events import SnapshotsSettled
from strobe.protocol.values.log_entries import ProcessRecord
from strobe.runtime.addresses import is_anywhere
from strobe.runtime.links.listener import Listener, open_listener
from strobe.runtime.messages.control import (
    AddressBook,
    Failed,
    HeartbeatHeard,
    Refused,
    Register,
    Stop,
    Welcome,
)
from strobe.runtime.node.application import Application
from strobe.runtime.node.coordinator_link import CoordinatorLink
from strobe.runtime.node.heartbeat import measure
from strobe.runtime.node.link_gate import LinkGate
from strobe.runtime.node.node_registration import NodeRegistration
from strobe.runtime.node.output_release import OutputRelease
from strobe.runtime.node.timeline import Timeline
from strobe.runtime.node_watchdog import NodeWatchdog
from strobe.runtime.program.shared_parts import SharedParts
from strobe.runtime.recovery.fragment_loader import Restored, Unrestorable
from strobe.runtime.restarts.document import HandOverUnusable
from strobe.runtime.restarts.handing_over import HandingOver
from strobe.runtime.restarts.origin import BeginOrder, Origin, OriginLoader, begins_in
from strobe.runtime.retry import RetryLoop
from strobe.runtime.settings import NodeSettings
from strobe.runtime.tracing.recorder import Tracer, open_tracer
from strobe.storage.files.urls import canonical_url, make_run_directory, run_directory
from strobe.user_code import RAISED, explain, is_failure, text_of

logger = logging.getLogger("strobe.node")

Result = TypeVar("Result")
Signer = Callable[[str, View, str, ProcessRecord], ProcessRecord]
"""Signs the record of a process in a snapshot of a view (P1)."""


class Host:
    """Everything around one process, which may share `parts` with others. `run` returns the exit code."""

    def __init__(
        self,
        name: str,
        system: System,
        application: Application,
        coordinator: tuple[str, int],
        *,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        advertise: str | None = None,
        store: str | None = None,
        store_id: str = "",
        sign: Signer | None = None,
        run: str = "",
        parts: SharedParts | None = None,
    ) -> None:
        self.name = name
        self.application = application
        self.protocol = system.protocol
        self.message_types = system.message_types
        self.sources = {key: source for key, source in system.sources.items() if source.process == name}
        self.sinks = {key: sink for key, sink in system.sinks.items() if sink.process == name}
        self.addresses: Mapping[str, tuple[str, int]] = {}
        self._members: tuple[str, ...] = ()
        self.settings = NodeSettings()
        # The identity of the store, and so of the system, as sent by the coordinator.
        self.system = store_id
        self.timeline: Timeline | None = None
        self.epoch = 0
        self.problem: str | None = None
        self.rejected: Mapping[str, int] = {}
        self.claims = 0
        self.hand_over = HandingOver(self)
        self.parts = parts or SharedParts(name)
        self.writer = self.parts.writer
        self.answered = asyncio.Event()
        self.retry = RetryLoop(name)
        self._origins = OriginLoader(name, system, self.writer, self.retry, application, self.parts.find)
        self._registration = NodeRegistration(name, system, self.parts, self.sinks, store_id, run, application.may_exit)
        self._listen = listen
        # A node that listens on all interfaces advertises its host name.
        self._advertise = advertise or (socket.gethostname() if is_anywhere(listen[0]) else listen[0])
        self._store_given = store
        self._store = ""
        self._sign = sign
        self.watchdog = NodeWatchdog(self)
        self._link = CoordinatorLink(coordinator, self._greeting, self.handle, self.fail, patient=bool(run))
        self._listener: Listener | None = None
        self._port = 0
        self._output_release = OutputRelease(
            name, self.sinks, self.writer, self.send, self.fail, lambda: max(self.epoch, self._current)
        )
        # Orders of an epoch whose state is still being loaded.
        self._held: list[Any] = []
        self._restoring: asyncio.Task[None] | None = None
        self._making: Timeline | None = None
        self._settled = 0
        self._current: int = 0
        self._done: asyncio.Future[int] | None = None

    async def run(self) -> int:
        """Run until stopped; return the exit code."""
        loop = asyncio.get_running_loop()
        self._done = loop.create_future()
        self._listener = await open_listener(self.name, self._listen, LinkGate(self), self.parts.buffer_bytes)
        self.rejected = self._listener.rejected
        self._port = self._listener.port
        self.parts.connections.add((self._advertise, self._port), self._listener)
        self._link.start()
        heartbeats = loop.create_task(self._send_heartbeats())
        try:
            with self.parts.watching(self.watchdog.watching):
                return await self._done
        finally:
            heartbeats.cancel()
            await self._close()

    async def _close(self) -> None:
        self._end_timeline()
        if self._listener is not None:
            self.parts.connections.remove((self._advertise, self._port))
            await self._listener.close()
        await self._link.close()
        if self.parts.alone:
            await self.writer.close()

    def end(self, code: int) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(code)

    def fail(self, error: BaseException, unbegun: int = 0) -> None:
        """End the node, because the state of its process can no longer be trusted. `unbegun`: as in `Failed`."""
        if not is_failure(error, may_exit=self.application.may_exit):
            raise error
        if self._done is None or self._done.done():
            return
        self.problem = explain(error)
        known = isinstance(error, StrobeError)
        logger.error("process %s ends: %s", self.name, self.problem, exc_info=None if known else error)
        if self.timeline is not None:
            self.timeline.stop()
        self.send(Failed(self.name, self.problem, unbegun))
        self.end(error.exit_code if isinstance(error, NotACoordinator) else 1)

    def unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """For `loop.set_exception_handler` if the node owns the event loop: a timer or a flush has failed."""
        error = context.get("exception")
        if error is not None:
            self.fail(error)
        else:
            loop.default_exception_handler(context)

    # The coordinator

    @property
    def coordinator(self) -> tuple[str, int]:
        """The address of the coordinator."""
        return self._link.address

    @property
    def instance(self) -> str:
        return self._registration.instance

    def send(self, message: msgspec.Struct) -> None:
        self._link.send(message)

    def _greeting(self) -> Register:
        self.claims = 0
        return self._registration.greeting(self.epoch, (self._advertise, self._port))

    def handle(self, order: Any) -> None:
        """Handle one message of the coordinator."""
        self.answered.set()
        try:
            self._dispatch(order)
        except RAISED as error:  # after any error this process cannot go on
            self.fail(error)

    def _dispatch(self, order: Any) -> None:
        match order:
            case Welcome():
                self._welcomed(order)
            case Refused():
                self._refused(order)
            case HeartbeatHeard():
                self.claims = order.claims
                self._registration.newest = order.newest or self._registration.newest
            case AddressBook():
                self.addresses = order.addresses
                self._members = order.members
                if self.timeline is not None:
                    self.timeline.reach_peers(order.addresses, order.members)
            case RestoreState() | Resume():
                self._registration.newest = order.newest or self._registration.newest
                self._restore(order)
            case HandOver() | Relieve():
                self.hand_over.handle(order)
            case Reset():
                self._reset()
            case Dismiss() if order.sinks:
                self._output_release.begin(order)
            case Dismiss():
                logger.info("process %s has left", self.name)
                self.end(0)
            case Stop():
                logger.info("process %s stops: %s", self.name, order.reason)
                self.problem = order.reason if order.code else None
                self.end(order.code)
            case _:
                self._apply(order)

    def _welcomed(self, welcome: Welcome) -> None:
        if not self._registration.accept(welcome):
            self._link.reconnect()  # to find the leader
            return
        self.system = welcome.system
        self.settings = welcome.settings
        self._current = welcome.epoch
        self._link.unanswered_max = math.ceil(welcome.silence_s / welcome.settings.heartbeat_s)
        self._store = canonical_url(self._store_given or welcome.store)
        self.writer.keep_in(self._store, self.system)
        self.hand_over.welcomed()

    def _refused(self, refused: Refused) -> None:
        if refused.final:
            self.problem = f"the coordinator refuses process {self.name}: {refused.reason}"
            logger.error("%s", self.problem)
            self.end(1)
        else:
            self._registration.refused(refused.reason)

    def _apply(self, order: Any) -> None:
        timeline = self.timeline
        if self._restoring is not None:
            self._held.append(order)
        elif timeline is None:
            self._join(order)
        else:
            timeline.apply(order)

    # Timelines

    def _restore(self, order: RestoreState | Resume) -> None:
        """End the current timeline, and begin that of a later epoch."""
        if order.epoch > self.epoch:
            self._end_timeline()
            self.epoch = order.epoch
            self._restoring = asyncio.get_running_loop().create_task(self._begin(order))
        elif self.timeline is not None and isinstance(order, RestoreState):
            self.timeline.apply(InstallView(self.name, order.view))  # a repeated order: report again

    def _end_timeline(self) -> None:
        self._output_release.cancel()
        self.hand_over.cancel()
        if self._restoring is not None:
            self._restoring.cancel()
            self._restoring = None
        for timeline in (self.timeline, self._making):
            if timeline is not None:
                timeline.close()
        self.timeline = self._making = None
        self._held.clear()

    async def _begin(self, order: BeginOrder) -> None:
        self._registration.belongs_to = self.system
        try:
            restored = await self._origins.load(order, self._registration.instance)
            # The previous timeline held buffers in reference cycles, too few for a garbage collection soon.
            await self.parts.collect_garbage()
            origin = restored.origin if restored is not None else "its beginning"
            logger.info("process %s begins epoch %d from %s", self.name, self.epoch, origin)
            view = begins_in(order, restored)
            # A joining process has no channels yet: it joins with the next view.
            tracer = self._open_tracer(restored, 0 if view.processes else view.number + 1)
            self._making = timeline = Timeline(self, self.epoch, view, restored, tracer)
            await self._open_outside(timeline, restored)
            await self.application.wait_idle()
        except HandOverUnusable as error:  # wait for the rollback
            logger.warning("%s", error)
            self.send(CannotResume(self.name, error.name, error.problem))
            # A coordinator that has not ordered this believes that the process has its state. So register again,
            # without state, and read no more orders for a process with state.
            self._restoring = None
            self._register_anew()
            return
        except RAISED as error:  # the state could not be loaded: report why, and end
            if not is_failure(error, awaited=True):
                raise
            self._cannot_begin(error, order)
            return
        try:
            self._start_timeline(timeline, restored, order)
        except RAISED as error:  # the process failed to begin from this state
            self._cannot_begin(error, order)

    async def _open_outside(self, timeline: Timeline, restored: Origin) -> None:
        """Set sources and sinks to the positions of the restored state. Their refusal is final: no retry (E9)."""
        open_outside = partial(timeline.external_io.open, self.epoch, restored)
        try:
            await self.retry.until_done(lambda: self.writer.run(open_outside))
        except UsageError as error:
            if restored is None:
                raise
            raise Unrestorable(restored.name, str(error)) from error

    def _cannot_begin(self, error: BaseException, order: BeginOrder) -> None:
        # Another program may fit a hand-over, so that alone does not stop everything.
        if isinstance(error, Unrestorable) and not isinstance(order, Resume):
            self.send(CannotRestore(self.name, self.epoch, text_of(error)))
        self._end_timeline()  # it has sent nothing yet, and sends nothing now
        self.fail(error, 0 if isinstance(order, Resume) else self.epoch)

    def _start_timeline(self, timeline: Timeline, restored: Origin, order: BeginOrder) -> None:
        self.timeline, self._making = timeline, None
        self._restoring = None
        timeline.reach_peers(self.addresses, self._members)  # addresses may have arrived meanwhile
        if isinstance(order, InstallView):
            timeline.dispatch(SnapshotsSettled(self._settled))
            timeline.apply(order)
        timeline.start(restored)
        held, self._held = self._held, []
        for order in held:
            self._dispatch(order)
        self.hand_over.begun()

    def _join(self, order: Any) -> None:
        """Begin with the first view that contains this process."""
        if isinstance(order, ReportSettled):
            self._settled = order.counter
        elif isinstance(order, InstallView) and self.name in order.view.processes:
            self.epoch = self._current
            self._restoring = asyncio.get_running_loop().create_task(self._begin(order))

    def _reset(self) -> None:
        """The system was rolled back to before this process joined: join again, unless it has left since."""
        if self._output_release.under_way:
            self._output_release.report()  # so that the coordinator dismisses it
            return
        self._register_anew()

    def _register_anew(self) -> None:
        """Register again, as another instance and without state."""
        self._end_timeline()
        self.epoch = 0
        self._registration.renew()
        self._link.reconnect()

    @property
    def takes_orders(self) -> bool:
        """Whether its process runs or is being restored, and the coordinator can be reached."""
        return self._link.connected and (self.timeline is not None or self._restoring is not None)

    # For the timeline

    def make_run_directory(self, name: str) -> Path:
        """Create and return a directory in the store's run directory; StoreError while the store is unreachable."""
        return make_run_directory(self._store, self.system, name)

    def _open_tracer(self, restored: Origin, joined: int) -> Tracer | None:
        if self.settings.trace == "off":
            return None
        make = partial(self.make_run_directory, "trace")
        begun = restored.fragment if isinstance(restored, Restored) else None
        trace = run_directory(self._store) / "trace"
        return open_tracer(self.name, self.epoch, self.settings, trace, make, begun, joined)

    def sign(self, snapshot: str, view: View, record: ProcessRecord) -> ProcessRecord:
        return self._sign(snapshot, view, self.name, record) if self._sign is not None else record

    async def _send_heartbeats(self) -> None:
        try:
            while True:
                await asyncio.sleep(self.settings.heartbeat_s)
                self._link.send_heartbeat(measure(self))
        except Exception as error:  # noqa: BLE001 -- without heartbeats the node would count as failed anyway
            self.fail(error)
