"""Mutations of what was recorded: frontiers, fragments, and the view itself."""

import random
from collections.abc import Callable

import msgspec
from tests.spark.spoiling import channel_with_frames, replace, with_changed_fragment, with_channel, without

from strobe.protocol.values.fragment import Fragment, Snapshot
from strobe.protocol.values.frames import BLAKE3, FIFO, HASH_BYTES, UNORDERED, XXH3, Frame, Frontier, InFlight


def forgotten_sender(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    channel = rng.choice(snapshot.view.channels)
    return with_changed_fragment(
        snapshot, channel.source, sent=without(snapshot.fragments[channel.source].sent, channel.id)
    )


def forgotten_receiver(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    channel = rng.choice(snapshot.view.channels)
    received = snapshot.fragments[channel.target].received
    return with_changed_fragment(snapshot, channel.target, received=without(received, channel.id))


def forgotten_channel_state(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    channel = rng.choice(snapshot.view.channels)
    in_flight = snapshot.fragments[channel.target].in_flight
    return with_changed_fragment(snapshot, channel.target, in_flight=without(in_flight, channel.id))


def forgotten_process(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    return replace(snapshot, fragments=without(snapshot.fragments, rng.choice(snapshot.view.processes)))


def strange_process(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    stranger = Fragment(snapshot.id, "stranger", snapshot.view.number, {}, {}, {})
    return replace(snapshot, fragments={**snapshot.fragments, "stranger": stranger})


def strange_channel(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """A process has recorded a channel that is not its own, or that does not exist."""
    process = rng.choice(snapshot.view.processes)
    others = [c.id for c in snapshot.view.channels if process not in (c.source, c.target)]
    channel = rng.choice([*others, "nowhere"])
    fragment = snapshot.fragments[process]
    end = Frontier(1, bytes(HASH_BYTES))
    frames = (InFlight(Frame(1, 1, msgspec.msgpack.encode(["strange"]))),)
    spoil: list[Callable[[], Snapshot]] = [
        lambda: with_changed_fragment(snapshot, process, sent={**fragment.sent, channel: end}),
        lambda: with_changed_fragment(snapshot, process, received={**fragment.received, channel: end}),
        lambda: with_changed_fragment(snapshot, process, in_flight={**fragment.in_flight, channel: frames}),
    ]
    return rng.choice(spoil)()


def inconsistent_cut(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """The receiver has received messages that the sender had not yet sent."""
    channel = rng.choice(snapshot.view.channels)
    sender = snapshot.fragments[channel.source]
    received = snapshot.fragments[channel.target].received[channel.id].count
    if received == 0:
        return None
    earlier = Frontier(rng.randrange(received), sender.sent[channel.id].hash)
    return with_changed_fragment(snapshot, channel.source, sent={**sender.sent, channel.id: earlier})


def late_sender(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """The sender recorded its state after it had sent more, so messages are missing."""
    channel = rng.choice(snapshot.view.channels)
    sender = snapshot.fragments[channel.source]
    end = sender.sent[channel.id]
    later = Frontier(end.count + rng.randint(1, 5), end.hash)
    return with_changed_fragment(snapshot, channel.source, sent={**sender.sent, channel.id: later})


def wrong_received_count(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    channel = rng.choice(snapshot.view.channels)
    receiver = snapshot.fragments[channel.target]
    end = receiver.received[channel.id]
    wrong = Frontier(end.count + rng.choice((-1, 1) if end.count else (1,)), end.hash)
    return with_changed_fragment(snapshot, channel.target, received={**receiver.received, channel.id: wrong})


def other_hash(frontier: Frontier, rng: random.Random) -> Frontier:
    return replace(frontier, hash=rng.randbytes(len(frontier.hash)))


def longer_received_hash(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """A hash longer than its kind allows; on an unordered channel the sum may still come out right."""
    channel = rng.choice(snapshot.view.channels)
    receiver = snapshot.fragments[channel.target]
    received = receiver.received[channel.id]
    wrong = replace(received, hash=rng.randbytes(rng.randint(1, 16)) + received.hash)
    return with_changed_fragment(snapshot, channel.target, received={**receiver.received, channel.id: wrong})


def wrong_sent_hash(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    channel = rng.choice(snapshot.view.channels)
    sender = snapshot.fragments[channel.source]
    wrong = other_hash(sender.sent[channel.id], rng)
    return with_changed_fragment(snapshot, channel.source, sent={**sender.sent, channel.id: wrong})


def wrong_received_hash(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    channel = rng.choice(snapshot.view.channels)
    receiver = snapshot.fragments[channel.target]
    wrong = other_hash(receiver.received[channel.id], rng)
    return with_changed_fragment(snapshot, channel.target, received={**receiver.received, channel.id: wrong})


def nothing_sent_but_a_hash(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """Both ends report that nothing was sent, with a hash of something else."""
    channel = rng.choice(snapshot.view.channels)
    sender = snapshot.fragments[channel.source]
    wrong = replace(other_hash(sender.sent[channel.id], rng), count=0)
    changed = with_changed_fragment(snapshot, channel.source, sent={**sender.sent, channel.id: wrong})
    receiver = changed.fragments[channel.target]
    return with_changed_fragment(
        changed,
        channel.target,
        received={**receiver.received, channel.id: wrong},
        in_flight={**receiver.in_flight, channel.id: ()},
    )


def wrong_view(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    process = rng.choice(snapshot.view.processes)
    return with_changed_fragment(snapshot, process, view=snapshot.view.number + rng.choice((-1, 1)))


def other_snapshot(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    other = replace(snapshot.id, counter=snapshot.id.counter + 1)
    return with_changed_fragment(snapshot, rng.choice(snapshot.view.processes), snapshot=other)


def exchanged_fragments(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    first, second = rng.sample(snapshot.view.processes, 2)
    fragments = snapshot.fragments
    return replace(snapshot, fragments={**fragments, first: fragments[second], second: fragments[first]})


def other_incarnation(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """The view has another incarnation of an unordered channel with frames in flight, which changes their hashes."""
    channel = channel_with_frames(snapshot, rng, kind=UNORDERED)
    return channel and with_channel(snapshot, channel, replace(channel, incarnation=channel.incarnation + 1))


def other_kind(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """The view has the other kind, FIFO or unordered, for a channel with frames in flight."""
    channel = channel_with_frames(snapshot, rng)
    if channel is None:
        return None
    return with_channel(snapshot, channel, replace(channel, kind=UNORDERED if channel.kind == FIFO else FIFO))


def weaker_hash(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """The view has xxh3 for a channel whose frames were hashed with BLAKE3."""
    strong = [channel for channel in snapshot.view.channels if channel.hash == BLAKE3]
    channel = rng.choice(strong) if strong else None
    return channel and with_channel(snapshot, channel, replace(channel, hash=XXH3))


def impossible_hash(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """The view has an unknown hash, or BLAKE3 for an unordered channel, whose hash is a sum."""
    channel = rng.choice(snapshot.view.channels)
    names = ["md5", "", *([BLAKE3] if channel.kind == UNORDERED else [])]
    return with_channel(snapshot, channel, replace(channel, hash=rng.choice(names)))
