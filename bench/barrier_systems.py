"""A source that sends in bursts to a process that takes its time, for `bench.barriers`; and one that adds up."""

import os
import time
from pathlib import Path

import msgspec

from strobe import Channel, Process, System

FRAMES = "STROBE_BENCH_FRAMES"
"""How many messages the source sends when the file of this name is there; each is a frame of its own."""
GATE = "STROBE_BENCH_GATE"
SENT = ".sent"
"""The file of that name and this is there when the source has sent them all."""
SERVICE_S = 0.0003


class Count(msgspec.Struct):
    messages: int = 0


class Counted(Process):
    def __init__(self) -> None:
        self.count = Count()

    def capture(self):
        return self.count

    def restore(self, state):
        self.count = state


class Bursting(Counted):
    """Sends all at once, when it is told to."""

    def start(self, ctx):
        ctx.set_timer("look", 0.005)

    def timer(self, ctx, name):
        if self.count.messages or not os.path.exists(os.environ[GATE]):  # noqa: PTH110 -- one call, often
            ctx.set_timer("look", 0.005)
            return
        for _ in range(int(os.environ[FRAMES])):
            self.count.messages += 1
            ctx.send("source->slow", self.count.messages)
        Path(os.environ[GATE] + SENT).touch()


class Slow(Counted):
    """Takes its time with each message."""

    def receive(self, ctx, channel, message):
        time.sleep(SERVICE_S)
        self.count.messages += 1
        ctx.send("slow->sink", message)


class Sink(Counted):
    def receive(self, ctx, channel, message):
        self.count.messages += 1


def queued(protocol: str) -> System:
    """Return the three of them, in a row."""
    processes = {"source": Bursting(), "slow": Slow(), "sink": Sink()}
    return System(processes, [Channel("source", "slow"), Channel("slow", "sink")], protocol=protocol)


aligned, unaligned, timed = map(queued, ("aligned", "unaligned", "aligned-then-unaligned"))
