"""The `Application` interface of a host, and `ProcessApplication`, which runs a user's `Process`.

Handlers run one at a time, to completion. A message counts as received when its handler has returned. A cut falls
between two handler runs. With `receive_many`, the messages of a frame are one event.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from operator import length_hint
from time import perf_counter
from typing import Any

import msgspec

from strobe.declarations import MessageRule, declare
from strobe.errors import UsageError
from strobe.event_bound import REQUEST_BYTES, TIMER_BYTES
from strobe.handlers import call, handler_finished
from strobe.process import Context, Process, Random, takes_batches
from strobe.protocol import Frame, LocalState
from strobe.protocol.process.events import Breakpoint
from strobe.runtime.links.message_decoding import Decode, decode_frame, unpack_frame
from strobe.runtime.node.fragment_writer import Captured
from strobe.runtime.node.scheduling import TimelinePort
from strobe.runtime.recovery.initial_process import InitialProcess

SLICE_S = 0.02
"""Target time for handlers per event-loop iteration. Heartbeats, orders and snapshot writes wait for the next one."""
_LOOK_AFTER_MAX = 32  # maximum number of messages between two looks at the clock


class Application(ABC):
    """A stateful program that takes messages. `position` counts its events.

    It reports its events to the trace recorder, if there is one. It takes up to `records_at_once` records of a source
    per call. If `may_exit`, SystemExit is a normal end; otherwise it is a failure.
    """

    position: int = 0
    records_at_once: int = 1
    may_exit: bool = False

    def event(self) -> int:
        """Return an id of the current event, for the bound on the output of one event."""
        return self.position

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether it can take a message now."""

    @property
    @abstractmethod
    def quiet(self) -> bool:
        """Whether it is between two events, so that a cut may be taken."""

    @abstractmethod
    async def wait_idle(self) -> None:
        """Wait for the end of the current event."""

    @abstractmethod
    def example(self) -> Any:
        """Return an example of a captured state; a restored state is decoded as its type."""

    @abstractmethod
    def begin(self, timeline: TimelinePort, local: LocalState | None, state: Any) -> None:
        """Begin on `timeline`, from scratch or from a restored state."""

    @abstractmethod
    def end(self) -> None:
        """End the timeline: cancel everything pending."""

    @abstractmethod
    def unpack(self, channel: str, frame: Frame) -> list[Any]:
        """Return the messages of a frame from the wire; raise FrameRejected if it is garbage."""

    @abstractmethod
    def deliver(
        self, channel: str, frame: Frame, consumed: int, messages: list[Any] | None = None, may_pause: bool = False
    ) -> None:
        """Take the messages of `frame` except the first `consumed`; `messages` are all of them, if already unpacked.

        If it `may_pause`, a long delivery yields to the event loop; it is not `quiet` until all messages are taken.
        """

    @abstractmethod
    def take(self, source: str, records: list[Any]) -> None:
        """Take records of a source."""

    @abstractmethod
    def leave(self, then: Callable[[], None]) -> None:
        """Run the last event, then call `then`."""

    def stop(self, then: Callable[[], None]) -> None:
        """Call `then` between two events; no event follows. The process hands over to its successor."""
        then()

    @abstractmethod
    def capture(self) -> Captured:
        """Return the current state."""

    def random_state(self) -> int | None:
        """Return the state of the random generator, if there is one."""
        return None

    @abstractmethod
    def view_changed(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        """Set the channels of the process."""


class LiveContext(Context):
    """The `Context` of a live process. Its `send` is that of the outbox: an extra call per message would be slow."""

    __slots__ = ("send", "send_many")

    random: Random
    send: Callable[..., None]
    send_many: Callable[..., None]

    def __init__(self, application: "ProcessApplication", name: str) -> None:
        self._application = application
        self.name = name
        self.inputs = ()
        self.outputs = ()
        self.random = Random(0)
        self.requested: list[str] = []
        self.at_s: float | None = None

    def set_timer(self, name: str, after_s: float) -> None:
        self._application.timeline.outbox.require_event(f"sets the timer {name!r}")
        self._application.set_timer(name, after_s)

    def cancel_timer(self, name: str) -> None:
        self._application.timeline.outbox.require_event(f"cancels the timer {name!r}")
        self._application.cancel_timer(name)

    def now(self) -> float:
        if self.at_s is None:
            self.at_s = time.time()
        return self.at_s

    def emit(self, record: Any) -> None:
        self._application.timeline.outbox.require_event("emits a record")
        self._application.timeline.emit(record)

    def snapshot(self) -> str:
        application = self._application
        application.timeline.outbox.require_event("requests a snapshot")
        application.timeline.bound.spend(REQUEST_BYTES)
        requested = application.timeline.name_snapshot(application.position, len(self.requested))
        self.requested.append(requested)
        return requested


class Delivery(msgspec.Struct):
    """A frame whose messages are being handed over; `left` are the remaining ones."""

    channel: str
    left: Iterator[Any]
    # The number of messages in the frame, and the position of the process before its first message.
    count: int
    before: int
    may_pause: bool


class ProcessApplication(Application):
    """Runs the handlers of a user's process. An exception in a handler ends the node, and its state is lost."""

    def __init__(
        self,
        name: str,
        process: Process,
        decode: Decode,
        rules: tuple[MessageRule, ...] = (),
    ) -> None:
        self.name = name
        self.process = process
        self.decode = decode
        self._initial = InitialProcess(name, process)
        self._rules = rules
        self._used = False
        self._takes_batches = False
        self.context = LiveContext(self, name)
        self.timers: dict[str, tuple[asyncio.TimerHandle | None, float]] = {}
        self.timeline: TimelinePort
        self._paused: Delivery | None = None
        self._last = 0
        self._left: Iterator[Any] = iter(())

    @property
    def position(self) -> int:
        """The number of events, including the current one."""
        # Computed on demand from the remaining messages: counting each message would be slower.
        return self._last - length_hint(self._left)

    @position.setter
    def position(self, position: int) -> None:
        self._last, self._left = position, iter(())

    # Handlers run to completion, so callers see it between two events. But no cut is taken inside a paused frame.
    @property
    def ready(self) -> bool:
        return self._paused is None

    quiet = ready

    async def wait_idle(self) -> None:
        pass  # called after the end of its timeline: no handler is running then

    def begin(self, timeline: TimelinePort, local: LocalState | None, state: Any) -> None:
        self.timeline = timeline
        context = self.context
        context.send, context.send_many = timeline.outbox.send, timeline.outbox.send_many
        self._takes_batches = takes_batches(self.process)
        timeline.outbox.end_event()
        context.requested.clear()
        context.at_s = None
        used, self._used = self._used, True
        if local is None:
            if used:
                self.process = self._initial.reset(self.process)  # reset to its initial state
            self.position = 0
            context.random = Random(f"{timeline.system}/{self.name}")
            self._run("start", "start")
            return
        self.position = local.position
        context.random = Random(local.random or 0)
        call(self.process, "restore", state)
        for name, left_s in local.timers:
            self.set_timer(name, left_s)

    def end(self) -> None:
        self._paused = None
        for handle, _ in self.timers.values():
            if handle is not None:
                handle.cancel()
        self.timers.clear()

    def view_changed(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        self.context.inputs, self.context.outputs = inputs, outputs

    def random_state(self) -> int | None:
        return self.context.random.state

    # Events

    def unpack(self, channel: str, frame: Frame) -> list[Any]:
        return unpack_frame(self.decode, self.name, channel, frame)

    def deliver(
        self, channel: str, frame: Frame, consumed: int, messages: list[Any] | None = None, may_pause: bool = False
    ) -> None:
        if messages is None:
            messages = decode_frame(self.decode, self.name, channel, frame)
        if consumed:
            del messages[:consumed]
        first_ordinal = frame.first_ordinal + consumed
        if self._takes_batches or len(messages) == 1:
            self._deliver_event(channel, first_ordinal, messages)
            return
        before, context, tracer = self.position, self.context, self.timeline.tracer
        context.at_s = None
        if tracer is not None:
            tracer.received(channel, first_ordinal, len(messages), before + 1, context.now())
        self._last, self._left = before + len(messages), iter(messages)
        self._hand_over(Delivery(channel, self._left, frame.count, before - consumed, may_pause))

    def _deliver_event(self, channel: str, first_ordinal: int, messages: list[Any]) -> None:
        """Receive `messages` in one event: a single message, or all those of a frame by `receive_many`."""
        self._last = position = self._last + 1
        context, tracer = self.context, self.timeline.tracer
        context.at_s = None
        if tracer is not None:
            tracer.received(channel, first_ordinal, len(messages), position, context.now(), one_event=True)
        handler, received = ("receive_many", messages) if self._takes_batches else ("receive", messages[0])
        self._run_handler(handler, channel, received)

    def _hand_over(self, delivery: Delivery) -> None:
        """Run the handler for each remaining message, until the end or until it must yield to the event loop."""
        channel, left = delivery.channel, delivery.left
        context, outbox = self.context, self.timeline.outbox
        receive: Callable[..., object] = self.process.receive
        requested = context.requested
        touched = outbox.touched  # always empty without a trace
        until_s, some = perf_counter() + SLICE_S, 1
        outbox.begin_event()
        while True:
            for message in islice(left, some):
                if (returned := receive(context, channel, message)) is not None:
                    handler_finished(self.process, "receive", returned)
                if touched:
                    outbox.next_event()
                if requested:
                    place = self.position - delivery.before
                    self._initiate(Breakpoint(channel, place) if place < delivery.count else None)
            if not length_hint(left):
                outbox.end_event()
                return
            if delivery.may_pause and perf_counter() > until_s:
                break
            some = min(2 * some, _LOOK_AFTER_MAX)
        outbox.end_event()
        self._paused = delivery
        asyncio.get_running_loop().call_soon(self.timeline.scheduler.attempt, partial(self._go_on, delivery))

    def _go_on(self, delivery: Delivery) -> None:
        if self._paused is delivery:  # else that timeline has ended
            self._paused = None
            self._hand_over(delivery)
            if self._paused is None:
                self.timeline.scheduler.pump()

    def take(self, source: str, records: list[Any]) -> None:
        (record,) = records
        handler, received = ("receive_many", records) if self._takes_batches else ("receive", record)
        self._run(f"source {source}", handler, source, received, record=record)

    def leave(self, then: Callable[[], None]) -> None:
        self._run("leave", "leave")
        self.end()
        then()

    def _run(self, name: str, handler: str, *arguments: Any, record: Any = None) -> None:
        """Run an event that no message caused."""
        self.position += 1
        self.context.at_s = None
        tracer = self.timeline.tracer
        if tracer is not None:
            tracer.event(self.position, name, self.context.now(), record)
        self._run_handler(handler, *arguments)

    def _run_handler(self, handler: str, *arguments: Any) -> None:
        """Run a handler whose event has been counted and noted."""
        outbox = self.timeline.outbox
        outbox.begin_event()
        if (returned := getattr(self.process, handler)(self.context, *arguments)) is not None:
            handler_finished(self.process, handler, returned)
        outbox.end_event()
        if outbox.touched:
            outbox.next_event()
        if self.context.requested:
            self._initiate(None)

    def _initiate(self, inside: Breakpoint | None) -> None:
        requested = list(self.context.requested)
        self.context.requested.clear()
        for snapshot in requested:
            self.timeline.initiate(snapshot, inside)

    # Timers

    def set_timer(self, name: str, after_s: float) -> None:
        if not after_s >= 0:
            raise UsageError(f"process {self.name!r} sets the timer {name!r} after {after_s} s; it must be 0 or more")
        self.timeline.bound.spend(TIMER_BYTES + len(name))
        self.cancel_timer(name)
        loop = asyncio.get_running_loop()
        handle = loop.call_later(after_s, self._due, name)
        self.timers[name] = (handle, loop.time() + after_s)

    def cancel_timer(self, name: str) -> None:
        handle, _ = self.timers.pop(name, (None, 0.0))
        if handle is not None:
            handle.cancel()

    def _due(self, name: str) -> None:
        # The timer stays pending until it runs: back-pressure may delay it, and a cut may be taken before it.
        handle, _ = self.timers[name]
        self.timeline.scheduler.run_soon(lambda: self._fire(name, handle))

    def _fire(self, name: str, handle: asyncio.TimerHandle | None) -> None:
        pending = self.timers.get(name)
        if pending is None or pending[0] is not handle:
            return  # set again or cancelled while it waited
        del self.timers[name]
        self._run(f"timer {name}", "timer", name)

    def example(self) -> Any:
        return self.process.capture()

    def capture(self) -> Captured:
        now = asyncio.get_running_loop().time()
        timers = tuple((name, max(0.0, due - now)) for name, (_, due) in self.timers.items())
        declared = declare(self.name, self.process, self._rules)
        return Captured(self.process.capture(), self.position, timers, self.context.random.state, declared)
