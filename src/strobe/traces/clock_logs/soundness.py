"""Finds the sound events of a log: nothing is impossible about them, nor about any event that they know of.

This is faster than finding the faults of the others. An event that counts at least as much as a sound event also counts
everything which that one knows of, so most of the past need not be checked again.
"""

from collections.abc import Iterable

from strobe.traces.clock_logs.parsing import ByHost, Event, counted_alone

_BROUGHT_BY_MAX = 4
"""Usually an event receives from few others directly. If it receives from many, more checks do not pay."""


def find_sound(by_host: ByHost, chains: Iterable[list[Event]]) -> set[int]:
    """Return the ids of the sound events. The chains are the events of each host in order."""
    pairs: list[tuple[Event, Event | None]] = []
    for chain in chains:
        pairs += zip(chain, [None, *chain], strict=False)
    sound: set[int] = set()
    # In this order the events that an event knows of are judged before it; if that is impossible, it is not sound.
    for event, before in sorted(pairs, key=lambda pair: pair[0].total):
        if _is_sound(event, before, by_host, sound):
            sound.add(id(event))
    return sound


def _is_sound(event: Event, before: Event | None, by_host: ByHost, sound: set[int]) -> bool:
    clock = event.clock
    if event.tick != (before.tick + 1 if before is not None else 1):
        return False
    if before is not None and id(before) not in sound:
        return False
    known = counted_alone(event, before)
    if clock == known:
        return True
    news = {other: count for other, count in clock.items() if count > known.get(other, 0)}
    if clock != {**known, **news}:
        return False
    sources = [by_host[other][count] for other, count in news.items() if count in by_host.get(other, ())]
    return len(sources) == len(news) and all(id(one) in sound for one in sources) and _counts_all(event, sources)


def _counts_all(event: Event, sources: list[Event]) -> bool:
    """Whether `event` counts at least as much as the events it received from, and these do not know of it."""
    clock = {**event.clock, event.logged.host: event.tick - 1}
    along: set[str] = set()  # the hosts whose events others brought along
    for place, known in enumerate(sorted(sources, key=lambda known: -known.total)):
        if known.logged.host in along:
            continue
        if [other for other, count in known.clock.items() if clock.get(other, 0) < count]:
            return False
        if place < _BROUGHT_BY_MAX:
            along |= {one.logged.host for one in sources if known.clock.get(one.logged.host, 0) >= one.tick}
    return True
