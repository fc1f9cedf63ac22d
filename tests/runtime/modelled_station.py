"""A simulated coordinator with its connections: the leading one, or a former one that was paused and resumes later."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.runtime.modelled_outside import Line, Outside, Wrong
from tests.runtime.stepped_coordinator import SteppedCoordinator

from strobe.errors import TakenOver
from strobe.protocol.coordinator.messages import TimePassed
from strobe.protocol.values.log_entries import Term
from strobe.runtime.coordinator.log_writer import Appended, LogResult
from strobe.runtime.coordinator.node_sessions import NodeSessions
from strobe.runtime.messages.control import Refused, Register


class Station:
    """One coordinator and its possible next steps. `lines` are the connections whose end it has not noticed."""

    def __init__(self, outside: Outside) -> None:
        self.lines: list[Line] = []
        self.coordinator = SteppedCoordinator(outside)
        self.sessions = NodeSessions(self.coordinator)
        # Whether another coordinator was started while this one was paused, and until when the pause lasts.
        self.is_former = False
        self.stopped_until_us = 0
        self.has_ended = False
        self._outside = outside
        self.coordinator.stepped.on_result = self._check_result
        outside.term = self.coordinator.term

    def possible_steps(self, store_pace: int) -> list[Callable[[], None]]:
        """Its possible next steps; a more likely one is listed several times."""
        steps: list[Callable[[], None]] = [partial(self.coordinator.handle, TimePassed())]
        if self.coordinator.stepped.jobs:
            steps += [self._run_job] * store_pace
        elif self.is_former:  # the leading one reads the log often enough by itself
            steps.append(self.coordinator.poll)
        for line in self.lines:
            if line.to_coordinator or line.is_over:
                steps += [partial(self._read, line)] * 2
        return steps

    def _run_job(self) -> None:
        try:
            self.coordinator.stepped.run_job()
        except TakenOver as error:
            if not self.is_former:
                raise Wrong(f"the one that leads ends: {error}") from error
            self._outside.note(f"the coordinator of term {error.own_term} ends")
            self.has_ended = True
            for line in self.lines:
                line.cut(keep_sent=False)

    def _check_result(self, result: LogResult) -> None:
        """Check that a former coordinator has not written an entry itself, except its term (S1)."""
        if (
            self.is_former
            and isinstance(result, Appended)
            and not result.foreign
            and not isinstance(result.entry, Term)
        ):
            raise Wrong(f"another one leads, and one of term {self.coordinator.term} has written {result.entry} (S1)")

    def _read(self, line: Line) -> None:
        """Read the next message of a connection, or notice its end."""
        if line.to_coordinator and not line.is_closed:
            self._receive(line, line.to_coordinator.popleft())
            return
        self.lines.remove(line)
        if line.member is not None:
            self.sessions.lost(line.member, line, "its connection is gone")  # type: ignore[arg-type]

    def _receive(self, line: Line, message: Any) -> None:
        if isinstance(message, Register):
            self._register(line, message)
        elif line.member is not None and line.member.connection is line:
            self.sessions.received(line.member, message)

    def _register(self, line: Line, register: Register) -> None:
        answer = self.sessions.registered(register, line)  # type: ignore[arg-type]
        if isinstance(answer, Refused):
            line.send(answer)
            line.close()
            return
        line.member = answer
        if register.term > self.coordinator.term:
            raise Wrong(f"{register.process} knows term {register.term}, and one of a lower term lets it in (S1)")
