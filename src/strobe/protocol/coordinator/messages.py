"""The events and effects of `Lifecycle`, the coordinator's state machine."""

from typing import Annotated

import msgspec

from strobe.names import Name
from strobe.protocol.coordinator.restart_messages import (
    CannotHandOver,
    CannotResume,
    HandedOver,
    HandOver,
    Relieve,
    RestartWanted,
    Resume,
)
from strobe.protocol.values.bounds import KEYS_MAX, Count, PrintedId, ViewNumber, shorten_reason
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import Begin, Departure, Entry, EntryRef, ProcessRecord, ReadEntry
from strobe.protocol.values.view import ChannelSpec, View

Counts = Annotated[dict[Name, Count], msgspec.Meta(max_length=KEYS_MAX)]
"""A number for each channel, source or sink."""


class SnapshotWanted(msgspec.Struct, frozen=True):
    """A snapshot is requested. `initiators` empty: as few processes as it takes (M1).

    `awaited`: the client waits for it; `SnapshotUnwanted` follows when it stops waiting.
    """

    initiators: Annotated[tuple[Name, ...], msgspec.Meta(max_length=KEYS_MAX)] = ()
    awaited: bool = False


class SnapshotUnwanted(msgspec.Struct, frozen=True):
    """A client has stopped waiting for a snapshot. `waiting` has the initiators requested by each remaining client."""

    waiting: tuple[tuple[str, ...], ...] = ()


class SnapshotStarted(msgspec.Struct, frozen=True):
    """A process has initiated `snapshot` by itself (C1)."""

    snapshot: SnapshotId
    process: Name
    view: ViewNumber


class FragmentArrived(msgspec.Struct, frozen=True):
    """The host has received a process's fragment. `record` is for the manifest; None if the host makes that itself."""

    snapshot: SnapshotId
    process: Name
    view: ViewNumber
    record: ProcessRecord | None = None


class SentCountsArrived(msgspec.Struct, frozen=True):
    snapshot: SnapshotId
    process: Name
    counts: Counts


class ProcessFailed(msgspec.Struct, frozen=True):
    """A process has crashed, or came back from an unnoticed crash: its recordings are lost."""

    process: str


class ProcessReturned(msgspec.Struct, frozen=True):
    """A process is reachable again with its state of this epoch. It may have missed messages meanwhile."""

    process: str


class ProcessWithoutState(msgspec.Struct, frozen=True):
    """A process is connected but has no state: it was never started, or lost its state in a crash.

    With an `epoch`, it has the state of that older epoch, which is useless too, but it has not crashed. `again`: the
    same program was connected before, and has not begun this epoch since; its orders have not reached it.
    """

    process: str
    epoch: int = 0
    again: bool = False


class RestoreWanted(msgspec.Struct, frozen=True):
    """A rollback to `snapshot` is requested; None: to the newest that can be restored (R1).

    `fork`: allow a snapshot from before released output. A new history follows, whose output goes elsewhere (R2).
    """

    snapshot: str | None
    reason: str
    fork: bool = False


class SnapshotChosen(msgspec.Struct, frozen=True):
    """The response to `ChooseSnapshot`: this snapshot is complete and verified.

    None: there is no complete one, start from the beginning. `view` is the view of that snapshot.
    """

    snapshot: str | None
    view: View | None


class RestoreRefused(msgspec.Struct, frozen=True):
    """The response to `ChooseSnapshot` if the requested snapshot cannot be restored (E9): continue as before."""

    reason: str


class CannotRestore(msgspec.Struct, frozen=True):
    """A process can never restore its state from the snapshot of this epoch: its program has changed."""

    process: Name
    epoch: Count
    reason: str

    def __post_init__(self) -> None:
        shorten_reason(self)


class RecordingFailed(msgspec.Struct, frozen=True):
    """A process cannot finish its part of `snapshot`: it reached a bound, or its disk is full (E3)."""

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
    """A process has installed `view`, and its ended channels are empty.

    A leaving process reports the end offsets of its output in `sinks`; all of that output is durable by then (R2).
    """

    process: Name
    view: ViewNumber
    sinks: Counts = {}


class Released(msgspec.Struct, frozen=True):
    """A process that left with `view` has released all of its output (R2); it waits for another `Dismiss`."""

    process: Name
    view: ViewNumber


class EntryLogged(msgspec.Struct, frozen=True):
    """The next entry of the log, by any writer.

    If it starts an epoch from a snapshot, `departed` and `joined` are those of that snapshot's manifest.
    """

    entry: ReadEntry
    departed: dict[str, Departure] = {}
    joined: dict[str, int] = {}


class AppendLost(msgspec.Struct, frozen=True):
    """Another writer took the log position of `entry`. `EntryLogged` has already passed that writer's entries."""

    entry: Entry


class CommitFailed(msgspec.Struct, frozen=True):
    """A `CommitSnapshot` failed: the proof does not hold, or the store refuses."""

    snapshot: SnapshotId
    reason: str

    def __post_init__(self) -> None:
        shorten_reason(self)


class Recovered(msgspec.Struct, frozen=True):
    """The whole log has been passed by `EntryLogged`: take over from here."""


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
    | RestartWanted
    | HandedOver
    | CannotHandOver
    | CannotResume
    | EntryLogged
    | AppendLost
    | CommitFailed
    | Recovered
    | TimePassed
)


class Append(msgspec.Struct, frozen=True):
    """Append `entry` to the log; respond with `EntryLogged` or `AppendLost`."""

    entry: Entry


class CommitSnapshot(msgspec.Struct, frozen=True):
    """All fragments have arrived: verify their proof, store them, append the commit entry with the manifest.

    If that fails, respond with `CommitFailed`. The manifest is made from the other fields.
    """

    snapshot: SnapshotId
    begin: Begin
    view: View
    records: dict[str, ProcessRecord] = {}
    departed: dict[str, Departure] = {}
    joined: dict[str, int] = {}


class RequestRecording(msgspec.Struct, frozen=True):
    """Request a recording from `process`. A process that has already finished sends its fragment again."""

    process: Name
    snapshot: SnapshotId
    view: ViewNumber


class RelaySentCount(msgspec.Struct, frozen=True):
    process: Name
    snapshot: SnapshotId
    channel: Name
    count: Count


class ReportOutcome(msgspec.Struct, frozen=True):
    """Send `process` the outcome of `snapshot`, so that it frees its buffers."""

    process: Name
    snapshot: SnapshotId
    committed: bool
    reason: str = ""


class ReportSettled(msgspec.Struct, frozen=True):
    """Inform `process` that every snapshot below `counter` has its outcome."""

    process: Name
    counter: Count


class InstallView(msgspec.Struct, frozen=True):
    process: Name
    view: View


class ChooseSnapshot(msgspec.Struct, frozen=True):
    """Verify `wanted`; if it is None, find the newest snapshot of this timeline that verifies. Respond once.

    Respond with `SnapshotChosen`, without a snapshot if the timeline has no complete one. If no snapshot can be
    restored, respond with `RestoreRefused`. Snapshots abandoned by a rollback are not on the timeline.
    """

    wanted: str | None
    fork: bool = False


class RestoreState(msgspec.Struct, frozen=True):
    """Order `process` to restore its state from `restored`, in a new epoch; None: start from the beginning (R1).

    `commit` is the log entry that committed it; None: it must be searched for. `newest` is the newest log entry.
    """

    process: Name
    epoch: Count
    view: View
    restored: PrintedId | None
    fork: bool = False
    commit: EntryRef | None = None
    newest: EntryRef | None = None


class Reset(msgspec.Struct, frozen=True):
    """Inform `process` that the system was rolled back to before it joined: discard its state, and join again."""

    process: Name


class Halt(msgspec.Struct, frozen=True):
    """Stop everything, and show `report`: a process cannot be restored, or is `blamed` for rollbacks (E9, R1)."""

    report: str
    blamed: str | None = None


class Dismiss(msgspec.Struct, frozen=True):
    """Inform a departed process that its last messages were received: it may exit.

    If `sinks` is set, a complete snapshot covers its output up to these offsets. The process must release that output
    and report it before it exits (R2). `view` is then the view that it left with.
    """

    process: Name
    sinks: Counts = {}
    view: ViewNumber = 0


class WakeAt(msgspec.Struct, frozen=True):
    """Send `TimePassed` no later than this time."""

    at_us: int


CoordinatorEffect = (
    Append
    | CommitSnapshot
    | RequestRecording
    | RelaySentCount
    | ReportOutcome
    | ReportSettled
    | InstallView
    | ChooseSnapshot
    | RestoreState
    | Reset
    | Halt
    | Dismiss
    | HandOver
    | Relieve
    | Resume
    | WakeAt
)
