"""Mutations of what was in flight: each changes the recorded frames of one channel."""

import random

import msgspec
from tests.spark.spoiling import (
    Frames,
    changed_frame,
    channel_with_frames,
    frames_of,
    pick,
    put,
    replace,
    with_changed_frames,
    with_frames,
)

from strobe.protocol.values.fragment import Snapshot
from strobe.protocol.values.frames import FIFO, Frame, InFlight


def wrong_byte(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    def spoil(frames: Frames) -> Frames:
        place, item = pick(frames, rng)
        body = bytearray(item.frame.body)
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        return put(frames, place, changed_frame(item, body=bytes(body)))

    return with_changed_frames(snapshot, rng, spoil)


def empty_body(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    def spoil(frames: Frames) -> Frames:
        place, item = pick(frames, rng)
        return put(frames, place, changed_frame(item, body=b""))

    return with_changed_frames(snapshot, rng, spoil)


def other_message(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """The same number of messages, well formed, but with one changed."""

    def spoil(frames: Frames) -> Frames:
        place, item = pick(frames, rng)
        messages = msgspec.msgpack.decode(item.frame.body)
        messages[-1]["amount"] += 1
        return put(frames, place, changed_frame(item, body=msgspec.msgpack.encode(messages)))

    return with_changed_frames(snapshot, rng, spoil)


def invented_message(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """A frame has one more message, and its count includes it."""

    def spoil(frames: Frames) -> Frames:
        place, item = pick(frames, rng)
        messages = [*msgspec.msgpack.decode(item.frame.body), {"type": "Transfer", "amount": 1}]
        return put(frames, place, changed_frame(item, count=len(messages), body=msgspec.msgpack.encode(messages)))

    return with_changed_frames(snapshot, rng, spoil)


def missing_frame(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    def spoil(frames: Frames) -> Frames:
        place, _ = pick(frames, rng)
        return frames[:place] + frames[place + 1 :]

    return with_changed_frames(snapshot, rng, spoil)


def extra_frame(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    def spoil(frames: Frames) -> Frames:
        last = max(item.frame.last_ordinal for item in frames)
        return (*frames, InFlight(Frame(last + 1, 1, msgspec.msgpack.encode(["more"]))))

    return with_changed_frames(snapshot, rng, spoil)


def duplicated_frame(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    def spoil(frames: Frames) -> Frames:
        place, item = pick(frames, rng)
        return (*frames[: place + 1], item, *frames[place + 1 :])

    return with_changed_frames(snapshot, rng, spoil)


def swapped_frames(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    def spoil(frames: Frames) -> Frames:
        place = rng.randrange(len(frames) - 1)
        return (*frames[:place], frames[place + 1], frames[place], *frames[place + 2 :])

    return with_changed_frames(snapshot, rng, spoil, frames_min=2, kind=FIFO)


def moved_frame(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """A frame is recorded for another channel."""
    channel = channel_with_frames(snapshot, rng)
    others = [other for other in snapshot.view.channels if other != channel]
    if channel is None or not others:
        return None
    moved = frames_of(snapshot, channel)[-1]
    other = rng.choice(others)
    without = with_frames(snapshot, channel, frames_of(snapshot, channel)[:-1])
    return with_frames(without, other, (*frames_of(without, other), moved))


def changed_message_count(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    def spoil(frames: Frames) -> Frames:
        place, item = pick(frames, rng)
        return put(frames, place, changed_frame(item, count=max(0, item.frame.count + rng.choice((-1, 1)))))

    return with_changed_frames(snapshot, rng, spoil)


def renumbered_frame(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    def spoil(frames: Frames) -> Frames:
        place, item = pick(frames, rng)
        return put(frames, place, changed_frame(item, first_ordinal=item.frame.first_ordinal + rng.randint(1, 3)))

    return with_changed_frames(snapshot, rng, spoil)


def frame_from_zero(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """Ordinals count from 1."""

    def spoil(frames: Frames) -> Frames:
        place, item = pick(frames, rng)
        return put(frames, place, changed_frame(item, first_ordinal=0))

    return with_changed_frames(snapshot, rng, spoil)


def wrong_consumed(snapshot: Snapshot, rng: random.Random) -> Snapshot | None:
    """One more message of a frame counts as received, even the last one, or one of a frame that cannot be split."""

    def spoil(frames: Frames) -> Frames:
        place, item = pick(frames, rng)
        return put(frames, place, replace(item, consumed=item.consumed + 1))

    return with_changed_frames(snapshot, rng, spoil)
