"""The documents of the coordinator's API: the bodies that `GET /v1/...` returns and `POST /v1/...` takes."""

import re
from typing import Any

import msgspec

from strobe.errors import UsageError
from strobe.names import Name
from strobe.plain_text import shortened
from strobe.protocol.values.bounds import TEXT_MAX, PrintedId
from strobe.protocol.values.log_entries import EntryRef
from strobe.runtime.messages.verdicts import ConditionStatus, ConditionVerdict

TIMEOUT_S_MAX = 3600.0
SYSTEM_HEADER = "Strobe-System"
"""Names the system that a request is meant for, by the identity of its store (`system` of a status)."""
WANTED = "wanted"
BEGUN = "begun"
COMMITTED = "committed"
ABORTED = "aborted"
_SECONDS = re.compile(r"\d+\.\d+ s\b")


class Part(msgspec.Struct):
    """One process's part of a snapshot, as far as it has come."""

    process: str
    recorded: bool = False
    stored: bool = False
    pause_us: int = 0
    duration_us: int = 0
    state_bytes: int = 0
    written_bytes: int = 0
    in_flight_bytes: int = 0


class OpenSnapshot(msgspec.Struct):
    """A snapshot under way. `position` is that of its begin in the log."""

    id: str
    position: int
    started_us: int
    initiators: tuple[str, ...]
    attempt: int
    retries: str | None
    waiting_for: list[str]
    parts: list[Part]


class FinishedSnapshot(msgspec.Struct):
    """A snapshot that has its outcome: `committed` or `aborted`, with the reason; `verdicts` come some time later."""

    id: str
    outcome: str
    reason: str
    started_us: int
    duration_us: int
    attempt: int
    state_bytes: int
    written_bytes: int
    in_flight_bytes: int
    in_flight_messages: int
    parts: list[Part]
    verdicts: dict[str, ConditionVerdict] = {}


class RollbackReport(msgspec.Struct):
    """An epoch that began by a rollback, and how many events of each process it undid, as far as is known."""

    epoch: int
    at_us: int
    restored: str | None
    reason: str
    blamed: str | None
    undone: dict[str, int]


class ProcessStatus(msgspec.Struct):
    """A process. `state`: running, waiting (not restored yet), restarting, missing, joining or leaving.

    `blocked`: the call of its own code that has not returned for long, if any.
    """

    name: str
    state: str
    trouble: str
    instance: str
    pid: int
    host: str
    address: str
    epoch: int
    position: int
    events_per_s: float
    cpu_s: float
    memory_bytes: int
    backlog_bytes: int
    recording_bytes: int
    spilled_bytes: int
    rejected: dict[str, int]
    heard_s_ago: float | None
    blocked: str = ""


class ChannelStatus(msgspec.Struct):
    """A channel, as its two ends last reported; `sent` and `received` are of different moments."""

    id: str
    source: str
    target: str
    kind: str
    incarnation: int
    sent: int
    received: int
    backlog_bytes: int
    waiting_s: float
    connected: bool
    reconnects: int


class Trouble(msgspec.Struct):
    """A problem that needs a person, since `since_us`. When it is over, the status no longer has it.

    `kind` is halted, store, restore, blocked, waiting, output, snapshots, credit, unreadable, refused, slow or missing.
    """

    kind: str
    problem: str
    since_us: int = 0

    @property
    def matter(self) -> str:
        """The part of it that stays the same while it lasts."""
        return self.kind if self.kind == "snapshots" else f"{self.kind}: {_SECONDS.sub('', self.problem)}"


class Status(msgspec.Struct):
    """The current state of the whole system. `left` are the departed processes that have nothing more to do.

    `conditions` are the declared conditions with their verdicts since the coordinator started.
    """

    system: str
    store: str
    protocol: str
    listen: str
    api: str
    pid: int
    started_us: int
    now_us: int
    epoch: int
    view: int
    settled: bool
    rolling_back: bool
    log_position: int
    interval_s: float
    committed: int
    aborted: int
    rejected: int
    processes: list[ProcessStatus]
    channels: list[ChannelStatus]
    open: list[OpenSnapshot]
    # The newest outcomes that this coordinator knows: after a restart, those since the log's last checkpoint.
    finished: list[FinishedSnapshot]
    rollbacks: list[RollbackReport]
    troubles: list[Trouble]
    halted: str | None
    left: list[str] = []
    term: int = 0
    last_entry: EntryRef | None = None
    conditions: list[ConditionStatus] = []


class SnapshotSummary(msgspec.Struct):
    """A complete snapshot. `position` is that of its commit in the log.

    `verdicts` are those of this coordinator, as far as it keeps them.
    """

    id: str
    position: int
    epoch: int
    view: int
    protocol: str
    initiators: tuple[str, ...]
    started_us: int
    completed_us: int
    state_bytes: int
    in_flight_bytes: int
    in_flight_messages: int
    pinned: bool
    parent: str | None
    retries: str | None
    verdicts: dict[str, ConditionVerdict] = {}


class SnapshotList(msgspec.Struct):
    """The newest complete snapshots, oldest first, and the total number."""

    store: str
    total: int
    snapshots: list[SnapshotSummary]


class RecordedProcess(msgspec.Struct):
    """One process of a complete snapshot."""

    position: int
    encoding: str
    state_bytes: int
    deltas: int
    recorded_us: int
    pause_us: int
    duration_us: int
    sources: dict[str, int]
    sinks: dict[str, int]


class RecordedChannel(msgspec.Struct):
    """One channel of a complete snapshot."""

    source: str
    target: str
    kind: str
    sent: int
    received: int
    in_flight_messages: int
    in_flight_frames: int
    in_flight_bytes: int


class SnapshotDetail(msgspec.Struct):
    """A complete snapshot with its processes and channels."""

    summary: SnapshotSummary
    processes: dict[str, RecordedProcess]
    channels: dict[str, RecordedChannel]


class TakeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Take a snapshot, from these `initiators`, or as few as possible; `wait` for its outcome."""

    wait: bool = False
    initiators: tuple[Name, ...] = ()
    timeout_s: float = 60.0


class TakeResult(msgspec.Struct):
    """The outcome of the request: `wanted` (it waits to begin), `begun`, `committed` or `aborted`."""

    id: str | None
    outcome: str
    reason: str = ""


class RestoreRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Roll back to `snapshot`: an id, `1.7`, the beginning of an id, `latest`, or null for the newest one."""

    snapshot: PrintedId | None = "latest"
    fork: bool = False
    timeout_s: float = 60.0


class RestoreStarted(msgspec.Struct):
    """The rollback has started: every process was ordered to restore its state."""

    epoch: int
    restored: str | None
    undone: dict[str, int]


class RestartProcessRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Have a process hand over to its successor and end (E11)."""


class LeaveRequest(msgspec.Struct, forbid_unknown_fields=True):
    """No fields."""


class StopRequest(msgspec.Struct, forbid_unknown_fields=True):
    reason: str = "the system was stopped"

    def __post_init__(self) -> None:
        self.reason = shortened(self.reason, TEXT_MAX)


class Accepted(msgspec.Struct):
    """The request was accepted, and will be carried out."""

    accepted: str


class Failure(msgspec.Struct):
    """The problem, and what to do."""

    error: str


class Index(msgspec.Struct):
    """The requests that the API accepts."""

    strobe: str
    store: str
    paths: list[str]


RESPONSES: tuple[Any, ...] = (
    Index,
    Status,
    SnapshotList,
    SnapshotDetail,
    TakeResult,
    RestoreStarted,
    Accepted,
    Failure,
)
REQUESTS: tuple[Any, ...] = (TakeRequest, RestoreRequest, LeaveRequest, RestartProcessRequest, StopRequest)


def checked_timeout(timeout_s: float) -> float:
    """Return a valid timeout; UsageError otherwise."""
    if not 0 < timeout_s <= TIMEOUT_S_MAX:
        raise UsageError(f"timeout_s = {timeout_s} makes no sense; give seconds, above 0 and up to {TIMEOUT_S_MAX:g}")
    return timeout_s
