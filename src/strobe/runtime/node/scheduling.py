"""Schedules the events of one process: at once, in the queue, or ahead of it, between two events.

Under back-pressure, or while the program is busy, events wait in the inbox, in order. Orders of the coordinator run
ahead of it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sized
from time import perf_counter
from typing import Any, Protocol

import msgspec

from strobe.event_bound import EventBound
from strobe.protocol.process.events import Breakpoint, MarkerReceived, ViewReceived
from strobe.runtime.node.inbox import Inbox, QueuedItem
from strobe.runtime.node.outbox import Outbox
from strobe.runtime.tracing.recorder import Tracer
from strobe.user_code import RAISED

ITEMS_MAX = 64
"""Maximum number of queued items handled per event-loop iteration."""
ITEMS_S_MAX = 0.005
"""Maximum time for queued items per event-loop iteration: markers, orders and snapshot writes wait for the next."""
TURN_S_MAX = 0.05
"""Maximum time for delivering frames as they are read, per event-loop iteration."""
STORING_TURN_S_MAX = 0.002
"""The same while this process has an open snapshot: storing it takes several iterations."""
BURST_MAX = 8
"""If barriers overtake: maximum number of frames per read that are delivered at once. The others are queued."""


class Readiness(Protocol):
    """What the scheduler uses of the application."""

    @property
    def ready(self) -> bool: ...

    @property
    def quiet(self) -> bool: ...


class BackPressure(Protocol):
    """What the scheduler uses of the outbox: whether a channel is full."""

    full: bool


class EventScheduler:
    """The event queue of one process in one epoch. `fail` is called with the error of an event.

    While `storing` is not empty, turns are short. `overtakes`: whether barriers overtake the frames that are queued.
    """

    def __init__(
        self,
        application: Readiness,
        outbox: BackPressure,
        storing: Sized,
        fail: Callable[[BaseException], None],
        overtakes: bool,
    ) -> None:
        self.inbox = Inbox()
        self.closed = False
        # Sinks above their maximum, and why. Until their output is durable, the process receives nothing.
        self.held_back: dict[str, str] = {}
        self._application = application
        self._outbox = outbox
        self._storing = storing
        self._fail = fail
        self._overtakes = overtakes
        self._burst = 0
        self._orders: deque[Callable[[], None]] = deque()
        self._pumping = False
        # The first delivery of the turn, and whether that was certainly in this event-loop iteration.
        self._turn_began_s = -TURN_S_MAX
        self._in_turn = False
        self._call_soon = asyncio.get_running_loop().call_soon

    def close(self) -> None:
        """Ignore everything from now on."""
        self.closed = True
        self.inbox.clear()

    @property
    def may_deliver(self) -> bool:
        """Whether the process may receive a message, a record or a timer now."""
        return self._application.ready and not self._outbox.full and not self.held_back

    def must_queue(self, channel: str) -> bool:
        """Return whether a frame of `channel` that has just been read must wait."""
        # Inlines `may_deliver`: this runs for every frame. Nor does it count the inbox if that has never had an item.
        inbox = self.inbox
        if (inbox.turns and inbox) or not self._application.ready or self._outbox.full or self.held_back:
            return True
        return self.closed or channel in inbox.held or self._turn_is_over()

    def may_read_on(self) -> bool:
        """Return whether to read more in this event-loop iteration, after a read."""
        if self._overtakes:
            self._burst = 0
            return True  # a barrier can overtake frames here, but not in the kernel
        return not ((self.inbox.turns and self.inbox) or self._turn_is_over())

    def _turn_is_over(self) -> bool:
        """Return whether handlers have used up their time in this event-loop iteration, or the frames of a read."""
        if self._overtakes:
            self._burst += 1
            if self._burst > BURST_MAX:
                return True
        now_s = perf_counter()
        if now_s - self._turn_began_s <= (STORING_TURN_S_MAX if self._storing else TURN_S_MAX) / 2:
            return False
        if self._in_turn:
            return True
        # Only now make sure that the turn ends with this iteration: a callback per message would cost another poll of
        # the sockets. A turn that began in an earlier iteration may precede this one, so each has half of the time.
        self._in_turn = True
        self._turn_began_s = now_s
        self._call_soon(self._end_turn)
        return False

    def _end_turn(self) -> None:
        self._in_turn = False

    def add(self, item: QueuedItem) -> None:
        """Queue `item`."""
        if not self.closed:
            self.inbox.append(item)

    def run_soon(self, event: Callable[[], None]) -> None:
        """Run an event of the process as soon as possible."""
        if self.inbox or not self.may_deliver:
            self.add(QueuedItem(True, event))
        elif not self.closed:
            self.attempt(event)

    def run_control(self, event: MarkerReceived | ViewReceived, dispatch: Callable[[], None]) -> None:
        """Run `dispatch` for `event`, the arrival of a marker or view, behind all earlier frames of its channel."""
        if self.inbox or not self._application.quiet or event.channel in self.inbox.held:
            self.add(QueuedItem(False, dispatch, event.channel, event=event))
        elif not self.closed:
            dispatch()

    def run_between(self, action: Callable[[], None]) -> None:
        """Run `action` as soon as the process is between two events, ahead of the inbox."""
        if self._application.quiet and not self._orders:
            action()
        else:
            self._orders.append(action)

    def attempt(self, action: Callable[[], None]) -> None:
        """Run a callback of the event loop; a failure ends the node."""
        try:
            action()
        except RAISED as error:  # in a handler or in our own code
            self._fail(error)

    def pump_soon(self) -> None:
        """Schedule `pump` for the next event-loop iteration, if something is queued."""
        if not self._pumping and (self.inbox or self._orders):
            self._pumping = True
            self._call_soon(self.attempt, self.pump)

    def pump(self) -> None:
        """Handle queued orders and items, as far as possible now."""
        self._pumping = False
        while self._orders and self._application.quiet and not self.closed:
            self._orders.popleft()()
        inbox, until_s = self.inbox, perf_counter() + (STORING_TURN_S_MAX if self._storing else ITEMS_S_MAX)
        for _ in range(ITEMS_MAX):
            waiting = inbox.next() if not self.closed else None
            if waiting is None or not (self.may_deliver if waiting.needs_room else self._application.quiet):
                return
            inbox.take().action()
            if perf_counter() > until_s:
                break
        self.pump_soon()


class TimelinePort(msgspec.Struct, frozen=True):
    """What an application uses of its timeline. `emit` writes a record to the sinks."""

    system: str
    scheduler: EventScheduler
    outbox: Outbox
    bound: EventBound
    tracer: Tracer | None
    emit: Callable[[Any], None]
    name_snapshot: Callable[[int, int], str]
    initiate: Callable[[str, Breakpoint | None], None]
