"""Fragments, and the snapshot that they form together.

Every protocol produces the same kind of fragment. Assembly, verification, storage and Spark do not know which protocol
made it.
"""

import msgspec

from strobe.declarations import Declared
from strobe.protocol.values.frames import Frontier, InFlight
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.view import View

MSGPACK = "msgpack"
OPAQUE = "bytes"
KEYED = "keyed"


class LocalState(msgspec.Struct, frozen=True):
    """One process between two events, as its host captured it.

    `position` counts the events before the cut. `encoding` is the format of `data`: `msgpack`, opaque `bytes`, or
    `keyed`, a segment of entries with `deltas` to be applied to it in order (S3, E5). The state includes pending timers
    (name, seconds left), the random generator, the read offsets of sources and the write offsets of sinks (R2).
    `declared` holds the process's declarations, if it has any (G2). `version` is that of the state's type (R3).
    """

    position: int
    encoding: str
    data: bytes
    timers: tuple[tuple[str, float], ...] = ()
    random: int | None = None
    deltas: tuple[bytes, ...] = ()
    sources: dict[str, int] = {}
    sinks: dict[str, int] = {}
    declared: Declared | None = None
    version: int = 1

    @property
    def bytes(self) -> int:
        return len(self.data) + sum(map(len, self.deltas))


class Fragment(msgspec.Struct, frozen=True):
    """One process's part of a snapshot: its state, and its ends of its channels.

    `sent` and `received` are the frontiers at the local recording, by channel id. `in_flight` has an entry for each
    incoming channel, empty if nothing was in flight. The host adds the `state` that it captured at `RecordState`.
    """

    snapshot: SnapshotId
    process: str
    view: int
    sent: dict[str, Frontier]
    received: dict[str, Frontier]
    in_flight: dict[str, tuple[InFlight, ...]]
    state: LocalState | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """A global snapshot: its view, and a fragment for each process of that view."""

    id: SnapshotId
    protocol: str
    initiators: tuple[str, ...]
    view: View
    fragments: dict[str, Fragment]
    started_us: int = 0
    completed_us: int = 0
    retries: SnapshotId | None = None

    @property
    def state_bytes(self) -> int:
        return sum(fragment.state.bytes for fragment in self.fragments.values() if fragment.state)

    @property
    def in_flight_bytes(self) -> int:
        return sum(
            len(item.frame.body)
            for fragment in self.fragments.values()
            for items in fragment.in_flight.values()
            for item in items
        )

    @property
    def in_flight_messages(self) -> int:
        return sum(
            item.frame.count - item.consumed
            for fragment in self.fragments.values()
            for items in fragment.in_flight.values()
            for item in items
        )
