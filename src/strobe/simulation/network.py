"""The seeded network: delays, reordering on unordered channels, partitions. It never loses or duplicates anything.

A partition delays messages, and delivers them in order when it heals, like a transport with retransmission. Orders from
the coordinator and reports to it use links of their own, in order.
"""

import random
from collections.abc import Callable, Iterable
from heapq import heappush
from typing import Any

from strobe.protocol import COORDINATOR, FIFO, View
from strobe.protocol.coordinator.messages import CoordinatorEffect
from strobe.simulation.faults import Faults
from strobe.simulation.scheduler import Due, Scheduler

Arrive = Callable[[str, Any], None]
"""Takes an item at the end of a link, by the name of the link."""
Addressed = tuple[int, CoordinatorEffect]
"""An order for one run of a process, by its number; other runs do not receive it."""


class Link:
    """One direction between two ends."""

    __slots__ = ("arrive", "backlog", "blocked", "closed", "ends", "fifo", "incarnation", "last_at_us", "name")

    def __init__(self, name: str, ends: tuple[str, str], fifo: bool, arrive: Arrive, incarnation: int = 1) -> None:
        self.name = name
        self.ends = ends
        self.fifo = fifo
        self.arrive = arrive
        self.incarnation = incarnation
        self.last_at_us = 0
        self.blocked = 0
        self.closed = False
        self.backlog: list[Any] = []

    def deliver(self, item: Any, _: None) -> None:
        if self.blocked:
            self.backlog.append(item)
        elif not self.closed:
            self.arrive(self.name, item)

    def unblock(self) -> None:
        self.blocked -= 1
        if self.blocked == 0:
            backlog, self.backlog = self.backlog, []
            for item in backlog:
                self.deliver(item, None)


class Network:
    """All links of a world. `arrival` returns the function that takes items from the channels to a process."""

    def __init__(
        self,
        scheduler: Scheduler,
        faults: Faults,
        seed: str,
        arrival: Callable[[str], Arrive],
        at_coordinator: Arrive,
        at_process: Arrive,
    ) -> None:
        self.scheduler = scheduler
        self.random = random.Random(seed).random
        self.delay_us_min = faults.delay_us_min
        self.delay_us_max = faults.delay_us_max
        self._arrival = arrival
        self._at_coordinator = at_coordinator
        self._at_process = at_process
        self.links: dict[str, Link] = {}
        self.up: dict[str, Link] = {}
        self.down: dict[str, Link] = {}

    def view_installed(self, view: View) -> None:
        """Open the links of a view. Links of channels that ended stay open for messages still in flight."""
        for spec in view.channels:
            known = self.links.get(spec.id)
            if known is not None and known.incarnation == spec.incarnation:
                continue
            if known is not None:
                known.closed = True
            ends = (spec.source, spec.target)
            self.links[spec.id] = Link(spec.id, ends, spec.kind == FIFO, self._arrival(spec.target), spec.incarnation)
        for process in view.processes:
            if process not in self.up:
                self.up[process] = Link(process, (process, COORDINATOR), True, self._at_coordinator)
                self.down[process] = Link(process, (COORDINATOR, process), True, self._at_process)

    def transmit(self, channel: str, item: Any) -> None:
        self._send(self.links[channel], item)

    def control_up(self, process: str, item: Any) -> None:
        self._send(self.up[process], item)

    def control_down(self, process: str, order: CoordinatorEffect | Addressed) -> None:
        self._send(self.down[process], order)

    def reset_control(self) -> None:
        """The coordinator crashed: everything in flight to it or from it is lost with the connections."""
        for links in (self.up, self.down):
            for name, link in links.items():
                link.closed = True
                links[name] = Link(name, link.ends, True, link.arrive)

    def draw_delay_us(self) -> int:
        return self.delay_us_min + int(self.random() * (self.delay_us_max - self.delay_us_min))

    def reorder_everything(self) -> None:
        """Break the promise of FIFO channels, for a mutant that does not check."""
        for link in self.links.values():
            link.fifo = False

    def links_between(self, these: Iterable[str], those: Iterable[str]) -> list[Link]:
        """Return every link, in either direction, between `these` and `those`."""
        here, there = set(these), set(those)
        return [
            link
            for link in (*self.links.values(), *self.up.values(), *self.down.values())
            if (link.ends[0] in here and link.ends[1] in there) or (link.ends[0] in there and link.ends[1] in here)
        ]

    def _send(self, link: Link, item: Any) -> None:
        scheduler = self.scheduler
        at = scheduler.now_us + self.delay_us_min + int(self.random() * (self.delay_us_max - self.delay_us_min))
        if link.fifo:
            if at < link.last_at_us:
                at = link.last_at_us
            link.last_at_us = at
        scheduler.scheduled += 1  # like `scheduler.at`, but inlined: it runs for every message
        due: Due = (at, scheduler.scheduled, link.deliver, item, None)
        heappush(scheduler.calls, due)
