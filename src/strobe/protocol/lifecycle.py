"""The coordinator's brain: the life of snapshots, from the request to the outcome, and the views they belong to.

    wanted ──Begin──► recording ──every fragment──► committing ──Commit──► complete
                          │                              │
                          └── time out, crash, view ─────┴──Abort──► aborted ──back-off──► wanted again, under a new id

It keeps no truth of its own. Every step that must survive is an entry of the log, and takes effect here only when the
log tells it back (`EntryLogged`), whoever wrote it. A restart is: a new `Lifecycle`, the whole log, then `Recovered`.
It then asks every process of each snapshot still open to record; by C1 that is harmless to one that has, which sends
its fragment or its counts again, so the snapshot completes, or times out and is aborted (E7).

One view at a time (E2): a view is settled when every process has installed it and received channels that ended to their
end. Until then nothing begins; a change of view aborts what is open, and what is aborted is retried on the new view.
"""

from collections import deque
from typing import assert_never

import msgspec

from strobe.protocol.coordination import (
    Append,
    AppendLost,
    AskToRecord,
    CommitSnapshot,
    CoordinatorEffect,
    CoordinatorEvent,
    Drained,
    EntryLogged,
    FragmentArrived,
    JoinWanted,
    LeaveWanted,
    LetGo,
    ProcessFailed,
    ProcessReturned,
    Recovered,
    RelaySentCount,
    SentCountsArrived,
    SnapshotStarted,
    SnapshotWanted,
    TellOutcome,
    TellSettled,
    TellView,
    TimePassed,
    WakeAt,
)
from strobe.protocol.ids import COORDINATOR, SnapshotId
from strobe.protocol.log import Abort, Begin, Commit, Entry, EpochStart, ViewChange
from strobe.protocol.policy import Policy
from strobe.protocol.view import View, initiators

IDS_REMEMBERED = 64
"""Processes forget an id only when this many later ones were begun: one they have initiated by themselves, with a
counter that is a little behind, is not taken for an old one."""


class Attempt(msgspec.Struct):
    """A snapshot that has begun and has no outcome yet."""

    begin: Begin
    deadline_us: int
    arrived: set[str]
    ending: Entry | None = None
    committing: bool = False


class Want(msgspec.Struct, frozen=True):
    """A snapshot that shall begin as soon as the policy and the view allow."""

    initiators: tuple[str, ...] = ()
    not_before_us: int = 0
    attempt: int = 1
    retries: str | None = None


class Lifecycle:
    """Events in, effects out; `now_us` is the only clock."""

    def __init__(self, view: View, policy: Policy, protocol: str, *, epoch: int = 1, recovering: bool = False) -> None:
        policy.check()
        self.view = view
        self.policy = policy
        self.protocol = protocol
        self.epoch = epoch
        self.counter = 0
        self.open: dict[SnapshotId, Attempt] = {}
        self.outcomes: set[SnapshotId] = set()
        # What the next snapshot may share blobs with (S2).
        self.newest_complete: str | None = None
        self.wants: deque[Want] = deque()
        self.changes: deque[JoinWanted | LeaveWanted] = deque()
        self.beginning: Begin | None = None
        self.changing: ViewChange | None = None
        self.drained: set[str] = set(view.processes)
        self.leaving: set[str] = set()
        # While the log is read back after a restart, nothing is ordered.
        self.recovering = recovering
        self.last_begin_us: int | None = None
        self.last_outcome_us: int | None = None
        self.next_scheduled_us = policy.interval_us

    def handle(self, event: CoordinatorEvent, now_us: int) -> list[CoordinatorEffect]:
        """Return the effects of `event`, in the order they must happen."""
        effects = self._handle(event, now_us)
        if not self.recovering:
            effects += self._expire(now_us)
            effects += self._change_view(now_us)
            effects += self._begin_what_may(now_us)
            effects += self._wake(now_us)
        return effects

    def _handle(self, event: CoordinatorEvent, now_us: int) -> list[CoordinatorEffect]:
        match event:
            case SnapshotWanted():
                self.wants.append(Want(event.initiators))
                return []
            case SnapshotStarted():
                return self._started(event, now_us)
            case FragmentArrived():
                return self._fragment(event, now_us)
            case SentCountsArrived():
                return self._relay(event)
            case ProcessFailed():
                return self._failed(event.process, now_us)
            case ProcessReturned():
                return self._catch_up(event.process)
            case JoinWanted() | LeaveWanted():
                self.changes.append(event)
                return []
            case Drained():
                return self._note_drained(event)
            case EntryLogged():
                return self._logged(event.entry, now_us)
            case AppendLost():
                return self._append_lost(event.entry)
            case Recovered():
                return self._recover(now_us)
            case TimePassed():
                return []
            case _:
                assert_never(event)

    @property
    def settled(self) -> bool:
        """Whether every process has installed the view, and channels that ended were received to their end."""
        return self.changing is None and self.drained.issuperset(self.view.processes)

    # Beginning

    def _begin_what_may(self, now_us: int) -> list[CoordinatorEffect]:
        self._schedule(now_us)
        if (
            self.beginning is not None
            or not self.settled
            or self.changes
            or len(self.open) >= self.policy.overlapping_max
        ):
            return []
        if now_us < self._earliest_begin_us():
            return []
        want = next((want for want in self.wants if want.not_before_us <= now_us), None)
        if want is None:
            return []
        self.wants.remove(want)
        self.beginning = self._name(want, now_us)
        return [Append(self.beginning)]

    def _schedule(self, now_us: int) -> None:
        if self.policy.interval_us and now_us >= self.next_scheduled_us:
            # Late is late: a schedule that fell behind is not caught up with a storm.
            self.next_scheduled_us = now_us + self.policy.interval_us
            if not self.wants:
                self.wants.append(Want())

    def _earliest_begin_us(self) -> int:
        pause = self.policy.pause_us_min
        after_begin = 0 if self.last_begin_us is None else self.last_begin_us + pause
        after_outcome = 0 if self.last_outcome_us is None or self.open else self.last_outcome_us + pause
        return max(after_begin, after_outcome)

    def _name(self, want: Want, now_us: int) -> Begin:
        snapshot = SnapshotId(self.epoch, self.counter + 1, COORDINATOR)
        known = tuple(process for process in want.initiators if process in self.view.processes)
        return Begin(
            str(snapshot),
            self.view.number,
            self.protocol,
            known or initiators(self.view),
            now_us,
            parent=self.newest_complete,
            retries=want.retries,
            attempt=want.attempt,
        )

    def _started(self, event: SnapshotStarted, now_us: int) -> list[CoordinatorEffect]:
        """Adopt what a process initiated, or refuse it: a second view or a storm is not taken on."""
        if event.snapshot in self.open or self._has_outcome(event.snapshot):
            return []
        if not self.settled or event.view != self.view.number or len(self.open) >= self.policy.overlapping_max:
            return [
                TellOutcome(process, event.snapshot, False, "the coordinator cannot take it on now")
                for process in self.view.processes
            ]
        self.counter = max(self.counter, event.snapshot.counter)
        begin = Begin(
            str(event.snapshot), self.view.number, self.protocol, (event.process,), now_us, parent=self.newest_complete
        )
        return [Append(begin)]

    # Collecting

    def _fragment(self, event: FragmentArrived, now_us: int) -> list[CoordinatorEffect]:
        attempt = self.open.get(event.snapshot)
        if attempt is None or attempt.committing:
            return []
        if event.view != attempt.begin.view:
            return self._end(attempt, f"{event.process} recorded it in view {event.view}", now_us)
        attempt.arrived.add(event.process)
        if not attempt.arrived.issuperset(self.view.processes):
            return []
        attempt.committing = True
        return [CommitSnapshot(event.snapshot)]

    def _relay(self, event: SentCountsArrived) -> list[CoordinatorEffect]:
        if event.snapshot not in self.open:
            return []
        targets = {channel.id: channel.target for channel in self.view.channels}
        return [
            RelaySentCount(targets[channel], event.snapshot, channel, count)
            for channel, count in event.counts.items()
            if channel in targets
        ]

    def _failed(self, process: str, now_us: int) -> list[CoordinatorEffect]:
        """Abort what can no longer complete: a fragment that has arrived is safe from its process's crash."""
        doomed = [attempt for attempt in self.open.values() if process not in attempt.arrived]
        return [effect for attempt in doomed for effect in self._end(attempt, f"process {process} crashed", now_us)]

    def _expire(self, now_us: int) -> list[CoordinatorEffect]:
        effects: list[CoordinatorEffect] = []
        for attempt in self.open.values():
            if now_us >= attempt.deadline_us and not attempt.committing and attempt.ending is None:
                missing = ", ".join(process for process in self.view.processes if process not in attempt.arrived)
                seconds = self.policy.timeout_us / 1_000_000
                effects += self._end(
                    attempt, f"timed out after {seconds:g} s without a fragment from {missing}", now_us
                )
        return effects

    def _end(self, attempt: Attempt, reason: str, now_us: int) -> list[CoordinatorEffect]:
        if attempt.ending is not None or attempt.committing:
            return []
        attempt.ending = Abort(attempt.begin.snapshot, reason, now_us)
        return [Append(attempt.ending)]

    # The log

    def _logged(self, entry: Entry, now_us: int) -> list[CoordinatorEffect]:
        match entry:
            case Begin():
                return self._begun(entry, now_us)
            case Commit() | Abort():
                return self._ended(entry, now_us)
            case ViewChange():
                return self._view_logged(entry, now_us)
            case EpochStart():
                self.epoch = entry.epoch
                self.counter = 0
                self.open.clear()
        return []

    def _begun(self, begin: Begin, now_us: int) -> list[CoordinatorEffect]:
        snapshot = SnapshotId.parse(begin.snapshot)
        self.counter = max(self.counter, snapshot.counter)
        if self.beginning == begin:
            self.beginning = None
        if begin.retries is not None:
            # Read back after a restart, the abort has asked for a retry: this is it.
            self.wants = deque(want for want in self.wants if want.retries != begin.retries)
        if snapshot in self.open or self._has_outcome(snapshot):
            return []
        self.open[snapshot] = Attempt(begin, now_us + self.policy.timeout_us, set())
        self.last_begin_us = now_us
        return [] if self.recovering else self._ask(snapshot, begin)

    def _ask(self, snapshot: SnapshotId, begin: Begin) -> list[CoordinatorEffect]:
        # Markers carry Chandy-Lamport from its initiators; Lai-Yang has none, so every process is asked (L3).
        asked = self.view.processes if self.protocol == "lai-yang" else begin.initiators
        return [AskToRecord(process, snapshot, begin.view) for process in asked]

    def _ended(self, entry: Commit | Abort, now_us: int) -> list[CoordinatorEffect]:
        snapshot = SnapshotId.parse(entry.snapshot)
        attempt = self.open.pop(snapshot, None)
        self.outcomes.add(snapshot)
        settled = self._settled_below()
        if len(self.outcomes) > 4 * IDS_REMEMBERED:
            self.outcomes = {known for known in self.outcomes if known.counter >= settled}
        if attempt is None:
            return []
        self.last_outcome_us = now_us
        committed, reason = True, ""
        if isinstance(entry, Abort):
            committed, reason = False, entry.reason
            self._want_again(attempt.begin, now_us)
        else:
            self.newest_complete = entry.snapshot
        if self.recovering:
            return []
        effects: list[CoordinatorEffect] = []
        for process in (*self.view.processes, *sorted(self.leaving)):
            effects += [TellOutcome(process, snapshot, committed, reason), TellSettled(process, settled)]
        return effects

    def _want_again(self, begin: Begin, now_us: int) -> None:
        if begin.attempt >= self.policy.attempts_max:
            return
        not_before = now_us + self.policy.backoff_after(begin.attempt)
        asked = begin.initiators if set(begin.initiators) <= set(self.view.processes) else ()
        self.wants.append(Want(asked, not_before, begin.attempt + 1, begin.snapshot))

    def _has_outcome(self, snapshot: SnapshotId) -> bool:
        return snapshot in self.outcomes or (snapshot.counter < self._settled_below() and snapshot not in self.open)

    def _settled_below(self) -> int:
        return max(0, min((snapshot.counter for snapshot in self.open), default=self.counter) - IDS_REMEMBERED)

    def _append_lost(self, entry: Entry) -> list[CoordinatorEffect]:
        """Append again what is still wanted after what the other writer did."""
        match entry:
            case Begin():
                if self.beginning != entry:
                    return [] if self._has_outcome(SnapshotId.parse(entry.snapshot)) else [Append(entry)]
                # The id may be taken now; the want goes back and is named anew.
                self.beginning = None
                self.wants.appendleft(Want(entry.initiators, 0, entry.attempt, entry.retries))
                return []
            case Commit() | Abort():
                return [Append(entry)] if SnapshotId.parse(entry.snapshot) in self.open else []
            case ViewChange():
                self.changing = None
                return []
        return [Append(entry)]

    def _recover(self, now_us: int) -> list[CoordinatorEffect]:
        """Take over: everything open is asked for again, of everybody."""
        self.recovering = False
        self.drained.clear()
        effects: list[CoordinatorEffect] = []
        for process in (*self.view.processes, *sorted(self.leaving)):
            effects += self._catch_up(process)
        for snapshot, attempt in self.open.items():
            attempt.deadline_us = now_us + self.policy.timeout_us
            if attempt.begin.view != self.view.number:
                effects += self._end(attempt, "the view changed", now_us)
            else:
                effects += [AskToRecord(process, snapshot, attempt.begin.view) for process in self.view.processes]
        return effects

    def _catch_up(self, process: str) -> list[CoordinatorEffect]:
        """Tell `process` again what it may have missed: the outcomes, and the view."""
        floor = min((snapshot.counter for snapshot in self.open), default=self.counter + 1)
        missed = sorted(snapshot for snapshot in self.outcomes if snapshot.counter >= floor)
        return [
            TellSettled(process, floor),
            *(TellOutcome(process, snapshot, False, "it has ended meanwhile") for snapshot in missed),
            TellView(process, self.view),
        ]

    # Views

    def _change_view(self, now_us: int) -> list[CoordinatorEffect]:
        if not self.changes or self.changing is not None or not self.settled or self.beginning is not None:
            return []
        change = self.changes.popleft()
        if (change.process in self.view.processes) == isinstance(change, JoinWanted):
            return []  # it is in already, or out already
        view = _joined(self.view, change) if isinstance(change, JoinWanted) else _left(self.view, change)
        self.changing = ViewChange(view, now_us)
        return [Append(self.changing)]

    def _view_logged(self, entry: ViewChange, now_us: int) -> list[CoordinatorEffect]:
        before, self.view = self.view, entry.view
        self.changing = None
        self.leaving = set(before.processes) - set(entry.view.processes)
        self.drained.clear()
        if self.recovering:
            return []
        effects: list[CoordinatorEffect] = []
        for attempt in self.open.values():
            effects += self._end(attempt, f"the view changed from {before.number} to {entry.view.number}", now_us)
        joined = set(entry.view.processes) - set(before.processes)
        effects += [TellSettled(process, self.counter + 1) for process in sorted(joined)]
        effects += [TellView(process, entry.view) for process in (*entry.view.processes, *sorted(self.leaving))]
        return effects

    def _note_drained(self, event: Drained) -> list[CoordinatorEffect]:
        if event.view != self.view.number:
            return []
        self.drained.add(event.process)
        effects: list[CoordinatorEffect] = []
        if self.settled:
            effects += [LetGo(process) for process in sorted(self.leaving) if process in self.drained]
            self.leaving = {process for process in self.leaving if process not in self.drained}
        return effects

    def _wake(self, now_us: int) -> list[CoordinatorEffect]:
        times = [
            attempt.deadline_us for attempt in self.open.values() if attempt.ending is None and not attempt.committing
        ]
        if self.policy.interval_us:
            times.append(self.next_scheduled_us)
        if self.wants and len(self.open) < self.policy.overlapping_max:
            times.append(max(self._earliest_begin_us(), min(want.not_before_us for want in self.wants)))
        later = [time for time in times if time > now_us]
        return [WakeAt(min(later))] if later else []


def _joined(view: View, change: JoinWanted) -> View:
    processes = tuple(sorted({*view.processes, change.process}))
    known = {channel.id for channel in view.channels}
    number = view.number + 1
    # A channel is a new incarnation each time its process joins: ordinals start from 1 again.
    added = tuple(
        msgspec.structs.replace(channel, incarnation=number) for channel in change.channels if channel.id not in known
    )
    joined = View(number, processes, view.channels + added)
    joined.check()
    return joined


def _left(view: View, change: LeaveWanted) -> View:
    processes = tuple(process for process in view.processes if process != change.process)
    channels = tuple(channel for channel in view.channels if change.process not in (channel.source, channel.target))
    return View(view.number + 1, processes, channels)
