"""Online termination detection for any process: `Detecting` wraps the process and counts its messages (G4).

    System({"a": Detecting(Worker(), root=True), "b": Detecting(Worker())}, channels, [Task, Signal])

When the computation that began at the root has ended at every process, `terminated(ctx)` of the root's process is
called, if it exists. A process counts as active while its `active()` returns true, and while it has a timer pending.
Each channel needs a channel back, for the signals: `b->a` for `a->b`, or as given in `back`. No process can leave: the
answers that it owes, or waits for, would never come.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from strobe.encodable import UNENCODABLE, listed, refusal
from strobe.errors import UsageError
from strobe.handlers import call, handler_finished
from strobe.keyed_state import KeyedState
from strobe.known_fields import decode_known
from strobe.migrations import version_of_type
from strobe.process import Context, Process, Waits, check_process, reverse_channel, takes_batches
from strobe.protocol.process.dijkstra_scholten import (
    AnnounceTermination,
    DetectionEvent,
    DijkstraScholten,
    Engagement,
    EventEnded,
    SendSignal,
    SignalReceived,
    WorkReceived,
    WorkSent,
)

__all__ = ["Detecting", "Signal"]


class Signal(msgspec.Struct, tag="strobe-signal"):
    """The answer to a message."""


class Detected(msgspec.Struct):
    """The state of a wrapped process, with the state of its detector."""

    state: msgspec.Raw
    engagement: Engagement
    timers: list[str]


class Detecting(Process):
    """A process under termination detection.

    `back` maps an incoming channel to the channel for its signals, if that is not the reverse one.
    """

    must_stay = "its termination is being detected, which would never end"

    def __init__(
        self,
        process: Process,
        root: bool = False,
        back: Mapping[str, str] | None = None,
        detector: type[DijkstraScholten] = DijkstraScholten,
    ) -> None:
        check_process(f"process under {type(self).__name__}", process)
        self.process = process
        self.detector = detector("", root)
        self.timers: list[str] = []
        self._back = dict(back or {})
        if takes_batches(process):  # then this process does too
            self.receive_many = self._receive  # type: ignore[method-assign]

    @property
    def terminated(self) -> bool:
        """Whether the root has detected termination."""
        return self.detector.state.terminated

    def start(self, ctx: Context) -> None:
        tracked = self._context_for(ctx)
        for channel in ctx.inputs:
            back = self._back_of(channel)
            if back not in ctx.outputs:
                raise UsageError(
                    f"process {ctx.name!r} has no channel {back!r} to signal back what comes on {channel!r}"
                )
        call(self.process, "start", tracked)
        self._end(tracked)

    def receive(self, ctx: Context, channel: str, message: Any) -> None:
        self._receive(ctx, channel, [message])

    def _receive(self, ctx: Context, channel: str, messages: list[Any]) -> None:
        """Receive the messages of one event, signals and others."""
        tracked = self._context_for(ctx)
        work = [message for message in messages if not isinstance(message, Signal)]
        for _ in range(len(messages) - len(work)):
            self._handle(tracked, SignalReceived(channel))
        for _ in work if channel in ctx.inputs else ():  # records of a source need no answer
            self._handle(tracked, WorkReceived(channel))
        if work and takes_batches(self.process):
            call(self.process, "receive_many", tracked, channel, work)
        elif work:
            call(self.process, "receive", tracked, channel, *work)
        self._end(tracked)

    def timer(self, ctx: Context, name: str) -> None:
        self.timers.remove(name)
        tracked = self._context_for(ctx)
        call(self.process, "timer", tracked, name)
        self._end(tracked)

    def leave(self, ctx: Context) -> None:
        raise UsageError(f"process {ctx.name!r} cannot leave: {self.must_stay}")

    def capture(self) -> Detected:
        state = self.process.capture()
        if state is None:
            raise UsageError(f"capture() of {type(self.process).__name__} returned None; return a struct or bytes")
        handler_finished(self.process, "capture", state)
        if isinstance(state, KeyedState):
            raise UsageError("a process with a KeyedState cannot be wrapped in Detecting; return a struct or bytes")
        kind: Any = type(state)
        if version_of_type(kind) != 1:
            raise UsageError(
                f"{kind.__name__} has migrations; a process with such a state cannot be wrapped in Detecting"
            )
        try:
            data = msgspec.msgpack.encode(state)
        except UNENCODABLE as error:
            raise refusal(f"what capture() of {type(self.process).__name__} returned", state, error) from error
        return Detected(msgspec.Raw(data), self.detector.state, self.timers)

    def restore(self, state: Detected) -> None:
        call(self.process, "restore", decode_known(state.state, type(self.process.capture())))
        self.detector.state, self.timers = state.engagement, state.timers

    def waits_for(self) -> Waits | None:
        return self.process.waits_for()

    def references(self) -> Iterable[str] | Mapping[str, Iterable[str]]:
        return self.process.references()

    def active(self) -> bool:
        return self.process.active()

    def _context_for(self, ctx: Context) -> "TrackedContext":
        self.detector.process = ctx.name
        return TrackedContext(self, ctx)

    def _end(self, tracked: "TrackedContext") -> None:
        self._handle(tracked, EventEnded(self.process.active() or bool(self.timers)))

    def _handle(self, tracked: "TrackedContext", event: DetectionEvent) -> None:
        for effect in self.detector.handle(event):
            match effect:
                case SendSignal():
                    tracked.context.send(self._back_of(effect.channel), Signal())
                case AnnounceTermination():
                    self._announce(tracked)

    def _announce(self, tracked: "TrackedContext") -> None:
        announce = getattr(self.process, "terminated", None)
        if announce is not None:
            announce(tracked)
            self._end(tracked)  # it may have begun another computation

    def _back_of(self, channel: str) -> str:
        return self._back.get(channel, reverse_channel(channel))


class TrackedContext(Context):
    """The context of a wrapped process: counts its messages and tracks its timers."""

    def __init__(self, detecting: Detecting, context: Context) -> None:
        self.context = context
        self._detecting = detecting
        self.name, self.inputs, self.outputs = context.name, context.inputs, context.outputs
        self.random = context.random

    def send(self, channel: str, message: Any) -> None:
        self.send_many(channel, [message])

    def send_many(self, channel: str, messages: Iterable[Any]) -> None:
        batch = listed(self.name, channel, messages)
        self.context.send_many(channel, batch)
        for _ in batch:  # only now: a refused message is not sent, and nothing answers it
            self._detecting.detector.handle(WorkSent())

    def set_timer(self, name: str, after_s: float) -> None:
        self.context.set_timer(name, after_s)
        if name not in self._detecting.timers:
            self._detecting.timers.append(name)

    def cancel_timer(self, name: str) -> None:
        self.context.cancel_timer(name)
        if name in self._detecting.timers:
            self._detecting.timers.remove(name)

    def now(self) -> float:
        return self.context.now()

    def emit(self, record: Any) -> None:
        self.context.emit(record)

    def snapshot(self) -> str:
        return self.context.snapshot()
