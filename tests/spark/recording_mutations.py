"""Lies about what was recorded: frontiers, fragments, and the view itself."""

import random
from collections.abc import Callable

import msgspec
from tests.spark.spoiling import channel_with_frames, recorded_otherwise, replace, with_channel, without

from strobe.protocol.values.fragment import Fragment, Snapshot
from strobe.protocol.values.frames import BLAKE3, FIFO, HASH_BYTES, UNORDERED, XXH3, Frame, Frontier, InFlight


def forgotten_sender(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    channel = rng.choice(snapshot.view.channels)
    return recorded_otherwise(
        snapshot, channel.source, sent=without(snapshot.fragments[channel.source].sent, channel.id)
    )


def forgotten_receiver(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    channel = rng.choice(snapshot.view.channels)
    received = snapshot.fragments[channel.target].received
    return recorded_otherwise(snapshot, channel.target, received=without(received, channel.id))


def forgotten_channel_state(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    channel = rng.choice(snapshot.view.channels)
    in_flight = snapshot.fragments[channel.target].in_flight
    return recorded_otherwise(snapshot, channel.target, in_flight=without(in_flight, channel.id))


def forgotten_process(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    return replace(snapshot, fragments=without(snapshot.fragments, rng.choice(snapshot.view.processes)))


def strange_process(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    stranger = Fragment(snapshot.id, "stranger", snapshot.view.number, {}, {}, {})
    return replace(snapshot, fragments={**snapshot.fragments, "stranger": stranger})


def strange_channel(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """A process has recorded a channel that is not its own, or that nobody has."""
    process = rng.choice(snapshot.view.processes)
    others = [c.id for c in snapshot.view.channels if process not in (c.source, c.target)]
    channel = rng.choice([*others, "nowhere"])
    fragment = snapshot.fragments[process]
    end = Frontier(1, bytes(HASH_BYTES))
    frames = (InFlight(Frame(1, 1, msgspec.msgpack.encode(["strange"]))),)
    spoil: list[Callable[[], Snapshot]] = [
        lambda: recorded_otherwise(snapshot, process, sent={**fragment.sent, channel: end}),
        lambda: recorded_otherwise(snapshot, process, received={**fragment.received, channel: end}),
        lambda: recorded_otherwise(snapshot, process, in_flight={**fragment.in_flight, channel: frames}),
    ]
    return rng.choice(spoil)()


def inconsistent_cut(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """The receiver has received what the sender had not yet sent."""
    channel = rng.choice(snapshot.view.channels)
    sender = snapshot.fragments[channel.source]
    received = snapshot.fragments[channel.target].received[channel.id].count
    if received == 0:
        return None
    earlier = Frontier(rng.randrange(received), sender.sent[channel.id].hash)
    return recorded_otherwise(snapshot, channel.source, sent={**sender.sent, channel.id: earlier})


def late_sender(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """The sender recorded after it had sent more: messages are missing."""
    channel = rng.choice(snapshot.view.channels)
    sender = snapshot.fragments[channel.source]
    end = sender.sent[channel.id]
    later = Frontier(end.count + rng.randint(1, 5), end.hash)
    return recorded_otherwise(snapshot, channel.source, sent={**sender.sent, channel.id: later})


def wrong_received_count(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    channel = rng.choice(snapshot.view.channels)
    receiver = snapshot.fragments[channel.target]
    end = receiver.received[channel.id]
    wrong = Frontier(end.count + rng.choice((-1, 1) if end.count else (1,)), end.hash)
    return recorded_otherwise(snapshot, channel.target, received={**receiver.received, channel.id: wrong})


def other_hash(frontier: Frontier, rng: random.Random) -> Frontier:
    return replace(frontier, hash=rng.randbytes(len(frontier.hash)))


def longer_received_hash(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """A hash with more bytes than its kind has; on an unordered channel the sum may come out right all the same."""
    channel = rng.choice(snapshot.view.channels)
    receiver = snapshot.fragments[channel.target]
    received = receiver.received[channel.id]
    wrong = replace(received, hash=rng.randbytes(rng.randint(1, 16)) + received.hash)
    return recorded_otherwise(snapshot, channel.target, received={**receiver.received, channel.id: wrong})


def wrong_sent_hash(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    channel = rng.choice(snapshot.view.channels)
    sender = snapshot.fragments[channel.source]
    wrong = other_hash(sender.sent[channel.id], rng)
    return recorded_otherwise(snapshot, channel.source, sent={**sender.sent, channel.id: wrong})


def wrong_received_hash(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    channel = rng.choice(snapshot.view.channels)
    receiver = snapshot.fragments[channel.target]
    wrong = other_hash(receiver.received[channel.id], rng)
    return recorded_otherwise(snapshot, channel.target, received={**receiver.received, channel.id: wrong})


def nothing_sent_but_a_hash(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """Both ends agree that nothing was sent, on a hash that says otherwise."""
    channel = rng.choice(snapshot.view.channels)
    sender = snapshot.fragments[channel.source]
    wrong = replace(other_hash(sender.sent[channel.id], rng), count=0)
    spoilt = recorded_otherwise(snapshot, channel.source, sent={**sender.sent, channel.id: wrong})
    receiver = spoilt.fragments[channel.target]
    return recorded_otherwise(
        spoilt,
        channel.target,
        received={**receiver.received, channel.id: wrong},
        in_flight={**receiver.in_flight, channel.id: ()},
    )


def wrong_view(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    process = rng.choice(snapshot.view.processes)
    return recorded_otherwise(snapshot, process, view=snapshot.view.number + rng.choice((-1, 1)))


def other_snapshot(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    other = replace(snapshot.id, counter=snapshot.id.counter + 1)
    return recorded_otherwise(snapshot, rng.choice(snapshot.view.processes), snapshot=other)


def exchanged_fragments(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    one, other = rng.sample(snapshot.view.processes, 2)
    fragments = snapshot.fragments
    return replace(snapshot, fragments={**fragments, one: fragments[other], other: fragments[one]})


def other_incarnation(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """An unordered channel with frames in flight is said to be of another incarnation: their terms hash otherwise."""
    channel = channel_with_frames(snapshot, rng, kind=UNORDERED)
    return channel and with_channel(snapshot, channel, replace(channel, incarnation=channel.incarnation + 1))


def other_kind(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """The view calls a channel with frames in flight unordered, and it was FIFO, or the other way round."""
    channel = channel_with_frames(snapshot, rng)
    if channel is None:
        return None
    return with_channel(snapshot, channel, replace(channel, kind=UNORDERED if channel.kind == FIFO else FIFO))


def weaker_hash(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """The view says xxh3 of a channel whose frames were hashed by BLAKE3."""
    strong = [channel for channel in snapshot.view.channels if channel.hash == BLAKE3]
    channel = rng.choice(strong) if strong else None
    return channel and with_channel(snapshot, channel, replace(channel, hash=XXH3))


def impossible_hash(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """The view says a hash that nobody knows, or BLAKE3 of a channel whose hash is a sum."""
    channel = rng.choice(snapshot.view.channels)
    names = ["md5", "", *([BLAKE3] if channel.kind == UNORDERED else [])]
    return with_channel(snapshot, channel, replace(channel, hash=rng.choice(names)))
