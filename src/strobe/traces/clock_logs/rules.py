"""The rules of vector clocks, each checked for every event that a clock knows of (D7).

A clock knows of an event if it counts that far. Rules 4 and 5 are about all events that it knows of. A clock that knows
an event knows all earlier events of that host. So it is enough to have the *peaks* of each host: the highest counts of
its events up to a given one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from strobe.traces.clock_logs.parsing import Clock, Event

_NAMED_MAX = 3
_NAME_MAX = 100
_T = TypeVar("_T")


class _Peaks(msgspec.Struct, frozen=True):
    """The highest counts of an event and the earlier ones at its host; `by` has the earlier ones that counted more."""

    event: Event
    clock: Clock
    by: dict[str, Event]

    def who_counted(self, host: str) -> Event:
        return self.by.get(host, self.event)


class Rules:
    """Checks events one by one. The chains are the events of each host in order.

    If a host has unreadable lines (`unread` counts them), it is unknown which events these are. Each may be a different
    event, so up to that many events may be missing from its chain.
    """

    def __init__(self, chains: Sequence[Sequence[Event]], unread: Mapping[str, int]) -> None:
        self._unread = unread
        self._ticks = {chain[0].logged.host: [event.tick for event in chain] for chain in chains}
        self._peaks = {chain[0].logged.host: list(_peaks(chain)) for chain in chains}

    def broken_by(self, event: Event) -> Iterator[str]:
        """Yield each rule that `event` breaks, once."""
        before = self._known(event.logged.host, event.tick - 1)
        yield from self._left_out(event, before)
        yield from self._without_events(event)
        back = _counted_less(event, before.event if before is not None else None)
        if back:
            assert before is not None
            yield f"it goes back: {_some(back, lambda other: _decrease(event, before.event, other))}"
        known = [self._known(host, count) for host, count in event.clock.items() if host != event.logged.host]
        others = [each for each in known if each is not None]
        yield from _received_early(event, others)
        yield from _lost_knowledge(event, before, back, others)

    def _known(self, host: str, count: int) -> _Peaks | None:
        """Return the peaks of the events of `host` that a clock with this `count` knows of."""
        place = bisect_right(self._ticks.get(host, ()), count)
        return self._peaks[host][place - 1] if place else None

    def _left_out(self, event: Event, before: _Peaks | None) -> Iterator[str]:
        host, expected = event.logged.host, before.event.tick + 1 if before is not None else 1
        missing_so_far = event.tick - 1 - bisect_left(self._ticks[host], event.tick)
        if event.tick > expected and missing_so_far > self._unread.get(host, 0):
            missing = f"{expected} has" if event.tick == expected + 1 else f"{expected} to {event.tick - 1} have"
            yield f"it is event {event.tick} of its host, and {missing} no line"

    def _without_events(self, event: Event) -> Iterator[str]:
        """Find hosts and events that `event` knows of but that do not exist."""
        last = {other: self._last(other) for other in event.clock}
        strangers = [other for other in event.clock if not last[other]]
        if strangers:
            hosts, have = ("host", "has") if len(strangers) == 1 else ("hosts", "have")
            yield f"it names the {hosts} {_some(strangers, _short, ', ')}, which {have} no events"
        missing = [other for other, count in event.clock.items() if 0 < last[other] < count]
        if missing:
            each = _some(missing, lambda it: f"event {event.clock[it]} of {_short(it)}, and the last is {last[it]}")
            yield f"it knows of {each}"

    def _last(self, host: str) -> int:
        """Return the highest tick that an event of `host` may have; 0 if it has none."""
        ticks, unread = self._ticks.get(host, []), self._unread.get(host, 0)
        return max(ticks[-1] if ticks else 0, len(ticks) + unread)


def _peaks(chain: Iterable[Event]) -> Iterator[_Peaks]:
    peaks: _Peaks | None = None
    for event in chain:
        more = _counted_less(event, peaks)
        if peaks is None or not more:
            peaks = _Peaks(event, event.clock, {})
        else:
            clock = {**event.clock, **{other: peaks.clock[other] for other in more}}
            peaks = _Peaks(event, clock, {other: peaks.who_counted(other) for other in more})
        yield peaks


def _counted_less(event: Event, before: Event | _Peaks | None) -> list[str]:
    """Return the hosts of which `event` counts less than `before`."""
    if before is None:
        return []
    return [other for other, count in before.clock.items() if event.clock.get(other, 0) < count]


def _received_early(event: Event, known: list[_Peaks]) -> Iterator[str]:
    """Find events that `event` knows of and that know of it."""
    host, tick = event.logged.host, event.tick
    early = [peaks.who_counted(host) for peaks in known if peaks.clock.get(host, 0) >= tick]
    if early:
        verb = "knows" if len(early) == 1 else "know"
        yield f"received before it was sent: it knows of {_some(early, _which, ', ')}, which {verb} of it"


def _lost_knowledge(event: Event, before: _Peaks | None, back: list[str], known: list[_Peaks]) -> Iterator[str]:
    """Find hosts of which `event` counts less than an event that it knows of; each once, as there may be many.

    Hosts in `back`, where it counts less than the previous event at its host, were reported already.
    """
    clock = event.clock
    lacking: dict[str, Event] = {}
    if before is not None:
        lacking |= {other: before.who_counted(other) for other in _counted_less(event, before) if other not in back}
    for peaks in known:
        for other in [other for other, count in peaks.clock.items() if clock.get(other, 0) < count]:
            if other != event.logged.host and other not in lacking:
                lacking[other] = peaks.who_counted(other)
    if lacking:
        yield f"it knows of {_some(list(lacking), lambda other: _lack(lacking[other], other, clock))}"


def _decrease(event: Event, before: Event, other: str) -> str:
    here = event.clock.get(other, 0)
    return f"{_short(other)} was at {before.clock[other]} in line {before.logged.line}, and is at {here} here"


def _lack(known: Event, other: str, clock: Clock) -> str:
    has = f"has {clock[other]}" if other in clock else "is missing"
    return f"{_which(known)}, which knew {known.clock[other]} of {_short(other)}; here {_short(other)} {has}"


def _which(event: Event) -> str:
    return f"event {event.tick} of {_short(event.logged.host)} (line {event.logged.line})"


def _short(host: str) -> str:
    return host if len(host) <= _NAME_MAX else f"{host[:_NAME_MAX]}..."


def _some(all_: Sequence[_T], describe: Callable[[_T], str], between: str = "; ") -> str:
    """Describe the first few of many: describing all would take quadratic space in a log of many hosts."""
    more = len(all_) - _NAMED_MAX
    return between.join(map(describe, all_[:_NAMED_MAX])) + (f" and {more} more" if more > 0 else "")
