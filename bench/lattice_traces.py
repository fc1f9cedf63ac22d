"""Traces to search the lattices of: random messages, processes without any, and a replicated log."""

import random

import msgspec
from msgspec import Raw

from strobe.causality.trace import Trace
from strobe.causality.trace_lines import Internal, Line, Receive, Send, header_of
from strobe.protocol import ChannelSpec, View

PROCESSES = 8


def random_trace(events: int, receiving: float, seed: int = 1) -> Trace:
    """Return a run in which every event receives a message, with this probability if there is one, or sends one."""
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


def told(**fields: object) -> Raw:
    return Raw(msgspec.json.encode(fields))


def replicated_log(entries: int) -> Trace:
    """Return a run in which n0 sends entries to four followers, and announces each as committed when two have it."""
    names = tuple(f"n{number}" for number in range(5))
    channels = tuple(ChannelSpec(f"{s}{t}", s, t) for s in names for t in names if s != t and "n0" in (s, t))
    positions, sent = dict.fromkeys(names, 0), {channel.id: 0 for channel in channels}
    lines: list[Line] = []

    def event(process: str, *targets: str, received: tuple[str, int] | None = None, **fields: object) -> None:
        positions[process] += 1
        place = process, positions[process]
        lead = Internal(*place, payload=told(**fields)) if received is None else None
        lines.append(lead or Receive(*place, *received, payload=told(**fields)))  # type: ignore[misc]
        for target in targets:
            sent[process + target] += 1
            lines.append(Send(*place, process + target, sent[process + target]))

    followers = names[1:]
    for index in range(1, entries + 1):
        event("n0", *followers, log=index)
        for name in followers:
            event(name, "n0", received=("n0" + name, sent["n0" + name]), log=index)
        for name in followers[:2]:
            event("n0", received=(name + "n0", sent[name + "n0"]))
        event("n0", *followers, commit=index)
        for name in followers:
            event(name, received=("n0" + name, sent["n0" + name]), commit=index)
        for name in followers[2:]:
            event("n0", received=(name + "n0", sent[name + "n0"]))
    return Trace(header_of(View(1, names, channels)), lines)
