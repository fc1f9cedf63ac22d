"""A node's side of planned restarts: it hands over when ordered, and loads what its predecessor has handed over (E11).

    RestartWanted ──► HandOver ──► stop between two events ──► make output durable ──► write ──► HandedOver ──► Relieve
                                        └── from here on, only a rollback lets this process run again

The report is repeated on each new connection, until the coordinator relieves this node. A successor claims the
hand-over only when it fits its program, so a program that does not fit can be replaced by one that does.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from strobe.errors import StoreCorrupt, StoreError
from strobe.protocol import Endpoint
from strobe.protocol.coordinator.messages import InstallView
from strobe.protocol.coordinator.restart_messages import (
    CannotHandOver,
    HandedOver,
    HandOver,
    HandOverRef,
    Relieve,
    RestartWanted,
)
from strobe.protocol.process.endpoint_state import hand_over_obstacle
from strobe.runtime.links.message_decoding import Decode
from strobe.runtime.restarts.document import (
    HandOverDocument,
    HandOverUnusable,
    ResumedProcess,
    check_document,
    fit_document,
    pack_document,
    unpack_document,
)
from strobe.runtime.retry import RetryLoop
from strobe.storage import Store
from strobe.storage.store.hand_overs import claim_hand_over, read_hand_over, remove_used, write_hand_over
from strobe.user_code import RAISED, is_failure

REQUEST_S_MAX = 10.0
"""How long a node that is to end waits for the order to hand over; after that it ends without."""

logger = logging.getLogger("strobe.node")

Result = TypeVar("Result")


class Output(Protocol):
    """What this uses of the sources and sinks of a timeline."""

    def cannot_resume(self) -> str: ...
    async def prepare(self, positions: dict[str, int]) -> None: ...


class Events(Protocol):
    """What this uses of the events of a timeline."""

    def run_between(self, action: Callable[[], None]) -> None: ...
    def attempt(self, action: Callable[[], None]) -> None: ...


class Program(Protocol):
    """What this uses of the application."""

    def stop(self, then: Callable[[], None]) -> None: ...


class RestartingTimeline(Protocol):
    """What this uses of a timeline."""

    epoch: int

    @property
    def protocol(self) -> Endpoint: ...
    @property
    def external_io(self) -> Output: ...
    @property
    def scheduler(self) -> Events: ...
    @property
    def application(self) -> Program: ...
    @property
    def tracer(self) -> object | None: ...

    def apply(self, order: msgspec.Struct) -> None: ...
    def hand_over(self) -> tuple[HandOverDocument, list[bytes]]: ...


class StoreAccess(Protocol):
    """What this uses of the writer thread."""

    async def with_store(self, work: Callable[[Store], Result]) -> Result: ...


class RestartingHost(Protocol):
    """What this uses of its host."""

    name: str

    @property
    def timeline(self) -> RestartingTimeline | None: ...
    @property
    def takes_orders(self) -> bool: ...
    @property
    def writer(self) -> StoreAccess: ...

    def send(self, message: msgspec.Struct) -> None: ...
    def fail(self, error: BaseException) -> None: ...
    def end(self, code: int) -> None: ...


class HandingOver:
    """Hands over the process of `host`, at most once in an epoch."""

    def __init__(self, host: RestartingHost) -> None:
        self._host = host
        # Whether the successor goes on in its place.
        self.done = False
        self._requested = False
        self._timeline: RestartingTimeline | None = None
        self._task: asyncio.Task[None] | None = None
        self._ref: HandOverRef | None = None
        self._retry = RetryLoop(host.name, "hand over")
        self._waiting: asyncio.TimerHandle | None = None

    @property
    def stopped(self) -> bool:
        """Whether the process has stopped, to hand over."""
        return self._timeline is not None

    def request(self) -> None:
        """End the node: after it has handed over, or without if nobody orders that in time.

        A process that is being restored first begins: it may be a successor that has claimed a hand-over. A repeated
        request changes nothing: ending now would roll everybody back.
        """
        if self._requested:
            logger.warning("process %s ends when it has handed over; SIGKILL ends it at once", self._host.name)
        elif self._host.takes_orders:
            self._requested = True
            self._ask()
        else:
            self._host.end(0)

    def welcomed(self) -> None:
        """Repeat what the coordinator may not know."""
        if self._ref is not None:
            self._report()
        elif self._requested and not self.stopped:
            self._host.send(RestartWanted(self._host.name))

    def begun(self) -> None:
        """A timeline has begun. If the last one was to end, a rollback has come first, and has ended its restart."""
        if self._requested:
            self._ask()

    def handle(self, order: HandOver | Relieve) -> None:
        if isinstance(order, Relieve):
            if self._ref is not None and order.name == self._ref.name:
                self.done = True
                self._host.end(0)
        elif self._ref is not None:
            self._report()
        elif not self.stopped and (timeline := self._host.timeline) is not None:
            self._begin(timeline)

    def cancel(self) -> None:
        """The timeline has ended: its hand-over counts no more."""
        if self._task is not None:
            self._task.cancel()
        self._timeline = self._task = self._ref = None

    def _begin(self, timeline: RestartingTimeline) -> None:
        obstacle = _obstacle(timeline)
        if not obstacle:
            scheduler, stop = timeline.scheduler, partial(timeline.application.stop, partial(self._stop, timeline))
            scheduler.run_between(partial(scheduler.attempt, stop))
            return
        logger.warning("process %s cannot hand over: %s", self._host.name, obstacle)
        self._host.send(CannotHandOver(self._host.name, obstacle))
        timeline.apply(InstallView(self._host.name, timeline.protocol.view))  # report again that it runs
        if self._requested:
            self._give_up(obstacle)

    def _stop(self, timeline: RestartingTimeline) -> None:
        """The process is between two events."""
        if self._host.timeline is timeline and not self.stopped:
            self._timeline = timeline
            document, state = timeline.hand_over()
            self._task = asyncio.get_running_loop().create_task(self._store(timeline, document, state))

    async def _store(self, timeline: RestartingTimeline, document: HandOverDocument, state: list[bytes]) -> None:
        host, pieces = self._host, pack_document(document, state)

        def write(store: Store) -> HandOverRef:
            return write_hand_over(store.backend, host.name, document.epoch, pieces)

        try:
            await self._retry.until_done(lambda: timeline.external_io.prepare(document.sinks))
            self._ref = await self._retry.until_done(lambda: host.writer.with_store(write))
        except RAISED as error:  # without a hand-over, this is a crash
            if not is_failure(error, awaited=True):
                raise
            host.fail(error)
            return
        logger.info("process %s has handed over %s", host.name, self._ref.name)
        self._report()

    def _report(self) -> None:
        assert self._timeline is not None, "a hand-over comes from a timeline"
        assert self._ref is not None, "and is durable"
        self._host.send(HandedOver(self._host.name, self._timeline.epoch, self._ref))

    def _ask(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        self._host.send(RestartWanted(self._host.name))
        loop, why = asyncio.get_running_loop(), "the coordinator has not ordered it"
        self._waiting = loop.call_later(REQUEST_S_MAX, self._give_up, why)

    def _give_up(self, why: str) -> None:
        if not self.stopped:
            logger.warning("process %s ends without handing over: %s", self._host.name, why)
            self._host.end(0)


def _obstacle(timeline: RestartingTimeline) -> str:
    """Return why this process cannot hand over now; empty if it can."""
    if timeline.tracer is not None:
        return "it records a trace, which cannot be continued by another program (set node.trace to off)"
    sink = timeline.external_io.cannot_resume()
    if sink:
        return f"its sink {sink} has no `resume`"
    return hand_over_obstacle(timeline.protocol)


def load_hand_over(
    store: Store, ref: HandOverRef, process: str, epoch: int, protocol: str, instance: str, example: Any, decode: Decode
) -> ResumedProcess:
    """Read, check and claim a hand-over for this instance. HandOverUnusable: nobody can go on from it."""
    try:
        raw = read_hand_over(store.backend, ref)
    except StoreCorrupt as error:
        raise HandOverUnusable(ref.name, error.problem) from error
    document, data = unpack_document(ref, raw)
    expected = {"store": store.header.store, "process": process, "epoch": epoch, "protocol": protocol}
    check_document(ref.name, document, expected)
    resumed = fit_document(ref.name, document, data, example, decode)
    if not claim_hand_over(store.backend, ref, instance):
        raise HandOverUnusable(ref.name, "an earlier successor has used it, and has ended since")
    with suppress(StoreError):  # nobody else can use it any more
        remove_used(store.backend, ref)
    return resumed
