"""The entries of the store's log: the one record that decides everything (S1).

The coordinator keeps no truth of its own. It appends these, and after a restart it reads them again. The first outcome
(commit or abort) for a snapshot wins; later ones have no effect. Each start of a coordinator is an entry, its term, and
every entry is written in a term: those of a coordinator that another one has replaced have no effect. Ids are printed
ones, so that the log can be read without Strobe.
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
    ViewNumber,
    Word,
)
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.view import View


class BlobRef(msgspec.Struct, frozen=True):
    """A content-addressed blob: the BLAKE3 of its bytes in hexadecimal, and how many there are.

    `begin` is the log position at which the snapshot that wrote it has begun; it names the directory of the blob, so
    that no two snapshots ever write the same file (S2).
    """

    blake3: Digest
    bytes: Count
    begin: Count


class EntryRef(msgspec.Struct, frozen=True):
    """An entry of the log: its position, and its checksum, which stands for all that the log says up to there."""

    position: Count
    blake3: Digest


class FrontierRecord(msgspec.Struct, frozen=True):
    """A frontier, with its hash in hexadecimal."""

    count: Count
    hash: ChainHash


class Section(msgspec.Struct, frozen=True):
    """Where the in-flight frames of one channel lie in the frames blob of its receiver."""

    offset: Count
    bytes: Count
    frames: Count
    messages: Count


class ProcessRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process in a manifest. `in_flight` has an entry for each incoming channel.

    `deltas` are to be applied to a keyed `state`, in order (E5). `recorded_us` is when the process recorded; from then
    on it took `pause_us` until it went on, and `duration_us` until all of its part was durable (E1). `signature` is the
    process's own, in hexadecimal, over all that counts here (P1: `strobe.causality.signatures`). `declared` is what the
    process says of itself, where it says anything (G2).
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

    def __post_init__(self) -> None:
        if self.random is not None and not 0 <= self.random < 1 << 64:
            raise ValueError("the state of its random generator does not fit into 64 bits")


class Departure(msgspec.Struct, frozen=True, omit_defaults=True):
    """The output of a process that has left: how far it goes in each sink, and whether it is known to be out (R2).

    `view` is the first without it, and `joined` the first with it: by that, its lives are told apart.
    """

    sinks: dict[str, Count]
    released: bool = False
    view: ViewNumber = 0
    joined: ViewNumber = 0


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """All of a committed snapshot but the bytes of its blobs.

    `departed` are those who have left with output: this snapshot covers all of that, as theirs cover that of others.
    `joined` has the number of the first view with each process that was not there from the beginning: one that left and
    joined again is another than before, with output of its own (R2).
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
        """Raise UsageError if it names what is no snapshot."""
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

    `restored` is the snapshot it started from, if not from the beginning, and `view` the view it starts with. `reason`
    says why; `blamed` is the process whose crash made it necessary (R1). A `fork` may start below released output (R2).
    """

    epoch: Count
    at_us: Count
    restored: PrintedId | None = None
    view: View | None = None
    reason: str = ""
    blamed: Name | None = None
    fork: bool = False


class Pin(msgspec.Struct, frozen=True, tag="pin"):
    """`snapshot` is kept whatever retention says, or (`pinned` false) is no longer."""

    snapshot: PrintedId
    pinned: bool
    at_us: Count


class Remove(msgspec.Struct, frozen=True, tag="remove"):
    """`snapshot` is no longer listed, and its blobs may be swept."""

    snapshot: PrintedId
    reason: str
    at_us: Count


class Release(msgspec.Struct, frozen=True, tag="release"):
    """All output of `process` is out, which has left with the view of this number (R2)."""

    process: Name
    view: ViewNumber
    at_us: Count


class Term(msgspec.Struct, frozen=True, tag="term"):
    """A coordinator has started, and leads from here on; every coordinator of a lower term must stop.

    `coordinator` says for people where it runs.
    """

    term: Count
    coordinator: Word
    at_us: Count


class Fence(msgspec.Struct, frozen=True, tag="fence"):
    """The entry at `position`, which nobody can read, has no effect: somebody has decided so, for this `reason`.

    `blake3` is that of the bytes found there, and empty if there were none. A fence has no effect on a valid entry, and
    none on other bytes.
    """

    position: Count
    blake3: DigestOrNothing
    reason: str
    at_us: Count


Entry = Begin | Commit | Abort | ViewChange | EpochStart | Pin | Remove | Release | Term | Fence


class Void(msgspec.Struct, frozen=True):
    """What a reader is given for an entry that has no effect, with the reason. It is never written."""

    reason: str


ReadEntry = Entry | Void
