"""A coordinator with the connections that lead to it: the one that leads, or one that was stopped and goes on later."""

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
    """What one coordinator can do next. `lines` are those that it has, and has not noticed the end of."""

    def __init__(self, outside: Outside) -> None:
        self.lines: list[Line] = []
        self.coordinator = SteppedCoordinator(outside)
        self.sessions = NodeSessions(self.coordinator)
        # Another one was started while this one was stopped, which lasts until then.
        self.is_former = False
        self.stopped_until_us = 0
        self.has_ended = False
        self._outside = outside
        self.coordinator.stepped.on_told = self._check_told
        outside.term = self.coordinator.term

    def what_can_happen(self, store_pace: int) -> list[Callable[[], None]]:
        """What it can do next, things that are more likely more than once."""
        can: list[Callable[[], None]] = [partial(self.coordinator.handle, TimePassed())]
        if self.coordinator.stepped.jobs:
            can += [self._do_one] * store_pace
        elif self.is_former:  # the one that leads reads the log often enough
            can.append(self.coordinator.poll)
        for line in self.lines:
            if line.to_coordinator or line.is_over:
                can += [partial(self._read, line)] * 2
        return can

    def _do_one(self) -> None:
        try:
            self.coordinator.stepped.do_one()
        except TakenOver as error:
            if not self.is_former:
                raise Wrong(f"the one that leads ends: {error}") from error
            self._outside.note(f"the coordinator of term {error.own_term} ends")
            self.has_ended = True
            for line in self.lines:
                line.cut(with_last_words=False)

    def _check_told(self, told: LogResult) -> None:
        """Whatever a coordinator writes itself, it writes as the one that leads (S1)."""
        if self.is_former and isinstance(told, Appended) and not told.foreign and not isinstance(told.entry, Term):
            raise Wrong(f"another one leads, and one of term {self.coordinator.term} has written {told.entry} (S1)")

    def _read(self, line: Line) -> None:
        """The coordinator reads what comes next, or notices the end."""
        if line.to_coordinator and not line.is_closed:
            self._take_in(line, line.to_coordinator.popleft())
            return
        self.lines.remove(line)
        if line.member is not None:
            self.sessions.lost(line.member, line, "its connection is gone")  # type: ignore[arg-type]

    def _take_in(self, line: Line, message: Any) -> None:
        if isinstance(message, Register):
            self._let_in(line, message)
        elif line.member is not None and line.member.connection is line:
            self.sessions.received(line.member, message)

    def _let_in(self, line: Line, register: Register) -> None:
        answer = self.sessions.registered(register, line)  # type: ignore[arg-type]
        if isinstance(answer, Refused):
            line.send(answer)
            line.close()
            return
        line.member = answer
        if register.term > self.coordinator.term:
            raise Wrong(f"{register.process} knows term {register.term}, and one of a lower term lets it in (S1)")
