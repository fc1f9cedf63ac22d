"""What a process begins an epoch from: a snapshot (R1), the hand-over of its predecessor (E11), or nothing."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from strobe.process import System
from strobe.protocol import Endpoint, View
from strobe.protocol.coordinator.messages import InstallView, RestoreState
from strobe.protocol.coordinator.restart_messages import Resume
from strobe.protocol.process.endpoint_state import resumed_endpoint
from strobe.runtime.recovery.fragment_loader import Find, Restored, load_part, new_endpoint
from strobe.runtime.restarts.document import ResumedProcess
from strobe.runtime.restarts.handing_over import StoreAccess, load_hand_over
from strobe.runtime.retry import RetryLoop
from strobe.storage import Store

Origin = Restored | ResumedProcess | None
BeginOrder = RestoreState | InstallView | Resume

Result = TypeVar("Result")


class IdleProgram(Protocol):
    """What this uses of the application."""

    def example(self) -> Any: ...
    async def wait_idle(self) -> None: ...


class OriginLoader:
    """Loads the state of process `name`, in the thread of `writer`, with retries after transient failures.

    `find` reads the manifest of a snapshot.
    """

    def __init__(
        self, name: str, system: System, writer: StoreAccess, retry: RetryLoop, application: IdleProgram, find: Find
    ) -> None:
        self._name = name
        self._protocol = system.protocol
        self._decode = system.decode_recorded
        self._writer = writer
        self._retry = retry
        self._application = application
        self._find = find

    async def load(self, order: BeginOrder, instance: str) -> Origin:
        """Return what `order` names. `instance` is this run of the program, which claims a hand-over."""
        if isinstance(order, InstallView) or (isinstance(order, RestoreState) and order.restored is None):
            return None
        await self._application.wait_idle()
        example = self._application.example()
        if isinstance(order, Resume):
            return await self._with_store(lambda store: self._resume(store, order, instance, example))
        restored = await self._with_store(lambda store: self._restore(store, order, example))
        restored.fork = order.fork
        return restored

    async def _with_store(self, work: Callable[[Store], Result]) -> Result:
        return await self._retry.until_done(lambda: self._writer.with_store(work))

    def _restore(self, store: Store, order: RestoreState, example: Any) -> Restored:
        assert order.restored is not None, "otherwise there is nothing to load"
        commit, newest = order.commit, order.newest or order.commit
        return load_part(store, order.restored, commit, newest, self._name, example, self._decode, self._find)

    def _resume(self, store: Store, order: Resume, instance: str, example: Any) -> ResumedProcess:
        ref, epoch, protocol = order.hand_over, order.epoch, self._protocol
        return load_hand_over(store, ref, self._name, epoch, protocol, instance, example, self._decode)


def begins_in(order: BeginOrder, origin: Origin) -> View:
    """Return the view that a process begins in. A joining process begins before its first view, without channels."""
    if isinstance(origin, ResumedProcess):
        return origin.document.endpoint.view
    assert not isinstance(order, Resume), "its hand-over was loaded"
    return order.view if isinstance(order, RestoreState) else View(order.view.number - 1, (), ())


def endpoint_of(protocol: str, process: str, view: View, epoch: int, origin: Origin) -> Endpoint:
    """Return the endpoint that a process begins with."""
    if isinstance(origin, ResumedProcess):
        return resumed_endpoint(protocol, process, epoch, origin.document.endpoint)
    return new_endpoint(protocol, process, view, epoch, origin)
