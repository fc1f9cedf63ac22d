"""The coordinator's side of rollback: when all processes go back to one consistent snapshot, and to which (R1).

    a process of this epoch has lost its state ─┐
    a rollback is requested ────────────────────┴─► pending ──no commit under way──► choosing
        ──verified──► EpochStart on its way to the log ──logged──► all processes are ordered to restore

- No snapshot begins while a rollback is pending. Simultaneous requests share one rollback.
- A commit under way gets its outcome first: output of a committed snapshot may have been released, so an automatic
  rollback goes to the newest complete snapshot of its timeline. A commit between the choice and the epoch makes the
  choice outdated; then it is made again.
- `started` are the processes that were ordered to start in this epoch. If one of them has no state, it has lost
  effects that others may have seen: all processes go back. A process that was not ordered yet is ordered now, and
  nothing is lost. These orders are not in the log. So after a restart, or after another coordinator's epoch, all
  processes of the view count as started; a rollback is always safe.
- `present` are the connected processes. A process that is away during a rollback gets its order when it comes back.
- The log counts the rollbacks caused by each process's crashes. Too many by one process stop the system. So does a
  process that cannot be restored because its program has changed: the next attempt would fail the same way (E9).
"""

from collections.abc import Collection

import msgspec

from strobe.protocol.coordinator.messages import (
    Append,
    CannotRestore,
    ChooseSnapshot,
    CoordinatorEffect,
    Dismiss,
    Halt,
    ProcessWithoutState,
    Reset,
    RestoreRefused,
    RestoreState,
    RestoreWanted,
    SnapshotChosen,
)
from strobe.protocol.coordinator.policy import Policy
from strobe.protocol.values.log_entries import EpochStart
from strobe.protocol.values.view import View

BLAMES_MAX = 1000
"""Older crashes are not counted, whatever limit the policy sets."""


class RollbackTarget(msgspec.Struct, frozen=True):
    """The target of a rollback: `snapshot`, or the newest. `fork`: released output does not prevent it."""

    snapshot: str | None = None
    fork: bool = False


NEWEST = RollbackTarget()


class RollbackRequest(msgspec.Struct):
    """A rollback that will happen. `needed`: a process cannot continue without it."""

    reason: str
    target: RollbackTarget = NEWEST
    needed: bool = False
    blamed: str | None = None


class Rollback:
    """Rollbacks requested and under way, and the processes that run in the current epoch."""

    def __init__(self, view: View, policy: Policy) -> None:
        self.policy = policy
        # The view for a start from the beginning, and the view that the current epoch started with.
        self.first_view = view
        self.epoch_view = view
        self.restored: str | None = None
        # Whether the epoch is a fork: then so is every further start from the same snapshot.
        self.forked = False
        # The newest complete snapshot of this timeline. Snapshots abandoned by a rollback are on no timeline.
        self.newest: str | None = None
        self.present: set[str] = set(view.processes)
        self.started: set[str] = set(view.processes)
        # Processes of `started` that are only assumed to have started.
        self.assumed: set[str] = set()
        # Processes that have no state and wait for the rollback.
        self.stateless: set[str] = set()
        self.request: RollbackRequest | None = None
        self.choosing = False
        self.starting: EpochStart | None = None
        self.outdated = False
        self.blames: list[tuple[int, str]] = []
        # The order to stop everything, if it was given.
        self.halt: Halt | None = None

    @property
    def pending(self) -> bool:
        """Whether nothing may begin: a rollback is pending, or everything was stopped."""
        return self.request is not None or self.starting is not None or self.halt is not None

    def seen(self, process: str) -> None:
        """A process is connected with its state of this epoch."""
        self.present.add(process)
        self.started.add(process)
        self.assumed.discard(process)
        self.stateless.discard(process)

    def not_begun(self, process: str) -> None:
        """A process has failed before it could do anything in this epoch: it is ordered to begin again, by itself."""
        self.started.discard(process)

    # Reasons

    def connected_without_state(
        self, event: ProcessWithoutState, members: Collection[str], epoch: int, view: View, now_us: int
    ) -> list[CoordinatorEffect]:
        """A process is connected without its state: it starts, joins again, or all processes roll back."""
        process = event.process
        self.present.add(process)
        if self.halt is not None:
            return [self.halt]
        if process not in members:
            return [Reset(process)] if event.epoch else []
        if process in self.started:
            return self._lost_its_state(event, now_us)
        return self._order_restore(process, epoch) if self.restores(view) and not self.pending else []

    def restores(self, view: View) -> bool:
        """Return whether a process that has not started yet starts from the epoch's snapshot, given the current `view`.

        A view changes only when all processes have started. After that, a process that has not started is joining.
        """
        return view.number == self.epoch_view.number

    def _lost_its_state(self, event: ProcessWithoutState, now_us: int) -> list[CoordinatorEffect]:
        """Request a rollback. Blame the process only if this coordinator saw it crash.

        Otherwise it has missed a rollback, or was restarted with the whole system.
        """
        process = event.process
        request = self.request or RollbackRequest(
            f"{process} missed a rollback" if event.epoch else f"{process} is connected without state"
        )
        blamed = None if event.epoch or process in self.assumed else process
        if not request.needed and blamed is not None:
            if self._is_blamed_too_often(blamed, now_us):
                return self._halt(self._blame_report(blamed), blamed)
            request.blamed = blamed
        request.needed = True
        self.request = request
        self.stateless.add(process)
        return []

    def require(self, reason: str) -> None:
        """The system cannot go on without a rollback, and no process is to blame."""
        self.request = self.request or RollbackRequest(reason)
        self.request.needed = True

    def ask(self, event: RestoreWanted) -> None:
        """A rollback is requested. If one is pending, it takes the target of this one, if that names a snapshot."""
        target = RollbackTarget(event.snapshot, event.fork)
        if self.request is None:
            self.request = RollbackRequest(event.reason, target)
        elif target != NEWEST:
            self.request.target, self.outdated = target, True
            if not self.request.needed:
                self.request.reason = event.reason

    def _is_blamed_too_often(self, process: str, now_us: int) -> bool:
        since = now_us - self.policy.rollback_window_us
        self.blames = [(at_us, who) for at_us, who in self.blames if at_us > since]
        return sum(who == process for _, who in self.blames) >= self.policy.rollbacks_max

    def join_refusal(self, process: str, now_us: int) -> str | None:
        """Return why a process with too many crashes may not join; None if it may.

        Nothing depends on it yet, and it would cause rollbacks. Each request counts as one more crash, so that a
        process in a restart loop stays out.
        """
        if not self._is_blamed_too_often(process, now_us):
            return None
        oldest = next((blame for blame in self.blames if blame[1] == process), None)
        if oldest is None:
            return None  # with rollbacks_max = 0 it may not have crashed at all
        self.blames.remove(oldest)
        self.blames.append((now_us, process))
        times, seconds = self.policy.rollbacks_max, self.policy.rollback_window_us / 1_000_000
        return (
            f"it has caused {times} rollbacks within {seconds:g} s. Find out why it crashes, fix that, and start it "
            f"again after it has been down for {seconds:g} s"
        )

    def _blame_report(self, process: str) -> str:
        times, seconds = self.policy.rollbacks_max, self.policy.rollback_window_us / 1_000_000
        return (
            f"process {process} has crashed again, after it caused {times} rollbacks within {seconds:g} s: everything "
            f"is stopped. Find out why {process} crashes, fix that, and start the system again; it continues from the "
            f"newest complete snapshot"
        )

    def _halt(self, report: str, blamed: str | None = None) -> list[CoordinatorEffect]:
        self.halt, self.request = Halt(report, blamed), None
        return [self.halt]

    # The target

    def choose(self, calm: bool) -> list[CoordinatorEffect]:
        """Order the choice of a snapshot, once everything under way has its outcome."""
        if self.request is None or self.choosing or self.starting is not None or not calm:
            return []
        self.choosing, self.outdated = True, False
        return [ChooseSnapshot(self.request.target.snapshot, self.request.target.fork)]

    def chosen(self, event: SnapshotChosen, epoch: int, view: View, now_us: int) -> list[CoordinatorEffect]:
        """The host has verified a snapshot: start an epoch with it, if it is still the right one."""
        answered, self.choosing = self.choosing, False
        if not answered or self.outdated or self.request is None:
            return []
        then = msgspec.structs.replace(event.view or self.first_view, number=view.number + 1)
        fork = self.request.target.fork or (self.forked and event.snapshot == self.restored)
        self.starting = EpochStart(
            epoch + 1, now_us, event.snapshot, then, self.request.reason, self.request.blamed, fork
        )
        return [Append(self.starting)]

    def refused(self, event: RestoreRefused) -> list[CoordinatorEffect]:
        """The snapshot cannot be restored: take the newest if a rollback is needed, otherwise continue as before."""
        answered, self.choosing = self.choosing, False
        if not answered or self.outdated or self.request is None:
            return []
        if not self.request.needed:
            self.request = None
        elif self.request.target.snapshot is not None:
            self.request.target = NEWEST
        else:
            return self._halt(
                f"{self.request.reason}, and no snapshot can be restored: {event.reason}. Fix that, or start the "
                "system again from another snapshot (strobe up --restore ID, or with --fork)"
            )
        return []

    def cannot_restore(self, event: CannotRestore, epoch: int) -> list[CoordinatorEffect]:
        """Stop at once: another rollback would fail the same way (E9). Reports from an older epoch are ignored."""
        if event.epoch != epoch or self.halt is not None:
            return []
        return self._halt(f"process {event.process} cannot be restored, and everything is stopped: {event.reason}")

    def committed(self, snapshot: str, view: View) -> None:
        """The log has a newer complete snapshot, which the pending choice did not know of.

        All of its processes have started in this epoch, including those ordered by another coordinator.
        """
        self.newest, self.outdated = snapshot, True
        self.started.update(view.processes)

    def view_changed(self, view: View, before: View, own: bool) -> None:
        """A view changes only when all processes have started. Joining processes that are present start now.

        If the change is not this coordinator's `own`, another one may have ordered them to start.
        """
        unordered = set(view.processes).difference(before.processes, self.present) if own else set()
        self.started = self.started.union(view.processes) - unordered
        self.outdated = True

    def take_over(self, everyone: Collection[str]) -> None:
        """The log has been read back. It does not record which processes were ordered to start, or are connected."""
        self.present = set()
        self.started, self.assumed = set(everyone), set(everyone)
        self.outdated = False

    def start_first(self, now_us: int) -> list[CoordinatorEffect]:
        """The log is empty: the first epoch starts from the beginning."""
        self.started.clear()
        self.starting = EpochStart(1, now_us, None, self.first_view, "the system starts")
        return [Append(self.starting)]

    def append_lost(self, entry: EpochStart, epoch: int, now_us: int) -> list[CoordinatorEffect]:
        """Another writer was faster: choose again, given what it wrote."""
        if entry != self.starting:
            return []
        self.starting = None
        return self.start_first(now_us) if epoch == 0 else []

    # The new epoch

    def may_have_left(self, entry: EpochStart) -> set[str]:
        """Return the processes that do not leave again after `entry`, though the log does not show that they left.

        If a user requested this very snapshot, and so all of its processes: those not seen since a restart.
        """
        asked_for = entry == self.starting and self.request is not None and self.request.target.snapshot is not None
        return self.assumed if asked_for else set()

    def epoch_logged(
        self, entry: EpochStart, view: View, leaving: Collection[str], recovering: bool
    ) -> list[CoordinatorEffect]:
        """A new epoch has started with `view`: send orders to all connected processes."""
        own, self.starting, overtook = entry == self.starting, None, self.newest
        self._remember(entry, view)
        if recovering or self.halt is not None:
            return []
        if own and self.outdated and self.request is not None:
            # This epoch was overtaken by a commit on its way to the log. No process gets orders for it: the next epoch
            # starts from that commit.
            target = self.request.target
            if target.snapshot is None:  # if the overtaken epoch was a fork, so is the next
                target = RollbackTarget(overtook, target.fork or entry.fork)
            self.request = RollbackRequest(self.request.reason, target, needed=True)
            return []
        if own or (self.request is not None and self.request.target.snapshot is None):
            self.request = None
        self.outdated = True  # a pending choice was meant for the previous epoch
        self.stateless.clear()
        self.started = set() if own else set(view.processes)
        self.assumed = set(self.started)
        return self._order_everyone(entry.epoch, leaving)

    def _remember(self, entry: EpochStart, view: View) -> None:
        if entry.blamed is not None:
            self.blames = [*self.blames, (entry.at_us, entry.blamed)][-BLAMES_MAX:]
        if entry.epoch == 1 and entry.view is not None:
            self.first_view = entry.view
        self.epoch_view = view
        self.restored = self.newest = entry.restored
        self.forked = entry.fork

    def _order_everyone(self, epoch: int, leaving: Collection[str]) -> list[CoordinatorEffect]:
        """Processes of the view restore; processes that joined later join again; processes that have left may exit.

        A process that had left by the time of the snapshot is informed after its `Reset` of the output that it still
        has to release. A process that is already releasing ignores the `Reset`, and is dismissed when it is done.
        """
        effects: list[CoordinatorEffect] = []
        for process in sorted(self.present):
            if process in self.epoch_view.processes:
                effects += self._order_restore(process, epoch)
            else:
                effects.append(Dismiss(process) if process in leaving else Reset(process))
        self.present.difference_update(set(leaving).difference(self.epoch_view.processes))
        return effects

    def _order_restore(self, process: str, epoch: int) -> list[CoordinatorEffect]:
        self.started.add(process)
        self.assumed.discard(process)
        return [RestoreState(process, epoch, self.epoch_view, self.restored, self.forked)]
