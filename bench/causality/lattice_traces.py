"""Traces for lattice searches: random messages, processes without messages, and a replicated log."""

import random
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Raw

from strobe.causality.trace import Trace
from strobe.causality.trace_lines import Internal, Line, Receive, Send, header_of
from strobe.protocol import ChannelSpec, View

PROCESSES = 8


def random_trace(events: int, receiving: float, seed: int = 1) -> Trace:
    """Return a run in which every event sends a message, or receives one with this probability if there is one."""
    chosen, names = random.Random(seed), tuple(f"p{number}" for number in range(PROCESSES))
    channels = tuple(ChannelSpec(f"{s}->{t}", s, t) for s in names for t in names if s != t)
    incoming = {name: [channel.id for channel in channels if channel.target == name] for name in names}
    positions = dict.fromkeys(names, 0)
    sent, received = {channel.id: 0 for channel in channels}, {channel.id: 0 for channel in channels}
    lines: list[Line] = []
    for _ in range(events):
        process = chosen.choice(names)
        positions[process] += 1
        ready = [channel for channel in incoming[process] if sent[channel] > received[channel]]
        if ready and chosen.random() < receiving:
            channel = chosen.choice(ready)
            received[channel] += 1
            lines.append(Receive(process, positions[process], channel, received[channel]))
        else:
            channel = f"{process}->{chosen.choice([name for name in names if name != process])}"
            sent[channel] += 1
            lines.append(Send(process, positions[process], channel, sent[channel]))
    return Trace(header_of(View(1, names, channels)), lines)


def strangers(count: int, events: int) -> Trace:
    """Return a run of processes without messages: every cut is consistent."""
    names = tuple(f"p{number}" for number in range(count))
    lines = [Internal(name, position) for name in names for position in range(1, events + 1)]
    return Trace(header_of(View(1, names, ())), lines)


def trace_of(values: Sequence[Callable[[int], object]], events: int) -> Trace:
    """Return a run without messages in which each event of process i reports `values[i](position)` as x."""
    names = tuple(f"p{number}" for number in range(len(values)))
    lines = [
        Internal(name, position, payload=payload_of(x=value(position)))
        for name, value in zip(names, values, strict=True)
        for position in range(1, events + 1)
    ]
    return Trace(header_of(View(1, names, ())), lines)


def payload_of(**fields: object) -> Raw:
    return Raw(msgspec.json.encode(fields))


def replicated_log(entries: int, seed: int = 1) -> Trace:
    """Return a run in which a leader n0 sends entries to four followers, and commits each when two acknowledged it.

    With every entry it sends its commit index. No process waits for another, and messages take any time.
    """
    chosen, followers = random.Random(seed), ("n1", "n2", "n3", "n4")
    channels = tuple(ChannelSpec(f"{s}{t}", s, t) for name in followers for s, t in (("n0", name), (name, "n0")))
    positions = dict.fromkeys(("n0", *followers), 0)
    queues: dict[str, list[tuple[int, int]]] = {channel.id: [] for channel in channels}
    received = dict.fromkeys(queues, 0)
    acknowledged = dict.fromkeys(followers, 0)
    appended = committed = 0
    lines: list[Line] = []

    def send(process: str, target: str, index: int) -> None:
        queue = queues[process + target]
        queue.append((index, committed))
        ordinal = received[process + target] + len(queue)
        lines.append(Send(process, positions[process], process + target, ordinal))

    while appended < entries or any(queues.values()):
        waiting = [channel for channel, queue in queues.items() if queue]
        if appended < entries and (not waiting or chosen.random() < 0.15):
            appended += 1
            positions["n0"] += 1
            lines.append(Internal("n0", positions["n0"], payload=payload_of(log=appended)))
            for name in followers:
                send("n0", name, appended)
            continue
        channel = chosen.choice(waiting)
        process, (index, known) = channel[2:], queues[channel].pop(0)
        received[channel] += 1
        positions[process] += 1
        if process == "n0":
            acknowledged[channel[:2]] = index
            committed = sorted(acknowledged.values())[2]
        payload = payload_of(commit=committed) if process == "n0" else payload_of(log=index, commit=known)
        lines.append(Receive(process, positions[process], channel, received[channel], payload=payload))
        if process != "n0":
            send(process, "n0", index)
    return Trace(header_of(View(1, ("n0", *followers), channels)), lines)
