"""Systems of one process with a large keyed state, which measures its node's event loop while it works on the state."""

import os
import random
import time

from bench.live.gauge import Gate, Gauge, given_folder
from strobe import KeyedState, Process, System

CHANGE = "change"
"""A file of this name in the folder of the gauges makes the process change 1 % of the entries, and is then removed."""
ENTRIES, ENTRIES_SMALL = 5_000_000, 500_000
VALUE_BYTES = 200
_TURN_WRITES = _TURN_READS = 50
_FILLED_AT_ONCE = 5_000
_REST_S = 0.01


class Keeper(Process):
    """Fills its state; then writes and reads random entries in each event-loop iteration, while the gate is open.

    An iteration is the CPU time of the loop's thread from one timer to the next, including the node's own work in
    between. Since the gate was opened, 99.9 % of them were shorter than `usual`; `longest` is the maximum.
    """

    def __init__(self, entries):
        self.entries = entries
        self.state = KeyedState(bytes)
        self.full = False
        self.turns_s = []
        self.last_s = None

    def start(self, ctx):
        self.gate, self.filled = Gate(), Gauge("filled")
        self.usual, self.longest = Gauge("usual"), Gauge("longest")
        self.pool = os.urandom(1 << 20)
        self.random = random.Random(self.entries)
        ctx.set_timer("turn", 0)

    def timer(self, ctx, name):
        if not self.full:
            self.fill()
        elif self.gate.number:
            self.turn()
        else:
            self.rest()
            ctx.set_timer("turn", _REST_S)
            return
        ctx.set_timer("turn", 0)

    def fill(self):
        filled = len(self.state)
        for number in range(filled, min(self.entries, filled + _FILLED_AT_ONCE)):
            self.state[key(number)] = self.value(number)
        self.filled.write(len(self.state))
        self.full = len(self.state) == self.entries

    def turn(self):
        now_s = time.thread_time()
        if self.last_s is not None:
            self.turns_s.append(now_s - self.last_s)
        self.last_s = now_s
        state, draw, entries = self.state, self.random.randrange, self.entries
        for _ in range(_TURN_WRITES):
            state[key(draw(entries))] = self.value(draw(entries))
        for _ in range(_TURN_READS):
            state[key(draw(entries))]

    def rest(self):
        if self.turns_s:
            turns_s = sorted(self.turns_s)
            self.usual.write(len(turns_s), turns_s[int(0.999 * (len(turns_s) - 1))])
            self.longest.write(len(turns_s), turns_s[-1])
        self.turns_s, self.last_s = [], None
        change = given_folder() / CHANGE
        if change.exists():
            for number in self.random.sample(range(self.entries), self.entries // 100):
                self.state[key(number)] = self.value(number + 1)
            change.unlink()

    def value(self, number):
        place = number * 7919 % (len(self.pool) - VALUE_BYTES)
        return self.pool[place : place + VALUE_BYTES]

    def capture(self):
        return self.state

    def restore(self, state):
        raise AssertionError("the process was restored: what was measured is void")


def key(number):
    return f"account-{number:08d}"


large, small = (System({"keeper": Keeper(entries)}, []) for entries in (ENTRIES, ENTRIES_SMALL))
