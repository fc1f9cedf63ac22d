"""Notes of a live process's events while it runs: whole frames, never single messages (R4).

Many thousands of notes wait for their segment to end. They are never in a reference cycle, so they are excluded from
garbage collection (`gc=False`). A named tuple costs twice as much to make, and is visited by every collection.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from strobe.protocol import ChannelSpec


class Lead(msgspec.Struct, frozen=True, gc=False):
    """The messages of a received frame, `length` of them, or one event that no message caused.

    Each message is an event (`step` 1), or all of them are one event (`step` 0).
    """

    position: int
    length: int
    ordinal: int
    channel: str | None
    name: str | None
    at: float | None
    payload: bytes | None
    step: int = 1

    @property
    def last_position(self) -> int:
        return self.position + self.step * (self.length - 1)


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A sent frame. `events`: for each event that sent some of it, its position and how many messages came before."""

    channel: str
    ordinal: int
    length: int
    events: Sequence[int]
    body: Any


class RecordedNote(msgspec.Struct, frozen=True, gc=False):
    """A snapshot for which the process recorded its state after `position` events."""

    position: int
    snapshot: str


class Notes(NamedTuple):
    """All notes of one segment, up to event `position`. It begins at the recording for `snapshot`, if that is set.

    `reason` is why the segment ends there: see `segments`.
    """

    snapshot: str | None
    position: int
    processes: tuple[str, ...]
    channels: tuple[ChannelSpec, ...]
    leads: list[Lead]
    sends: list[Sent]
    records: list[RecordedNote]
    reason: str

    @property
    def lines(self) -> int:
        """The number of trace lines."""
        leads, sends = sum(lead.length for lead in self.leads), sum(sent.length for sent in self.sends)
        return leads + sends + len(self.records)


def trace_name(spec: ChannelSpec) -> str:
    """Return the name of a channel in a trace: a reopened channel counts from 1 again, so it has its own name."""
    return spec.id if spec.incarnation == 1 else f"{spec.id}#{spec.incarnation}"
