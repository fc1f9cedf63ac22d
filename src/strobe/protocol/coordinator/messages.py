"""What the coordinator's brain is told, and what it orders: the events and effects of `lifecycle`."""

from typing import Annotated

import msgspec

from strobe.names import Name
from strobe.plain_text import shortened
from strobe.protocol.values.bounds import KEYS_MAX, TEXT_MAX, Count, PrintedId, ViewNumber
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import Departure, Entry, EntryRef, ReadEntry
from strobe.protocol.values.view import ChannelSpec, View

Counts = Annotated[dict[Name, Count], msgspec.Meta(max_length=KEYS_MAX)]
"""A number for each channel, source or sink."""


def shorten_reason(event: msgspec.Struct) -> None:
    """Keep the beginning of a reason. It may be a text of any length, such as that of a user's error."""
    msgspec.structs.force_setattr(event, "reason", shortened(event.reason, TEXT_MAX))  # type: ignore[attr-defined]


class SnapshotWanted(msgspec.Struct, frozen=True):
    """Someone asks for a snapshot; `initiators` empty: as few processes as it takes (M1).

    `awaited`: whoever asks waits for it, and will say when that is over (`SnapshotUnwanted`).
    """

    initiators: Annotated[tuple[Name, ...], msgspec.Meta(max_length=KEYS_MAX)] = ()
    awaited: bool = False


class SnapshotUnwanted(msgspec.Struct, frozen=True):
    """Someone has waited for a snapshot in vain; those who wait still have asked for these `initiators`."""

    waiting: tuple[tuple[str, ...], ...] = ()


class SnapshotStarted(msgspec.Struct, frozen=True):
    """A process has initiated `snapshot` by itself (C1)."""

    snapshot: SnapshotId
    process: Name
    view: ViewNumber


class FragmentArrived(msgspec.Struct, frozen=True):
    """A process's fragment is in the host's hands."""

    snapshot: SnapshotId
    process: Name
    view: ViewNumber


class SentCountsArrived(msgspec.Struct, frozen=True):
    snapshot: SnapshotId
    process: Name
    counts: Counts


class ProcessFailed(msgspec.Struct, frozen=True):
    """A process has crashed, or came back from a crash that nobody saw: what it was recording is lost."""

    process: str


class ProcessReturned(msgspec.Struct, frozen=True):
    """A process is reachable again with its state of this epoch, and may have missed what it was told meanwhile."""

    process: str


class ProcessWithoutState(msgspec.Struct, frozen=True):
    """A process is there that has no state: it was never started, or a crash took its state.

    Where it has the state of an older `epoch`, that is of no use either; but no crash took anything. `again`: the same
    program was there before, and has not begun this epoch since; what it was told has not reached it.
    """

    process: str
    epoch: int = 0
    again: bool = False


class RestoreWanted(msgspec.Struct, frozen=True):
    """Someone asks for a rollback to `snapshot`; None: to the newest that can be restored (R1).

    `fork`: also to one below released output; what follows is another history, whose output goes elsewhere (R2).
    """

    snapshot: str | None
    reason: str
    fork: bool = False


class SnapshotChosen(msgspec.Struct, frozen=True):
    """The answer to `ChooseSnapshot`: this one is complete and verified. None: there is none, start from the beginning.

    `view` is the view of that snapshot.
    """

    snapshot: str | None
    view: View | None


class RestoreRefused(msgspec.Struct, frozen=True):
    """The answer to `ChooseSnapshot` where what was asked for cannot be restored (E9): go on as before."""

    reason: str


class CannotRestore(msgspec.Struct, frozen=True):
    """A process cannot become what the snapshot of this epoch says it was, and never will: it is another program."""

    process: Name
    epoch: Count
    reason: str

    def __post_init__(self) -> None:
        shorten_reason(self)


class RecordingFailed(msgspec.Struct, frozen=True):
    """A process cannot finish its part of `snapshot`: a bound was reached, or its disk is full (E3)."""

    snapshot: SnapshotId
    process: Name
    reason: str

    def __post_init__(self) -> None:
        shorten_reason(self)


class JoinWanted(msgspec.Struct, frozen=True):
    process: str
    channels: tuple[ChannelSpec, ...]


class LeaveWanted(msgspec.Struct, frozen=True):
    process: str


class Drained(msgspec.Struct, frozen=True):
    """A process has installed `view`, and nothing is on the way to it on channels that ended.

    One that leaves says how far its output goes in its `sinks`, all of which is durable by then (R2).
    """

    process: Name
    view: ViewNumber
    sinks: Counts = {}


class Released(msgspec.Struct, frozen=True):
    """All the output of a process that has left with `view` is out (R2); it waits for `Dismiss` once more."""

    process: Name
    view: ViewNumber


class EntryLogged(msgspec.Struct, frozen=True):
    """The log has this entry next, whoever wrote it.

    Where it starts an epoch from a snapshot, `departed` and `joined` are what the manifest of that says.
    """

    entry: ReadEntry
    departed: dict[str, Departure] = {}
    joined: dict[str, int] = {}


class AppendLost(msgspec.Struct, frozen=True):
    """Another writer took the place of `entry`; what that writer wrote has been told by `EntryLogged` before this."""

    entry: Entry


class CommitFailed(msgspec.Struct, frozen=True):
    """What was ordered by `CommitSnapshot` cannot be done: the proof does not hold, or the store refuses."""

    snapshot: SnapshotId
    reason: str

    def __post_init__(self) -> None:
        shorten_reason(self)


class Recovered(msgspec.Struct, frozen=True):
    """The whole log has been told by `EntryLogged`: take over from here."""


class TimePassed(msgspec.Struct, frozen=True):
    pass


CoordinatorEvent = (
    SnapshotWanted
    | SnapshotUnwanted
    | SnapshotStarted
    | FragmentArrived
    | SentCountsArrived
    | ProcessFailed
    | ProcessReturned
    | ProcessWithoutState
    | RestoreWanted
    | SnapshotChosen
    | RestoreRefused
    | CannotRestore
    | RecordingFailed
    | JoinWanted
    | LeaveWanted
    | Drained
    | Released
    | EntryLogged
    | AppendLost
    | CommitFailed
    | Recovered
    | TimePassed
)


class Append(msgspec.Struct, frozen=True):
    """Append `entry` to the log; answer with `EntryLogged` or `AppendLost`."""

    entry: Entry


class CommitSnapshot(msgspec.Struct, frozen=True):
    """Every fragment is there: verify their proof, store them, append the commit entry with the manifest.

    Where that cannot be, answer with `CommitFailed`. `departed` and `joined` go into the manifest.
    """

    snapshot: SnapshotId
    departed: dict[str, Departure] = {}
    joined: dict[str, int] = {}


class AskToRecord(msgspec.Struct, frozen=True):
    """Ask `process` to record; one that has finished already sends its fragment again."""

    process: Name
    snapshot: SnapshotId
    view: ViewNumber


class RelaySentCount(msgspec.Struct, frozen=True):
    process: Name
    snapshot: SnapshotId
    channel: Name
    count: Count


class TellOutcome(msgspec.Struct, frozen=True):
    """Tell `process` how `snapshot` ended, so that it frees what it holds for it."""

    process: Name
    snapshot: SnapshotId
    committed: bool
    reason: str = ""


class TellSettled(msgspec.Struct, frozen=True):
    """Tell `process` that everything below `counter` has its outcome."""

    process: Name
    counter: Count


class TellView(msgspec.Struct, frozen=True):
    process: Name
    view: View


class ChooseSnapshot(msgspec.Struct, frozen=True):
    """Verify `wanted`; where that is None, find the newest snapshot of this timeline that verifies. Answer once.

    The answer is `SnapshotChosen`, without a snapshot where the timeline has no complete one, or `RestoreRefused` where
    none of what there is can be restored. What a rollback has abandoned is not on the timeline.
    """

    wanted: str | None
    fork: bool = False


class TellRestore(msgspec.Struct, frozen=True):
    """Tell `process` to become what `restored` says it was, in a new epoch; None: to start from the beginning (R1).

    `commit` is the entry of the log that has committed it; None: it is to be looked for.
    """

    process: Name
    epoch: Count
    view: View
    restored: PrintedId | None
    fork: bool = False
    commit: EntryRef | None = None


class Reset(msgspec.Struct, frozen=True):
    """Tell `process` that the system was rolled back to before it joined: it shall forget all, and join again."""

    process: Name


class Halt(msgspec.Struct, frozen=True):
    """Stop everything, and show `report`: one cannot be restored, or is `blamed` for too many rollbacks (E9, R1)."""

    report: str
    blamed: str | None = None


class Dismiss(msgspec.Struct, frozen=True):
    """Tell a process that has left that its last messages were received: it may end.

    A complete snapshot covers its output up to what `sinks` say: that is to be let out first, and said (R2). `view` is
    then the one that it has left with.
    """

    process: Name
    sinks: Counts = {}
    view: ViewNumber = 0


class WakeAt(msgspec.Struct, frozen=True):
    """Send `TimePassed` at this time at the latest."""

    at_us: int


CoordinatorEffect = (
    Append
    | CommitSnapshot
    | AskToRecord
    | RelaySentCount
    | TellOutcome
    | TellSettled
    | TellView
    | ChooseSnapshot
    | TellRestore
    | Reset
    | Halt
    | Dismiss
    | WakeAt
)
