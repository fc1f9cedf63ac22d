"""Which snapshot to take next, and when it may begin: requests, interval, retries, pauses (E10)."""

from collections import deque
from collections.abc import Collection

import msgspec

from strobe.protocol.coordinator.policy import Policy
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import Begin

UNRETRIED_MAX = 64
"""Maximum number of aborted snapshots that are retried after a restart."""


class PendingSnapshot(msgspec.Struct, frozen=True):
    """A snapshot that will begin as soon as the policy and the view allow.

    `awaited`: it is dropped when no client waits for it any more.
    """

    initiators: tuple[str, ...] = ()
    not_before_us: int = 0
    attempt: int = 1
    retries: str | None = None
    awaited: bool = False

    def answers(self, initiators: Collection[str]) -> bool:
        """Return whether this one also serves a request for these initiators, and no later."""
        return self.retries is None and set(initiators).issubset(self.initiators)


class Schedule:
    """The requested snapshots, in order."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.queue: deque[PendingSnapshot] = deque()
        # Snapshots that have been retried, by this or another coordinator.
        self.retried: set[SnapshotId] = set()
        # While the log is read back: snapshots aborted after the last commit and not retried yet.
        self.unretried: dict[str, Begin] = {}
        self.last_begin_us: int | None = None
        self.last_outcome_us: int | None = None
        self.next_scheduled_us = policy.interval_us

    def request(self, initiators: tuple[str, ...] = (), awaited: bool = False) -> None:
        """Add a snapshot, unless a pending one serves as well: simultaneous requests share one snapshot (E10)."""
        for at, pending in enumerate(self.queue):
            if pending.answers(initiators):
                self.queue[at] = msgspec.structs.replace(pending, awaited=pending.awaited and awaited)
                return
        self.queue.append(PendingSnapshot(initiators, awaited=awaited))

    def withdraw(self, waiting: Collection[tuple[str, ...]]) -> None:
        """Drop pending snapshots that only clients outside `waiting` have awaited."""
        self.queue = deque(
            pending
            for pending in self.queue
            if not pending.awaited or any(pending.answers(initiators) for initiators in waiting)
        )

    def requeue(self, begin: Begin, now_us: int) -> None:
        """The snapshot of `begin` was aborted: retry it after a back-off, unless that was the last attempt."""
        if begin.attempt < self.policy.attempts_max:
            not_before = now_us + self.policy.backoff_after(begin.attempt)
            self.queue.append(PendingSnapshot(begin.initiators, not_before, begin.attempt + 1, begin.snapshot))

    def note_aborted(self, begin: Begin) -> None:
        """While the log is read back: the snapshot of `begin` was aborted. A later commit makes a retry unnecessary."""
        self.unretried[begin.snapshot] = begin
        if len(self.unretried) > UNRETRIED_MAX:
            del self.unretried[next(iter(self.unretried))]

    def take_over(self, now_us: int, begun_before: bool) -> None:
        """The whole log has been read back: retry the snapshots that still need it, after the required pause."""
        if begun_before:
            self.last_begin_us = self.last_outcome_us = now_us
        for begin in self.unretried.values():
            self.requeue(begin, now_us)
        self.unretried = {}

    def give_back(self, begin: Begin) -> None:
        """`begin` was not appended: queue it again, unless another coordinator has begun that retry."""
        if begin.retries is None or SnapshotId.parse(begin.retries) not in self.retried:
            self.queue.appendleft(PendingSnapshot(begin.initiators, 0, begin.attempt, begin.retries))

    def logged(self, begin: Begin) -> None:
        """The log has `begin`, by any writer. If it is a retry, no other one is needed."""
        if begin.retries is not None:
            self.retried.add(SnapshotId.parse(begin.retries))
            self.unretried.pop(begin.retries, None)
            self.queue = deque(pending for pending in self.queue if pending.retries != begin.retries)

    def tick(self, now_us: int) -> None:
        """Add the snapshot that is due by the interval. A late schedule does not catch up: that would be a burst."""
        if self.policy.interval_us and now_us >= self.next_scheduled_us:
            self.next_scheduled_us = now_us + self.policy.interval_us
            if all(pending.awaited for pending in self.queue):
                self.request()

    def retries(self, snapshot: str) -> bool:
        """Return whether a retry of `snapshot` is queued."""
        return any(pending.retries == snapshot for pending in self.queue)

    def take(self, now_us: int) -> PendingSnapshot | None:
        """Remove and return the first pending snapshot that may begin now."""
        found = next((pending for pending in self.queue if pending.not_before_us <= now_us), None)
        if found is not None:
            self.queue.remove(found)
        return found

    def earliest_us(self, overlapping: bool) -> int:
        """Return when the next may begin: a pause after the last begin and, unless they overlap, the last outcome."""
        pause = self.policy.pause_us_min
        after_begin = 0 if self.last_begin_us is None else self.last_begin_us + pause
        after_outcome = 0 if self.last_outcome_us is None or overlapping else self.last_outcome_us + pause
        return max(after_begin, after_outcome)

    def times_us(self, overlapping: bool) -> list[int]:
        """Return the times at which there will be something to do."""
        times = [self.next_scheduled_us] if self.policy.interval_us else []
        if self.queue:
            times.append(max(self.earliest_us(overlapping), min(pending.not_before_us for pending in self.queue)))
        return times

    def forget(self, before: SnapshotId) -> None:
        self.retried = {known for known in self.retried if known >= before}

    def rest(self) -> None:
        """Stop beginning snapshots."""
        self.policy = msgspec.structs.replace(self.policy, interval_us=0, attempts_max=1, overlapping_max=0)
        self.queue.clear()
