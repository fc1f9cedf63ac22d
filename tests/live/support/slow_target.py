"""A source that sends as much as flow control allows, to a process that takes a millisecond per message."""

import time

import msgspec

from strobe import Channel, Process, System


class Count(msgspec.Struct):
    messages: int = 0


class Counting(Process):
    def __init__(self):
        self.count = Count()

    def capture(self):
        return self.count

    def restore(self, state):
        self.count = state


class Flooding(Counting):
    def start(self, ctx):
        ctx.set_timer("flood", 0.01)

    def timer(self, ctx, name):
        for _ in range(200):
            self.count.messages += 1
            ctx.send("a->b", bytes(90))
        ctx.set_timer("flood", 0.01)


class Slow(Counting):
    def receive(self, ctx, channel, message):
        time.sleep(0.001)
        self.count.messages += 1


flood = System({"a": Flooding(), "b": Slow()}, [Channel("a", "b")])
