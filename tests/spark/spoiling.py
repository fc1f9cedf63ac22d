"""Building blocks of mutations: a snapshot with one part of it replaced."""

import random
from collections.abc import Callable
from typing import TypeVar

import msgspec

from strobe.protocol.values.fragment import Snapshot
from strobe.protocol.values.frames import InFlight
from strobe.protocol.values.view import ChannelSpec

T = TypeVar("T")

Mutation = Callable[[Snapshot, random.Random], Snapshot | None]
"""Returns None if it cannot be applied to the snapshot."""

Frames = tuple[InFlight, ...]

replace = msgspec.structs.replace


def channel_with_frames(
    snapshot: Snapshot, rng: random.Random, frames_min: int = 1, kind: str | None = None
) -> ChannelSpec | None:
    """Return a random channel of this kind with at least `frames_min` frames in flight, if there is one."""
    fitting = [
        channel
        for channel in snapshot.view.channels
        if len(frames_of(snapshot, channel)) >= frames_min and kind in (None, channel.kind)
    ]
    return rng.choice(fitting) if fitting else None


def frames_of(snapshot: Snapshot, channel: ChannelSpec) -> Frames:
    return snapshot.fragments[channel.target].in_flight[channel.id]


def with_frames(snapshot: Snapshot, channel: ChannelSpec, frames: Frames) -> Snapshot:
    in_flight = {**snapshot.fragments[channel.target].in_flight, channel.id: frames}
    return with_changed_fragment(snapshot, channel.target, in_flight=in_flight)


def with_changed_frames(
    snapshot: Snapshot,
    rng: random.Random,
    change: Callable[[Frames], Frames],
    frames_min: int = 1,
    kind: str | None = None,
) -> Snapshot | None:
    channel = channel_with_frames(snapshot, rng, frames_min, kind)
    return channel and with_frames(snapshot, channel, change(frames_of(snapshot, channel)))


def with_channel(snapshot: Snapshot, channel: ChannelSpec, changed: ChannelSpec) -> Snapshot:
    channels = tuple(changed if other == channel else other for other in snapshot.view.channels)
    return replace(snapshot, view=replace(snapshot.view, channels=channels))


def with_changed_fragment(snapshot: Snapshot, process: str, /, **changes: object) -> Snapshot:
    fragment = replace(snapshot.fragments[process], **changes)
    return replace(snapshot, fragments={**snapshot.fragments, process: fragment})


def pick(frames: Frames, rng: random.Random) -> tuple[int, InFlight]:
    place = rng.randrange(len(frames))
    return place, frames[place]


def put(frames: Frames, place: int, item: InFlight) -> Frames:
    return (*frames[:place], item, *frames[place + 1 :])


def changed_frame(item: InFlight, /, **changes: object) -> InFlight:
    return replace(item, frame=replace(item.frame, **changes))


def without(items: dict[str, T], name: str) -> dict[str, T]:
    return {key: value for key, value in items.items() if key != name}
