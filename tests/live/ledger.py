"""Processes whose messages all have ids of their own, and which remember every one they applied: for exactly-once (R1).

Each message on a channel has the next id of its channel. A process keeps how many it has sent on each channel, and how
often it has applied each id. So for every channel of a snapshot: the multiset of ids applied and in flight must be the
multiset of ids sent. What is applied is also emitted, line by line.
"""

import os
from collections import Counter
from pathlib import Path

import msgspec

from strobe import Channel, KeyedState, Process, System
from strobe.runtime import FileSink

NAMES = ("a", "b", "c")


class Note(msgspec.Struct, tag=True):
    """A message: its id on its channel, and something to carry."""

    id: int
    load: bytes = b""


class Book(msgspec.Struct):
    sent: dict[str, int]
    applied: dict[str, dict[int, int]]
    emitted: int = 0


class Clerk(Process):
    """Sends notes in bursts to everybody, and applies what comes."""

    def __init__(self, burst=8, every_s=0.002, load=64):
        self.burst = burst
        self.every_s = every_s
        self.load = bytes(load)
        self.book = Book({}, {})

    def start(self, ctx):
        ctx.set_timer("send", self.every_s)

    def timer(self, ctx, name):
        for _ in range(self.burst):
            channel = ctx.random.choice(ctx.outputs)
            number = self.book.sent.get(channel, 0) + 1
            self.book.sent[channel] = number
            ctx.send(channel, Note(number, self.load))
        ctx.set_timer("send", self.every_s)

    def receive(self, ctx, channel, note):
        applied = self.book.applied.setdefault(channel, {})
        applied[note.id] = applied.get(note.id, 0) + 1
        self.book.emitted += 1
        ctx.emit({"channel": channel, "id": note.id})

    def capture(self):
        return self.book

    def restore(self, state):
        self.book = state


class KeyedClerk(Clerk):
    """The same with a keyed state: what was applied is written as deltas."""

    def __init__(self, burst=8, every_s=0.002, load=64):
        super().__init__(burst, every_s, load)
        self.keyed = KeyedState(int)

    def timer(self, ctx, name):
        for _ in range(self.burst):
            channel = ctx.random.choice(ctx.outputs)
            number = self.keyed.get(f"sent {channel}", 0) + 1
            self.keyed[f"sent {channel}"] = number
            ctx.send(channel, Note(number, self.load))
        ctx.set_timer("send", self.every_s)

    def receive(self, ctx, channel, note):
        key = f"applied {channel} {note.id}"
        self.keyed[key] = self.keyed.get(key, 0) + 1

    def capture(self):
        return self.keyed

    def restore(self, state):
        self.keyed = state


def wired(clerk, names=NAMES, protocol="chandy-lamport", kind="fifo", sinks=None):
    return System(
        processes={name: clerk() for name in names},
        channels=[Channel(p, q, kind=kind) for p in names for q in names if p != q],
        messages=[Note],
        protocol=protocol,
        sinks=sinks,
    )


def output(name):
    """Return where process `name` writes to; tests say in the environment in which directory."""
    return Path(os.environ.get("STROBE_TEST_OUTPUT", "output")) / f"{name}.jsonl"


ledger = wired(Clerk)
ledger_unordered = wired(Clerk, protocol="lai-yang", kind="unordered")
keyed = wired(KeyedClerk)
with_sinks = wired(Clerk, sinks={f"out-{name}": FileSink(output(name), process=name) for name in NAMES})


def books(system, snapshot):
    """Return, by channel, the ids sent, and the multiset of those applied and in flight, of a loaded snapshot."""
    from strobe.storage.states import decode_state

    sent, found = Counter(), {}
    for name, fragment in snapshot.fragments.items():
        state = decode_state(system.processes[name], fragment.state)
        if isinstance(state, KeyedState):
            _read_keyed(state, sent, found)
        else:
            sent.update(state.sent)
            for channel, applied in state.applied.items():
                found.setdefault(channel, Counter()).update(applied)
        for channel, items in fragment.in_flight.items():
            for item in items:
                messages = system.decoder.decode(item.frame.body)[item.consumed :]
                found.setdefault(channel, Counter()).update(message.id for message in messages)
    return sent, found


def _read_keyed(state, sent, found):
    for key, value in state.items():
        words = key.split(" ")
        if words[0] == "sent":
            sent[words[1]] += value
        else:
            found.setdefault(words[1], Counter())[int(words[2])] += value


def assert_exactly_once(system, snapshot):
    """Every id sent was applied or is in flight, once; nothing else was. Return how many there were."""
    sent, found = books(system, snapshot)
    for channel in {*sent, *found}:
        expected = Counter(range(1, sent[channel] + 1))
        seen = found.get(channel, Counter())
        assert seen == expected, (
            f"{snapshot.id}, channel {channel}: {sent[channel]} sent; lost {list(expected - seen)[:5]}, "
            f"twice or never sent {list(seen - expected)[:5]}"
        )
    return sum(sent.values())


def applied_count(system, snapshot, name):
    """Return how many notes process `name` had applied."""
    from strobe.storage.states import decode_state

    state = decode_state(system.processes[name], snapshot.fragments[name].state)
    return sum(sum(applied.values()) for applied in state.applied.values())
