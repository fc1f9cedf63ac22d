"""Modelled nodes, one step at a time: the messages that they send, and how they handle the coordinator's orders.

They run no process. The only state is the position of the output, and the file that it goes to. A process that joins
again after its output was released gets another file, as the coordinator demands (R2).
"""

from typing import Any

import msgspec
from tests.runtime.fake_nodes import record_of
from tests.runtime.modelled_outside import WITH_OUTPUT, HandedState, Line, Outside, Wrong

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
from strobe.protocol.coordinator.restart_messages import (
    CannotResume,
    HandedOver,
    HandOver,
    HandOverRef,
    Relieve,
    Resume,
)
from strobe.protocol.process.first_view import first_view
from strobe.protocol.values.log_entries import EntryRef, ProcessRecord
from strobe.runtime.messages.control import VERSION, FragmentStored, Refused, Register, SnapshotBegun, Welcome


class State(msgspec.Struct):
    """The state that a process records."""

    process: str
    file: int
    written: int


class Node:
    """One instance of a node; a new one has no state."""

    def __init__(self, outside: Outside, process: str, file: int = 0) -> None:
        self.outside = outside
        self.process = process
        self.file = file
        self.sink = f"out-{process}" if process in WITH_OUTPUT else None
        self.line: Line | None = None
        # It has left, or its registration was refused permanently.
        self.has_ended = False
        # The highest term of a coordinator that has admitted it.
        self.term = 0
        # The newest log entry that the coordinator has named to it.
        self.newest: EntryRef | None = None
        self._current_epoch = 0
        # Its hand-over is known to the coordinator: its successor may be started.
        self.is_relieved = False
        self._lose_state()

    def _lose_state(self) -> None:
        self.instance = f"{self.process}-{self.outside.random.random()}"
        self._begin(0, None)

    def _begin(self, epoch: int, view: View | None) -> None:
        self.epoch, self.view = epoch, view
        # The copy of the store that its state comes from (`Outside.history`).
        self.history = self.outside.history
        self.written = 0
        # The end of its output, all of which is durable; set when it leaves.
        self.staged: int | None = None
        # The order to release its output after it left, and whether it has not done so yet.
        self.release_order: Dismiss | None = None
        self.must_release = False
        self._release_term = 0
        # The events of this epoch, and its hand-over, from which on it does nothing more.
        self.worked = 0
        self.handed_over: HandOverRef | None = None
        self._begun: dict[SnapshotId, SnapshotBegun] = {}
        self._parts: dict[SnapshotId, tuple[ProcessRecord, int]] = {}
        self._cuts: dict[SnapshotId, int] = {}
        self._ended: set[SnapshotId] = set()

    @property
    def released(self) -> int:
        return self.outside.released[self.process, self.file]

    @property
    def runs(self) -> bool:
        """Whether its process is in the view, as far as it knows, and has not ended."""
        in_view = self.view is not None and self.process in self.view.processes
        return in_view and not self.has_ended and self.handed_over is None

    # Its own actions

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

    def work(self) -> None:
        """Handle an event. Nobody else may have got further in this epoch, or run on from the same hand-over (E11)."""
        if self.outside.reached[self.process, self.epoch] > self.worked and self.history == self.outside.history:
            raise Wrong(f"{self.process} runs twice from event {self.worked} of epoch {self.epoch} (E11)")
        self.worked += 1
        self.outside.reached[self.process, self.epoch] = self.worked

    def recordable(self) -> list[SnapshotId]:
        """The snapshots for which it may record its part now."""
        if not self.runs:
            return []
        done = self._ended.union(self._parts)
        return [snapshot for snapshot in self.outside.marked if snapshot in self._begun and snapshot not in done]

    def record(self, snapshot: SnapshotId) -> None:
        assert self.view is not None
        state = msgspec.msgpack.encode(State(self.process, self.file, self.written))
        begun = self._begun[snapshot]
        part = record_of(self.outside.store, self.view, self.process, begun.position, state)
        if self.sink:
            part = msgspec.structs.replace(part, sinks={self.sink: self.written})
        self._parts[snapshot] = part, self.view.number
        self._cuts[snapshot] = self.written
        self._report_stored(snapshot)

    def _send(self, message: Any) -> None:
        if self.line is not None and not self.line.is_over:
            self.line.to_coordinator.append(message)

    def _report_stored(self, snapshot: SnapshotId) -> None:
        part, view = self._parts[snapshot]
        self._send(FragmentStored(snapshot, self.process, view, part))

    # Messages from the coordinator

    def handle(self, message: Any) -> None:
        match message:
            case Welcome():
                self._welcomed(message)
            case Refused():
                self._refused(message)
            case RestoreState():
                self._restore(message)
            case HandOver() if self.runs or self.handed_over:
                self._hand_over()
            case Relieve():
                self.is_relieved = self.handed_over is not None and message.name == self.handed_over.name
            case Resume():
                self._resume(message)
            case Reset():
                self._handle_reset()
            case InstallView() if self.handed_over is None:
                self._install_view(message.view)
            case Dismiss():
                self._dismiss(message)
            case _ if self.handed_over is not None:
                pass  # it has stopped
            case SnapshotBegun() if message.snapshot.epoch == self.epoch:
                self._begun[message.snapshot] = message
            case RequestRecording() if message.snapshot in self._begun and message.snapshot not in self._ended:
                self.outside.marked[message.snapshot] = None
                if message.snapshot in self._parts:
                    self._report_stored(message.snapshot)
            case ReportOutcome() if message.snapshot.epoch == self.epoch:
                self._outcome(message)

    def _welcomed(self, welcome: Welcome) -> None:
        if welcome.term < self.term:
            self.hang_up()
            return
        self.term, self._current_epoch, self.newest = welcome.term, welcome.epoch, welcome.newest
        if self.handed_over is not None:
            self._hand_over()

    def hang_up(self) -> None:
        if self.line is not None:
            self.line.cut(keep_sent=True)
        self.line = None

    def _refused(self, refused: Refused) -> None:
        if refused.final:
            self.outside.note(f"{self.process} is turned away: {refused.reason}")
            self.has_ended = True
        self.hang_up()

    def _restore(self, order: RestoreState) -> None:
        """Begin a new epoch; if it runs in this epoch already, only install the view."""
        if order.epoch <= self.epoch:
            self._install_view(order.view)
            return
        if self.outside.restored.setdefault(order.epoch, (order.restored, order.view)) != (order.restored, order.view):
            raise Wrong(f"of epoch {order.epoch}, {self.process} has another order than the others: {order}")
        self.newest = order.newest or self.newest
        file, had_state = self.file, self.epoch > 0
        self._begin(order.epoch, order.view)
        if order.restored is not None:
            self._restore_state(order.restored)
        if had_state and self.sink and self.written and self.file != file:
            raise Wrong(f"{self.process}, which writes file {file}, is to go on in file {self.file} (E9)")
        if self.released > self.written:
            self._fail(f"goes back to {self.written} in {order.restored}: {self.released} is out", self.term)
            return
        self._send(Drained(self.process, order.view.number))

    def _hand_over(self) -> None:
        """Stop and hand over; if that is done, report it again."""
        if self.handed_over is None:
            assert self.view is not None
            name = f"{self.outside.random.getrandbits(64):016x}-{self.epoch:06d}-{0:016x}"
            state = HandedState(self.process, self.epoch, self.view, self.file, self.written, self.worked)
            self.outside.hand_overs[name] = state
            self.handed_over = HandOverRef(name, "0" * 64, 0)
        self._send(HandedOver(self.process, self.epoch, self.handed_over))

    def _resume(self, order: Resume) -> None:
        """Go on from the hand-over of the predecessor, unless another instance has claimed it."""
        if order.epoch <= self.epoch:
            return
        name = order.hand_over.name
        state = self.outside.hand_overs[name]
        if (state.process, state.epoch) != (self.process, order.epoch):
            raise Wrong(f"{self.process} is to resume in epoch {order.epoch} from what {state} has handed over (E11)")
        if self.outside.claims.setdefault(name, self.instance) != self.instance:
            self._send(CannotResume(self.process, name, "it was used"))
            return
        self._begin(order.epoch, state.view)
        self.newest = order.newest or self.newest
        self.file, self.written, self.worked = state.file, state.written, state.worked
        self.outside.note(f"{self.process} resumes in epoch {order.epoch}")
        self._send(Drained(self.process, state.view.number))

    def _handle_reset(self) -> None:
        """Handle a rollback to a state without this process, which had not joined yet or had left already."""
        if self.release_order is not None:
            if not self.must_release:
                self._send(Released(self.process, self.release_order.view))
            return  # it has left
        if self.released > self.outside.staged[self.process, self.file]:
            raise Wrong(f"all went back to before {self.process} joined: {self.released} of its output is out (R2)")
        self._lose_state()
        self.hang_up()

    def _restore_state(self, snapshot: str) -> None:
        part = self.outside.store.state().committed[snapshot].manifest.processes[self.process]
        assert part.state is not None
        state = msgspec.msgpack.decode(self.outside.store.read_blob(part.state), type=State)
        if state.process != self.process or part.sinks != ({self.sink: state.written} if self.sink else {}):
            raise Wrong(f"{self.process} is restored to what {snapshot} has of another: {state}, {part.sinks}")
        self.file, self.written = state.file, state.written
        if self.sink and self.released <= self.written:
            self.outside.release(self.process, self.file, self.written)

    def _install_view(self, view: View) -> None:
        if self.view is None:
            self._join(view)
            return
        if view.number >= self.view.number:
            self.view = view
        if self.process in self.view.processes:
            self._send(Drained(self.process, self.view.number))
            return
        if self.staged is None:
            self.staged = self.written
            self.outside.staged[self.process, self.file] = self.staged
        self._send(Drained(self.process, self.view.number, {self.sink: self.staged} if self.sink else {}))

    def _join(self, view: View) -> None:
        """A joining process starts, without state, once it is in the view."""
        if self.process not in view.processes:
            return
        if self.released:
            self._fail(f"is to begin from nothing in view {view.number}: {self.released} is out", self.term)
            return
        self._begin(self._current_epoch, view)
        self.outside.reached[self.process, self.epoch] = 0  # another member than before, which may have left
        self._send(Drained(self.process, view.number))

    def _dismiss(self, order: Dismiss) -> None:
        if self.sink in order.sinks:
            self.release_order, self.must_release, self._release_term = order, True, self.term
            return  # once that is done, a second order dismisses it
        if self.sink and self.staged is not None and self.epoch == self.outside.epoch and self.released != self.staged:
            raise Wrong(f"{self.process} is let go with {self.released} out, but has written {self.staged} (R2)")
        self.outside.note(f"{self.process} is let go: {order.sinks}")
        self.has_ended = True
        self.hang_up()

    def release_output(self) -> None:
        assert self.release_order is not None
        assert self.sink is not None
        position, self.must_release = self.release_order.sinks[self.sink], False
        durable = max(self.released, self.outside.staged[self.process, self.file])
        if position > durable:
            self._fail(f"is to let out {position} into file {self.file}, which has only {durable}", self._release_term)
            return
        self.outside.release(self.process, self.file, position)
        self._send(Released(self.process, self.release_order.view))

    def _fail(self, problem: str, term: int) -> None:
        """Fail because the sink refuses the order: only a coordinator that was replaced may give such an order."""
        if term >= self.outside.term:
            raise Wrong(f"{self.process} {problem} (R2)")
        self.outside.note(f"{self.process} fails, since it {problem}, as one of term {term} says")
        self._lose_state()
        self.hang_up()

    def _outcome(self, report: ReportOutcome) -> None:
        self._ended.add(report.snapshot)
        self._parts.pop(report.snapshot, None)
        if report.committed and self.sink and report.snapshot in self._cuts:
            self.outside.release(self.process, self.file, self._cuts[report.snapshot])
