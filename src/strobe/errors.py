"""Every deliberate exception of Strobe.

    StrobeError
    ├── UsageError            you asked for something impossible: a wrong topology, file or argument
    │   ├── TraceDamaged          a segment of a trace is not what was written
    │   └── TraceInvalid          events of a trace do not fit together (strobe.causality)
    ├── UserCodeFailed        your code failed while it ran, or a check before the start found a mistake in it
    ├── InconsistentCut       a cut is not closed under happens-before (strobe.causality)
    ├── ReplayDiverged        a process behaved differently from its trace (strobe.simulation)
    ├── ProtocolViolation     a peer or a channel broke the rules: a gap, a duplicate, a reordering
    ├── SnapshotError
    │   ├── SnapshotNotFound      no such id in the store
    │   ├── SnapshotIncomplete    begun, but not committed
    │   ├── SnapshotCorrupt       a checksum does not match its bytes
    │   └── SnapshotInconsistent  the proof does not hold
    ├── TransportError        a peer cannot be reached
    │   └── NotACoordinator       something else answers at the coordinator's address
    ├── StoreError            the store cannot be reached, read or written
    │   ├── StoreFormatError      it is not a store, or one of another version
    │   │   ├── StoreMissing          there is no store here, or not any more
    │   │   │   └── StoreAway             the expected store is not here
    │   │   └── EntryUnreadable       a log entry has a valid checksum but is not a known entry
    │   ├── StoreCorrupt          a log entry or the header is damaged
    │   └── LogConflict           another writer has created this log entry first
    ├── TakenOver             another coordinator leads the store: this one must stop
    ├── LeftBehind            the next log entries to read were removed meanwhile
    ├── LogReplaced           the store was replaced by another copy: start again, and read its log
    └── MissingComponent      a required extra or program is not installed
        └── MissingExtra

Errors carry the facts as fields and are written for the person who reads them: what happened, to which thing, and what
to do now. `exit_code` is what the command line returns. A broken invariant of Strobe's own is an `assert`, and is never
caught.
"""

import msgspec

__all__ = [
    "EntryUnreadable",
    "LeftBehind",
    "LogConflict",
    "LogReplaced",
    "MissingComponent",
    "MissingExtra",
    "NotACoordinator",
    "ProtocolViolation",
    "SnapshotCorrupt",
    "SnapshotError",
    "SnapshotIncomplete",
    "SnapshotInconsistent",
    "SnapshotNotFound",
    "StoreAway",
    "StoreCorrupt",
    "StoreError",
    "StoreFormatError",
    "StoreMissing",
    "StrobeError",
    "TakenOver",
    "TraceDamaged",
    "TransportError",
    "UsageError",
    "UserCodeFailed",
]

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Every exception that decoding untrusted or stored bytes may raise."""


class StrobeError(Exception):
    """Base class of every exception that Strobe raises on purpose."""

    exit_code = 1


class UsageError(StrobeError):
    """Bad input: the message names the thing, its location and the remedy."""

    exit_code = 2


class UserCodeFailed(StrobeError):
    """A process, or another part of the user's system, does not do what it must."""


class ProtocolViolation(StrobeError):
    """A channel did not keep its promise (M2). An affected snapshot is never reported as good."""

    def __init__(self, process: str, channel: str, problem: str) -> None:
        super().__init__(process, channel, problem)
        self.process = process
        self.channel = channel
        self.problem = problem

    def __str__(self) -> str:
        return f"channel {self.channel}, at {self.process}: {self.problem}"


class TraceDamaged(UsageError):
    """A segment of a trace is not what was written."""

    exit_code = 1


class SnapshotError(StrobeError):
    """Something is wrong with one snapshot."""

    def __init__(self, snapshot_id: str, problem: str) -> None:
        super().__init__(snapshot_id, problem)
        self.snapshot_id = snapshot_id
        self.problem = problem

    def __str__(self) -> str:
        return f"snapshot {self.snapshot_id}: {self.problem}"


class SnapshotNotFound(SnapshotError):
    exit_code = 2


class SnapshotIncomplete(SnapshotError):
    exit_code = 2


class SnapshotCorrupt(SnapshotError):
    pass


class SnapshotInconsistent(SnapshotError):
    pass


class TransportError(StrobeError):
    exit_code = 3


class NotACoordinator(TransportError):
    """What answers at `address` is not the coordinator that was expected there."""

    def __init__(self, address: str, problem: str) -> None:
        super().__init__(address, problem)
        self.address = address
        self.problem = problem

    def __str__(self) -> str:
        return f"what answers at {self.address} is not a coordinator of Strobe: {self.problem}"


class StoreError(StrobeError):
    """The store at `url` cannot be used."""

    exit_code = 3

    def __init__(self, url: str, problem: str) -> None:
        super().__init__(url, problem)
        self.url = url
        self.problem = problem

    def __str__(self) -> str:
        return f"store {self.url}: {self.problem}"


class StoreFormatError(StoreError):
    exit_code = 2


class StoreMissing(StoreFormatError):
    """There is no store. A store that was there may come back, for example when its directory is mounted again."""


class StoreAway(StoreMissing):
    """The store with this `identity` is not at `url`; `found` describes what is there instead."""

    def __init__(self, url: str, identity: str, found: str) -> None:
        super().__init__(url, f"{found}; the store with the identity {identity} belongs here")
        self.args = (url, identity, found)
        self.identity = identity
        self.found = found


class EntryUnreadable(StoreFormatError):
    """A log entry with a valid checksum that is not a known entry: it was forged, or a newer Strobe has written it."""

    exit_code = 1


class StoreCorrupt(StoreError):
    """A file of the store is damaged; `place` names it."""

    exit_code = 1

    def __init__(self, url: str, place: str, problem: str) -> None:
        super().__init__(url, f"{place}: {problem}")
        self.place = place


class LogConflict(StoreError):
    """Entry `position` exists already: another writer was first. Read it, then decide again."""

    exit_code = 1

    def __init__(self, url: str, position: int) -> None:
        super().__init__(url, f"log entry {position} was written by another writer; read the log again")
        self.position = position


class TakenOver(StrobeError):
    """Another coordinator has started on the store at `url` (S1). A supervisor must not restart this one."""

    exit_code = 5

    def __init__(self, url: str, own_term: int, term: int, coordinator: str) -> None:
        super().__init__(url, own_term, term, coordinator)
        self.url = url
        self.own_term = own_term
        self.term = term
        self.coordinator = coordinator

    def __str__(self) -> str:
        return (
            f"store {self.url}: another coordinator has taken over ({self.coordinator}, term {self.term}); this one, "
            f"of term {self.own_term}, has stopped and writes nothing more; to run the system here, stop the other one "
            "first, then start this one again"
        )


class LeftBehind(StrobeError):
    """The log of the store at `url` has grown, and entries from `position` on were removed before they were read (S1).

    An entry appended there may be in effect or not: start again, and read the log.
    """

    exit_code = 3

    def __init__(self, url: str, position: int) -> None:
        super().__init__(url, position)
        self.url = url
        self.position = position

    def __str__(self) -> str:
        return (
            f"store {self.url}: entry {self.position} and later entries were removed before they were read; a "
            "checkpoint contains them: start again"
        )


class LogReplaced(StrobeError):
    """The store at `url` has a different, longer log than the one that this coordinator leads (S1).

    Either the coordinator began on a copy of the store, or a copy has replaced the store. After a restart, it reads the
    log that is there now.
    """

    exit_code = 6

    def __init__(self, url: str, position: int) -> None:
        super().__init__(url, position)
        self.url = url
        self.position = position

    def __str__(self) -> str:
        return (
            f"store {self.url}: entry {self.position} of the log differs from the one that this coordinator read, and "
            "more entries follow: another copy of the store is in its place; restart the coordinator to read this log"
        )


class MissingComponent(StrobeError):
    exit_code = 3


class MissingExtra(MissingComponent):
    """An optional dependency is not installed; `extra` is the name of the extra to install."""

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(extra, purpose)
        self.extra = extra
        self.purpose = purpose

    def __str__(self) -> str:
        return f"{self.purpose} needs the extra {self.extra!r}: pip install 'strobe-snapshots[{self.extra}]'"
