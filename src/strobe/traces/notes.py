"""What is noted of a live process's events while it runs: whole frames, never single messages (R4).

Many thousands of notes wait for their segment to end. They are in no cycle, so the garbage collector need not visit
them (`gc=False`): a tuple with a name costs twice as much to make, and is visited again and again.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from strobe.protocol import ChannelSpec


class Lead(msgspec.Struct, frozen=True, gc=False):
    """`length` events in a row: the messages of a frame that was received, or one event that no message caused."""

    position: int
    length: int
    ordinal: int
    channel: str | None
    name: str | None
    at: float | None
    payload: bytes | None


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A frame that was sent. `events`: for each event that sent some of it, its position and how many came before."""

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
    """All that becomes one segment, up to event `position`. It begins at the recording for `snapshot`, if at one.

    `reason` says why it ends where it does: see `trace_segments`.
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
        """How many lines of a trace this is."""
        leads, sends = sum(lead.length for lead in self.leads), sum(sent.length for sent in self.sends)
        return leads + sends + len(self.records)


def trace_name(spec: ChannelSpec) -> str:
    """Return the name of a channel in a trace: one that was opened again counts from 1 again, so it has its own."""
    return spec.id if spec.incarnation == 1 else f"{spec.id}#{spec.incarnation}"
