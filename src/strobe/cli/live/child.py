"""One program started by `strobe up`, and the reason of its end from its log."""

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

from strobe.backoff import Backoff
from strobe.cli.live.child_log import ChildLog

COORDINATOR = "coordinator"
LIFELINE = "STROBE_LIFELINE"
"""Environment variable of a child: the number of a pipe that closes when the parent ends."""
HANDED_OVER = 7
"""Exit code of a supervised node whose successor goes on in its place: it is started at once."""
RESTART_S_MIN = 0.05
RESTART_S_MAX = 2.0
_LINES_SHOWN = 12
_HALTED = 'halted report="'
_ERROR = re.compile(r"(\S+ )?error: ")
"""The beginning of an error line: in a log it has a timestamp, in a command's last output it has none."""
_ERROR_PREFIX = "error: "
_LOGGED = re.compile(r"\d\d:\d\d:\d\d\.\d{3} ")
_WRAPPED = re.compile(r"\n  (?=\S)")


class EndedChild(NamedTuple):
    """A child that has ended: with an exit `code`, or by a signal (negative); `error` is the last error in its log."""

    name: str
    code: int
    error: str = ""

    def __str__(self) -> str:
        if self.code < 0:
            return f"{self.name} was killed by {signal.Signals(-self.code).name}"
        if self.code == 0 and self.name != COORDINATOR:
            return f"{self.name} has left"
        if self.code == HANDED_OVER:
            return f"{self.name} has handed over to its successor"
        why = f": {self.error}" if self.code and self.error else ""
        return f"{self.name} ended with exit code {self.code}{why}"


class Child:
    """One child program, and how often it was started."""

    def __init__(self, name: str, program: Sequence[str], arguments: Sequence[str], log: ChildLog) -> None:
        self.name = name
        self.program = list(program)
        self.arguments = list(arguments)
        self.log = log
        self.starts = 0
        self.failed_returns = 0
        self.ended = False
        self.code: int | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.restart_at_s = 0.0
        self._started_s = 0.0
        self._backoff = Backoff(RESTART_S_MIN, RESTART_S_MAX)

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None

    def start(self, lifeline: int) -> None:
        environment = os.environ | {LIFELINE: str(lifeline), "PYTHONUNBUFFERED": "1"}
        log = self.log.begin()
        self.process = subprocess.Popen(
            [*self.program, *self.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            pass_fds=(lifeline,),
            start_new_session=True,
        )
        self.starts += 1
        self.code = None
        self._started_s = time.monotonic()

    def poll(self) -> int | None:
        """Return the exit code once after it has ended; None while it runs."""
        code = self.process.poll() if self.process is not None else None
        if code is not None:
            self.process, self.code = None, code
            if time.monotonic() - self._started_s > 5 * RESTART_S_MAX:
                self._backoff.reset()
            self.restart_at_s = time.monotonic() + (self._backoff.next() if code != HANDED_OVER else 0.0)
        return code

    def tail(self) -> str:
        """Return the end of its log since it was last started."""
        return "\n".join(self.log.lines()[-_LINES_SHOWN:])

    def last_error(self) -> str:
        """Return the last error that it logged or ended with since it was last started; empty if there is none."""
        wrapped: list[str] = []
        for line in reversed(self.log.lines()):
            found = _ERROR.match(line)
            if found:
                first, traced, _ = line[found.end() :].partition(" traceback=")
                first = first.removesuffix(f" process={self.name}").removeprefix(f"process {self.name} ends: ")
                return first if traced else " ".join([first, *reversed(wrapped)])
            # A command ends with an error paragraph, whose further lines are indented.
            wrapped = [*wrapped, line.strip()] if line.startswith("  ") else []
        return ""

    def final_error(self) -> str:
        """Return its command's final error; if there is none, the end of its log.

        Another coordinator may run for the same store and log to the same file, but it does not end there.
        """
        lines = self.log.lines()
        begins = [place for place, line in enumerate(lines) if line.startswith(_ERROR_PREFIX)]
        if not begins:
            return self.tail()
        error_lines = takewhile(lambda line: not _LOGGED.match(line), lines[begins[-1] :])
        return _WRAPPED.sub(" ", "\n".join(error_lines)).removeprefix(_ERROR_PREFIX)

    def report(self) -> str:
        """Return the reason that it logged for halting the system; if there is none, the end of its log."""
        last = self.last_error()
        if not last.startswith(_HALTED):
            return self.tail()
        return last.removeprefix(_HALTED).removesuffix('"').replace('\\"', '"')


def follow_lifeline(end: Callable[[], None]) -> None:
    """In a child: call `end` when the parent has ended, for whatever reason. Does nothing if there is no lifeline."""
    number = os.environ.pop(LIFELINE, "")
    if not number.isdecimal():
        return
    descriptor = int(number)
    loop = asyncio.get_running_loop()

    def cut() -> None:
        if not os.read(descriptor, 1):
            loop.remove_reader(descriptor)
            end()

    loop.add_reader(descriptor, cut)
