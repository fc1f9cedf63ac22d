"""The events of a log, their clocks read."""

import msgspec

from strobe.traces.clock_logs.parsing import ClockEvent

Clock = dict[str, int]


class Event(msgspec.Struct, frozen=True):
    """An event of a log, its clock read. `tick` is its number at its host, `total` how many events it knows of."""

    logged: ClockEvent
    clock: Clock
    tick: int
    total: int


ByHost = dict[str, dict[int, Event]]
"""The events of each host by their ticks."""


def counted_alone(event: Event, before: Event | None) -> Clock:
    """Return what an event counts that hears of nobody, where `before` comes right before it at its host.

    Most events are such, and two clocks are compared much quicker than gone through.
    """
    own = {event.logged.host: event.tick}
    return own if before is None else {**before.clock, **own}
