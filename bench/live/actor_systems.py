"""The systems of `bench actors`: a thousand small actors, and pairs that do nothing but talk."""

import msgspec

from strobe import Channel, Process, System

ACTORS = 1000
PROGRAMS = 4
EVERY_S = 1.0
BURST = 512


class Note(msgspec.Struct, array_like=True):
    number: int
    load: bytes


class Life(msgspec.Struct):
    name: str
    events: int


NOTE = Note(1 << 20, bytes(92))


class Actor(Process):
    """Sends a note to one of its few peers every second."""

    def __init__(self, name):
        self.life = Life(name, 0)

    def start(self, ctx):
        ctx.set_timer("talk", ctx.random.random() * EVERY_S)

    def timer(self, ctx, name):
        self.life.events += 1
        ctx.send(ctx.random.choice(ctx.outputs), Note(self.life.events, b"hello"))
        ctx.set_timer("talk", EVERY_S)

    def receive(self, ctx, channel, note):
        self.life.events += 1

    def capture(self):
        return self.life

    def restore(self, state):
        self.life = state


class Player(Actor):
    """Sends every note back; the first one serves."""

    def __init__(self, name, serves=False):
        super().__init__(name)
        self.serves = serves

    def start(self, ctx):
        if self.serves:
            ctx.send(ctx.outputs[0], NOTE)

    def receive(self, ctx, channel, note):
        ctx.send(ctx.outputs[0], note)


class Stream(Actor):
    """Sends bursts as fast as back-pressure allows."""

    def start(self, ctx):
        ctx.set_timer("burst", 0)

    def timer(self, ctx, name):
        send, channel = ctx.send, ctx.outputs[0]
        for _ in range(BURST):
            send(channel, NOTE)
        ctx.set_timer("burst", 0)


class Sink(Actor):
    """Counts."""

    def start(self, ctx):
        pass


def names():
    return [f"actor{number:04d}" for number in range(ACTORS)]


def _actors():
    """Each actor has two channels within its program, and one to the next program."""
    size, found = ACTORS // PROGRAMS, names()
    channels = {
        (found[number], found[target])
        for number in range(ACTORS)
        for first in [number - number % size]
        for target in (first + (number + 1) % size, first + (number * 7 + 3) % size, (number + size) % ACTORS)
        if target != number
    }
    return System({name: Actor(name) for name in found}, [Channel(*ends) for ends in sorted(channels)], [Note])


_BOTH_WAYS = [Channel("a", "b"), Channel("b", "a")]

actors = _actors()
volley = System({"a": Player("a", serves=True), "b": Player("b")}, _BOTH_WAYS, [Note])
stream = System({"a": Stream("a"), "b": Sink("b")}, [Channel("a", "b")], [Note])
