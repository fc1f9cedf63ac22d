"""Registers a node: what it sends first on each connection, and which coordinators it accepts (E7)."""

import logging
import os
import secrets
import socket

from strobe.outside import Sink
from strobe.process import System
from strobe.protocol.values.log_entries import EntryRef
from strobe.runtime.messages.control import VERSION, Register, Welcome
from strobe.runtime.program.shared_parts import SharedParts
from strobe.user_code import RAISED, explain, is_failure

logger = logging.getLogger("strobe.node")


class NodeRegistration:
    """The registration of process `name`, which has these sinks.

    The node belongs to the system given at its start, or to the first in which it had a state, and accepts only the
    coordinator of that system, identified by its store.
    """

    def __init__(
        self,
        name: str,
        system: System,
        parts: SharedParts,
        sinks: dict[str, Sink],
        store_id: str,
        run: str,
        may_exit: bool,
    ) -> None:
        self.belongs_to = store_id
        # The newest log entry that a coordinator has named.
        self.newest: EntryRef | None = None
        self._name = name
        self._protocol = system.protocol
        self._channels = parts.channels_of(name, system)
        self._shares_program = not parts.alone
        self._sinks = sinks
        self._run = run
        self._may_exit = may_exit
        self.instance = secrets.token_hex(8)
        # The store of the coordinator that has accepted this node, and the highest term of that.
        self._system = store_id
        self._term = 0
        # The reason of the last temporary refusal.
        self._refused_for = ""

    def greeting(self, epoch: int, address: tuple[str, int]) -> Register:
        """Return the first message on a connection."""
        return Register(
            VERSION,
            self._name,
            self.instance,
            epoch,
            address,
            self._channels,
            self._protocol,
            os.getpid(),
            socket.gethostname(),
            {name: self._released(name, sink) for name, sink in self._sinks.items()} if not epoch else {},
            self.belongs_to,
            self._run,
            self._term if self.belongs_to else 0,  # terms of another system are not comparable
            self.newest if epoch and self.belongs_to else None,
            self._shares_program,
        )

    def _released(self, name: str, sink: Sink) -> int | None:
        try:
            return sink.released
        except RAISED as error:  # user code may fail; the position is then unknown
            if not is_failure(error, may_exit=self._may_exit):
                raise
            problem = explain(error)
            logger.warning("sink %s of process %s cannot report what it has released: %s", name, self._name, problem)
            return None

    def accept(self, welcome: Welcome) -> bool:
        """Return whether the node follows this coordinator; otherwise log why not."""
        if self.belongs_to not in ("", welcome.system):
            here = f"of the store {welcome.store} (identity {welcome.system})"
            self.refused(f"here is the coordinator of another system, {here}; this node belongs to {self.belongs_to}")
            return False
        if welcome.system == self._system and welcome.term < self._term:
            self.refused(f"it leads in term {welcome.term}, and one of term {self._term} has taken over from it")
            return False
        self._refused_for = ""
        self._system, self._term = welcome.system, welcome.term
        self.newest = welcome.newest or self.newest
        return True

    def refused(self, reason: str) -> None:
        """Log a temporary refusal, each reason once."""
        if reason != self._refused_for:
            logger.warning("the coordinator does not take process %s yet: %s; trying again", self._name, reason)
        self._refused_for = reason

    def renew(self) -> None:
        """Register as another instance from now on: this one has lost its state."""
        self.instance = secrets.token_hex(8)
