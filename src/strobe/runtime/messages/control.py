"""What coordinator and nodes say to each other: MessagePack on a TCP connection that the node opens.

Each message is a length (u32, little-endian) and a MessagePack array of two: the name of its type, and its fields. The
types are the brain's own events and effects, and those below. Only the types of `FROM_NODE` and `FROM_COORDINATOR` are
ever made of what comes in; everything else is refused by name. Every field has a type that says which values it may
have (`strobe.protocol.values.bounds`, `strobe.names`): a message with any other value is refused as a whole.
"""

import asyncio
import struct
from contextlib import suppress
from typing import Annotated, Any

import msgspec

from strobe.errors import UNREADABLE, TransportError, UsageError
from strobe.names import Name, in_words, shown
from strobe.protocol import ChannelSpec, SnapshotId
from strobe.protocol.coordinator.messages import (
    AskToRecord,
    CannotRestore,
    Counts,
    Dismiss,
    Drained,
    RecordingFailed,
    RelaySentCount,
    Released,
    Reset,
    SentCountsArrived,
    SnapshotStarted,
    SnapshotWanted,
    TellOutcome,
    TellRestore,
    TellSettled,
    TellView,
    shorten_reason,
)
from strobe.protocol.values.bounds import KEYS_MAX, Count, Port, PrintedId, Seconds, ViewNumber, Word
from strobe.protocol.values.log_entries import ProcessRecord
from strobe.runtime.settings import NodeSettings

VERSION = 2
MESSAGE_BYTES_MAX = 64 << 20
LENGTH = struct.Struct("<I")
CLOSE_S_MAX = 1.0

HostName = Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=r"\A[0-9A-Za-z_.:%-]+\Z")]
"""A name or an address of a host. Names in other scripts are given in their ASCII form (xn--...)."""
Address = tuple[HostName, Port]
Addresses = Annotated[dict[Name, Address], msgspec.Meta(max_length=KEYS_MAX)]
Line = Annotated[str, msgspec.Meta(max_length=64 << 10)]
Rejections = Annotated[dict[Word, Count], msgspec.Meta(max_length=100)]
"""By reason, of which there are few: they become labels of metrics."""
Lines = Annotated[dict[Name, Line], msgspec.Meta(max_length=KEYS_MAX)]


class Register(msgspec.Struct, frozen=True):
    """The first thing a node says. `instance` is one run of the program; `epoch` 0: it has no state.

    `address` is where its peers reach it. `channels` are those of its description of the system that it is an end of,
    and `released` is how far output is out in its sinks, where they can tell: these count where it joins. `system` is
    the one that has let it in before, if one has: it obeys no other. `run` is the same for all instances that somebody
    starts again after another: where the process has left in it, none of these joins anew. `term` is the highest term
    of a coordinator that has let it in.
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


class Welcome(msgspec.Struct, frozen=True):
    """The answer to `Register`. `system` is the identity of the store, which every link of the system must name.

    Where nothing comes for `silence_s`, however often the node says that it lives, the connection leads nowhere. `term`
    is the coordinator's: a node that was let in by one of a higher term does not obey this one (S1).
    """

    system: Word
    store: str
    settings: NodeSettings
    epoch: Count
    silence_s: Seconds
    term: Count = 0


class Refused(msgspec.Struct, frozen=True):
    """The answer to `Register` that ends the connection; `final`: trying again is of no use."""

    reason: str
    final: bool


class AddressBook(msgspec.Struct, frozen=True):
    """Where each process of the system listens; told to everybody whenever it changes.

    `members` are all who have not left, also those of whom it is not known yet where they are.
    """

    addresses: Addresses
    members: tuple[Name, ...]


class SnapshotBegun(msgspec.Struct, frozen=True):
    """`snapshot` has begun at this position of the log: its blobs belong there. It may reuse blobs of `parent` (S2)."""

    snapshot: SnapshotId
    position: Count
    parent: PrintedId | None


class Stop(msgspec.Struct, frozen=True):
    """The system is being stopped: end, without leaving. `code` is what to exit with."""

    reason: str
    code: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0


class FragmentStored(msgspec.Struct, frozen=True):
    """All of this process's part of `snapshot` is durable in the store, at the place that `record` says."""

    snapshot: SnapshotId
    process: Name
    view: ViewNumber
    record: ProcessRecord


class ProcessRecorded(msgspec.Struct, frozen=True):
    """This process has recorded its state for `snapshot`, and goes on; progress for people."""

    snapshot: SnapshotId
    process: Name
    pause_us: Count


class ChannelReport(msgspec.Struct, frozen=True):
    """One channel as its sender sees it (`sent`, `backlog_bytes`, `waiting_s` for credit).

    `refused`: why whoever listens where the target was last known to be does not let it in, and never will.
    `full`: so much waits here that the sender's process is given nothing more.
    """

    sent: Count
    backlog_bytes: Count = 0
    waiting_s: Seconds = 0.0
    connected: bool = True
    reconnects: Count = 0
    refused: Line = ""
    full: bool = False


class Heartbeat(msgspec.Struct, frozen=True):
    """A sign of life, with what people want to see. Counters only ever go up within an instance.

    `waiting`: why the process cannot begin yet, where that may pass.
    `unreadable`: what is wrong with what comes on a channel again and again.
    `waiting_bytes`: what has come on a channel, and was not given to the process yet.
    `held_back`: why the output of the process cannot be made durable, where it is given nothing more until it is.
    `claims`: what the last `HeartbeatHeard` of this connection said; so it was alive after that was said.
    """

    process: Name
    epoch: Count
    position: Count
    cpu_s: Seconds
    memory_bytes: Count
    outgoing: Annotated[dict[Name, ChannelReport], msgspec.Meta(max_length=KEYS_MAX)]
    received: Counts
    rejected: Rejections
    recording_bytes: Count = 0
    spilled_bytes: Count = 0
    open_snapshots: Count = 0
    waiting: Line = ""
    unreadable: Lines = {}
    waiting_bytes: Counts = {}
    held_back: Line = ""
    claims: Count = 0


class HeartbeatHeard(msgspec.Struct, frozen=True):
    """The answer to each `Heartbeat`: by it a node knows that its connection leads to somebody.

    `claims`: so many other instances have come that would run its process.
    """

    claims: Count = 0


class Failed(msgspec.Struct, frozen=True):
    """The process cannot go on, for this reason: the last thing it says before it ends with exit code 1."""

    process: Name
    reason: str

    def __post_init__(self) -> None:
        shorten_reason(self)


FROM_NODE: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Register,
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
        AskToRecord,
        RelaySentCount,
        TellOutcome,
        TellSettled,
        TellView,
        TellRestore,
        Reset,
        Dismiss,
        Stop,
    )
}

_encode = msgspec.msgpack.Encoder().encode
_envelope = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])


def pack(message: msgspec.Struct) -> bytes:
    """Return `message` as it goes on the wire, its length first."""
    body = _encode((type(message).__name__, message))
    return LENGTH.pack(len(body)) + body


def unpack(body: bytes, known: dict[str, Any]) -> Any:
    """Return the message that `body` is, of one of the `known` types; raise TransportError that says what is wrong."""
    try:
        name, fields = _envelope.decode(body)
        kind = known.get(name)
        if kind is None:
            raise TransportError(f"a control message of the unknown type {shown(name)}")
        message = msgspec.msgpack.decode(fields, type=kind)
        if isinstance(message, TellView | TellRestore):
            message.view.check()
        return message
    except (*UNREADABLE, UsageError) as error:
        raise TransportError(f"a control message that cannot be read: {in_words(error)}") from error


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close the connection when what was sent has gone out; a peer that does not read is not waited for long."""
    writer.close()
    with suppress(OSError):
        try:
            # Not by `wait_for`, which in Python 3.11 may swallow that this task is cancelled.
            async with asyncio.timeout(CLOSE_S_MAX):
                await writer.wait_closed()
        except TimeoutError:
            writer.transport.abort()
