"""The coordinator's side of views: members, requested joins and leaves, and whether all have installed the view (E2).

Changes are made one at a time. A view is *settled* when every process in it has installed it, and has received channels
that ended with it to their end. The next change, and the next snapshot, wait for that. A leaving process is dismissed
when the view without it is settled and it has reported `Drained`: then its last messages were received. A leaving
process that is gone by then has left as well. The dismissal is not in the log, so the next coordinator cannot know it.

A process that leaves with output (R2) first makes it durable, and reports only then; no snapshot begins before. It is
dismissed when a snapshot without it is complete. Such a snapshot includes all effects of the process, so it covers all
of its output, and its manifest has the end offsets. A process that is lost before it has reported has lost output: that
is a crash, not a leave. A process that is lost later gets, when it comes back, the offsets up to which it still has to
release. The log records that all output is released, and only then does the process exit: if it is started again, it is
a new member with its own output, which must not be confused with the earlier one.
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

MembershipChange = JoinWanted | LeaveWanted


class MembershipMemory(msgspec.Struct, frozen=True, omit_defaults=True):
    """The membership facts in the log so far, while it is read back; the fields are those of `Membership`."""

    leaving: dict[Name, ViewNumber] = {}
    unheard: frozenset[Name] = frozenset()
    ended: frozenset[Name] = frozenset()
    covered: frozenset[Name] = frozenset()
    left: frozenset[Name] = frozenset()
    joined: dict[Name, ViewNumber] = {}
    departed: dict[Name, Departure] = {}
    out: dict[Name, ViewNumber] = {}


class Membership:
    """The current view, and the changes requested to it. `outputs` are the processes that have sinks."""

    def __init__(self, view: View, protocol: str, outputs: Collection[str] = ()) -> None:
        self.view = view
        self.protocol = protocol
        self.changes: deque[MembershipChange] = deque()
        # The change that is on its way to the log, and the view that results from it.
        self.changing: MembershipChange | None = None
        self.coming: View | None = None
        self.drained: set[str] = set(view.processes)
        # The leaving processes, with the number of the first view without each.
        self.leaving: dict[str, int] = {}
        # Leaving processes without a channel to a remaining member: no member can know whether they have ended.
        self._unheard: set[str] = set()
        self.outputs = frozenset(outputs)
        # The processes that may not leave, with the reason.
        self.staying: dict[str, str] = {}
        # The end offsets of leaving processes whose output is durable and waits for a snapshot that covers it.
        self.staged: dict[str, Departure] = {}
        # The departed processes with output, as in the newest complete snapshot.
        self.departed: dict[str, Departure] = {}
        # The first view with each process that was not there from the beginning.
        self.joined: dict[str, int] = {}
        # All output of memberships that ended with this view or earlier is released. A rollback does not change that.
        self._out: dict[str, int] = {}
        # Processes removed by a membership change, not by a rollback.
        self._left: set[str] = set()
        # While the log is read back: the processes of `leaving` that have left by now, if they have no output
        # (`_ended`) or if they have (`_covered`). `take_over` decides which of them have output: the log does not
        # record it.
        self._ended: set[str] = set()
        self._covered: set[str] = set()

    @property
    def settled(self) -> bool:
        return self._is_installed and not self.unstaged

    @property
    def unstaged(self) -> list[str]:
        """The leaving processes whose output is not durable yet."""
        return [process for process in self.leaving if process in self.outputs and process not in self.staged]

    @property
    def _is_installed(self) -> bool:
        return self.changing is None and self.drained.issuperset(self.view.processes)

    def is_settled_but_for(self, processes: Collection[str]) -> bool:
        """Return whether the view is settled, apart from these processes, which restart."""
        installed = self.drained.union(processes).issuperset(self.view.processes)
        return self.changing is None and installed and not self.unstaged

    @property
    def everyone(self) -> tuple[str, ...]:
        """The processes that are informed of changes: the view's, and leaving ones that are not dismissed yet."""
        return (*self.view.processes, *sorted(self.leaving))

    def includes(self, process: str) -> bool:
        """Return whether `process` is one of `everyone`."""
        return process in self.view.members or process in self.leaving

    @property
    def left(self) -> tuple[str, ...]:
        """The departed processes that have nothing more to do and need not be started."""
        return tuple(
            process for process in sorted(self._left) if process not in self.leaving and not self.unreleased(process)
        )

    def request(self, change: MembershipChange) -> None:
        """Queue a change; raise UsageError if it is not allowed, or makes no sense after the queued ones."""
        if isinstance(change, LeaveWanted) and change.process in self.staying:
            raise UsageError(f"process {change.process} cannot leave: {self.staying[change.process]}")
        planned = self.view
        for earlier in (*([self.changing] if self.changing else []), *self.changes):
            with suppress(UsageError):  # another writer's change may have made it pointless: it will be skipped
                planned = _changed(planned, earlier, self.protocol)
        _changed(planned, change, self.protocol)
        self.changes.append(change)

    def next_change(self, now_us: int, present: Collection[str]) -> ViewChange | None:
        """Return the entry of the next effective change, if one may be made now.

        A process that requested to join and is not `present` any more is skipped: it requests again when it comes back.
        """
        while self.changes and self.settled:
            change = self.changes.popleft()
            if isinstance(change, JoinWanted) and not (self.includes(change.process) or change.process in present):
                self._drop_channels_of(change.process)
                continue
            try:
                view = _changed(self.view, change, self.protocol)
            except UsageError:
                continue  # it was valid when requested; another writer's change has made it pointless
            if view is not self.view:
                self.changing, self.coming = change, view
                return ViewChange(view, now_us)
        return None

    def _drop_channels_of(self, process: str) -> None:
        """Remove channels to a skipped process from other joins: when it joins, its own join adds them."""
        for at, change in enumerate(self.changes):
            if isinstance(change, JoinWanted):
                kept = tuple(one for one in change.channels if process not in (one.source, one.target))
                self.changes[at] = msgspec.structs.replace(change, channels=kept)

    def lost(self) -> None:
        """Another entry took the log position of the change under way: make it again, on the current view."""
        if self.changing is not None:
            self.changes.appendleft(self.changing)
            self.changing = self.coming = None

    def logged(self, view: View, recovering: bool) -> View | None:
        """Switch to `view`; return the previous one, or None if the log already has a newer one.

        While the log is read back, a leave still matters in two cases: it came with the newest view, or the process has
        output that no complete snapshot covers yet. All others were drained by the next view, or before the next
        snapshot began.
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
        """While the log is read back: it has a snapshot that began in `view`.

        By then all messages of leaving processes were received, including the end of their channels. Those with output
        still wait for a complete snapshot. Those without a channel to a member may not have received all of their
        messages.
        """
        self._note_ended(
            process for process, left in self.leaving.items() if process not in self._unheard and left <= view
        )

    def remember(self) -> MembershipMemory:
        """Return the membership facts in the log so far, except the view."""
        return MembershipMemory(
            leaving=dict(self.leaving),
            unheard=frozenset(self._unheard),
            ended=frozenset(self._ended),
            covered=frozenset(self._covered),
            left=frozenset(self._left),
            joined=dict(self.joined),
            departed=dict(self.departed),
            out=dict(self._out),
        )

    def recall(self, view: View, membered: MembershipMemory) -> None:
        """Continue reading from another reader's position, in `view`."""
        self.view = view
        self.leaving, self.joined = dict(membered.leaving), dict(membered.joined)
        self.departed, self._out = dict(membered.departed), dict(membered.out)
        self._unheard, self._left = set(membered.unheard), set(membered.left)
        self._ended, self._covered = set(membered.ended), set(membered.covered)

    def take_over(self) -> None:
        """The whole log has been read back: keep only those leaving processes that it does not show to have left."""
        over = self._gone_completely
        self.leaving = {process: left for process, left in self.leaving.items() if process not in over}
        self._ended, self._covered = set(), set()
        self.drained.clear()

    @property
    def _gone_completely(self) -> set[str]:
        return (self._ended - self.outputs) | (self._covered & self.outputs)

    def _note_ended(self, processes: Iterable[str]) -> None:
        self._ended.update(processes)
        self._forget_ended()

    def _forget_ended(self) -> None:
        """Remove processes that have left whether or not they have output."""
        for process in self._ended & self._covered:
            self.leaving.pop(process, None)
        self._ended.intersection_update(self.leaving)
        self._covered.intersection_update(self.leaving)

    def rolled_back(
        self, view: View, still_leaving: Collection[str], departed: Mapping[str, Departure], joined: Mapping[str, int]
    ) -> None:
        """Switch to the view of the snapshot that all processes are restored to (R1).

        Joins after the snapshot are undone: those processes request again. Processes `still_leaving` that are in the
        view again leave once more. The processes `departed` in the snapshot have left, also if the system was on
        another timeline meanwhile.
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
        """A process has reported `Drained`; return the processes that may exit now."""
        # A leaving process reports the view it left with, which need not be the newest any more.
        if self.leaving.get(event.process, self.view.number) <= event.view <= self.view.number:
            self.drained.add(event.process)
            if event.process in self.leaving and event.process in self.outputs:
                left, joined = self.leaving[event.process], self.joined.get(event.process, 0)
                self.staged[event.process] = Departure(event.sinks, view=left, joined=joined)
        return self._take_drained()

    def covered(self) -> dict[str, Departure]:
        """Return the departed processes whose output a snapshot of this view covers."""
        departed = {
            process: msgspec.structs.replace(gone, released=not self.unreleased(process))
            for process, gone in self.departed.items()
        }
        return departed | self.staged

    def joined_later(self) -> dict[str, int]:
        """Return the first view with each process of this view that was not there from the beginning."""
        return {process: self.joined[process] for process in self.view.processes if self.joined.get(process)}

    def first_views(self) -> dict[str, int]:
        """Return the first view with each of `everyone`; 0: it was there from the beginning."""
        return {process: self.joined.get(process, 0) for process in self.everyone}

    def committed(self, manifest: Manifest, recovering: bool) -> list[str]:
        """A snapshot of this timeline is complete; return the processes that may now release their output and exit."""
        self._depart(manifest.departed)
        # After a restart, the snapshot that the epoch started from may be gone: then its first snapshot has these.
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
        """These processes have left, except those that are in the view again."""
        for process, gone in departed.items():
            if gone.released:
                self._note_out(process, gone.view)
        self.departed = {process: gone for process, gone in departed.items() if process not in self.view.members}

    def _note_out(self, process: str, view: int) -> None:
        self._out[process] = max(view, self._out.get(process, view))

    def unreleased(self, process: str) -> dict[str, int]:
        """Return the offsets up to which a departed process still has to release output; empty if it is done."""
        gone = self.departed.get(process)
        return gone.sinks if gone is not None and gone.view > self._out.get(process, -1) else {}

    def released(self, process: str, view: int) -> bool:
        """All output of the process that left with `view` is released; return whether this was awaited."""
        waiting = bool(self.unreleased(process))
        self._note_out(process, view)
        return waiting and not self.unreleased(process)

    def gone(self, process: str) -> bool:
        """A leaving process is gone. Return whether it counts as departed, because its state is not needed any more."""
        if process not in self.leaving or process in self.outputs or not self._is_installed:
            return False
        del self.leaving[process]
        return True

    def _take_drained(self) -> list[str]:
        # A change is made only on a settled view. So the last messages of a process that left in an earlier view were
        # received.
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


def _changed(view: View, change: MembershipChange, protocol: str) -> View:
    """Return `view` after `change`, or `view` itself if nothing changes."""
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
