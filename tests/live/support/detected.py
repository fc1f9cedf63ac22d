"""A computation for the live tests that starts at one process and whose termination is detected online (G4)."""

import msgspec

from strobe import Channel, Process, System
from strobe.detection import Detecting, Signal

NAMES = ("a", "b", "c")


class Task(msgspec.Struct, tag=True):
    size: int


class Pile(msgspec.Struct):
    tasks: list[int] = []
    done: int = 0
    announced: int = 0


class Worker(Process):
    """A task of size n takes one step, and sends two tasks of size n - 1 to random processes."""

    def __init__(self, *tasks):
        self.pile = Pile(list(tasks))

    def start(self, ctx):
        if self.pile.tasks:
            ctx.set_timer("work", ctx.random.uniform(0, 0.002))

    def timer(self, ctx, name):
        size = self.pile.tasks.pop()
        self.pile.done += 1
        for _ in range(2 if size else 0):
            ctx.send(ctx.random.choice(ctx.outputs), Task(size - 1))
        self.start(ctx)

    def receive(self, ctx, channel, task):
        self.pile.tasks.append(task.size)
        self.start(ctx)

    def active(self):
        return False

    def terminated(self, ctx):
        self.pile.announced += 1

    def capture(self):
        return self.pile

    def restore(self, state):
        self.pile = state


tree = System(
    {name: Detecting(Worker(8) if name == "a" else Worker(), root=name == "a") for name in NAMES},
    [Channel(p, q) for p in NAMES for q in NAMES if p != q],
    [Task, Signal],
)
