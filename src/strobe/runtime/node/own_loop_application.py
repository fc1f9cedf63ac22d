"""The application of a program with its own event loop: its requests for messages, and its event boundaries.

The program gets messages only when it requests them. From then until its next request it is in an event; a stretch of
`atomic` is an event too. Meanwhile cuts, orders, the end of its last event and rollbacks wait.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from strobe.declarations import Declaring, declare
from strobe.errors import TransportError, UsageError
from strobe.handlers import DECLARING, Shape, check_finished, check_function, check_methods
from strobe.process import Process, System
from strobe.protocol import Frame, LocalState
from strobe.runtime.links.message_decoding import decode_frame, unpack_frame
from strobe.runtime.node.application import Application
from strobe.runtime.node.fragment_writer import Captured
from strobe.runtime.node.scheduling import TimelinePort
from strobe.runtime.tracing.recorder import Tracer
from strobe.self_check import decoded_again
from strobe.storage.content.state_codec import decode_captured

CaptureFunction = Callable[[], Any]
RestoreFunction = Callable[[Any], object]
ChannelMessages = tuple[str, list[Any]]


class OwnLoopApplication(Application):
    """The state of a program with its own event loop.

    Each received message is an event. All sends until the next request belong to the last of these events. Each send
    outside an event is an event, and so is each stretch of `atomic`.
    """

    records_at_once = 1 << 30
    may_exit = True  # a signal may end it while any callback runs

    def __init__(
        self,
        name: str,
        system: System,
        capture: CaptureFunction,
        restore: RestoreFunction,
        declaring: Declaring | None = None,
    ) -> None:
        check_function(f"node {name}: `capture`", capture, Shape("capture"))
        check_function(f"node {name}: `restore`", restore, Shape("restore", ("state",)))
        if declaring is not None:
            check_methods(f"node {name}", declaring, DECLARING)
        self.name = name
        self.inputs: tuple[str, ...] = ()
        self.outputs: tuple[str, ...] = ()
        self.timeline: TimelinePort | None = None
        self.started = asyncio.Event()
        # Set while there is no timeline: during a rollback, or after the end.
        self.without_timeline = asyncio.Event()
        self.ended = False
        # Whether the program has left its `async with`, without an error.
        self.has_left = False
        self.problem: str | None = None
        # The number of snapshots requested by the current event.
        self.requested = 0
        self._decode = system.decoder.decode
        self._rules = system.message_rules
        self._declaring: Declaring = declaring or Process()
        self._capture = capture
        self._restore = restore
        self._initial: LocalState | None = None
        self._request: asyncio.Future[ChannelMessages] | None = None
        self._waiting = False
        self._departed: Callable[[], None] | None = None
        self._in_event = False
        # The number of open `atomic` stretches, and whether the current event ends with the last of them.
        self._stretches = 0
        self._ends_with_stretch = False
        # Counts event-loop iterations, but only those after a call of `_count_iteration`.
        self._iteration = 0
        self._counting = False
        self._quiet = asyncio.Event()
        self._quiet.set()

    def event(self) -> int:
        # Within one event-loop iteration nothing can leave the node, so it counts as one event for the bound.
        self._count_iteration()
        return self._iteration

    @property
    def ready(self) -> bool:
        # A frame may cause a cut, so no task gets one inside another task's stretch.
        return self._request is not None and not self._request.done() and not self._stretches

    @property
    def quiet(self) -> bool:
        return not self._in_event

    @property
    def leaving(self) -> bool:
        """Whether this is the last event."""
        return self._departed is not None

    async def wait_idle(self) -> None:
        await self._quiet.wait()

    def begin(self, timeline: TimelinePort, local: LocalState | None, state: Any) -> None:
        self.timeline = timeline
        self.without_timeline.clear()
        self.requested = 0
        self.position = local.position if local is not None else 0
        first = self._initial is None
        self._initial = self._initial or decoded_again(self.name, self._capture)[0]
        if local is not None:
            self._restore_state(state)
        elif not first:  # a restart from the beginning: reset the program, which keeps running
            self._restore_state(decode_captured(self._capture(), self._initial))
        self.started.set()

    def _restore_state(self, state: Any) -> None:
        check_finished(f"the `restore` of node {self.name}", self._restore(state))

    def end(self) -> None:
        self.timeline = None
        self.without_timeline.set()
        untaken = self._request is not None and self._request.done() and not self._waiting
        if self.leaving or untaken:
            # Drop the last event, and messages that were handed over but never taken.
            self._departed = None
            self._request = None if untaken else self._request
            self.end_event()

    def view_changed(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        self.inputs, self.outputs = inputs, outputs

    def unpack(self, channel: str, frame: Frame) -> list[Any]:
        return unpack_frame(self._decode, self.name, channel, frame)

    def deliver(
        self, channel: str, frame: Frame, consumed: int, messages: list[Any] | None = None, may_pause: bool = False
    ) -> None:
        messages = (messages or decode_frame(self._decode, self.name, channel, frame))[consumed:]
        if self._tracer is not None:
            self._tracer.received(channel, frame.first_ordinal + consumed, len(messages), self.position + 1, None)
        self.position += len(messages)
        self._hand_over((channel, messages))

    def take(self, source: str, records: list[Any]) -> None:
        for record in records:
            self._count(f"source {source}", record)
        self._hand_over((source, records))

    def _hand_over(self, delivery: ChannelMessages) -> None:
        assert self._request is not None, "a program gets messages only when it asks"
        self.begin_event()
        self._request.set_result(delivery)

    def leave(self, then: Callable[[], None]) -> None:
        """Let the program run its last event: requests return nothing more, and `depart` ends the event."""
        self._count("leave")
        self._departed = then
        self.begin_event()
        self._end_request()

    def stop(self, then: Callable[[], None]) -> None:
        """Let the program end, and call `then` when it has: its successor goes on. If it has ended, call it now."""
        if self.has_left:
            then()
        else:
            self.leave(then)

    @property
    def untaken(self) -> bool:
        """Whether messages count as received that the program has never taken: its request was cancelled."""
        return self._request is not None and not self._waiting and _has_result(self._request)

    def end_program(self) -> None:
        """The program has left its `async with`: the messages of its last frame count as received."""
        self.has_left = True
        self.end_event()

    def depart(self) -> bool:
        """End the last event; return whether there was one."""
        departed, self._departed = self._departed, None
        if departed is None or self.timeline is None:
            return False
        self.end_event()
        self.timeline.scheduler.attempt(departed)
        return True

    def capture(self) -> Captured:
        declared = declare(self.name, self._declaring, self._rules)
        return Captured(self._capture(), self.position, declared=declared)

    def example(self) -> Any:
        return self._capture()

    # Events

    @property
    def _tracer(self) -> Tracer | None:
        return self.timeline.tracer if self.timeline is not None else None

    def _count(self, name: str, record: Any = None) -> None:
        """Count a new event."""
        self.position += 1
        if self._tracer is not None:
            self._tracer.event(self.position, name, None, record)

    def count_own(self) -> None:
        """Count an action of the program as its own event, unless it is in an event."""
        if not self._in_event:
            self._count("own")
            self._end_sending()

    def begin_event(self) -> None:
        self._in_event = True
        self._quiet.clear()
        self._end_sending()

    def _end_sending(self) -> None:
        """Assign all sends so far to earlier events."""
        if self.timeline is not None:
            self.timeline.outbox.next_event()

    def end_event(self) -> None:
        """End the current event and continue pending work. Inside `atomic` it ends with the stretch."""
        if self._stretches:
            self._ends_with_stretch = True
        elif self._in_event:
            self._in_event = False
            self._quiet.set()
            if self.timeline is not None:
                self.timeline.scheduler.attempt(self.timeline.scheduler.pump)

    @property
    def in_atomic(self) -> bool:
        """Whether a stretch of `atomic` is open."""
        return self._stretches > 0

    def open_stretch(self) -> int:
        """Begin a stretch without cuts; return the argument for `close_stretch`."""
        if not self._stretches:
            self._ends_with_stretch = not self._in_event
        self.count_own()
        self.begin_event()
        self._stretches += 1
        self._count_iteration()
        return self._iteration

    def _count_iteration(self) -> None:
        """Count the next event-loop iteration."""
        if not self._counting:
            # Callbacks run in the order of scheduling, so a task suspended after this resumes after `_next_iteration`.
            self._counting = True
            asyncio.get_running_loop().call_soon(self._next_iteration)

    def _next_iteration(self) -> None:
        self._iteration += 1
        self._counting = False

    def close_stretch(self, iteration: int) -> bool:
        """End the stretch that began in `iteration`; return whether there was an await inside it."""
        self._stretches -= 1
        if not self._stretches and self._ends_with_stretch:
            self.end_event()
        return self._iteration != iteration

    async def next_delivery(self) -> ChannelMessages:
        """Wait for the next messages. A cancelled call loses no messages."""
        if self._stretches:
            raise UsageError(
                f"messages are requested from node {self.name} inside `atomic`; request them after the stretch, "
                "and await nothing inside one"
            )
        if self._waiting:
            raise UsageError(
                f"two tasks request messages from node {self.name} at once; request them in one task, and pass them on"
            )
        if self._request is None:
            self._begin_request()
        assert self._request is not None
        self._waiting = True
        try:
            delivery = await self._request
        except BaseException:
            # Keep a delivery that has just arrived for the next call, unless its epoch is over.
            if self.timeline is None or not _has_result(self._request):
                self._request = None
            raise
        finally:
            self._waiting = False
            if self.timeline is None and self._request is None:
                self.end_event()
        self._request = None
        return delivery

    def _begin_request(self) -> None:
        if not self.leaving:
            self.end_event()
        if self.ended or self.leaving:
            raise self._ending()
        self._request = asyncio.get_running_loop().create_future()
        if self.timeline is not None:
            self.timeline.scheduler.pump_soon()

    def finish(self, problem: str | None) -> None:
        """Wake all waiting tasks: the node has ended, with this `problem` if there was one."""
        self.problem = problem
        self.ended = True
        self.started.set()
        self._end_request()

    def require_running(self) -> None:
        """Raise TransportError if the node has ended."""
        if self.ended:
            raise TransportError(self.problem or f"node {self.name} has ended")

    def _end_request(self) -> None:
        if self._request is not None and not self._request.done():
            self._request.set_exception(self._ending())

    def _ending(self) -> Exception:
        return TransportError(self.problem) if self.problem is not None else StopAsyncIteration()


class AtomicStretch:
    """A stretch without cuts. A class, because a generator is slower and a program may open one per message."""

    __slots__ = ("_iteration", "_program")

    def __init__(self, program: OwnLoopApplication) -> None:
        self._program = program

    def __enter__(self) -> None:
        self._iteration = self._program.open_stretch()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Other tasks ran meanwhile, so no cut can separate their actions from those of this task.
        if self._program.close_stretch(self._iteration) and kind is None:
            raise UsageError(
                f"node {self._program.name}: something was awaited inside `atomic`, which must not be suspended; "
                "await before the stretch or after it"
            )


def _has_result(future: "asyncio.Future[ChannelMessages]") -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
