"""Two clerks that wait for each other's lock for ever, beside a meter that goes beyond its limit after a while."""

import msgspec

from strobe import Channel, Declares, Process, System, Waits

LIMIT = 20


class Ask(msgspec.Struct, tag=True):
    declares = Declares(requests=True)


class Count(msgspec.Struct):
    number: int


class Clerk(Process):
    """Has one lock, needs the other's too, and gives none away."""

    def __init__(self, other):
        self.other = other

    def start(self, ctx):
        ctx.send(f"{ctx.name}->{self.other}", Ask())

    def receive(self, ctx, channel, message):
        pass

    def waits_for(self):
        return Waits.all(self.other)

    def active(self):
        return False

    def capture(self):
        return b""

    def restore(self, state):
        pass


class Meter(Process):
    def __init__(self):
        self.count = Count(0)

    def start(self, ctx):
        ctx.set_timer("count", 0.01)

    def timer(self, ctx, name):
        self.count.number += 1
        ctx.set_timer("count", 0.01)

    def capture(self):
        return self.count

    def restore(self, state):
        self.count = state


def below_limit(snapshot):
    return snapshot.states["meter"].number <= LIMIT or f"the meter is above {LIMIT}"


clerks = System(
    {"a": Clerk("b"), "b": Clerk("a"), "meter": Meter()},
    [Channel("a", "b"), Channel("b", "a")],
    [Ask],
    invariants=[below_limit, "meter.number >= 0"],
)
