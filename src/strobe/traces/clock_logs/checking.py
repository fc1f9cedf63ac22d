"""Checks that the clocks of a log are possible; names every line with an impossible one, once for each reason (D7).

A clock counts, for each host, the events that are in the causal past of its own event, itself included. So

1. a clock names its own host; the own counts of a host are 1, 2, 3, ..., each once;
2. it names no host without events, and counts no more events of a host than the host has;
3. it never counts less of any host than the previous clock of its own host;
4. it counts at least as much as every event that it knows of: knowing an event means knowing its past;
5. no event that it knows of knows of it: nothing is received before it is sent.

These are all the rules: by 4, a clock is exactly the merge of the previous clock and of the clocks that it newly knows
of. The order of the lines in a log does not matter. Most lines of most logs are sound, which is quick to check
(`soundness`). The others are checked against every rule in turn (`rules`). Lines whose own count is missing, 0 or a
duplicate are not checked: they are not events of their host, so it is unclear what they ought to know.
"""

from collections import Counter

import msgspec

from strobe.errors import UsageError
from strobe.traces.clock_logs.parsing import ByHost, Clock, ClockEvent, Event, Execution
from strobe.traces.clock_logs.rules import Rules
from strobe.traces.clock_logs.soundness import find_sound

_COUNT_MAX = 2**31 - 1

_decode = msgspec.json.Decoder(dict[str, int]).decode


class Impossible(msgspec.Struct, frozen=True, order=True):
    """A line of a log whose clock is impossible."""

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


def read_clocks(execution: Execution) -> tuple[list[Event], list[Impossible]]:
    """Return the events whose clocks can be read and name their own host, and the other lines."""
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
    """Return everything impossible about `events`, and the lines already in `wrong`, in the order of the log."""
    found = list(wrong)
    by_host: ByHost = {}
    for event in events:
        own = by_host.setdefault(event.logged.host, {})
        if event.tick in own:
            first = own[event.tick].logged.line
            problem = f"the clock of event {event.tick} comes twice, first in line {first}"
            found.append(Impossible(event.logged.line, event.logged.host, problem))
        else:
            own[event.tick] = event
    chains = [[own[tick] for tick in sorted(own)] for own in by_host.values()]
    sound = find_sound(by_host, chains)
    if len(sound) < len(events):
        rules = Rules(chains, Counter(each.host for each in wrong))
        for event in events:
            if id(event) not in sound and by_host[event.logged.host][event.tick] is event:
                found += [Impossible(event.logged.line, event.logged.host, each) for each in rules.broken_by(event)]
    return sorted(found)


def _read(logged: ClockEvent) -> tuple[str, Clock]:
    """Return the fault of a clock by itself, if any, and the clock without its zeros."""
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
        return "its own host is at 0; the first event of a host is 1", {}
    return "", {host: count for host, count in clock.items() if count}
