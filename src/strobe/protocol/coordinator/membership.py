"""The coordinator's side of views: who is in, who wants in or out, and whether everybody knows (E2).

Changes are made one at a time. A view is *settled* when every process in it has installed it, and has received channels
that ended with it to their end; the next change, and the next snapshot, wait for that. A process that leaves is let go
when the view without it is settled and it has reported itself: then its last messages were received. One that is gone
by then has left as well: that it was let go is not in the log, so the next coordinator cannot know.

One that leaves with output (R2) makes it durable, and reports itself only then; no snapshot begins before. It is let go
when a snapshot is complete that it is no part of: such a snapshot has all that the process ever caused, so it covers
all of its output, and says in its manifest how far that goes. Whoever is lost before it has reported itself has lost
output: a crash is not a leave. Whoever is lost after that is told when it comes back what it still has to let out. That
all is out goes into the log, and only then does the process end: who starts it again has another life of it in mind,
with output of its own, and that is not to be taken for the one before.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

import msgspec

from strobe.errors import UsageError
from strobe.names import Name
from strobe.protocol.coordinator.messages import Drained, JoinWanted, LeaveWanted
from strobe.protocol.process.registry import check_channels
from strobe.protocol.values.bounds import ViewNumber
from strobe.protocol.values.log_entries import Departure, Manifest, ViewChange
from strobe.protocol.values.view import View

Change = JoinWanted | LeaveWanted


class Membered(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the log says of who is in and who is out, while it is read back; the members are those of `Membership`."""

    leaving: dict[Name, ViewNumber] = {}
    unheard: frozenset[Name] = frozenset()
    ended: frozenset[Name] = frozenset()
    covered: frozenset[Name] = frozenset()
    left: frozenset[Name] = frozenset()
    joined: dict[Name, ViewNumber] = {}
    departed: dict[Name, Departure] = {}
    out: dict[Name, ViewNumber] = {}


class Membership:
    """The current view, and the changes that shall be made to it. `outputs` are the processes that have sinks."""

    def __init__(self, view: View, protocol: str, outputs: Collection[str] = ()) -> None:
        self.view = view
        self.protocol = protocol
        self.changes: deque[Change] = deque()
        # The change that is on its way to the log, and the view that it makes.
        self.changing: Change | None = None
        self.coming: View | None = None
        self.drained: set[str] = set(view.processes)
        # Who is leaving, and the number of the first view without it.
        self.leaving: dict[str, int] = {}
        # Of those: who sent nothing to any who stay, so that none of these can know whether it has ended.
        self._unheard: set[str] = set()
        self.outputs = frozenset(outputs)
        # Who may not leave, and why.
        self.staying: dict[str, str] = {}
        # Of those who leave with output: how far it goes, once it is durable and waits for a snapshot that covers it.
        self.staged: dict[str, Departure] = {}
        # Those who have left with output, as the newest complete snapshot has it.
        self.departed: dict[str, Departure] = {}
        # Of those who were not there from the beginning: the first view with them.
        self.joined: dict[str, int] = {}
        # All output of lives that ended with such a view, or before, is out: whatever is gone back to, it stays so.
        self._out: dict[str, int] = {}
        # Whom a view was without that the one before had: no rollback, but a leave.
        self._left: set[str] = set()
        # While the log is read back: those of `leaving` that have left by now if they have no output, and if they have.
        # Which of them have output is for `take_over` to decide: the log does not say so.
        self._ended: set[str] = set()
        self._covered: set[str] = set()

    @property
    def settled(self) -> bool:
        return self._is_installed and not self.unstaged

    @property
    def unstaged(self) -> list[str]:
        """Who leaves with output that is not durable yet."""
        return [process for process in self.leaving if process in self.outputs and process not in self.staged]

    @property
    def _is_installed(self) -> bool:
        return self.changing is None and self.drained.issuperset(self.view.processes)

    @property
    def everyone(self) -> tuple[str, ...]:
        """Everybody who must hear things: the view's processes, and those who have not been let go yet."""
        return (*self.view.processes, *sorted(self.leaving))

    def includes(self, process: str) -> bool:
        """Tell whether `process` is one of `everyone`."""
        return process in self.view.members or process in self.leaving

    @property
    def left(self) -> tuple[str, ...]:
        """Who has left, and has nothing more to do: nobody need start it."""
        return tuple(
            process for process in sorted(self._left) if process not in self.leaving and not self.unreleased(process)
        )

    def want(self, change: Change) -> None:
        """Note a change; raise UsageError where it makes no sense after those noted before, or may not be."""
        if isinstance(change, LeaveWanted) and change.process in self.staying:
            raise UsageError(f"process {change.process} cannot leave: {self.staying[change.process]}")
        planned = self.view
        for earlier in (*([self.changing] if self.changing else []), *self.changes):
            with suppress(UsageError):  # another writer's change may have made it senseless: it will not be made
                planned = _changed(planned, earlier, self.protocol)
        _changed(planned, change, self.protocol)
        self.changes.append(change)

    def next_change(self, now_us: int, present: Collection[str]) -> ViewChange | None:
        """Return the entry of the next change that changes something, if it is time for one.

        Who wanted to join and is not `present` any more does not: it asks again when it comes back.
        """
        while self.changes and self.settled:
            change = self.changes.popleft()
            if isinstance(change, JoinWanted) and not (self.includes(change.process) or change.process in present):
                self._drop_channels_of(change.process)
                continue
            try:
                view = _changed(self.view, change, self.protocol)
            except UsageError:
                continue  # it made sense when it was asked for; another writer's change has made it senseless
            if view is not self.view:
                self.changing, self.coming = change, view
                return ViewChange(view, now_us)
        return None

    def _drop_channels_of(self, process: str) -> None:
        """Others that join count on one that does not: where it does later, it brings these channels itself."""
        for at, change in enumerate(self.changes):
            if isinstance(change, JoinWanted):
                kept = tuple(one for one in change.channels if process not in (one.source, one.target))
                self.changes[at] = msgspec.structs.replace(change, channels=kept)

    def lost(self) -> None:
        """The change under way lost its place in the log: make it again, on the view there is now."""
        if self.changing is not None:
            self.changes.appendleft(self.changing)
            self.changing = self.coming = None

    def logged(self, view: View, recovering: bool) -> View | None:
        """Go over to `view`; return the one before, or None where the log has a newer one already.

        Read back after a restart, only those matter that left with the newest view: the others had been drained by
        then, as those that left before a snapshot began; and those with output that no complete snapshot covers yet.
        """
        if view.number <= self.view.number:
            return None
        if view != self.coming:
            self.lost()
        before, self.view = self.view, view
        self.changing = self.coming = None
        self.drained = set()
        if recovering:
            self._note_ended(self.leaving)
        for process in set(before.processes) - set(view.processes):
            self.leaving[process] = view.number
            self._left.add(process)
            self._ended.discard(process)
            self._covered.discard(process)
            if any(channel.target in view.members for channel in before.outgoing(process)):
                self._unheard.discard(process)
            else:
                self._unheard.add(process)
        self.joined.update((process, view.number) for process in set(view.processes) - set(before.processes))
        for process in view.processes:
            self.leaving.pop(process, None)
            self.staged.pop(process, None)
            self.departed.pop(process, None)
        self._left.difference_update(view.processes)
        self._forget_ended()
        return before

    def read_begin(self, view: int) -> None:
        """Read back after a restart, the log has a snapshot that began in `view`.

        All that leavers had sent was received by then, and with it that they had ended. Those with output still wait
        for a complete one; of those who sent to nobody it is not known whether they have received all that was theirs.
        """
        self._note_ended(
            process for process, left in self.leaving.items() if process not in self._unheard and left <= view
        )

    def remember(self) -> Membered:
        """Return what the log has said so far beside the view."""
        return Membered(
            leaving=dict(self.leaving),
            unheard=frozenset(self._unheard),
            ended=frozenset(self._ended),
            covered=frozenset(self._covered),
            left=frozenset(self._left),
            joined=dict(self.joined),
            departed=dict(self.departed),
            out=dict(self._out),
        )

    def recall(self, view: View, membered: Membered) -> None:
        """Go on reading where another has got to, in `view`."""
        self.view = view
        self.leaving, self.joined = dict(membered.leaving), dict(membered.joined)
        self.departed, self._out = dict(membered.departed), dict(membered.out)
        self._unheard, self._left = set(membered.unheard), set(membered.left)
        self._ended, self._covered = set(membered.ended), set(membered.covered)

    def take_over(self) -> None:
        """The whole log has been read back: only those leave that it does not show to have left."""
        over = self._over_by_now
        self.leaving = {process: left for process, left in self.leaving.items() if process not in over}
        self._ended, self._covered = set(), set()
        self.drained.clear()

    @property
    def _over_by_now(self) -> set[str]:
        return (self._ended - self.outputs) | (self._covered & self.outputs)

    def _note_ended(self, processes: Iterable[str]) -> None:
        self._ended.update(processes)
        self._forget_ended()

    def _forget_ended(self) -> None:
        """Those have left, whether or not they have output."""
        for process in self._ended & self._covered:
            self.leaving.pop(process, None)
        self._ended.intersection_update(self.leaving)
        self._covered.intersection_update(self.leaving)

    def rolled_back(
        self, view: View, still_leaving: Collection[str], departed: Mapping[str, Departure], joined: Mapping[str, int]
    ) -> None:
        """Go over to the view of a snapshot that everybody is restored to (R1).

        Joins that it does not have were undone: who joined will ask again. Those `still_leaving` that are in it again
        leave once more. Those `departed` in it have left, also where all were in another timeline meanwhile.
        """
        asked = [change for change in (self.changing, *self.changes) if isinstance(change, LeaveWanted)]
        undone = [LeaveWanted(process) for process in sorted(still_leaving)]
        self.changes = deque(change for change in (*undone, *asked) if change.process in view.processes)
        self.changing = self.coming = None
        self.view = view
        self.drained = set()
        self.leaving = {}
        self._ended, self._covered = set(), set()
        self.staged = {}
        self.joined = dict(joined)
        self._left.difference_update(view.processes)
        self._depart({**self.departed, **departed})

    def note_drained(self, event: Drained) -> list[str]:
        """A process has reported itself; return who may go now."""
        # One that leaves reports the view it left with, which need not be the newest any more.
        if self.leaving.get(event.process, self.view.number) <= event.view <= self.view.number:
            self.drained.add(event.process)
            if event.process in self.leaving and event.process in self.outputs:
                left, joined = self.leaving[event.process], self.joined.get(event.process, 0)
                self.staged[event.process] = Departure(event.sinks, view=left, joined=joined)
        return self._let_go()

    def covered(self) -> dict[str, Departure]:
        """Return whose output a snapshot of this view covers beside that of the view's own processes."""
        departed = {
            process: msgspec.structs.replace(gone, released=not self.unreleased(process))
            for process, gone in self.departed.items()
        }
        return departed | self.staged

    def joined_later(self) -> dict[str, int]:
        """Return the first view with each process of this view that was not there from the beginning."""
        return {process: self.joined[process] for process in self.view.processes if self.joined.get(process)}

    def lives(self) -> dict[str, int]:
        """Return the first view with each of `everyone`; 0: it was there from the beginning."""
        return {process: self.joined.get(process, 0) for process in self.everyone}

    def committed(self, manifest: Manifest, recovering: bool) -> list[str]:
        """A snapshot of this timeline is complete; return who waited for that, and may let out its output and go."""
        self._depart(manifest.departed)
        # Read back after a restart, what the epoch started from may be gone: then its first snapshot tells.
        self.joined.update(manifest.joined)
        covered = {process for process, left in self.leaving.items() if left <= manifest.view.number}
        if recovering:
            self._covered |= covered
            self._forget_ended()
            return []
        for process in covered & self.outputs:
            del self.leaving[process]
        free = [process for process in sorted(self.staged) if process in self.departed]
        for process in free:
            del self.staged[process]
        return free

    def _depart(self, departed: Mapping[str, Departure]) -> None:
        """Those have left, but for who is in the view again."""
        for process, gone in departed.items():
            if gone.released:
                self._note_out(process, gone.view)
        self.departed = {process: gone for process, gone in departed.items() if process not in self.view.members}

    def _note_out(self, process: str, view: int) -> None:
        self._out[process] = max(view, self._out.get(process, view))

    def unreleased(self, process: str) -> dict[str, int]:
        """Return how far a process that has left still has to let out its output; empty: it has nothing to do."""
        gone = self.departed.get(process)
        return gone.sinks if gone is not None and gone.view > self._out.get(process, -1) else {}

    def released(self, process: str, view: int) -> bool:
        """All output of one that left with `view` is out; tell whether it had to be waited for."""
        waiting = bool(self.unreleased(process))
        self._note_out(process, view)
        return waiting and not self.unreleased(process)

    def gone(self, process: str) -> bool:
        """One that was leaving is not there any more; tell whether it has left by that: nobody needs its state."""
        if process not in self.leaving or process in self.outputs or not self._is_installed:
            return False
        del self.leaving[process]
        return True

    def _let_go(self) -> list[str]:
        # A change is made only on a settled view: one left in an earlier view has had its last messages received.
        free = [
            process
            for process, number in sorted(self.leaving.items())
            if process in self.drained
            and process not in self.outputs
            and (number < self.view.number or self._is_installed)
        ]
        for process in free:
            del self.leaving[process]
        return free


def _changed(view: View, change: Change, protocol: str) -> View:
    """Return `view` after `change`: the same where nothing changes."""
    if (change.process in view.processes) == isinstance(change, JoinWanted):
        return view  # it is in already, or out already
    if isinstance(change, LeaveWanted):
        if len(view.processes) == 1:
            raise UsageError(
                f"process {change.process} cannot leave: no other would be left. To end everything, stop the system "
                "instead (Ctrl-C where strobe up runs, else POST /v1/stop)"
            )
        return _without(view, change.process)
    number = view.number + 1
    known = {channel.id for channel in view.channels}
    # A channel is a new incarnation each time its process joins: ordinals start from 1 again.
    added = tuple(
        msgspec.structs.replace(channel, incarnation=number) for channel in change.channels if channel.id not in known
    )
    joined = View(number, tuple(sorted((*view.processes, change.process))), view.channels + added)
    joined.check()
    check_channels(protocol, joined)
    return joined


def _without(view: View, process: str) -> View:
    processes = tuple(other for other in view.processes if other != process)
    channels = tuple(channel for channel in view.channels if process not in (channel.source, channel.target))
    return View(view.number + 1, processes, channels)
