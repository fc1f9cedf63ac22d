"""One program that `strobe up` has started: its log is of bounded size, and tells what it said in the end."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import IO, NamedTuple

from strobe.cli.lifeline import VARIABLE
from strobe.errors import StrobeError
from strobe.private_files import make_directories, open_file, open_regular

COORDINATOR = "coordinator"
RESTART_S_MIN = 0.05
RESTART_S_MAX = 2.0
LOG_BYTES_MAX = 16 << 20
"""From there on a log begins anew, and what it was is kept as `NAME.log.1`."""
_TAIL_BYTES = 256 << 10
_LINES_SHOWN = 12
_HALTED = 'halted report="'
_ERROR = re.compile(r"(\S+ )?error: ")
"""How a line begins that tells of an error: with the time in a log, without in what a command ends with."""
_LAST_WORDS = "error: "
_LOGGED = re.compile(r"\d\d:\d\d:\d\d\.\d{3} ")
_WRAPPED = re.compile(r"\n  (?=\S)")


class Gone(NamedTuple):
    """A child that has ended: by itself with `code`, or by a signal (negative); `error` is the last that it logged."""

    name: str
    code: int
    error: str = ""

    def __str__(self) -> str:
        if self.code < 0:
            return f"{self.name} was killed by {signal.Signals(-self.code).name}"
        if self.code == 0 and self.name != COORDINATOR:
            return f"{self.name} has left"
        why = f": {self.error}" if self.code and self.error else ""
        return f"{self.name} ended with exit code {self.code}{why}"


class Child:
    """One program, and how often it was started."""

    def __init__(self, name: str, program: Sequence[str], arguments: Sequence[str], log: Path) -> None:
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
        self._wait_s = RESTART_S_MIN
        self._log_begin = 0

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None

    def start(self, lifeline: int) -> None:
        make_directories(self.log.parent)
        environment = os.environ | {VARIABLE: str(lifeline), "PYTHONUNBUFFERED": "1"}
        with self._open_log() as log:
            self._log_begin = log.seek(0, os.SEEK_END)
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

    def _open_log(self) -> IO[bytes]:
        try:
            return open_file(self.log, "ab")
        except OSError as error:
            raise StrobeError(f"cannot write the log {self.log}: {error.strerror}") from error

    def poll(self) -> int | None:
        """Return the code that it has just ended with, once; None as long as it runs."""
        code = self.process.poll() if self.process is not None else None
        if code is not None:
            self.process, self.code = None, code
            lived_s = time.monotonic() - self._started_s
            self._wait_s = RESTART_S_MIN if lived_s > 5 * RESTART_S_MAX else min(RESTART_S_MAX, self._wait_s * 2)
            self.restart_at_s = time.monotonic() + self._wait_s
        return code

    def bound_log(self) -> None:
        """Let the log begin anew where it is too long; it is written on meanwhile, so it cannot be another file."""
        with contextlib.suppress(OSError):
            with os.fdopen(open_regular(self.log, os.O_RDWR), "rb") as log:
                if os.fstat(log.fileno()).st_size <= LOG_BYTES_MAX:
                    return
                kept = self.log.with_name(f"{self.log.name}.1")
                with contextlib.suppress(OSError), open_file(kept, "wb") as copy:  # a full disk must not fill further
                    shutil.copyfileobj(log, copy)
                os.ftruncate(log.fileno(), 0)
            self._log_begin = 0

    def tail(self) -> str:
        """Return the end of what it has logged since it was last started."""
        return "\n".join(self._logged()[-_LINES_SHOWN:])

    def last_error(self) -> str:
        """Return the last error it has logged, or has ended with, since it was last started; empty if there is none."""
        wrapped: list[str] = []
        for line in reversed(self._logged()):
            found = _ERROR.match(line)
            if found:
                first, traced, _ = line[found.end() :].partition(" traceback=")
                first = first.removesuffix(f" process={self.name}").removeprefix(f"process {self.name} ends: ")
                return first if traced else " ".join([first, *reversed(wrapped)])
            # What a command ends with is a paragraph: its further lines are set in.
            wrapped = [*wrapped, line.strip()] if line.startswith("  ") else []
        return ""

    def last_words(self) -> str:
        """Return what its command has ended with; else the end of its log.

        A coordinator of somebody else may run for the same store and log to the same file, but it does not end there.
        """
        lines = self._logged()
        begins = [place for place, line in enumerate(lines) if line.startswith(_LAST_WORDS)]
        if not begins:
            return self.tail()
        words = takewhile(lambda line: not _LOGGED.match(line), lines[begins[-1] :])
        return _WRAPPED.sub(" ", "\n".join(words)).removeprefix(_LAST_WORDS)

    def report(self) -> str:
        """Return why it has stopped the whole system, as it has logged that; else the end of its log."""
        last = self.last_error()
        if not last.startswith(_HALTED):
            return self.tail()
        return last.removeprefix(_HALTED).removesuffix('"').replace('\\"', '"')

    def _logged(self) -> list[str]:
        """Return the last lines since it was last started, as many as people can be expected to look at."""
        try:
            with open_file(self.log) as log:
                begin = log.seek(max(self._log_begin, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = log.read().decode("utf-8", "replace").splitlines()
                return lines if begin == self._log_begin else lines[1:]
        except OSError:
            return []
