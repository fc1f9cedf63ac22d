"""Nodes as a coordinator sees them, one step at a time: what they say, and what they make of what they are told.

No process is behind them. All that they have of one is how far its output goes, and which file that goes to: whoever
joins again after its output was let out is given another file, as the coordinator demands (R2).
"""

from typing import Any

import msgspec
from tests.runtime.fake_nodes import record_of
from tests.runtime.modelled_outside import WITH_OUTPUT, Line, Outside, Wrong

from strobe.protocol import SnapshotId, View
from strobe.protocol.coordinator.messages import (
    Dismiss,
    Drained,
    InstallView,
    Released,
    ReportOutcome,
    RequestRecording,
    Reset,
    RestoreState,
)
from strobe.protocol.process.first_view import first_view
from strobe.protocol.values.log_entries import EntryRef, ProcessRecord
from strobe.runtime.messages.control import VERSION, FragmentStored, Refused, Register, SnapshotBegun, Welcome


class State(msgspec.Struct):
    """What a process records of itself."""

    process: str
    file: int
    written: int


class Node:
    """One instance of a node, which has no state when it is made."""

    def __init__(self, outside: Outside, process: str, file: int = 0) -> None:
        self.outside = outside
        self.process = process
        self.file = file
        self.sink = f"out-{process}" if process in WITH_OUTPUT else None
        self.line: Line | None = None
        # It has left, or was turned away for good; nothing runs any more.
        self.has_ended = False
        # The highest term of a coordinator that has let it in.
        self.term = 0
        # The newest log entry that it has named.
        self.newest: EntryRef | None = None
        self._current_epoch = 0
        self._forget()

    def _forget(self) -> None:
        self.instance = f"{self.process}-{self.outside.random.random()}"
        self._begin(0, None)

    def _begin(self, epoch: int, view: View | None) -> None:
        self.epoch, self.view = epoch, view
        # The copy of the store that its state comes from.
        self.history = self.outside.history
        self.written = 0
        # How far its output goes, once it leaves and all of that is durable.
        self.staged: int | None = None
        # What it was told to let out after it left, and whether that is still to be done.
        self.told_to_let_out: Dismiss | None = None
        self.to_let_out = False
        self._told_in_term = 0
        self._begun: dict[SnapshotId, SnapshotBegun] = {}
        self._parts: dict[SnapshotId, tuple[ProcessRecord, int]] = {}
        self._cuts: dict[SnapshotId, int] = {}
        self._ended: set[SnapshotId] = set()

    @property
    def released(self) -> int:
        return self.outside.released[self.process, self.file]

    @property
    def runs(self) -> bool:
        """Whether its process is in the view, as far as it knows, and goes on."""
        return self.view is not None and self.process in self.view.processes and not self.has_ended

    # What it does by itself

    def connect(self) -> Line:
        self.line = Line(self.process)
        self.line.to_coordinator.append(self._register())
        return self.line

    def _register(self) -> Register:
        channels = first_view(self.outside.system).channels
        return Register(
            VERSION,
            self.process,
            self.instance,
            self.epoch,
            ("here", 1),
            tuple(channel for channel in channels if self.process in (channel.source, channel.target)),
            self.outside.system.protocol,
            released={self.sink: self.released} if self.sink and not self.epoch else {},
            system=self.outside.identity if self.epoch else "",
            term=self.term,
            newest=self.newest if self.epoch else None,
        )

    def write(self) -> None:
        self.written += 1

    def recordable(self) -> list[SnapshotId]:
        """The snapshots of which it may record its part now."""
        if not self.runs:
            return []
        over = self._ended.union(self._parts)
        return [one for one in self.outside.marked if one in self._begun and one not in over]

    def record(self, snapshot: SnapshotId) -> None:
        assert self.view is not None
        state = msgspec.msgpack.encode(State(self.process, self.file, self.written))
        begun = self._begun[snapshot]
        part = record_of(self.outside.store, self.view, self.process, begun.position, state)
        if self.sink:
            part = msgspec.structs.replace(part, sinks={self.sink: self.written})
        self._parts[snapshot] = part, self.view.number
        self._cuts[snapshot] = self.written
        self._say_stored(snapshot)

    def _say(self, message: Any) -> None:
        if self.line is not None and not self.line.is_over:
            self.line.to_coordinator.append(message)

    def _say_stored(self, snapshot: SnapshotId) -> None:
        part, view = self._parts[snapshot]
        self._say(FragmentStored(snapshot, self.process, view, part))

    # What it is told

    def handle(self, message: Any) -> None:
        match message:
            case Welcome():
                self._welcomed(message)
            case Refused():
                self._refused(message)
            case RestoreState():
                self._restore(message)
            case Reset():
                self._undone()
            case InstallView():
                self._told_view(message.view)
            case Dismiss():
                self._let_go(message)
            case SnapshotBegun() if message.snapshot.epoch == self.epoch:
                self._begun[message.snapshot] = message
            case RequestRecording() if message.snapshot in self._begun and message.snapshot not in self._ended:
                self.outside.marked[message.snapshot] = None
                if message.snapshot in self._parts:
                    self._say_stored(message.snapshot)
            case ReportOutcome() if message.snapshot.epoch == self.epoch:
                self._outcome(message)

    def _welcomed(self, welcome: Welcome) -> None:
        if welcome.term < self.term:
            self.hang_up()
            return
        self.term, self._current_epoch, self.newest = welcome.term, welcome.epoch, welcome.newest

    def hang_up(self) -> None:
        if self.line is not None:
            self.line.cut(with_last_words=True)
        self.line = None

    def _refused(self, refused: Refused) -> None:
        if refused.final:
            self.outside.note(f"{self.process} is turned away: {refused.reason}")
            self.has_ended = True
        self.hang_up()

    def _restore(self, told: RestoreState) -> None:
        """Begin a new epoch, or see the view of one that it lives in already."""
        if told.epoch <= self.epoch:
            self._told_view(told.view)
            return
        if self.outside.told.setdefault(told.epoch, (told.restored, told.view)) != (told.restored, told.view):
            raise Wrong(f"of epoch {told.epoch}, {self.process} is told otherwise than others: {told}")
        file, lived = self.file, self.epoch > 0
        self._begin(told.epoch, told.view)
        if told.restored is not None:
            self._become(told.restored)
        if lived and self.sink and self.written and self.file != file:
            raise Wrong(f"{self.process}, which writes file {file}, is to go on in file {self.file} (E9)")
        if self.released > self.written:
            self._refuse(f"goes back to {self.written} in {told.restored}: {self.released} is out", self.term)
            return
        self._say(Drained(self.process, told.view.number))

    def _undone(self) -> None:
        """All went back to before it joined, or on to where it had left already, with all of the output that is out."""
        if self.told_to_let_out is not None:
            if not self.to_let_out:
                self._say(Released(self.process, self.told_to_let_out.view))
            return  # it has left
        if self.released > self.outside.staged[self.process, self.file]:
            raise Wrong(f"all went back to before {self.process} joined: {self.released} of its output is out (R2)")
        self._forget()
        self.hang_up()

    def _become(self, snapshot: str) -> None:
        part = self.outside.store.state().committed[snapshot].manifest.processes[self.process]
        assert part.state is not None
        state = msgspec.msgpack.decode(self.outside.store.read_blob(part.state), type=State)
        if state.process != self.process or part.sinks != ({self.sink: state.written} if self.sink else {}):
            raise Wrong(f"{self.process} is restored to what {snapshot} has of another: {state}, {part.sinks}")
        self.file, self.written = state.file, state.written
        if self.sink and self.released <= self.written:
            self.outside.release(self.process, self.file, self.written)

    def _told_view(self, view: View) -> None:
        if self.view is None:
            self._join(view)
            return
        if view.number >= self.view.number:
            self.view = view
        if self.process in self.view.processes:
            self._say(Drained(self.process, self.view.number))
            return
        if self.staged is None:
            self.staged = self.written
            self.outside.staged[self.process, self.file] = self.staged
        self._say(Drained(self.process, self.view.number, {self.sink: self.staged} if self.sink else {}))

    def _join(self, view: View) -> None:
        """Being in the view is what makes one that joins begin: from nothing."""
        if self.process not in view.processes:
            return
        if self.released:
            self._refuse(f"is to begin from nothing in view {view.number}: {self.released} is out", self.term)
            return
        self._begin(self._current_epoch, view)
        self._say(Drained(self.process, view.number))

    def _let_go(self, told: Dismiss) -> None:
        if self.sink in told.sinks:
            self.told_to_let_out, self.to_let_out, self._told_in_term = told, True, self.term
            return  # it ends when it has done so, and is told once more
        if self.sink and self.staged is not None and self.epoch == self.outside.epoch and self.released != self.staged:
            raise Wrong(f"{self.process} is let go with {self.released} out, but has written {self.staged} (R2)")
        self.outside.note(f"{self.process} is let go: {told.sinks}")
        self.has_ended = True
        self.hang_up()

    def dismissal(self) -> None:
        assert self.told_to_let_out is not None
        assert self.sink is not None
        position, self.to_let_out = self.told_to_let_out.sinks[self.sink], False
        durable = max(self.released, self.outside.staged[self.process, self.file])
        if position > durable:
            self._refuse(
                f"is to let out {position} into file {self.file}, which has only {durable}", self._told_in_term
            )
            return
        self.outside.release(self.process, self.file, position)
        self._say(Released(self.process, self.told_to_let_out.view))

    def _refuse(self, problem: str, term: int) -> None:
        """Fail, since the sink refuses it: only a coordinator that another one has replaced may ask for it."""
        if term >= self.outside.term:
            raise Wrong(f"{self.process} {problem} (R2)")
        self.outside.note(f"{self.process} fails, since it {problem}, as one of term {term} says")
        self._forget()
        self.hang_up()

    def _outcome(self, told: ReportOutcome) -> None:
        self._ended.add(told.snapshot)
        self._parts.pop(told.snapshot, None)
        if told.committed and self.sink and told.snapshot in self._cuts:
            self.outside.release(self.process, self.file, self._cuts[told.snapshot])
