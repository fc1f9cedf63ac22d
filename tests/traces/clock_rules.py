"""The rules of vector clocks by brute force: every event compared with every other; and logs that break some rules."""

import json
import random

from tests.causality.small_lattices import random_trace

from strobe.traces.clock_logs import find_impossible, read_log, to_log

Clocks = list[tuple[str, dict[str, int]]]
"""The host and the clock of each event; the first is event 1."""

RULES = {
    "its own host": 1,
    "comes twice": 1,
    "no line": 1,
    "no events": 2,
    "and the last is": 2,
    "it goes back": 3,
    "which knew": 4,
    "received before it was sent": 5,
}
"""Words of the message for each rule."""


def log_of(events: Clocks) -> str:
    return "".join(f"event {n}\n{host} {json.dumps(clock)}\n" for n, (host, clock) in enumerate(events, 1))


def named_for(events: Clocks) -> set[tuple[int, int]]:
    """Return which events are reported for which rules."""
    (execution,) = read_log(log_of(events))
    return {
        (each.line // 2, rule)
        for each in find_impossible(execution)
        for words, rule in RULES.items()
        if words in each.problem
    }


def broken_rules(events: Clocks) -> set[tuple[int, int]]:
    """Return which events break which rules, as docs/trace.md defines them."""
    broken: set[tuple[int, int]] = set()
    first: dict[tuple[str, int], int] = {}
    unread: list[str] = []
    for number, (host, clock) in enumerate(events, 1):
        if not clock.get(host):
            unread.append(host)
        if not clock.get(host) or (host, clock[host]) in first:
            broken.add((number, 1))
        else:
            first[host, clock[host]] = number
    for (host, _), number in first.items():
        broken |= {(number, rule) for rule in _broken_by(host, events[number - 1][1], events, first, unread)}
    return broken


def _broken_by(
    host: str, clock: dict[str, int], events: Clocks, first: dict[tuple[str, int], int], unread: list[str]
) -> set[int]:
    broken: set[int] = set()
    ticks = {other: sorted(t for h, t in first if h == other) for other in {h for h, _ in first} | set(clock)}
    tick = clock[host]
    before = max((t for t in ticks[host] if t < tick), default=0)
    if before + 1 < tick and sum(t not in ticks[host] for t in range(1, tick)) > unread.count(host):
        broken.add(1)
    if any(n > max([*ticks[h], len(ticks[h]) + unread.count(h)]) for h, n in clock.items() if n):
        broken.add(2)
    was = events[first[host, before] - 1][1] if before else {}
    back = {h for h, n in was.items() if n > clock.get(h, 0)}
    if back:
        broken.add(3)
    for (other, known), number in first.items():
        if clock.get(other, 0) < known or (other == host and known >= tick):
            continue
        theirs = events[number - 1][1]
        reported_already = back if other == host else set()
        if any(n > clock.get(h, 0) for h, n in theirs.items() if h != host and h not in reported_already):
            broken.add(4)
        if theirs.get(host, 0) >= tick:
            broken.add(5)
    return broken


def clocks_of_some_run(seed: int, long: int = 16) -> Clocks:
    """Two to five hosts that often exchange messages."""
    lines = "".join(to_log(random_trace(seed, long=long))).splitlines()[1::2]
    return [(host, json.loads(clock)) for host, clock in (line.split(" ", 1) for line in lines)]


def change(events: Clocks, chosen: random.Random) -> None:
    """Change one to four counts: up, down, removed or random; also for hosts without a count and for unknown ones."""
    for _ in range(chosen.randint(1, 4)):
        _, clock = chosen.choice(events)
        part = chosen.choice([*clock, *clock, *(h for h, _ in events[:3]), "nobody"])
        way = chosen.choice(["up", "down", "away", "any"])
        if way == "away":
            clock.pop(part, None)
        else:
            now = clock.get(part, 0)
            clock[part] = max(0, {"up": now + 1, "down": now - 1, "any": chosen.randint(0, 5)}[way])
    if chosen.random() < 0.5:
        chosen.shuffle(events)
