"""Scale by simulation: one snapshot of a large system; its time, messages and memory against the theoretical minimum.

Every size runs in a separate process, for its own memory peak. Each process of the system has sent one message, and has
a state of one number. The minimum in messages is one marker for each channel. Lai-Yang has no markers: it needs an
order and a report for each process and a count for each channel. The minimum in memory is a frontier of 24 bytes at
either end of each channel.
"""

import resource
import subprocess
import sys
import time
from collections import Counter

import msgspec

from bench.figures import Figure, at_most, shown
from strobe import Channel, Process, System
from strobe.protocol import PROTOCOLS, Policy
from strobe.protocol.process.events import MarkerReceived
from strobe.simulation.channel_queues import SimulatedOvertaking
from strobe.simulation.world import World

COMMAND = "python -m bench scale"
DEGREE = 8
FRONTIER_BYTES = 24
POLICY = Policy(interval_us=0, timeout_us=600_000_000)
LINEAR_MAX = 1.35
"""Maximum growth of the time per channel when the number of channels doubles: noise, and slower memory."""


class Quiet(Process):
    """Sends one message before the snapshot."""

    def __init__(self) -> None:
        self.count = 0

    def start(self, ctx):
        if ctx.outputs:
            ctx.send(ctx.outputs[0], 1)

    def receive(self, ctx, channel, message):
        self.count += message

    def capture(self):
        return self.count.to_bytes(8, "little")


class Scale(msgspec.Struct):
    """The measurements of one size."""

    processes: int
    channels: int
    messages: int
    messages_min: int
    snapshot_s: float
    memory_bytes: int
    before_bytes: int


def regular(count: int) -> list[tuple[int, int]]:
    """Return channels from each process to the 8 processes at distances of powers of two, on a ring."""
    return [(p, (p + (1 << step)) % count) for p in range(count) for step in range(DEGREE)]


def layered(count: int) -> list[tuple[int, int]]:
    """Return channels from each process to at most 8 later ones, without cycles."""
    return [(p, p + (1 << step)) for p in range(count) for step in range(DEGREE) if p + (1 << step) < count]


def complete(count: int) -> list[tuple[int, int]]:
    return [(p, q) for p in range(count) for q in range(count) if p != q]


SHAPES = {"regular": regular, "layered": layered, "complete": complete}


def photograph(shape: str, count: int, protocol: str) -> Scale:
    """Take one snapshot; the proof is verified, as before every commit."""
    edges = SHAPES[shape](count)
    channels = [Channel(str(p), str(q)) for p, q in edges]
    world = World(System({str(p): Quiet() for p in range(count)}, channels, protocol=protocol), 1, policy=POLICY)
    messages = _count_messages(world)
    before_bytes = _peak_bytes()
    started_s = time.process_time()
    world.run(0)
    snapshot_s = time.process_time() - started_s
    assert len(world.committed) == 1, world.outcomes
    least = 2 * count + len(edges) if protocol == "lai-yang" else len(edges)
    return Scale(count, len(edges), messages.total(), least, snapshot_s, _peak_bytes(), before_bytes)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _count_messages(world: World) -> Counter[str]:
    """Count the protocol's own messages: markers, orders to record, reports and relayed counts."""
    counted: Counter[str] = Counter()
    network = world.network
    transmit, up, down = network.transmit, network.control_up, network.control_down

    def transmitted(channel, item):
        counted["marker"] += isinstance(item, MarkerReceived | SimulatedOvertaking)
        transmit(channel, item)

    def reported(process, item):
        counted["report"] += type(item).__name__ == "SentCountsArrived"
        up(process, item)

    def ordered(process, order):
        counted["order"] += type(order).__name__ in ("RequestRecording", "RelaySentCount")
        down(process, order)

    network.transmit, network.control_up, network.control_down = transmitted, reported, ordered
    return counted


def _apart(shape: str, count: int, protocol: str) -> Scale:
    command = [sys.executable, "-m", "bench.simulation.scale", shape, str(count), protocol]
    return msgspec.json.decode(subprocess.run(command, check=True, capture_output=True).stdout, type=Scale)


def measure() -> list[Figure]:
    figures: list[Figure] = []
    for shape, protocol, sizes in (
        ("regular", "chandy-lamport", (25_000, 50_000, 100_000)),
        ("layered", "aligned", (25_000, 50_000, 100_000)),
        ("layered", "unaligned", (25_000, 50_000, 100_000)),
        ("complete", "chandy-lamport", (500, 707, 1_000)),
        ("complete", "lai-yang", (500, 707, 1_000)),
    ):
        found = [_apart(shape, size, protocol) for size in sizes]
        figures += _figures(shape, protocol, found)
    return figures


def _figures(shape: str, protocol: str, found: list[Scale]) -> list[Figure]:
    largest = found[-1]
    what = f"{protocol}, {largest.processes:,} processes, {largest.channels:,} channels ({shape})"
    least_bytes = 2 * FRONTIER_BYTES * largest.channels
    each_us = [1e6 * one.snapshot_s / one.channels for one in found]
    return [
        shown(f"snapshot of {what}", largest.snapshot_s, "CPU s", COMMAND),
        shown(f"messages of it (least: {largest.messages_min:,})", largest.messages, "messages", COMMAND),
        at_most("messages of it against the least", largest.messages / largest.messages_min, "x", 1.01, COMMAND),
        shown("peak memory, system and simulator included", largest.memory_bytes / 1e6, "MB", COMMAND),
        shown(
            f"of it for the snapshot (least: {least_bytes / 1e6:,.0f} MB of frontiers)",
            (largest.memory_bytes - largest.before_bytes) / 1e6,
            "MB",
            COMMAND,
        ),
        *(figure for one in found for figure in _for_each_channel(one)),
        at_most("time a channel, the largest against the smallest", each_us[-1] / each_us[0], "x", LINEAR_MAX, COMMAND),
    ]


def _for_each_channel(one: Scale) -> list[Figure]:
    count, of = one.channels, f"{one.channels:,} channels"
    return [
        shown(f"time a channel, {of}", 1e6 * one.snapshot_s / count, "CPU us", COMMAND),
        shown(f"messages a channel, {of}", one.messages / count, "messages", COMMAND),
        shown(f"peak memory a channel, {of}", one.memory_bytes / count, "bytes", COMMAND),
    ]


if __name__ == "__main__":
    assert sys.argv[3] in PROTOCOLS
    print(msgspec.json.encode(photograph(sys.argv[1], int(sys.argv[2]), sys.argv[3])).decode())
