"""Whether the clocks of a log are possible; every line with one that is not is named, once for each reason (D7).

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
_NAMED_MAX = 3
_NAME_MAX = 100
_BROUGHT_BY_MAX = 4
"""As a rule an event hears from few others directly; where it hears from all, what they bring is not worth a look."""

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
    """An event of a log, its clock read. `tick` is its number at its host, `total` how many events it knows of."""

    logged: Logged
    clock: Clock
    tick: int
    total: int


def read_clocks(execution: Execution) -> tuple[list[Event], list[Impossible]]:
    """Return the events whose clocks can be read and name their own host, and the lines of the others."""
    events: list[Event] = []
    wrong: list[Impossible] = []
    for logged in execution.events:
        problem, clock = _read(logged)
        if problem:
            wrong.append(Impossible(logged.line, logged.host, problem))
        else:
            events.append(Event(logged, clock, clock[logged.host], sum(clock.values())))
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
            problem = f"the clock of event {event.tick} comes twice, first in line {first}"
            found.append(Impossible(event.logged.line, event.logged.host, problem))
        else:
            own[event.tick] = event
    rules = _Rules(by_host, {each.host for each in wrong})
    pairs: list[tuple[Event, Event | None]] = []
    for own in by_host.values():
        in_order = [own[tick] for tick in sorted(own)]
        pairs += zip(in_order, [None, *in_order], strict=False)
    # So that those that an event knows of were judged before it, where they can be.
    for event, before in sorted(pairs, key=lambda pair: pair[0].total):
        found += rules.broken_by(event, before)
    return sorted(found)


class _Rules:
    """Judges events one by one. Of hosts with lines that could not be read, nobody knows which events there are.

    An event is *sound* if nothing is impossible about it, nor about any that it knows of. Who counts at least what a
    sound one counts has all that it knows of brought along: that need not be looked at again, and most of it is such.
    """

    def __init__(self, by_host: Mapping[str, Mapping[int, Event]], unsure: set[str]) -> None:
        self._by_host = by_host
        self._unsure = unsure
        self._last = {host: max(own) for host, own in by_host.items()}
        self._sound: set[tuple[str, int]] = set()

    def broken_by(self, event: Event, before: Event | None) -> Iterator[Impossible]:
        """Yield what is impossible about `event`, where `before` comes right before it at its host."""
        known = before.clock if before is not None else {}
        host = event.logged.host
        problems = [*self._left_out(event, known.get(host, 0) + 1), *_gone_back(event, before)]
        news = [(other, n) for other, n in event.clock.items() if other != host and n > known.get(other, 0)]
        heard = [self._by_host[other][n] for other, n in news if n in self._by_host.get(other, ())]
        if len(heard) < len(news):
            problems += self._without_a_line(news)
        problems += [*_received_early(event, heard), *self._not_brought_along(event, heard)]
        past = [before, *heard] if before is not None else heard
        if not problems and len(heard) == len(news) and all(map(self._is_sound, past)):
            self._sound.add((host, event.tick))
        for problem in problems:
            yield Impossible(event.logged.line, host, problem)

    def _is_sound(self, event: Event) -> bool:
        return (event.logged.host, event.tick) in self._sound

    def _left_out(self, event: Event, expected: int) -> Iterator[str]:
        if event.tick != expected and event.logged.host not in self._unsure:
            missing = f"{expected} has" if event.tick == expected + 1 else f"{expected} to {event.tick - 1} have"
            yield f"it is event {event.tick} of its host, and {missing} no line"

    def _without_a_line(self, news: "list[tuple[str, int]]") -> Iterator[str]:
        """Look for hosts and events that are known of, and are not there."""
        surely = [(other, count) for other, count in news if other not in self._unsure]
        strangers = [_short(other) for other, _ in surely if other not in self._by_host]
        if strangers:
            hosts, have = ("host", "has") if len(strangers) == 1 else ("hosts", "have")
            yield f"it names the {hosts} {_some(strangers, ', ')}, which {have} no events"
        missing = [
            f"event {count} of {_short(other)}, and "
            + (f"the last is {self._last[other]}" if count > self._last[other] else "that has no line")
            for other, count in surely
            if other in self._by_host and count not in self._by_host[other]
        ]
        if missing:
            yield f"it knows of {_some(missing)}"

    def _not_brought_along(self, event: Event, heard: list[Event]) -> Iterator[str]:
        """Look for hosts of which `event` counts less than one that it knows of; each once, there may be many."""
        host, clock = event.logged.host, event.clock
        lacking: dict[str, Event] = {}
        along: set[str] = set()  # the hosts whose events others have brought along
        brought_by = 0
        for known in sorted(heard, key=lambda known: -known.total):
            if known.logged.host in along:
                continue
            here = [other for other, count in known.clock.items() if clock.get(other, 0) < count and other != host]
            for other in here:
                lacking.setdefault(other, known)
            if not here and brought_by < _BROUGHT_BY_MAX and self._is_sound(known):
                brought_by += 1
                along |= {one.logged.host for one in heard if known.clock.get(one.logged.host, 0) >= one.tick}
        if lacking:
            yield "it knows of " + _some([_lack(known, other, clock) for other, known in lacking.items()])


def _gone_back(event: Event, before: Event | None) -> Iterator[str]:
    if before is None:
        return
    back = [
        f"{_short(other)} was at {count} in line {before.logged.line}, and is at {event.clock.get(other, 0)} here"
        for other, count in before.clock.items()
        if event.clock.get(other, 0) < count
    ]
    if back:
        yield f"it goes back: {_some(back)}"


def _received_early(event: Event, heard: list[Event]) -> Iterator[str]:
    """Look for events that `event` knows of and that know of it."""
    host, tick = event.logged.host, event.tick
    early = [_which(known) for known in heard if known.clock.get(host, 0) >= tick]
    if early:
        verb = "knows" if len(early) == 1 else "know"
        yield f"received before it was sent: it knows of {_some(early, ', ')}, which {verb} of it"


def _lack(known: Event, other: str, clock: Clock) -> str:
    has = f"has {clock[other]}" if other in clock else "is missing"
    return f"{_which(known)}, which knew {known.clock[other]} of {_short(other)}; here {_short(other)} {has}"


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


def _which(event: Event) -> str:
    return f"event {event.tick} of {_short(event.logged.host)} (line {event.logged.line})"


def _short(host: str) -> str:
    return host if len(host) <= _NAME_MAX else f"{host[:_NAME_MAX]}..."


def _some(clauses: list[str], between: str = "; ") -> str:
    """Return the first few of many: with all of them, a log of many hosts would be told of in its square."""
    more = len(clauses) - _NAMED_MAX
    return between.join(clauses[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
