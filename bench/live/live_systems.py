"""The systems that are measured live. Their processes run while the gate is open, and update their gauges."""

import statistics
import time
from itertools import pairwise

import msgspec

from bench.live.gauge import Gate, Gauge
from bench.live.plain_framing import PlainFraming
from strobe import Channel, Process, System

LOOK_EVERY_S = 0.01
MESH_EVERY_S = 0.1
BATCH = 256
RELAYS = ("first", "second")
WATCHED = 255  # the first of every 256 messages is measured


class Parcel(msgspec.Struct, array_like=True):
    """100 bytes on the wire."""

    id: int
    load: bytes


class Count(msgspec.Struct):
    messages: int


class Membership(msgspec.Struct):
    """1 KB, always different: an unchanged state would not be written again."""

    name: str
    events: int
    load: bytes


PARCEL = Parcel(1 << 20, bytes(92))
SMALL = Parcel(1, b"ping")


class Measured(Process):
    """A process with a gate and a gauge; `look` runs periodically."""

    def __init__(self):
        self.messages = 0

    def start(self, ctx):
        self.gate, self.gauge = Gate(), Gauge(ctx.name)
        ctx.set_timer("look", 0)

    def timer(self, ctx, name):
        self.look(ctx)
        ctx.set_timer("look", LOOK_EVERY_S)

    def look(self, ctx):
        self.gauge.write(self.messages)

    def receive(self, ctx, channel, message):
        self.messages += 1

    def capture(self):
        return Count(self.messages)

    def restore(self, state):
        raise AssertionError("a process was restored: what was measured is void")


class Pump(Measured):
    """Sends bursts as fast as possible: only back-pressure slows it down."""

    burst = 512
    written_every = 16 * burst

    def timer(self, ctx, name):
        if not self.gate.number:
            super().timer(ctx, name)
            return
        self.send_burst(ctx)
        self.messages += self.burst
        if not self.messages % self.written_every:
            self.gauge.write(self.messages)
        ctx.set_timer("look", 0)

    def send_burst(self, ctx):
        send, parcel, channel = ctx.send, PARCEL, ctx.outputs[0]
        for _ in range(self.burst):
            send(channel, parcel)


class Drain(Measured):
    """Counts the received messages."""


class BatchPump(Pump):
    """The same with `send_many`, in batches of the size that other libraries are given, several in an event."""

    burst = 8 * BATCH

    def send_burst(self, ctx):
        for _ in range(self.burst // BATCH):
            ctx.send_many(ctx.outputs[0], [PARCEL for _ in range(BATCH)])


class BatchDrain(Measured):
    """Counts the received messages, a frame at a time."""

    def receive_many(self, ctx, channel, messages):
        self.messages += len(messages)


class WatchedDrain(Measured):
    """Counts the received messages, and measures the longest gap between them since the gate was last opened."""

    number = 0
    gap_s_max = 0.0
    last_s = None

    def receive(self, ctx, channel, message):
        self.messages += 1
        if not self.messages & WATCHED:
            now = time.monotonic()
            if self.last_s is not None:
                self.gap_s_max = max(self.gap_s_max, now - self.last_s)
            self.last_s = now

    def look(self, ctx):
        number = self.gate.number
        if number and number != self.number:  # the time while it was shut is no gap
            self.number, self.gap_s_max, self.last_s = number, 0.0, None
        self.gauge.write(self.messages, self.gap_s_max)


class Ping(Measured):
    """Sends one message, and the next when it has come back; its value is the median round trip of the turn."""

    def __init__(self):
        super().__init__()
        self.playing = False
        self.rounds_s = []
        self.median_s = 0.0

    def look(self, ctx):
        self.gauge.write(self.messages, self.median_s)
        if self.gate.number and not self.playing:
            self.playing = True
            self.send(ctx)

    def send(self, ctx):
        self.started_s = time.perf_counter()
        ctx.send(ctx.outputs[0], SMALL)

    def receive(self, ctx, channel, message):
        self.rounds_s.append(time.perf_counter() - self.started_s)
        self.messages += 1
        if self.gate.number:
            self.send(ctx)
        else:
            self.median_s, self.rounds_s, self.playing = statistics.median(self.rounds_s), [], False


class Pong(Measured):
    """Sends every message back."""

    def receive(self, ctx, channel, message):
        self.messages += 1
        ctx.send(ctx.outputs[0], message)


class Relay(Measured):
    """Passes every message on."""

    def receive(self, ctx, channel, message):
        self.messages += 1
        ctx.send(ctx.outputs[0], message)


class WaitingRelay(Relay):
    """A relay that declares that it waits for nothing, so that every snapshot is searched for deadlocks."""

    def waits_for(self):
        return None


class Member(Process):
    """One of many processes that send each other small messages."""

    def __init__(self, name):
        self.state = Membership(name, 0, bytes(1000))

    def start(self, ctx):
        ctx.set_timer("talk", ctx.random.random() * MESH_EVERY_S)

    def timer(self, ctx, name):
        self.state.events += 1
        ctx.send(ctx.outputs[ctx.random.randrange(len(ctx.outputs))], SMALL)
        ctx.set_timer("talk", MESH_EVERY_S)

    def receive(self, ctx, channel, message):
        self.state.events += 1

    def capture(self):
        return self.state

    def restore(self, state):
        self.state = state


def _pair(drain, pump=None, **options):
    return System({"source": pump or Pump(), "target": drain}, [Channel("source", "target")], [Parcel], **options)


def _mesh(size):
    names = [f"p{number:02d}" for number in range(size)]
    channels = [Channel(a, b) for a in names for b in names if a != b]
    return System({name: Member(name) for name in names}, channels, [Parcel])


def _chain(relay, **options):
    """Return four processes: a source, two that pass every message on, and a target."""
    names = ("source", *RELAYS, "target")
    processes = {"source": Pump(), **{name: relay() for name in RELAYS}, "target": Drain()}
    return System(processes, [Channel(*ends) for ends in pairwise(names)], [Parcel], **options)


def _sent_and_received(states, messages):
    """Return the conserved quantity: each relay sends what it receives, and everything else is in flight."""
    return states["source"].messages - states["target"].messages - len(messages)


def _counts_are_right(snapshot):
    """What the target has counted is what has been received."""
    return snapshot.states["target"].messages == snapshot.received["second->target"]


pair = _pair(Drain())
batches = _pair(BatchDrain(), BatchPump())
chain = _chain(Relay)
judged = _chain(
    WaitingRelay,
    conserved=_sent_and_received,
    invariants=[_counts_are_right, "target.messages <= source.messages", 'received("first->second") <= first.messages'],
)
plain = _pair(Drain(), protocol=PlainFraming.name)
watched = _pair(WatchedDrain())
ring = System(
    {"source": Ping(), "target": Pong()}, [Channel("source", "target"), Channel("target", "source")], [Parcel]
)
mesh2, mesh8, mesh32 = _mesh(2), _mesh(8), _mesh(32)
