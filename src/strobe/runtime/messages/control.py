"""The control protocol of coordinator and nodes: MessagePack over a TCP connection that the node opens.

Each message is a length (u32, little-endian) and a MessagePack array of two: the name of its type, and its fields. The
types are the events and effects of `Lifecycle`, and those below. Only the types of `FROM_NODE` and `FROM_COORDINATOR`
are ever decoded; every other type is refused by name. The type of each field bounds its values
(`strobe.protocol.values.bounds`, `strobe.names`): a message with an invalid value is refused as a whole.
"""

import asyncio
import struct
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from strobe.errors import UNREADABLE, TransportError, UsageError
from strobe.names import Name, in_words, shown
from strobe.plain_text import shortened
from strobe.protocol import ChannelSpec, SnapshotId, View
from strobe.protocol.coordinator.messages import (
    CannotRestore,
    Counts,
    Dismiss,
    Drained,
    InstallView,
    RecordingFailed,
    RelaySentCount,
    Released,
    ReportOutcome,
    ReportSettled,
    RequestRecording,
    Reset,
    RestoreState,
    SentCountsArrived,
    SnapshotStarted,
    SnapshotWanted,
)
from strobe.protocol.coordinator.restart_messages import (
    CannotHandOver,
    CannotResume,
    HandedOver,
    HandOver,
    Relieve,
    RestartWanted,
    Resume,
)
from strobe.protocol.values.bounds import (
    KEYS_MAX,
    TEXT_MAX,
    Count,
    Port,
    PrintedId,
    Seconds,
    ViewNumber,
    Word,
    shorten_reason,
)
from strobe.protocol.values.log_entries import EntryRef, ProcessRecord
from strobe.runtime.settings import NodeSettings

VERSION = 2
MESSAGE_BYTES_MAX = 64 << 20
LENGTH = struct.Struct("<I")
CLOSE_S_MAX = 1.0

HostName = Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=r"\A[0-9A-Za-z_.:%-]+\Z")]
"""A host name or address. Names in other scripts are given in their ASCII form (xn--...)."""
Address = tuple[HostName, Port]
Addresses = Annotated[dict[Name, Address], msgspec.Meta(max_length=KEYS_MAX)]
Line = Annotated[str, msgspec.Meta(max_length=64 << 10)]
RejectionCounts = Annotated[dict[Word, Count], msgspec.Meta(max_length=100)]
"""Counts by reason. There are few reasons: they become metric labels."""
Lines = Annotated[dict[Name, Line], msgspec.Meta(max_length=KEYS_MAX)]


class Register(msgspec.Struct, frozen=True):
    """The first message of a node. `instance` is one run of the program; `epoch` 0: it has no state.

    `address` is for its peers. `channels` are its own channels in its description of the system, and `released` is the
    released position of each of its sinks, if known; both are used when it joins. `system` is the system that admitted
    it before, if any: it accepts no other. `run` is the same for all instances that one supervisor restarts: if the
    process left in that run, none of them joins again. `term` is the highest term of a coordinator that has admitted
    it. `newest` is the newest log entry that a coordinator has named to it: a log without that entry has another
    history than its state. A process that `shares_program` with others ends only with them.
    """

    version: Count
    process: Name
    instance: Word
    epoch: Count
    address: Address
    channels: tuple[ChannelSpec, ...]
    protocol: Word
    pid: Count = 0
    host: Word = ""
    released: Annotated[dict[Name, Count | None], msgspec.Meta(max_length=KEYS_MAX)] = {}
    system: Word = ""
    run: Word = ""
    term: Count = 0
    newest: EntryRef | None = None
    shares_program: bool = False


class Welcome(msgspec.Struct, frozen=True):
    """The answer to `Register`. `system` is the identity of the store, which every link of the system must name.

    If nothing arrives for `silence_s` despite the node's heartbeats, the connection is dead. `term` is the
    coordinator's: a node that was admitted in a higher term does not accept this coordinator (S1). `newest` is the
    newest log entry.
    """

    system: Word
    store: str
    settings: NodeSettings
    epoch: Count
    silence_s: Seconds
    term: Count = 0
    newest: EntryRef | None = None


class Refused(msgspec.Struct, frozen=True):
    """The answer to `Register` that ends the connection; `final`: retrying cannot help."""

    reason: str
    final: bool


class AddressBook(msgspec.Struct, frozen=True):
    """The addresses of the peers of a node's process; sent to the node whenever they change.

    `members` are the peers that have not left, including those whose address is not known yet.
    """

    addresses: Addresses
    members: tuple[Name, ...]


class SnapshotBegun(msgspec.Struct, frozen=True):
    """`snapshot` has begun at this log position, and its blobs belong there. It may reuse blobs of `parent` (S2)."""

    snapshot: SnapshotId
    position: Count
    parent: PrintedId | None


class Stop(msgspec.Struct, frozen=True):
    """The system is being stopped: end, without leaving. `code` is the exit code."""

    reason: str
    code: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0


class FragmentStored(msgspec.Struct, frozen=True):
    """This process's whole part of `snapshot` is durable in the store, as `record` describes."""

    snapshot: SnapshotId
    process: Name
    view: ViewNumber
    record: ProcessRecord


class ProcessRecorded(msgspec.Struct, frozen=True):
    """This process has recorded its state for `snapshot`, and continues; only for progress display."""

    snapshot: SnapshotId
    process: Name
    pause_us: Count


class ChannelReport(msgspec.Struct, frozen=True):
    """One channel as its sender sees it (`sent`, `backlog_bytes`, `waiting_s` for credit).

    `refused`: why the listener at the target's last known address refuses the channel permanently.
    `full`: the backlog is so large that the sender's process is given nothing more to receive.
    """

    sent: Count
    backlog_bytes: Count = 0
    waiting_s: Seconds = 0.0
    connected: bool = True
    reconnects: Count = 0
    refused: Line = ""
    full: bool = False


class Heartbeat(msgspec.Struct, frozen=True):
    """A heartbeat, with figures for the status. Counters only go up within an instance.

    `waiting`: why the process cannot start yet, if that is transient.
    `unreadable`: what is wrong with the data that repeatedly arrives on a channel.
    `waiting_bytes`: data that has arrived on a channel and was not yet given to the process.
    `blocked`: a call of a source or a sink that does not return.
    `held_back`: why output cannot be made durable, while the process is given nothing more because of that.
    `claims`: the value in the last `HeartbeatHeard` of this connection, which proves that it was alive after that.
    """

    process: Name
    epoch: Count
    position: Count
    cpu_s: Seconds
    memory_bytes: Count
    outgoing: Annotated[dict[Name, ChannelReport], msgspec.Meta(max_length=KEYS_MAX)]
    received: Counts
    rejected: RejectionCounts
    recording_bytes: Count = 0
    spilled_bytes: Count = 0
    open_snapshots: Count = 0
    waiting: Line = ""
    unreadable: Lines = {}
    waiting_bytes: Counts = {}
    held_back: Line = ""
    claims: Count = 0
    blocked: Line = ""


class Blocked(msgspec.Struct, frozen=True):
    """A handler of this process does not return, so that its node can do nothing else. Sent alone, on a connection of
    its own. `call` names the handler. The next heartbeat shows that it has returned.
    """

    process: Name
    instance: Word
    system: Word
    call: Line
    running_s: Seconds


class HeartbeatHeard(msgspec.Struct, frozen=True):
    """The answer to each `Heartbeat`; proves to the node that its connection works.

    `claims`: the number of other instances that have tried to run its process. `newest` is the newest log entry.
    """

    claims: Count = 0
    newest: EntryRef | None = None


class Failed(msgspec.Struct, frozen=True):
    """The process cannot continue, for this reason: its last message before it ends with exit code 1.

    `unbegun`: the epoch that it was ordered to begin, if it has done nothing yet that others could notice.
    """

    process: Name
    reason: str
    unbegun: Count = 0

    def __post_init__(self) -> None:
        shorten_reason(self)


FROM_NODE: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Register,
        Blocked,
        Heartbeat,
        ProcessRecorded,
        FragmentStored,
        RecordingFailed,
        SentCountsArrived,
        SnapshotStarted,
        SnapshotWanted,
        Drained,
        Released,
        CannotRestore,
        RestartWanted,
        HandedOver,
        CannotHandOver,
        CannotResume,
        Failed,
    )
}
FROM_COORDINATOR: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Welcome,
        Refused,
        AddressBook,
        HeartbeatHeard,
        SnapshotBegun,
        RequestRecording,
        RelaySentCount,
        ReportOutcome,
        ReportSettled,
        InstallView,
        RestoreState,
        Reset,
        Dismiss,
        HandOver,
        Relieve,
        Resume,
        Stop,
    )
}

_encode = msgspec.msgpack.Encoder().encode
_envelope = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])


def pack(message: msgspec.Struct) -> bytes:
    """Return `message` encoded, preceded by its length."""
    body = _encode((type(message).__name__, message))
    return LENGTH.pack(len(body)) + body


def unpack(body: bytes, known: dict[str, Any]) -> Any:
    """Decode `body` as one of the `known` types; TransportError describes what is wrong."""
    try:
        name, fields = _envelope.decode(body)
        kind = known.get(name)
        if kind is None:
            raise TransportError(f"a control message of the unknown type {shown(name)}")
        raw_kind = _RAW_VIEWS.get(kind)
        if raw_kind is None:
            return msgspec.msgpack.decode(fields, type=kind)
        raw = msgspec.structs.asdict(msgspec.msgpack.decode(fields, type=raw_kind))
        return kind(**raw | {"view": _view(bytes(raw["view"]))})
    except (*UNREADABLE, UsageError) as error:
        raise TransportError(f"a control message that cannot be read: {in_words(error)}") from error


def running_text(call: str, running_s: float) -> str:
    """Return `Branch.receive() of b at bank.py:26 has been running for 5.0 s`."""
    return f"{shortened(call, TEXT_MAX)} has been running for {running_s:.1f} s"


@lru_cache(maxsize=1)
def _view(raw: bytes) -> View:
    """Return the view, checked. Every process of a program receives the same one, and it may be large."""
    view = msgspec.msgpack.decode(raw, type=View)
    view.check()
    return view


def _with_raw_view(kind: Any) -> Any:
    """Return `kind` with a view that is not decoded yet."""
    fields = [
        (field.name, msgspec.Raw if field.name == "view" else field.type, *([] if field.required else [field.default]))
        for field in msgspec.structs.fields(kind)
    ]
    return msgspec.defstruct(kind.__name__, fields)


_RAW_VIEWS: dict[Any, Any] = {kind: _with_raw_view(kind) for kind in (InstallView, RestoreState)}


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close the connection after the buffered data is sent; do not wait long for a peer that does not read."""
    writer.close()
    with suppress(OSError):
        try:
            # Not `wait_for`, which in Python 3.11 may swallow the cancellation of this task.
            async with asyncio.timeout(CLOSE_S_MAX):
                await writer.wait_closed()
        except TimeoutError:
            writer.transport.abort()
