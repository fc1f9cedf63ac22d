"""The entries of the store's log, the single source of truth (S1).

The coordinator has no durable state of its own. It appends these entries, and reads them again after a restart. The
first outcome (commit or abort) of a snapshot wins; later ones have no effect. Each start of a coordinator appends a
term, and every entry belongs to a term: entries of a replaced coordinator have no effect. Ids are stored in their
printed form, so that the log can be read without Strobe.
"""

import msgspec

from strobe.declarations import Declared
from strobe.names import Name
from strobe.protocol.values.bounds import (
    ChainHash,
    Count,
    Digest,
    DigestOrNothing,
    Encoding,
    PrintedId,
    SecondsLeft,
    Signature,
    StateVersion,
    ViewNumber,
    Word,
)
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.view import View


class BlobRef(msgspec.Struct, frozen=True):
    """A content-addressed blob: the BLAKE3 of its bytes in hexadecimal, and its size.

    `begin` is the log position of the `Begin` of the snapshot that wrote it. It names the directory of the blob, so
    that no two snapshots ever write the same file (S2).
    """

    blake3: Digest
    bytes: Count
    begin: Count


class EntryRef(msgspec.Struct, frozen=True):
    """A log entry: its position and its checksum. The checksum covers the log up to there."""

    position: Count
    blake3: Digest


class FrontierRecord(msgspec.Struct, frozen=True):
    """A frontier, with its hash in hexadecimal."""

    count: Count
    hash: ChainHash


class Section(msgspec.Struct, frozen=True):
    """The position of one channel's in-flight frames in the frames blob of its receiver."""

    offset: Count
    bytes: Count
    frames: Count
    messages: Count


class ProcessRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process in a manifest. `in_flight` has an entry for each incoming channel.

    `deltas` are to be applied to a keyed `state`, in order (E5). The process recorded at `recorded_us`; it was paused
    for `pause_us`, and its whole part was durable after `duration_us` (E1). `signature` is the process's own, in
    hexadecimal, over every field that matters (P1: `strobe.causality.signatures`). `declared` holds the process's
    declarations, if it has any (G2). `state_version` is the version of the state's type (R3: `strobe.migrations`).
    """

    position: Count
    encoding: Encoding
    state: BlobRef
    sent: dict[str, FrontierRecord]
    received: dict[str, FrontierRecord]
    in_flight: dict[str, Section]
    frames: BlobRef | None = None
    timers: tuple[tuple[str, SecondsLeft], ...] = ()
    random: int | None = None
    deltas: tuple[BlobRef, ...] = ()
    sources: dict[str, Count] = {}
    sinks: dict[str, Count] = {}
    recorded_us: Count = 0
    pause_us: Count = 0
    duration_us: Count = 0
    signature: Signature | None = None
    declared: Declared | None = None
    state_version: StateVersion = 1

    def __post_init__(self) -> None:
        if self.random is not None and not 0 <= self.random < 1 << 64:
            raise ValueError("the state of its random generator does not fit into 64 bits")


class Departure(msgspec.Struct, frozen=True, omit_defaults=True):
    """The output of a departed process: its end offset in each sink, and whether all is known to be released (R2).

    `view` is the first view without the process, `joined` the first with it. Together they identify one membership
    period: a process may leave and join again.
    """

    sinks: dict[str, Count]
    released: bool = False
    view: ViewNumber = 0
    joined: ViewNumber = 0


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A committed snapshot without the bytes of its blobs.

    `departed` are the processes that left with output: this snapshot covers all of that output. `joined` has the number
    of the first view with each process that was not there from the beginning: a process that left and joined again is a
    different member, with output of its own (R2).
    """

    protocol: Name
    initiators: tuple[Name, ...]
    view: View
    epoch: Count
    started_us: Count
    completed_us: Count
    processes: dict[Name, ProcessRecord]
    retries: PrintedId | None = None
    parent: PrintedId | None = None
    departed: dict[Name, Departure] = {}
    joined: dict[Name, ViewNumber] = {}


class Begin(msgspec.Struct, frozen=True, tag="begin", omit_defaults=True):
    """A snapshot has begun. `parent` is the only snapshot whose blobs it may reuse (S2)."""

    snapshot: PrintedId
    view: ViewNumber
    protocol: Name
    initiators: tuple[Name, ...]
    at_us: Count
    parent: PrintedId | None = None
    retries: PrintedId | None = None
    attempt: Count = 1

    def check(self) -> None:
        """Raise UsageError if one of its ids is not a snapshot id."""
        for printed in (self.snapshot, self.parent, self.retries):
            if printed is not None:
                SnapshotId.parse(printed)


class Commit(msgspec.Struct, frozen=True, tag="commit"):
    snapshot: PrintedId
    manifest: Manifest
    at_us: Count


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    snapshot: PrintedId
    reason: str
    at_us: Count


class ViewChange(msgspec.Struct, frozen=True, tag="view"):
    view: View
    at_us: Count


class EpochStart(msgspec.Struct, frozen=True, tag="epoch", omit_defaults=True):
    """A new timeline; everything older is fenced off.

    `restored` is the snapshot it starts from; None: from the beginning. `view` is the view it starts with. `blamed` is
    the process whose crash made it necessary (R1). A `fork` may start from before released output (R2).
    """

    epoch: Count
    at_us: Count
    restored: PrintedId | None = None
    view: View | None = None
    reason: str = ""
    blamed: Name | None = None
    fork: bool = False


class Pin(msgspec.Struct, frozen=True, tag="pin"):
    """Keep `snapshot` regardless of retention, or (`pinned` false) no longer do so."""

    snapshot: PrintedId
    pinned: bool
    at_us: Count


class Remove(msgspec.Struct, frozen=True, tag="remove"):
    """`snapshot` is no longer listed, and garbage collection may delete its blobs."""

    snapshot: PrintedId
    reason: str
    at_us: Count


class Release(msgspec.Struct, frozen=True, tag="release"):
    """All output of the process that left with view `view` has been released (R2)."""

    process: Name
    view: ViewNumber
    at_us: Count


class Term(msgspec.Struct, frozen=True, tag="term"):
    """A coordinator has started, and leads from here on; every coordinator of a lower term must stop.

    `coordinator` describes where it runs, for people to read.
    """

    term: Count
    coordinator: Word
    at_us: Count


class Fence(msgspec.Struct, frozen=True, tag="fence"):
    """An operator has decided, for this `reason`, that the unreadable entry at `position` has no effect.

    `blake3` is the hash of the bytes found there, empty if there were none. A fence has no effect on a valid entry or
    on other bytes.
    """

    position: Count
    blake3: DigestOrNothing
    reason: str
    at_us: Count


Entry = Begin | Commit | Abort | ViewChange | EpochStart | Pin | Remove | Release | Term | Fence


class Void(msgspec.Struct, frozen=True):
    """Stands for an entry that has no effect, when the log is read. It is never written."""

    reason: str


ReadEntry = Entry | Void
