"""Sessions of nodes: admits or refuses them, handles their messages, and notices their loss.

An instance without state means a loss or a start. An instance with the state of this epoch continues. An instance with
older state counts as blank. A process whose name is not in the view joins.
"""

import asyncio
from typing import Any

from strobe.errors import UsageError
from strobe.protocol.coordinator.messages import (
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
    RequestRecording,
    SentCountsArrived,
    SnapshotStarted,
    SnapshotWanted,
)
from strobe.protocol.coordinator.restart_messages import CannotHandOver, CannotResume, HandedOver, RestartWanted
from strobe.protocol.values.log_entries import EntryRef
from strobe.runtime.coordinator.address_books import AddressBooks
from strobe.runtime.coordinator.control_server import Connection
from strobe.runtime.coordinator.coordinator import Coordinator
from strobe.runtime.coordinator.node_registry import Member
from strobe.runtime.coordinator.snapshot_observer import begun_message
from strobe.runtime.event_log import ERROR, WARNING
from strobe.runtime.messages.control import (
    VERSION,
    Blocked,
    Failed,
    FragmentStored,
    Heartbeat,
    HeartbeatHeard,
    ProcessRecorded,
    Refused,
    Register,
    Welcome,
)
from strobe.storage.log.log import EntryMatch

REJECTS_LOGGED_MAX = 20
"""This many rejections are logged one by one, then every hundredth: garbage or early nodes must not fill the disk."""


class NodeSessions:
    """The coordinator's side of every connection to a node."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.members = coordinator.members
        self.tracker = coordinator.tracker
        self.log = coordinator.log
        self.rejects = 0
        self._retries_asked = 0
        # Everything is being stopped: a node that goes now has not failed.
        self.stopping = False
        self._gone = asyncio.Event()
        self.address_books = AddressBooks(coordinator.lifecycle, self.members)

    def fail(self, error: BaseException) -> None:
        self.coordinator.fail(error)

    # Registering

    def registered(self, register: Register, connection: Connection) -> Member | Refused:
        """Admit the node and send what it needs first, or return the refusal."""
        now_s = self._now_s()
        refused = self._refusal(register, now_s)
        if refused is None:
            return self._admit(register, connection, now_s)
        self._retries_asked += not refused.final
        if not refused.final and register.process in self.coordinator.lifecycle.membership.everyone:
            self.members.refusals[register.process] = refused.reason
        if refused.final or _is_logged(self._retries_asked):
            self.log.emit(
                "registration refused", WARNING, process=register.process, peer=connection.peer, reason=refused.reason
            )
        return refused

    def _refusal(self, register: Register, now_s: float) -> Refused | None:
        coordinator, lifecycle = self.coordinator, self.coordinator.lifecycle
        if register.system not in ("", coordinator.identity):
            # It has its state, and waits for its own coordinator, which had this address before.
            here = f"of the store {coordinator.store_url} (identity {coordinator.identity})"
            reason = f"here is the coordinator of another system, {here}; this node belongs to {register.system}"
            return Refused(reason, False)
        if register.version != VERSION:
            reason = f"this node speaks version {register.version} of the control protocol, the coordinator {VERSION}"
            return Refused(f"{reason}; install the same Strobe on both", True)
        if register.protocol != coordinator.system.protocol:
            reason = f"this node runs {register.protocol}, the system {coordinator.system.protocol}"
            return Refused(f"{reason}; give both the same description of the system", True)
        if not self._is_known(register):
            known = ", ".join(lifecycle.view.processes)
            reason = f"there is no process {register.process!r}; there are: {known}. To join, it must name its channels"
            return Refused(reason, True)
        if self._continues(register) and register.newest is not None:
            refused = self._another_history(register, register.newest)
            if refused is not None:
                return refused
        if register.term > coordinator.term:
            return self._not_leading(register)
        if self.stopping:
            return Refused("the system is being stopped", True)
        refused = self.members.refusal(register, now_s)
        if refused is not None:
            return refused
        if lifecycle.epoch == 0:
            return Refused("the coordinator has not started the first epoch yet", False)
        if register.epoch > lifecycle.epoch:
            coordinator.poll()
            reason = f"this node is of epoch {register.epoch}, the newest epoch in the log is {lifecycle.epoch}"
            return Refused(
                f"{reason}; if this persists, the store here is an older copy: put the newer one back", False
            )
        return self._cannot_join(register) if self._joins(register) else None

    def _another_history(self, register: Register, newest: EntryRef) -> Refused | None:
        """Refuse a node whose state does not come from this log, as after a run on a copy of the store."""
        coordinator, position = self.coordinator, newest.position
        match coordinator.find(newest):
            case EntryMatch.HELD:
                return None
            case EntryMatch.UNREAD:
                return Refused(f"the log is searched for entry {position}, which this process knows", False)
            case EntryMatch.BEYOND if register.term > coordinator.term:
                return self._not_leading(register)
            case EntryMatch.BEYOND:
                coordinator.poll()
                reason = (
                    f"this process knows entry {position} of the log, which ends before it here: the store is an older "
                    "copy; put the newer one back, or end the process: started again, it begins without its state"
                )
                return Refused(reason, False)
            case EntryMatch.REMOVED:
                problem = f"the newest log entry that this process knows, {position}, was removed from the log since"
            case EntryMatch.OTHER:
                problem = (
                    f"entry {position} of the log is not the one that this process knows: its state comes from another "
                    "copy of the store"
                )
        return Refused(f"{problem}; it cannot continue here, and must start again, without its state", True)

    def _not_leading(self, register: Register) -> Refused:
        """Refuse a node that knows a later coordinator: this one ends once it has read that in the log."""
        self.coordinator.poll()
        reason = (
            f"a coordinator of term {register.term} leads the system, and this one is of term {self.coordinator.term}; "
            "if no other one runs, the store here is an older copy: put the newer one back"
        )
        return Refused(reason, False)

    def _continues(self, register: Register) -> bool:
        """Return whether the process is to go on with its state: it has not left, and has missed no rollback."""
        lifecycle = self.coordinator.lifecycle
        return register.epoch >= max(1, lifecycle.epoch) and register.process not in lifecycle.membership.left

    def _is_known(self, register: Register) -> bool:
        everyone = (*self.coordinator.lifecycle.membership.everyone, *self.coordinator.first_view.processes)
        return register.process in everyone or bool(register.channels) or register.epoch > 0

    def _joins(self, register: Register) -> bool:
        membership = self.coordinator.lifecycle.membership
        is_in = register.process in membership.everyone
        return register.epoch == 0 and not is_in and not self._has_left(register)

    def _has_left(self, register: Register) -> bool:
        """Return whether the process has left, and still has output to release or was killed before it ended."""
        membership, process = self.coordinator.lifecycle.membership, register.process
        same_run = bool(register.run) and self.members.runs.get(process) == register.run
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
            problem = f"its sink {sink} has released output already, and a joining process starts from the beginning"
            way_out = "give it another file, or restore a snapshot that has the process (strobe restore ID --fork)"
            raise UsageError(f"{problem}; {way_out}")
        blamed = self.coordinator.lifecycle.rollback.join_refusal(register.process, self.coordinator.clock.now_us())
        if blamed is not None:
            raise UsageError(blamed)

    def _join(self, register: Register) -> None:
        membership = self.coordinator.lifecycle.membership
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
        departed = self.coordinator.lifecycle.membership.departed.get(register.process)
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
                coordinator.lifecycle.epoch,
                self.members.silence_s,
                coordinator.term,
                coordinator.store.durable_entry,
            )
        )
        if former is not None and earlier is not None:
            self._end_former(earlier, former, member)
        self.address_books.welcome(member.process)
        for snapshot in coordinator.state.open:
            connection.send(begun_message(coordinator.state, snapshot))
        self.log.emit(
            "registered",
            process=member.process,
            epoch=member.epoch,
            pid=member.pid,
            host=member.host,
            joins=True if self._joins(register) else None,
        )
        self._notify_lifecycle(register, again=earlier is not None and earlier.instance == member.instance)
        return member

    def _end_former(self, earlier: Member, former: Any, member: Member) -> None:
        """End the former connection: a process has one at a time."""
        if earlier.instance != member.instance:
            former.send(Refused(f"process {member.process} was replaced by a newer instance", True))
            self._failed(member.process)
        former.close()

    def _notify_lifecycle(self, register: Register, again: bool) -> None:
        coordinator, process = self.coordinator, register.process
        membership = coordinator.lifecycle.membership
        everyone = membership.everyone
        if self._joins(register):
            # `_cannot_join` has passed the join to `Lifecycle`, possibly followed by the loss of the former instance.
            coordinator.lifecycle.rollback.present.add(process)
            return
        if process not in everyone and membership.unreleased(process):
            # It left, and was lost with output still staged.
            coordinator.lifecycle.rollback.present.add(process)
            coordinator.dismiss(coordinator.lifecycle.departures.order_release(process))
        elif process in membership.left or (process not in everyone and register.epoch == coordinator.lifecycle.epoch):
            coordinator.dismiss(Dismiss(process))  # it has left, and missed the message
        elif register.epoch < coordinator.lifecycle.epoch:
            coordinator.handle(ProcessWithoutState(process, register.epoch, again))
        else:
            coordinator.handle(ProcessReturned(process))
            self._ask_again(process)

    def _ask_again(self, process: str) -> None:
        """Repeat open record orders: it may have missed them, or recorded for a former coordinator (E7)."""
        lifecycle = self.coordinator.lifecycle
        for snapshot, attempt in lifecycle.open.items():
            if attempt.ending or attempt.begin.view != lifecycle.view.number:
                continue
            if process in attempt.view.processes and process not in attempt.arrived:
                self.members.send(process, RequestRecording(process, snapshot, attempt.begin.view))

    # Messages

    def answer(self, member: Member) -> HeartbeatHeard:
        """Return the answer to a heartbeat."""
        return HeartbeatHeard(member.claims, self.coordinator.store.durable_entry)

    def received(self, member: Member, message: Any) -> None:
        """Handle a message of a node; every message shows that it is alive."""
        now_s = self._now_s()
        member.last_message_s = now_s
        match message:
            case Heartbeat():
                member.note(message, now_s)
                self.members.blocked.pop(member.process, None)
            case ProcessRecorded():
                self.tracker.recorded(message.snapshot, member.process, message.pause_us)
            case FragmentStored():
                self._stored(message)
            case Failed():
                member.trouble = message.reason
                if message.unbegun == self.coordinator.lifecycle.epoch:
                    self.coordinator.lifecycle.rollback.not_begun(member.process)
            case Drained() | Released() | CannotRestore() | SentCountsArrived() | SnapshotStarted() | SnapshotWanted():
                if isinstance(message, Drained) and member.process in self.coordinator.lifecycle.view.members:
                    self.members.runs[member.process] = member.run
                self.coordinator.handle(message)
            case RestartWanted() | HandedOver() | CannotHandOver() | CannotResume():
                if isinstance(message, CannotHandOver | CannotResume):
                    self.log.emit("no planned restart", WARNING, process=message.process, reason=message.reason)
                self.coordinator.handle(message)
            case RecordingFailed():
                snapshot, reason = str(message.snapshot), message.reason
                self.log.emit("recording failed", WARNING, process=member.process, snapshot=snapshot, reason=reason)
                self.coordinator.handle(message)

    def blocked(self, blocked: Blocked) -> None:
        """Remember the call that keeps a node from sending anything else, until it sends something again."""
        process, known = blocked.process, self.coordinator.lifecycle.membership.everyone
        if blocked.system == self.coordinator.identity and self.members.note_blocked(blocked, known, self._now_s()):
            self.log.emit("blocked", WARNING, process=process, call=blocked.call, running_s=round(blocked.running_s, 1))

    def _stored(self, message: FragmentStored) -> None:
        snapshot, process, record = message.snapshot, message.process, message.record
        self.tracker.stored(snapshot, process, record)
        # A node learns where to store its part only after the snapshot has begun: if it is not open, it has ended, or
        # the message is invalid.
        if snapshot in self.coordinator.lifecycle.open:
            self.coordinator.handle(FragmentArrived(snapshot, process, message.view, record))

    # Leaving and loss

    def lost(self, member: Member, connection: Connection, reason: str) -> None:
        """Handle a lost connection. Unless another has replaced it, the node is lost."""
        if member.connection is not connection:
            return
        member.connection = None
        if self.stopping:
            self._gone.set()
            return
        if member.is_dismissed:
            self.forget(member.process)
            return
        if self.coordinator.lifecycle.restarts.is_restarting(member.process):
            self.log.emit("restarting", process=member.process, pid=member.pid, host=member.host)
        else:
            member.trouble = why = self.members.last_failures[member.process] = member.trouble or reason
            self.log.emit("failed", ERROR, process=member.process, reason=why, pid=member.pid, host=member.host)
        self._failed(member.process)
        if not self.coordinator.lifecycle.membership.includes(member.process):
            self.forget(member.process)  # nothing waits for it

    def forget(self, process: str) -> None:
        """Remove a process that has left, or was lost before it joined."""
        self.members.remove(process)
        self.address_books.send()

    def _failed(self, process: str) -> None:
        membership = self.coordinator.lifecycle.membership
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

    def rejected(self, peer: str, reason: str) -> None:
        """Count and log a message that is not from a node."""
        self.rejects += 1
        if _is_logged(self.rejects):
            self.log.emit("rejected", WARNING, peer=peer, reason=reason, so_far=self.rejects)

    def _now_s(self) -> float:
        return self.coordinator.now_s()


def _is_logged(number: int) -> bool:
    return number <= REJECTS_LOGGED_MAX or number % 100 == 0
