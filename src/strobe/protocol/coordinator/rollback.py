"""The coordinator's side of rollback: when everybody goes back to one consistent moment, and to which (R1).

    a process has run in this epoch, and is there without its state ─┐
    someone asks for it ─────────────────────────────────────────────┴─► pending ──nothing is committing──► choosing
        ──verified──► EpochStart on its way to the log ──logged──► everybody is told to restore

- Nothing begins while a rollback is pending. However many processes ask for one meanwhile, there is one.
- A commit under way gets its outcome first: output of a committed snapshot may have been released, so an automatic
  rollback goes to the newest complete snapshot of its timeline. What is committed between the choice and the epoch
  makes the choice outdated; then it is made again.
- `started` are those that were told to start in this epoch. One of them without state has lost what others may have
  seen of it: everybody goes back. One that was not told yet is told now, and nothing is lost. Who was told is not in
  the log, so after a restart, and after another coordinator's epoch, all of the view are taken for started; to go back
  is always safe.
- `present` are those that can be told at all. Who is away at a rollback is told when it comes back.
- The log counts whose crashes made rollbacks necessary; who is blamed for too many of them stops the system. So does
  one that cannot be restored because it is another program now: that would not end otherwise the next time (E9).
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
    RestoreWanted,
    SnapshotChosen,
    TellRestore,
)
from strobe.protocol.coordinator.policy import Policy
from strobe.protocol.values.log_entries import EpochStart
from strobe.protocol.values.view import View

BLAMES_MAX = 1000
"""Older ones are not counted, however many rollbacks the policy allows."""


class RollbackTarget(msgspec.Struct, frozen=True):
    """Whereto: `snapshot`, or the newest. `fork`: output that was released since does not stand against this one."""

    snapshot: str | None = None
    fork: bool = False


NEWEST = RollbackTarget()


class RollbackRequest(msgspec.Struct):
    """A rollback that shall happen. `needed`: a process cannot go on without it."""

    reason: str
    goal: RollbackTarget = NEWEST
    needed: bool = False
    blamed: str | None = None


class Rollback:
    """Rollbacks wanted and under way, and who lives in the current epoch."""

    def __init__(self, view: View, policy: Policy) -> None:
        self.policy = policy
        # What a start from the beginning starts with, and what the current epoch has started with.
        self.first_view = view
        self.epoch_view = view
        self.restored: str | None = None
        # Whether it is a fork: then so is every further start from the same snapshot.
        self.forked = False
        # The newest complete snapshot of this timeline: one that a rollback has abandoned is on none.
        self.newest: str | None = None
        self.present: set[str] = set(view.processes)
        self.started: set[str] = set(view.processes)
        # Those of `started` that were only taken for it.
        self.assumed: set[str] = set()
        # Those that are there without state, and wait for everybody to go back.
        self.blanks: set[str] = set()
        self.wish: RollbackRequest | None = None
        self.choosing = False
        self.starting: EpochStart | None = None
        self.outdated = False
        self.blames: list[tuple[int, str]] = []
        # The word that everything is stopped, if it is.
        self.halt: Halt | None = None

    @property
    def pending(self) -> bool:
        """Whether nothing may begin: a rollback is to come, or all was stopped."""
        return self.wish is not None or self.starting is not None or self.halt is not None

    def seen(self, process: str) -> None:
        """A process is there with its state of this epoch."""
        self.present.add(process)
        self.started.add(process)
        self.assumed.discard(process)
        self.blanks.discard(process)

    # Why

    def blank(
        self, event: ProcessWithoutState, members: Collection[str], epoch: int, view: View, now_us: int
    ) -> list[CoordinatorEffect]:
        """A process is there without its state: it starts, joins again, or everybody goes back."""
        process = event.process
        self.present.add(process)
        if self.halt is not None:
            return [self.halt]
        if process not in members:
            return [Reset(process)] if event.epoch else []
        if process in self.started:
            return self._lost_its_state(event, now_us)
        return self._tell(process, epoch) if self.restores(view) and not self.pending else []

    def restores(self, view: View) -> bool:
        """Tell whether who has not started yet begins as the epoch has, while `view` is the current one.

        A view changes only when all have started: after that, whoever has not is one that joins, if only once more.
        """
        return view.number == self.epoch_view.number

    def _lost_its_state(self, event: ProcessWithoutState, now_us: int) -> list[CoordinatorEffect]:
        """Everybody must go back. Only who crashed under this coordinator's eyes is blamed for it: others have missed a
        rollback, or were started anew with the whole system.
        """
        process = event.process
        wish = self.wish or RollbackRequest(
            f"{process} missed a rollback" if event.epoch else f"{process} is there without state"
        )
        blamed = None if event.epoch or process in self.assumed else process
        if not wish.needed and blamed is not None:
            if self._is_blamed_too_often(blamed, now_us):
                return self._halt(self._blame_report(blamed), blamed)
            wish.blamed = blamed
        wish.needed = True
        self.wish = wish
        self.blanks.add(process)
        return []

    def want(self, event: RestoreWanted) -> None:
        """Someone asks for a rollback; where one is to come already, it goes where this one says, if it says where."""
        goal = RollbackTarget(event.snapshot, event.fork)
        if self.wish is None:
            self.wish = RollbackRequest(event.reason, goal)
        elif goal != NEWEST:
            self.wish.goal, self.outdated = goal, True
            if not self.wish.needed:
                self.wish.reason = event.reason

    def _is_blamed_too_often(self, process: str, now_us: int) -> bool:
        since = now_us - self.policy.rollback_window_us
        self.blames = [(at_us, who) for at_us, who in self.blames if at_us > since]
        return sum(who == process for _, who in self.blames) >= self.policy.rollbacks_max

    def join_refusal(self, process: str, now_us: int) -> str | None:
        """Return why one that is blamed too often may not join: nobody needs it, and it would take everybody back.

        Each time it asks counts as one more crash, so that who is started again and again stays out.
        """
        if not self._is_blamed_too_often(process, now_us):
            return None
        oldest = next((blame for blame in self.blames if blame[1] == process), None)
        if oldest is None:
            return None  # where all is stopped at the first rollback, that is no reason yet
        self.blames.remove(oldest)
        self.blames.append((now_us, process))
        times, seconds = self.policy.rollbacks_max, self.policy.rollback_window_us / 1_000_000
        return (
            f"it has made everybody roll back {times} times within {seconds:g} s. Find out why it crashes, mend that, "
            f"and start it again when it has been out for {seconds:g} s"
        )

    def _blame_report(self, process: str) -> str:
        times, seconds = self.policy.rollbacks_max, self.policy.rollback_window_us / 1_000_000
        return (
            f"process {process} has crashed again, after it made everybody roll back {times} times within "
            f"{seconds:g} s: all is stopped. Find out why {process} crashes, mend that, and start again; it goes on "
            f"from the newest complete snapshot"
        )

    def _halt(self, report: str, blamed: str | None = None) -> list[CoordinatorEffect]:
        self.halt, self.wish = Halt(report, blamed), None
        return [self.halt]

    # Whereto

    def choose(self, calm: bool) -> list[CoordinatorEffect]:
        """Have a snapshot chosen, once everything under way has its outcome."""
        if self.wish is None or self.choosing or self.starting is not None or not calm:
            return []
        self.choosing, self.outdated = True, False
        return [ChooseSnapshot(self.wish.goal.snapshot, self.wish.goal.fork)]

    def chosen(self, event: SnapshotChosen, epoch: int, view: View, now_us: int) -> list[CoordinatorEffect]:
        """The host has verified a snapshot: start an epoch with it, if it still is the one to go back to."""
        answered, self.choosing = self.choosing, False
        if not answered or self.outdated or self.wish is None:
            return []
        then = msgspec.structs.replace(event.view or self.first_view, number=view.number + 1)
        fork = self.wish.goal.fork or (self.forked and event.snapshot == self.restored)
        self.starting = EpochStart(epoch + 1, now_us, event.snapshot, then, self.wish.reason, self.wish.blamed, fork)
        return [Append(self.starting)]

    def refused(self, event: RestoreRefused) -> list[CoordinatorEffect]:
        """What was asked for cannot be restored: take the newest where a rollback is needed, else go on as before."""
        answered, self.choosing = self.choosing, False
        if not answered or self.outdated or self.wish is None:
            return []
        if not self.wish.needed:
            self.wish = None
        elif self.wish.goal.snapshot is not None:
            self.wish.goal = NEWEST
        else:
            return self._halt(
                f"{self.wish.reason}, and no snapshot can be restored: {event.reason}. Mend what stands against it, or "
                "start again from one that has nothing against it (strobe up --restore ID, or with --fork)"
            )
        return []

    def cannot_restore(self, event: CannotRestore, epoch: int) -> list[CoordinatorEffect]:
        """Stop at once: going back again would end in the same way (E9). What was told of an older epoch is over."""
        if event.epoch != epoch or self.halt is not None:
            return []
        return self._halt(f"process {event.process} cannot be restored, and all is stopped: {event.reason}")

    def committed(self, snapshot: str, view: View) -> None:
        """The log has a newer complete snapshot, which the choice under way did not know of.

        All who are in it have started in this epoch, also those whom another coordinator has told.
        """
        self.newest, self.outdated = snapshot, True
        self.started.update(view.processes)

    def view_changed(self, view: View, before: View, own: bool) -> None:
        """A view changes only when all have started; and those who join are told to start, now, if they are there.

        Where the change is not this coordinator's `own`, another one may have told them.
        """
        untold = set(view.processes).difference(before.processes, self.present) if own else set()
        self.started = self.started.union(view.processes) - untold
        self.outdated = True

    def take_over(self, everyone: Collection[str]) -> None:
        """The log has been read back; it does not say who has been told to start, nor who is there."""
        self.present = set()
        self.started, self.assumed = set(everyone), set(everyone)
        self.outdated = False

    def start_first(self, now_us: int) -> list[CoordinatorEffect]:
        """The log is empty: the first epoch starts from the beginning."""
        self.started.clear()
        self.starting = EpochStart(1, now_us, None, self.first_view, "the system starts")
        return [Append(self.starting)]

    def append_lost(self, entry: EpochStart, epoch: int, now_us: int) -> list[CoordinatorEffect]:
        """Another writer was faster: choose again, knowing what it wrote."""
        if entry != self.starting:
            return []
        self.starting = None
        return self.start_first(now_us) if epoch == 0 else []

    # The new epoch

    def may_have_left(self, entry: EpochStart) -> set[str]:
        """Return who does not leave again after `entry`, though the log has its leave and not the end of that.

        Where somebody asked for this very snapshot, and so for all who are in it: those not heard of since a restart.
        """
        asked_for = entry == self.starting and self.wish is not None and self.wish.goal.snapshot is not None
        return self.assumed if asked_for else set()

    def epoch_logged(
        self, entry: EpochStart, view: View, leaving: Collection[str], recovering: bool
    ) -> list[CoordinatorEffect]:
        """A new epoch has started with `view`: tell everybody who can be told."""
        own, self.starting, overtook = entry == self.starting, None, self.newest
        self._remember(entry, view)
        if recovering or self.halt is not None:
            return []
        if own and self.outdated and self.wish is not None:
            # Chosen in time, but overtaken on its way to the log. Nobody has been told of this epoch, nor will be: the
            # next one is chosen beginning with what overtook it.
            goal = self.wish.goal
            if goal.snapshot is None:  # in a fork whose further start was overtaken, that is a fork as well
                goal = RollbackTarget(overtook, goal.fork or entry.fork)
            self.wish = RollbackRequest(self.wish.reason, goal, needed=True)
            return []
        if own or (self.wish is not None and self.wish.goal.snapshot is None):
            self.wish = None
        self.outdated = True  # whatever is being chosen was meant for the epoch before
        self.blanks.clear()
        self.started = set() if own else set(view.processes)
        self.assumed = set(self.started)
        return self._tell_everybody(entry.epoch, leaving)

    def _remember(self, entry: EpochStart, view: View) -> None:
        if entry.blamed is not None:
            self.blames = [*self.blames, (entry.at_us, entry.blamed)][-BLAMES_MAX:]
        if entry.epoch == 1 and entry.view is not None:
            self.first_view = entry.view
        self.epoch_view = view
        self.restored = self.newest = entry.restored
        self.forked = entry.fork

    def _tell_everybody(self, epoch: int, leaving: Collection[str]) -> list[CoordinatorEffect]:
        """Those of the view restore; who has joined since joins again; who has left by now may go.

        Who had left by the snapshot is told, when it comes back from `Reset`, what it still has to let out. One
        that is doing so makes nothing of the word, and is let go when it is done.
        """
        effects: list[CoordinatorEffect] = []
        for process in sorted(self.present):
            if process in self.epoch_view.processes:
                effects += self._tell(process, epoch)
            else:
                effects.append(Dismiss(process) if process in leaving else Reset(process))
        self.present.difference_update(set(leaving).difference(self.epoch_view.processes))
        return effects

    def _tell(self, process: str, epoch: int) -> list[CoordinatorEffect]:
        self.started.add(process)
        self.assumed.discard(process)
        return [TellRestore(process, epoch, self.epoch_view, self.restored, self.forked)]
