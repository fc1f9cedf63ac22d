"""Four workers and a heap of tasks; an idle worker requests half of the tasks of the others. In the `pool`, a worker
refused by all sleeps: it terminates when all work is done. Workers of the `restless` pool retry forever."""

import msgspec

from strobe import Channel, Process, System


class Steal(msgspec.Struct, tag=True):
    pass


class Tasks(msgspec.Struct, tag=True):
    sizes: list[int]


class Bench(msgspec.Struct):
    tasks: list[int]
    done: int = 0
    refusals: int = 0


class Worker(Process):
    """A task of size n takes one step, and creates two tasks with n - 1 as the sum of their sizes."""

    def __init__(self, tasks, restless):
        self.bench, self.restless = Bench(tasks), restless

    def start(self, ctx):
        if self.bench.tasks:
            self.bench.refusals = 0
            ctx.set_timer("work", ctx.random.uniform(0.0005, 0.0015))
        elif self.bench.refusals < len(ctx.outputs):
            ctx.send(ctx.outputs[self.bench.refusals], Steal())
        elif self.restless:
            ctx.set_timer("ask again", 0.005)

    def timer(self, ctx, name):
        bench = self.bench
        bench.refusals = 0
        if name == "work":
            rest = bench.tasks.pop() - 1
            bench.done += 1
            bench.tasks += [part for part in (rest // 2, rest - rest // 2) if part]
        self.start(ctx)

    def receive(self, ctx, channel, message):
        bench = self.bench
        if isinstance(message, Steal):
            half = len(bench.tasks) // 2
            ctx.send("->".join(reversed(channel.split("->"))), Tasks(bench.tasks[:half]))
            del bench.tasks[:half]
        else:
            bench.tasks += message.sizes
            bench.refusals += not message.sizes
            self.start(ctx)

    def active(self):
        return bool(self.bench.tasks)

    def capture(self):
        return self.bench

    def restore(self, state):
        self.bench = state


def work(benches, messages):
    on_the_way = sum(sum(message.sizes) for message in messages if isinstance(message, Tasks))
    return sum(bench.done + sum(bench.tasks) for bench in benches.values()) + on_the_way


def workers(restless):
    names = ("a", "b", "c", "d")
    processes = {name: Worker([200] if name == "a" else [], restless) for name in names}
    return System(processes, [Channel(p, q) for p in names for q in names if p != q], [Steal, Tasks], conserved=work)


pool, restless = workers(restless=False), workers(restless=True)
