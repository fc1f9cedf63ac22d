"""The hand-over of one process as a document: everything that its successor needs to go on in the same epoch (E11).

    u64 length of the head, little-endian · the head, a `HandOverDocument` in MessagePack · the bytes of the state

The state is encoded as in a snapshot. The reference that the coordinator passes on has the BLAKE3 of all bytes.
"""

import struct
from collections.abc import Mapping
from typing import Any

import msgspec
from blake3 import blake3

from strobe.errors import UNREADABLE, StrobeError
from strobe.keyed_state import KeyedState
from strobe.names import Name
from strobe.protocol import Fragment, Frame, InFlight, LocalState
from strobe.protocol.coordinator.restart_messages import HandOverRef
from strobe.protocol.process.endpoint_state import EndpointState
from strobe.protocol.process.events import Marker, MarkerReceived, ViewReceived
from strobe.protocol.values.bounds import Count, Encoding, SecondsLeft, Word
from strobe.protocol.values.ids import COORDINATOR, SnapshotId
from strobe.protocol.values.view import View
from strobe.runtime.links.handed_over_ends import ReceivingEnd, SendingEnd
from strobe.runtime.links.message_decoding import Decode
from strobe.runtime.recovery.fragment_loader import fit_in_flight, fit_state
from strobe.storage.content.state_codec import encode_captured, version_of

VERSION = 1
_LENGTH = struct.Struct("<Q")


class HandOverUnusable(StrobeError):
    """No successor can go on from this hand-over: it was used already, or it is damaged."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name = name
        self.problem = problem

    def __str__(self) -> str:
        return f"hand-over {self.name}: {self.problem}"


class QueuedArrival(msgspec.Struct, frozen=True):
    """A frame, a marker or a view that came on `channel` and was not received. A frame of `wire_bytes` 0 is a restored
    one, which came before its link.
    """

    channel: Name
    frame: Frame | None = None
    consumed: Count = 0
    wire_bytes: Count = 0
    marker: Marker | None = None
    view: View | None = None
    sent_count: Count = 0

    @property
    def event(self) -> MarkerReceived | ViewReceived:
        """The arrival of a marker or a view."""
        if self.marker is not None:
            return MarkerReceived(self.channel, self.marker)
        assert self.view is not None, "it is a frame, a marker or a view"
        return ViewReceived(self.channel, self.view, self.sent_count)


class HandOverDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One process in one epoch, between two events. `store` is the identity of its store."""

    version: Count = VERSION
    store: Word
    process: Name
    epoch: Count
    protocol: Word
    endpoint: EndpointState
    sending: dict[Name, SendingEnd]
    receiving: list[ReceivingEnd]
    queued: list[QueuedArrival]
    position: Count
    encoding: Encoding
    state_version: Count
    timers: tuple[tuple[str, SecondsLeft], ...]
    random: int | None
    sources: dict[Name, Count]
    sinks: dict[Name, Count]


class ResumedProcess(msgspec.Struct):
    """A hand-over that a successor has claimed: `local` is its state as stored, `state` the decoded one."""

    name: str
    document: HandOverDocument
    local: LocalState
    state: Any

    @property
    def origin(self) -> str:
        return f"hand-over {self.name}"


def encode_state(process: str, state: Any) -> tuple[str, list[bytes], int]:
    """Return the encoding, the bytes and the version of a state as `capture` returned it."""
    if isinstance(state, KeyedState):
        return "keyed", list(state.freeze().slices()), version_of(state)
    encoding, data = encode_captured(process, state)
    return encoding, [data], version_of(state)


def pack_document(document: HandOverDocument, state: list[bytes]) -> list[bytes]:
    """Return the bytes of a hand-over, in pieces."""
    head = msgspec.msgpack.encode(document)
    return [_LENGTH.pack(len(head)), head, *state]


def unpack_document(ref: HandOverRef, raw: bytes | memoryview) -> tuple[HandOverDocument, bytes]:
    """Return a hand-over and its encoded state; raise HandOverUnusable unless every byte is as it was written."""
    if len(raw) != ref.bytes or blake3(raw).hexdigest() != ref.blake3:
        raise HandOverUnusable(ref.name, "its bytes are not those that were written; everything must roll back")
    try:
        (length,) = _LENGTH.unpack_from(raw)
        document = msgspec.msgpack.decode(raw[_LENGTH.size : _LENGTH.size + length], type=HandOverDocument)
    except (*UNREADABLE, struct.error) as error:
        raise HandOverUnusable(ref.name, f"it cannot be read: {error}; everything must roll back") from error
    return document, bytes(raw[_LENGTH.size + length :])


def check_document(name: str, document: HandOverDocument, expected: Mapping[str, Any]) -> None:
    """Raise HandOverUnusable if a field of `document` differs from what is `expected`."""
    for field, value in {"version": VERSION, **expected}.items():
        found = getattr(document, field)
        if found != value:
            raise HandOverUnusable(name, f"its {field} is {found!r}, not {value!r}; everything must roll back")


def fit_document(name: str, document: HandOverDocument, data: bytes, example: Any, decode: Decode) -> ResumedProcess:
    """Return a hand-over that fits the program; raise Unrestorable if its state or its messages do not (E9)."""
    local = LocalState(
        document.position,
        document.encoding,
        data,
        timers=document.timers,
        random=document.random,
        sources=document.sources,
        sinks=document.sinks,
        version=document.state_version,
    )
    state = fit_state(name, document.process, local, example)
    queued: dict[str, list[InFlight]] = {}
    for item in document.queued:
        if item.frame is not None:
            queued.setdefault(item.channel, []).append(InFlight(item.frame))
    in_flight = {channel: tuple(items) for channel, items in queued.items()}
    nothing = SnapshotId(document.epoch, 0, COORDINATOR)
    fit_in_flight(name, document.process, Fragment(nothing, document.process, 0, {}, {}, in_flight), decode)
    return ResumedProcess(name, document, local, state)
