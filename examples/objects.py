"""Three owners of objects that refer to each other, also across owners; references travel in messages. In the end, the
owners in `forgotten` drop all their references: every object is garbage, including cycles. In `remembered`, one owner
keeps a single reference: the objects reachable from it are not garbage."""

import msgspec

from strobe import Channel, Declares, Process, System

STEPS = 60


class Share(msgspec.Struct, tag=True):
    declares = Declares(references="name")
    name: str


class Heap(msgspec.Struct):
    objects: dict[str, list[str]] = {}
    roots: list[str] = []
    steps: int = 0


class Owner(Process):
    def __init__(self, keeps):
        self.heap, self.keeps = Heap(), keeps

    def start(self, ctx):
        ctx.set_timer("step", ctx.random.uniform(0.0005, 0.002))

    def timer(self, ctx, name):
        self.heap.steps += 1
        if self.heap.steps <= STEPS:
            self.step(ctx, ctx.random.random())
            self.start(ctx)
        else:
            self.heap.roots = self.heap.roots[:1] if self.keeps else []

    def step(self, ctx, chance):
        heap = self.heap
        if chance < 0.4 or not heap.roots:
            made = f"{ctx.name}/{heap.steps}"
            heap.objects[made] = heap.roots[-2:]
            heap.roots.append(made)
            return
        chosen = ctx.random.choice(heap.roots)
        mine = [name for name in heap.roots if name in heap.objects]
        if chance < 0.55 and mine:
            heap.objects[ctx.random.choice(mine)].append(chosen)
        else:
            if chance < 0.9:
                ctx.send(ctx.random.choice(ctx.outputs), Share(chosen))
            if chance > 0.7:  # move it, or drop it
                heap.roots.remove(chosen)

    def receive(self, ctx, channel, share):
        if self.heap.steps <= STEPS:
            self.heap.roots.append(share.name)

    def references(self):
        return {"": self.heap.roots, **self.heap.objects}

    def capture(self):
        return self.heap

    def restore(self, state):
        self.heap = state


def owners(keeps):
    names = ("a", "b", "c")
    processes = {name: Owner(keeps and name == "a") for name in names}
    return System(processes, [Channel(p, q) for p in names for q in names if p != q], [Share])


forgotten, remembered = owners(keeps=False), owners(keeps=True)
