"""A source that sends in bursts to a slow process, and a sink, for `bench.live.barriers`."""

import os
import time
from pathlib import Path

import msgspec

from strobe import Channel, Process, System

FRAMES = "STROBE_BENCH_FRAMES"
"""How many messages the source sends once the gate file exists; each is a separate frame."""
GATE = "STROBE_BENCH_GATE"
SENT = ".sent"
"""The suffix of the file that the source creates after sending all messages."""
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
    """Sends all messages at once, when the gate file exists."""

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
    """Spends some time on each message."""

    def receive(self, ctx, channel, message):
        time.sleep(SERVICE_S)
        self.count.messages += 1
        ctx.send("slow->sink", message)


class Sink(Counted):
    def receive(self, ctx, channel, message):
        self.count.messages += 1


def queued(protocol: str) -> System:
    """Return the three processes in a row."""
    processes = {"source": Bursting(), "slow": Slow(), "sink": Sink()}
    return System(processes, [Channel("source", "slow"), Channel("slow", "sink")], protocol=protocol)


aligned, unaligned, timed = map(queued, ("aligned", "unaligned", "aligned-then-unaligned"))
