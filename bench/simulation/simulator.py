"""The simulator: events per CPU second, against SimPy and against a bare loop, which no simulator can beat."""

import random
from collections.abc import Callable
from heapq import heappop, heappush

import simpy
from examples.bank import Branch, Transfer, names, total

from bench.figures import Figure, at_least, cpu_s, interleaved, shown
from strobe import Channel, System
from strobe.protocol.process.first_view import first_view
from strobe.simulation.checkers import all_checkers
from strobe.simulation.faults import Faults
from strobe.simulation.recorder import Recorder
from strobe.simulation.world import World

COMMAND = "python -m bench simulator"
_EVENTS = 60_000


def _bank() -> System:
    channels = [Channel(p, q) for p in names for q in names if p != q]
    return System({name: Branch(200) for name in names}, channels, [Transfer], conserved=total)


def _rate(events: Callable[[], int]) -> float:
    counted = 0

    def work() -> None:
        nonlocal counted
        counted = events()

    return counted / seconds if (seconds := cpu_s(work)) else 0.0


def _strobe(faults: str = "none", level: str = "off", checkers: bool = True) -> int:
    system = _bank()
    recorder = Recorder(first_view(system), 1, level) if level != "off" else None
    chosen = all_checkers() if checkers else ()
    world = World(system, 1, faults=Faults.parse(faults), recorder=recorder, checkers=chosen)
    world.run(_EVENTS // 400)
    return world.events


def _simpy() -> int:
    """The same bank in SimPy: a process and a store for each branch, the same delays; no snapshots, no copies."""
    environment, draw, events = simpy.Environment(), random.Random(1), 0
    inboxes = {name: simpy.Store(environment) for name in names}
    balances = dict.fromkeys(names, 200)

    def deliver(target: str, amount: int):
        yield environment.timeout(0.0001 + draw.random() * 0.0001)
        yield inboxes[target].put(amount)

    def payer(name: str):
        nonlocal events
        others = [other for other in names if other != name]
        while True:
            yield environment.timeout(draw.uniform(0.0005, 0.0015))
            events += 1
            amount = draw.randint(0, max(1, balances[name] // 10))
            balances[name] -= amount
            environment.process(deliver(draw.choice(others), amount))

    def receiver(name: str):
        nonlocal events
        while True:
            balances[name] += yield inboxes[name].get()
            events += 1

    for name in names:
        environment.process(payer(name))
        environment.process(receiver(name))
    environment.run(_EVENTS / 8000)
    return events


def _bare() -> int:
    """A heap, a random delay, a handler: nothing is encoded, counted, hashed, recorded or checked."""
    draw, queue, sequence = random.Random(1), [], 0
    balances = dict.fromkeys(names, 200)
    for number, name in enumerate(names):
        heappush(queue, (0, number, name, None))
    sequence = len(names)
    for _ in range(_EVENTS):
        now, _, name, amount = heappop(queue)
        if amount is not None:
            balances[name] += amount
            continue
        amount = draw.randint(0, max(1, balances[name] // 10))
        balances[name] -= amount
        sequence += 2
        heappush(queue, (now + 100 + int(draw.random() * 100), sequence, draw.choice(names), amount))
        heappush(queue, (now + 500 + int(draw.random() * 1000), sequence + 1, name, None))
    return _EVENTS


def measure() -> list[Figure]:
    plain, faulty, traced, peer, bare = interleaved(
        5,
        lambda: _rate(_strobe),
        lambda: _rate(lambda: _strobe(faults="all")),
        lambda: _rate(lambda: _strobe(level="ordinals")),
        lambda: _rate(_simpy),
        lambda: _rate(_bare),
    )
    return [
        at_least("simulator, snapshots and all checkers on", plain, "events/CPU s", 100_000, COMMAND),
        shown("simulator, every kind of fault besides", faulty, "events/CPU s", COMMAND),
        shown("simulator, trace of ordinals besides", traced, "events/CPU s", COMMAND),
        shown("simulator against SimPy without any of that", plain / peer, "x", COMMAND),
        shown("simulator against a bare loop of the same handlers", plain / bare, "x", COMMAND),
    ]
