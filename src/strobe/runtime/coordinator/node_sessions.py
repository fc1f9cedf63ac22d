"""Sessions of nodes: admits or refuses them, handles their messages, and notices their loss.

An instance without state means a loss or a start. An instance with the state of this epoch continues. An instance with
older state counts as blank. A process whose name is not in the view joins.
"""

import asyncio
from typing import Any

from strobe.errors import UsageError
from strobe.protocol.coordinator.messages import (
    AskToRecord,
    CannotRestore,
    Dismiss,
    Drained,
    FragmentArrived,
    JoinWanted,
    LeaveWanted,
    ProcessFailed,
    ProcessReturned,
    ProcessWithoutState,
    RecordingFailed,
    Released,
    SentCountsArrived,
    SnapshotStarted,
    SnapshotWanted,
)
from strobe.runtime.coordinator.control_server import Connection
from strobe.runtime.coordinator.coordinator import Coordinator
from strobe.runtime.coordinator.node_registry import Member
from strobe.runtime.event_log import ERROR, WARNING
from strobe.runtime.messages.control import (
    VERSION,
    AddressBook,
    Failed,
    FragmentStored,
    Heartbeat,
    ProcessRecorded,
    Refused,
    Register,
    Welcome,
)

REJECTS_LOGGED_MAX = 20
"""This many rejections are logged one by one, then every hundredth: garbage or early nodes must not fill the disk."""


class NodeSessions:
    """The coordinator's side of every connection to a node."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.members = coordinator.members
        self.log = coordinator.log
        self.rejects = 0
        self._put_off = 0
        # Everything is being stopped: a node that goes now has not failed.
        self.stopping = False
        self._gone = asyncio.Event()
        self._told: AddressBook | None = None

    def fail(self, error: BaseException) -> None:
        self.coordinator.fail(error)

    # Registering

    def registered(self, register: Register, connection: Connection) -> Member | Refused:
        """Admit the node and send what it needs first, or return the refusal."""
        now_s = self._now_s()
        refused = self._refusal(register, now_s)
        if refused is None:
            return self._admit(register, connection, now_s)
        self._put_off += not refused.final
        if not refused.final and register.process in self.coordinator.brain.membership.everyone:
            self.members.turned_away[register.process] = refused.reason
        if refused.final or _is_logged(self._put_off):
            self.log.emit("turned away", WARNING, process=register.process, peer=connection.peer, reason=refused.reason)
        return refused

    def _refusal(self, register: Register, now_s: float) -> Refused | None:
        coordinator, brain = self.coordinator, self.coordinator.brain
        if register.system not in ("", coordinator.identity):
            # It has its state, and waits for its own coordinator, which had this address before.
            here = f"of the store {coordinator.store_url} (identity {coordinator.identity})"
            reason = f"here is the coordinator of another system, {here}; this node belongs to {register.system}"
            return Refused(reason, False)
        if register.term > coordinator.term:
            coordinator.poll()  # another coordinator leads: this one ends once it has read that
            reason = (
                f"a coordinator of term {register.term} leads the system, and this one is of term {coordinator.term}; "
                "if no other one runs, the store here is an older copy: put the newer one back"
            )
            return Refused(reason, False)
        if register.version != VERSION:
            reason = f"this node speaks version {register.version} of the control protocol, the coordinator {VERSION}"
            return Refused(f"{reason}; install the same Strobe on both", True)
        if register.protocol != coordinator.system.protocol:
            reason = f"this node runs {register.protocol}, the system {coordinator.system.protocol}"
            return Refused(f"{reason}; give both the same description of the system", True)
        if not self._is_known(register):
            known = ", ".join(brain.view.processes)
            reason = f"there is no process {register.process!r}; there are: {known}. To join, it must name its channels"
            return Refused(reason, True)
        if self.stopping:
            return Refused("the system is being stopped", True)
        refused = self.members.refusal(register, now_s)
        if refused is not None:
            return refused
        if brain.epoch == 0:
            return Refused("the coordinator has not started the first epoch yet", False)
        if register.epoch > brain.epoch:
            coordinator.poll()
            reason = f"this node is of epoch {register.epoch}, the log has only {brain.epoch} as yet"
            return Refused(
                f"{reason}; if that stays so, the store here is an older copy: put the newer one back", False
            )
        return self._cannot_join(register) if self._joins(register) else None

    def _is_known(self, register: Register) -> bool:
        everyone = (*self.coordinator.brain.membership.everyone, *self.coordinator.first_view.processes)
        return register.process in everyone or bool(register.channels) or register.epoch > 0

    def _joins(self, register: Register) -> bool:
        membership = self.coordinator.brain.membership
        is_in = register.process in membership.everyone
        return register.epoch == 0 and not is_in and not self._has_left(register)

    def _has_left(self, register: Register) -> bool:
        """Return whether the process has left, and still has output to release or was killed before it ended."""
        membership, process = self.coordinator.brain.membership, register.process
        same_run = bool(register.run) and self.members.lived.get(process) == register.run
        return bool(membership.unreleased(process)) or (same_run and process in membership.left)

    def _cannot_join(self, register: Register) -> Refused | None:
        """Have it join, or return why it cannot: a process in the view that cannot start would roll back everyone."""
        try:
            self._check_joiner(register)
            self._join(register)
        except UsageError as error:
            return Refused(f"process {register.process} cannot join: {error}", True)
        return None

    def _check_joiner(self, register: Register) -> None:
        sink = self._released_sink(register)
        if sink is not None:
            problem = f"output of it was released already, in its sink {sink}, and who joins begins at the beginning"
            way_out = "give it another file, or restore a snapshot that has the process (strobe restore ID --fork)"
            raise UsageError(f"{problem}; {way_out}")
        blamed = self.coordinator.brain.rollback.join_refusal(register.process, self.coordinator.clock.now_us())
        if blamed is not None:
            raise UsageError(blamed)

    def _join(self, register: Register) -> None:
        membership = self.coordinator.brain.membership
        known = {*membership.view.processes, register.process}
        for change in (membership.changing, *membership.changes):
            if isinstance(change, JoinWanted):
                known.add(change.process)
            elif isinstance(change, LeaveWanted):
                known.discard(change.process)
        # A channel to a process that has not joined yet comes with that process.
        channels = tuple(channel for channel in register.channels if {channel.source, channel.target} <= known)
        self.coordinator.handle(JoinWanted(register.process, channels))

    def _released_sink(self, register: Register) -> str | None:
        """Return a sink that has released output, by its own report or, if it does not know, by the log."""
        departed = self.coordinator.brain.membership.departed.get(register.process)
        for sink, position in register.released.items():
            logged = departed.sinks.get(sink, 0) if departed is not None else 0
            if position or (position is None and logged):
                return sink
        return None

    def _admit(self, register: Register, connection: Connection, now_s: float) -> Member:
        coordinator = self.coordinator
        earlier = self.members.get(register.process)
        member, former = self.members.admit(register, connection, now_s)
        connection.send(
            Welcome(
                coordinator.identity,
                coordinator.store_url,
                coordinator.node_settings,
                coordinator.brain.epoch,
                self.members.silence_s,
                coordinator.term,
            )
        )
        if former is not None and earlier is not None:
            self._end_former(earlier, former, member)
        self.tell_addresses(connection)
        for snapshot in coordinator.state.open:
            connection.send(coordinator.begun_message(snapshot))
        self.log.emit(
            "registered",
            process=member.process,
            epoch=member.epoch,
            pid=member.pid,
            host=member.host,
            joins=True if self._joins(register) else None,
        )
        self._tell_brain(register, again=earlier is not None and earlier.instance == member.instance)
        return member

    def _end_former(self, earlier: Member, former: Any, member: Member) -> None:
        """End the former connection: a process has one at a time."""
        if earlier.instance != member.instance:
            former.send(Refused(f"process {member.process} was taken over by a newer instance", True))
            self._failed(member.process)
        former.close()

    def _tell_brain(self, register: Register, again: bool) -> None:
        coordinator, process = self.coordinator, register.process
        membership = coordinator.brain.membership
        everyone = membership.everyone
        if self._joins(register):
            # `_cannot_join` has passed the join to `Lifecycle`, possibly followed by the loss of the former instance.
            coordinator.brain.rollback.present.add(process)
            return
        if process not in everyone and membership.unreleased(process):
            # It left, and was lost with output still staged.
            coordinator.brain.rollback.present.add(process)
            coordinator.let_go(coordinator.brain.dismissal(process))
        elif process in membership.left or (process not in everyone and register.epoch == coordinator.brain.epoch):
            coordinator.let_go(Dismiss(process))  # it has left, and missed the message
        elif register.epoch < coordinator.brain.epoch:
            coordinator.handle(ProcessWithoutState(process, register.epoch, again))
        else:
            coordinator.handle(ProcessReturned(process))
            self._ask_again(process)

    def _ask_again(self, process: str) -> None:
        """Repeat open record orders: it may have missed them, or recorded for a former coordinator (E7)."""
        brain = self.coordinator.brain
        for snapshot, attempt in brain.open.items():
            if attempt.ending or attempt.begin.view != brain.view.number:
                continue
            if process in attempt.view.processes and process not in attempt.arrived:
                self.coordinator.send(process, AskToRecord(process, snapshot, attempt.begin.view))

    def tell_addresses(self, newcomer: Connection | None = None) -> None:
        """Send the address book to every node if it has changed, and to a newcomer in any case."""
        book = AddressBook(self.members.addresses(), self.coordinator.brain.membership.everyone)
        if book != self._told:
            self._told = book
            self.coordinator.tell_all(book)
        elif newcomer is not None:
            newcomer.send(book)

    # Messages

    def heard(self, member: Member, message: Any) -> None:
        """Handle a message of a node; every message shows that it is alive."""
        now_s = self._now_s()
        member.heard_s = now_s
        match message:
            case Heartbeat():
                member.note(message, now_s)
            case ProcessRecorded():
                self.coordinator.progress.recorded(message.snapshot, member.process, message.pause_us)
            case FragmentStored():
                self._stored(message)
            case Failed():
                member.trouble = message.reason
            case Drained() | Released() | CannotRestore() | SentCountsArrived() | SnapshotStarted() | SnapshotWanted():
                if isinstance(message, Drained) and member.process in self.coordinator.brain.view.members:
                    self.members.lived[member.process] = member.run
                self.coordinator.handle(message)
            case RecordingFailed():
                self.log.emit(
                    "recording failed",
                    WARNING,
                    process=member.process,
                    snapshot=str(message.snapshot),
                    reason=message.reason,
                )
                self.coordinator.handle(message)

    def _stored(self, message: FragmentStored) -> None:
        if self.coordinator.progress.stored(message.snapshot, message.process, message.record):
            self.coordinator.handle(FragmentArrived(message.snapshot, message.process, message.view))

    # Leaving and loss

    def lost(self, member: Member, connection: Connection, reason: str) -> None:
        """Handle a lost connection. Unless another has replaced it, the node is lost."""
        if member.connection is not connection:
            return
        member.connection = None
        if self.stopping:
            self._gone.set()
            return
        if member.let_go:
            self.forget(member.process)
            return
        member.trouble = self.members.last_words[member.process] = member.trouble or reason
        self.log.emit("failed", ERROR, process=member.process, reason=member.trouble, pid=member.pid, host=member.host)
        self._failed(member.process)
        if not self.coordinator.brain.membership.includes(member.process):
            self.forget(member.process)  # nothing waits for it

    def forget(self, process: str) -> None:
        """Remove a process that has left, or was lost before it joined."""
        self.members.remove(process)
        self.tell_addresses()

    def _failed(self, process: str) -> None:
        membership = self.coordinator.brain.membership
        if process in membership.view.processes:
            # No snapshot could complete without it, so none begins. The view is settled again when the process is back
            # and has reported, as every returning process does, that it has installed the view.
            membership.drained.discard(process)
        self.coordinator.handle(ProcessFailed(process))

    async def all_gone(self) -> None:
        """Wait until no node is connected."""
        while any(self.members.connected()):
            self._gone.clear()
            await self._gone.wait()

    def end_silent(self, now_s: float) -> None:
        """Disconnect nodes that have sent nothing for too long; they may reconnect."""
        for member in self.members.silent(now_s):
            if isinstance(member.connection, Connection):
                member.connection.abort(f"it said nothing for {now_s - member.heard_s:.1f} s")

    def rejected(self, peer: str, reason: str) -> None:
        """Count and log a message that is not from a node."""
        self.rejects += 1
        if _is_logged(self.rejects):
            self.log.emit("rejected", WARNING, peer=peer, reason=reason, so_far=self.rejects)

    def _now_s(self) -> float:
        return self.coordinator.now_s()


def _is_logged(number: int) -> bool:
    return number <= REJECTS_LOGGED_MAX or number % 100 == 0
