"""Whether the clocks of a log are possible; every line with one that is not is named, with the reason (D7).

A clock counts, for each host, the events that are in the causal past of its own, itself included. So

1. a clock names its own host; the own counts of a host are 1, 2, 3, ..., each once;
2. it names no host that has no events, and counts no more events of a host than that has;
3. it never counts less of any host than the clock before it at its host;
4. it counts at least what the events counted that it knows of: who knows an event knows its past;
5. no event that it knows of knows of it: nothing is received before it is sent.

These are all the rules: by 4, a clock is exactly what the one before it and those that it newly knows of make.
In which order the lines of a log stand does not matter.
"""

from collections.abc import Iterator, Mapping

import msgspec

from strobe.errors import UsageError
from strobe.traces.clock_logs.parsing import Execution, Logged

_COUNT_MAX = 2**31 - 1

Clock = dict[str, int]
_decode = msgspec.json.Decoder(dict[str, int]).decode


class Impossible(msgspec.Struct, frozen=True, order=True):
    """A line of a log whose clock cannot be."""

    line: int
    host: str
    problem: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.host or '(no host)'}: {self.problem}"


class ClockLogInvalid(UsageError):
    """A log breaks the rules of vector clocks; `impossible` names every line that does."""

    def __init__(self, name: str, impossible: tuple[Impossible, ...]) -> None:
        super().__init__(name, impossible)
        self.name = name
        self.impossible = impossible

    def __str__(self) -> str:
        count = len(self.impossible)
        lines = [f"the clocks in {self.name} are impossible, {count} problem{'s' if count > 1 else ''}:"]
        return "\n".join([*lines, *(f"  {each}" for each in self.impossible)])


class Event(msgspec.Struct, frozen=True):
    """An event of a log, its clock read. `tick` is its number at its host."""

    logged: Logged
    clock: Clock
    tick: int


def read_clocks(execution: Execution) -> tuple[list[Event], list[Impossible]]:
    """Return the events whose clocks can be read and name their own host, and the lines of the others."""
    events: list[Event] = []
    wrong: list[Impossible] = []
    for logged in execution.events:
        problem, clock = _read(logged)
        if problem:
            wrong.append(Impossible(logged.line, logged.host, problem))
        else:
            events.append(Event(logged, clock, clock[logged.host]))
    return events, wrong


def find_impossible(execution: Execution) -> list[Impossible]:
    """Return every line whose clock is impossible, in the order of the log."""
    return check(*read_clocks(execution))


def check(events: list[Event], wrong: list[Impossible]) -> list[Impossible]:
    """Return what is impossible about `events`, added to what is `wrong` already, in the order of the log."""
    found = list(wrong)
    by_host: dict[str, dict[int, Event]] = {}
    for event in events:
        own = by_host.setdefault(event.logged.host, {})
        if event.tick in own:
            first = own[event.tick].logged.line
            found.append(_impossible(event, f"the clock of event {event.tick} comes twice, first in line {first}"))
        else:
            own[event.tick] = event
    rules = _Rules(by_host, {each.host for each in wrong})
    for own in by_host.values():
        before: Event | None = None
        for tick in sorted(own):
            found += rules.broken_by(own[tick], before)
            before = own[tick]
    return sorted(found)


class _Rules:
    """Judges events one by one. Of hosts with lines that could not be read, nobody knows which events there are."""

    def __init__(self, by_host: Mapping[str, Mapping[int, Event]], unsure: set[str]) -> None:
        self._by_host = by_host
        self._unsure = unsure
        self._last = {host: max(own) for host, own in by_host.items()}

    def broken_by(self, event: Event, before: Event | None) -> Iterator[Impossible]:
        """Yield what is impossible about `event`, where `before` comes right before it at its host."""
        host = event.logged.host
        known = before.clock if before is not None else {}
        expected = known.get(host, 0) + 1
        if event.tick != expected and host not in self._unsure:
            missing = f"{expected} has" if event.tick == expected + 1 else f"{expected} to {event.tick - 1} have"
            yield _impossible(event, f"it is event {event.tick} of its host, and {missing} no line")
        for other, count in known.items():
            if before is not None and event.clock.get(other, 0) < count:
                now, line = event.clock.get(other, 0), before.logged.line
                yield _impossible(event, f"it goes back: {other} was at {count} in line {line}, and is at {now} here")
        for other, count in event.clock.items():
            if other != host and count > known.get(other, 0):
                yield from self._news(event, other, count)

    def _news(self, event: Event, other: str, count: int) -> Iterator[Impossible]:
        """Look at what `event` knows of another host and the event before it did not."""
        own = self._by_host.get(other, {})
        if count in own:
            yield from _of_known(event, own[count])
        elif other in self._unsure:
            return
        elif not own:
            yield _impossible(event, f"it names the host {other}, which has no events")
        else:
            has = f"the last is {self._last[other]}" if count > self._last[other] else "that has no line"
            yield _impossible(event, f"it knows of event {count} of {other}, and {has}")


def _of_known(event: Event, known: Event) -> Iterator[Impossible]:
    """Look at an event that `event` knows of, and the event of its host before it did not."""
    host, line = event.logged.host, known.logged.line
    which = f"event {known.tick} of {known.logged.host} (line {line})"
    if known.clock.get(host, 0) >= event.tick:
        yield _impossible(event, f"received before it was sent: it knows of {which}, which knows of it")
    for other, count in known.clock.items():
        if other != host and event.clock.get(other, 0) < count:
            has = f"has {event.clock[other]}" if other in event.clock else "is missing"
            yield _impossible(event, f"it knows of {which}, which knew {count} of {other}; here {other} {has}")


def _read(logged: Logged) -> tuple[str, Clock]:
    """Return what is wrong with a clock by itself, or nothing, and the clock without its zeros."""
    try:
        clock = _decode(logged.clock)
    except msgspec.MsgspecError as error:
        try:
            clock = _decode(logged.clock.replace('\\"', '"'))  # as TLA+ prints it
        except (msgspec.MsgspecError, RecursionError):
            return f"the clock is not a JSON object of whole numbers: {error}: {logged.clock[:100]}", {}
    for host, count in clock.items():
        if not 0 <= count <= _COUNT_MAX:
            return f"the clock has {count} for {host}; counts are from 0 to {_COUNT_MAX}", {}
    if not logged.host:
        return "the event has no host", {}
    if logged.host not in clock:
        return f"its own host is missing from the clock {logged.clock[:100]}", {}
    if clock[logged.host] == 0:
        return "its own host stands at 0; the first event of a host is 1", {}
    return "", {host: count for host, count in clock.items() if count}


def _impossible(event: Event, problem: str) -> Impossible:
    return Impossible(event.logged.line, event.logged.host, problem)
