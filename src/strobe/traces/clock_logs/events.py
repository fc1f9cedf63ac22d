"""The events of a log with decoded clocks."""

import msgspec

from strobe.traces.clock_logs.parsing import ClockEvent

Clock = dict[str, int]


class Event(msgspec.Struct, frozen=True):
    """An event of a log with its decoded clock. `tick` is its number at its host, `total` the events it knows of."""

    logged: ClockEvent
    clock: Clock
    tick: int
    total: int


ByHost = dict[str, dict[int, Event]]
"""The events of each host by their ticks."""


def counted_alone(event: Event, before: Event | None) -> Clock:
    """Return the clock of an event that receives nothing new, if `before` is the previous event at its host.

    Most events are like that, and comparing two clocks is much faster than iterating over them.
    """
    own = {event.logged.host: event.tick}
    return own if before is None else {**before.clock, **own}
