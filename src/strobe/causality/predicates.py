"""Stable predicates (G2): once they hold they hold for ever, so what a consistent cut shows is still true now.

Deadlock. A process *can proceed* if it waits for nothing, or if its wait is met. Its wait for a process q is met if q
can proceed (q will then grant it some time), if a grant is in flight, if the request has not reached q yet (q may
answer on receipt even while it waits), or if q is not a process of the view (nothing is known of it). Of the sets that
satisfy this, take the least; every process outside of it is deadlocked. That is stable as long as a waiting process
grants nothing, except in answer to a request on receipt. A wait that times out ends by itself, so a process that is
stuck only until then is listed separately: that is not stable.

Termination. No process is active, none has a timer pending, and no message is in flight: nothing can happen any more.

Garbage. Of all things that declare their references: those that cannot be reached from a process that can still act. A
process can act if it is active, has a timer pending or a message in flight to it. The references in a message in flight
are reachable too. If a process declares no references, only its channels are known: it reaches their targets. That is
stable as long as names are only passed on and not invented, and a process that declares references sends only to these.
"""

import enum
from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from strobe.causality.predicate_input import PredicateInput
from strobe.causality.waiting import WaitGraph
from strobe.protocol.values.view import finishing_order

NAMED_MAX = 10
"""Maximum number of names written out in a sentence."""


class Predicate(enum.StrEnum):
    """A question about a snapshot."""

    DEADLOCK = enum.auto()
    TERMINATION = enum.auto()
    GARBAGE = enum.auto()


class Deadlock(msgspec.Struct, frozen=True):
    """The deadlocked processes. `waits` lists for each the deadlocked processes it waits for.

    `cores` are enough to show it: in each, every process waits for others of the same core, and no other process can
    help. A core is a cycle if processes wait for all of several, and a knot if any of several would do. `until_timeout`
    are the processes that are stuck only until a wait times out.
    """

    waits: dict[str, tuple[str, ...]]
    cores: tuple[tuple[str, ...], ...]
    until_timeout: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return bool(self.waits)

    @property
    def processes(self) -> tuple[str, ...]:
        return tuple(self.waits)

    def __str__(self) -> str:
        apart = f"stuck only until a wait times out, which is not stable: {listed(self.until_timeout)}"
        if not self.waits:
            return f"no process is deadlocked{'; ' + apart if self.until_timeout else ''}"
        knots = "; ".join(self._core(core) for core in self.cores[:NAMED_MAX])
        behind = sorted(set(self.waits) - {process for core in self.cores for process in core})
        waiting = f"; waiting for them: {listed(behind)}" if behind else ""
        return f"deadlocked: {knots}{waiting}{'; ' + apart if self.until_timeout else ''}"

    def brief(self) -> str:
        """Return the cores alone, for a table: `a→b→a`; empty if no process is deadlocked."""
        shown = []
        for core in self.cores[:NAMED_MAX]:
            if self._is_cycle(core):
                shown.append("→".join((*core[:NAMED_MAX], "..." if len(core) > NAMED_MAX else core[0])))
            else:
                shown.append(f"{listed(core)} wait for each other")
        behind = len(set(self.waits) - {process for core in self.cores for process in core})
        return ", ".join(shown) + (f" and {behind} waiting for them" if behind else "")

    def _is_cycle(self, core: tuple[str, ...]) -> bool:
        return all(following in self.waits[process] for process, following in _around(core))

    def _core(self, core: tuple[str, ...]) -> str:
        if self._is_cycle(core):
            return " waits for ".join((*core[:NAMED_MAX], "..." if len(core) > NAMED_MAX else core[0]))
        return f"{listed(core)} wait for each other"


class Termination(msgspec.Struct, frozen=True):
    """What can still happen: the active processes, the pending timers, and the messages in flight by channel."""

    active: tuple[str, ...]
    timers: dict[str, int]
    in_flight: dict[str, int]

    @property
    def holds(self) -> bool:
        return not (self.active or self.timers or self.in_flight)

    def __str__(self) -> str:
        if self.holds:
            return "terminated: no process is active, no timer is pending, nothing is in flight"
        reasons = [f"active: {listed(self.active)}"] if self.active else []
        reasons += [f"timers pending at {listed(self.timers)}"] if self.timers else []
        reasons += [f"in flight on {listed(self.in_flight)}"] if self.in_flight else []
        return f"not terminated; {'; '.join(reasons)}"


class Garbage(msgspec.Struct, frozen=True):
    """What cannot be reached any more, of the `things` that declare their references."""

    garbage: tuple[str, ...]
    things: int

    @property
    def holds(self) -> bool:
        return bool(self.garbage)

    def __str__(self) -> str:
        if not self.garbage:
            return f"none of {self.things} is garbage" if self.things else "no process declares references"
        verb = "is" if len(self.garbage) == 1 else "are"
        return f"{len(self.garbage)} of {self.things} {verb} garbage: {listed(self.garbage)}"


def deadlock(facts: PredicateInput) -> Deadlock:
    """Return the deadlocked processes in `facts`, and the evidence."""
    waiting = WaitGraph(facts, timeouts_end=True)
    waits = {process: tuple(sorted(waiting.in_vain(process))) for process in waiting.stuck}
    needed = {process: sorted(waiting.needed(process)) for process in waits}
    at_most = WaitGraph(facts, timeouts_end=False).stuck if waiting.times_out else ()
    until_timeout = tuple(process for process in at_most if process not in waits)
    return Deadlock(waits, tuple(_closed_components(needed)), until_timeout)


def termination(facts: PredicateInput) -> Termination:
    """Return what can still happen in `facts`."""
    declarations = facts.declarations.items()
    return Termination(
        tuple(sorted(process for process, declaration in declarations if declaration.declared.active)),
        dict(sorted((process, declaration.timers) for process, declaration in declarations if declaration.timers)),
        dict(sorted(facts.in_flight.items())),
    )


def garbage(facts: PredicateInput) -> Garbage:
    """Return what cannot be reached in `facts` any more."""
    references: dict[str, tuple[str, ...]] = {}
    for declaration in facts.declarations.values():
        for holder, names in declaration.declared.references.items():
            references[holder] = references[holder] + names if holder in references else names
    reached = {process for process, declaration in facts.declarations.items() if declaration.awake}
    reached |= facts.receiving | facts.carried
    following = list(reached)
    for name in following:  # grows during the loop
        for other in chain(references.get(name, ()), facts.sends_to.get(name, ())):
            if other not in reached:
                reached.add(other)
                following.append(other)
    return Garbage(tuple(sorted(references.keys() - reached)), len(references))


def _closed_components(successors: dict[str, list[str]]) -> Iterator[tuple[str, ...]]:
    """Yield the strongly connected components without outgoing edges, each in the order of a walk through it."""
    predecessors: dict[str, list[str]] = {name: [] for name in successors}
    for name, following in successors.items():
        for successor in following:
            predecessors[successor].append(name)
    covered: set[str] = set()
    # Backwards, in decreasing order of finishing times: an unreached node is in a component without outgoing edges.
    for name in reversed(finishing_order(sorted(successors), predecessors)):
        if name not in covered:
            finishing_order([name], predecessors, covered)
            first = min(finishing_order([name], successors))
            yield tuple(reversed(finishing_order([first], successors)))


def _around(core: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    return zip(core, (*core[1:], core[0]), strict=True)


def listed(names: Iterable[str]) -> str:
    """Return names for a sentence: the first few, and how many more there are."""
    all_names = list(names)
    more = len(all_names) - NAMED_MAX
    return ", ".join(all_names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
