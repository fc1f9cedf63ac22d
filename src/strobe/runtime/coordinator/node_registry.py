"""The registry of nodes: which instance runs each process, its last message and its last heartbeat.

A process is run by one instance at a time. A second instance is refused while the first is alive. Once the first is
gone, a newer one replaces it, and the first is refused if it comes back.

The second may connect before the coordinator knows that the first is gone: messages of the first, and the loss of its
connection, may still be in transit. So the second waits until the first has sent something after the second came (then
the second is refused permanently), or is lost, or times out.
"""

from collections import deque
from collections.abc import Collection, Iterator
from typing import Any, Protocol

from strobe.runtime.messages.control import Blocked, Heartbeat, Refused, Register, running_text

REPLACED_REMEMBERED = 16
CLAIMS_REMEMBERED = 16


class Sending(Protocol):
    """A connection to a node."""

    def send(self, message: Any) -> None: ...
    def close(self) -> None: ...


class Member:
    """One process as the coordinator knows it."""

    def __init__(self, register: Register) -> None:
        self.process = register.process
        self.instance = register.instance
        self.address = register.address
        self.epoch = register.epoch
        self.pid = register.pid
        self.host = register.host
        self.run = register.run
        self.shares_program = register.shares_program
        self.connection: Sending | None = None
        self.last_message_s = 0.0
        self.heartbeat: Heartbeat | None = None
        # Unknown before the second heartbeat in an epoch.
        self.events_per_s: float | None = None
        # The position in the last heartbeat. The events that a rollback undoes are counted from there.
        self.reached: int | None = None
        # Why it is gone or about to go; empty otherwise.
        self.trouble = ""
        self.is_dismissed = False
        # Number of other instances that tried to run this process.
        self.claims = 0
        self._beat_s = 0.0
        self._claims_by: dict[str, int] = {}

    @property
    def connected(self) -> bool:
        return self.connection is not None

    def outlives(self, claim: str) -> bool:
        """Return whether this instance is known to be alive since the instance `claim` first tried to replace it."""
        if claim not in self._claims_by:
            self.claims += 1
            self._claims_by[claim] = self.claims
            if len(self._claims_by) > CLAIMS_REMEMBERED:
                del self._claims_by[next(iter(self._claims_by))]
        return self.heartbeat is not None and self.heartbeat.claims >= self._claims_by[claim]

    def note(self, heartbeat: Heartbeat, now_s: float) -> None:
        """Store a heartbeat. The event rate follows from two of them."""
        earlier = self.heartbeat
        if earlier is None or earlier.epoch != heartbeat.epoch:
            self.events_per_s = None
        elif now_s > self._beat_s:
            self.events_per_s = max(0, heartbeat.position - earlier.position) / (now_s - self._beat_s)
        self.heartbeat, self._beat_s = heartbeat, now_s
        if heartbeat.epoch:
            self.epoch, self.reached = heartbeat.epoch, heartbeat.position


class Members:
    """Every process that has registered and has not left."""

    def __init__(self, silence_s: float) -> None:
        self.silence_s = silence_s
        self.by_process: dict[str, Member] = {}
        # Why each process was last lost: its own `Failed` reason, or how its connection ended.
        self.last_failures: dict[str, str] = {}
        # Why a node of each process was last refused, if it may retry and has not been admitted since.
        self.refusals: dict[str, str] = {}
        # The run of its program in which each supervised process was last seen in the view.
        self.runs: dict[str, str] = {}
        # Processes that are blocked by a call, with that call and the time at which it began.
        self.blocked: dict[str, tuple[str, float]] = {}
        self._replaced: dict[str, deque[str]] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(self.by_process.values())

    def get(self, process: str) -> Member | None:
        return self.by_process.get(process)

    def connected(self) -> Iterator[Member]:
        return (member for member in self if member.connected)

    def send(self, process: str, message: Any) -> None:
        """Send to the node of `process`, if it is connected."""
        member = self.get(process)
        if member is not None and member.connection is not None:
            member.connection.send(message)

    def broadcast(self, message: Any) -> None:
        for member in self.connected():
            self.send(member.process, message)

    def refusal(self, register: Register, now_s: float) -> Refused | None:
        """Return why this instance may not run its process, or None."""
        if register.instance in self._replaced.get(register.process, ()):
            return Refused(f"process {register.process} was replaced by a newer instance; this one must end", True)
        current = self.by_process.get(register.process)
        if current is None or current.instance == register.instance:
            return None
        if current.connected and now_s - current.last_message_s < self.silence_s:
            where = f"pid {current.pid} on host {current.host or 'unknown'}"
            reason = f"process {register.process} is running already as {where}; stop that one first"
            return Refused(reason, current.outlives(register.instance))
        return None

    def admit(self, register: Register, connection: Sending, now_s: float) -> tuple[Member, Sending | None]:
        """Admit this instance; return its member, and the connection that it replaces, if any."""
        earlier = self.by_process.get(register.process)
        former = earlier.connection if earlier is not None else None
        if earlier is not None and earlier.instance != register.instance:
            replaced = self._replaced.setdefault(register.process, deque(maxlen=REPLACED_REMEMBERED))
            replaced.append(earlier.instance)
        member = Member(register)
        if earlier is not None:
            # The task that serves the former connection sees that it no longer counts.
            earlier.connection = None
            member.reached = earlier.reached
        member.connection, member.last_message_s = connection, now_s
        self.by_process[register.process] = member
        self.blocked.pop(register.process, None)
        self.refusals.pop(register.process, None)
        return member, former

    def note_blocked(self, blocked: Blocked, known: Collection[str], now_s: float) -> bool:
        """Remember what blocks a process; return False if it is not known, or another instance runs it now."""
        member = self.by_process.get(blocked.process)
        if blocked.process not in known or (member is not None and member.instance != blocked.instance):
            return False
        self.blocked[blocked.process] = blocked.call, now_s - blocked.running_s
        return True

    def blocked_by(self, process: str, now_s: float) -> str:
        """Return the call that blocks `process`, and how long it has been running; empty if there is none."""
        if process in self.blocked:
            call, began_s = self.blocked[process]
            return running_text(call, now_s - began_s)
        member = self.by_process.get(process)
        return member.heartbeat.blocked if member is not None and member.connected and member.heartbeat else ""

    def remove(self, process: str) -> None:
        """Forget a departed process."""
        self.blocked.pop(process, None)
        self.by_process.pop(process, None)
        self.refusals.pop(process, None)

    def addresses(self) -> dict[str, tuple[str, int]]:
        return {member.process: member.address for member in self}

    def silent(self, now_s: float) -> list[Member]:
        """Return connected members that have sent nothing for too long."""
        return [member for member in self.connected() if now_s - member.last_message_s >= self.silence_s]
