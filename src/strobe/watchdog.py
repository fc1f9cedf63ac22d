"""Notices a function of the user that does not return, and names it; from a thread beside the one that runs it.

The thread looks twice a second at what the other one executes. So watched code costs nothing, and no call is counted:
a call is the same as at the last look if its frame is. Times are added up from look to look. A program that was
suspended, or did not get the processor, is not taken for one in which a function has run all the time.

What is not found: a call in native code that never releases the GIL, since then no other thread runs either.
"""

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import NamedTuple, Self

from strobe.user_code import RunningCall, running_call, users_frames

BLOCKED_S = 5.0
LOOK_S = 0.5
REPORT_EVERY_S_MAX = 60.0
STACK = "stack"
"""The attribute of a log record with the stack of a call."""


class LongCall(NamedTuple):
    """A call that has been running for `running_s`; `ended`: no longer."""

    call: RunningCall
    running_s: float
    ended: bool = False


class CallWatch:
    """Follows what one thread executes. A long call is reported after `blocked_s`, twice that, and so on."""

    def __init__(self, blocked_s: float = BLOCKED_S) -> None:
        self.blocked_s = blocked_s
        self.current: LongCall | None = None
        """The reported call that is still running."""
        self._called: FrameType | None = None
        self._turns: object = None
        self._running_s = 0.0
        self._due_s = 0.0

    def look(self, frame: FrameType | None, elapsed_s: float, turns: object = None) -> LongCall | None:
        """Look at the innermost frame of the thread, `elapsed_s` after the last look; return what is to be reported.

        If `turns` differs from the last time, a call of a coroutine has been suspended in between, and counts from now.
        """
        found = users_frames(frame)
        if frame is None or found is None or found[1] is not self._called or turns != self._turns:
            ended, self.current = self.current, None
            self._running_s, self._due_s = 0.0, self.blocked_s
            # Holding the frame keeps another call from getting the same one. It is let go at the next look.
            self._called, self._turns = found[1] if found is not None else None, turns
            return ended._replace(ended=True) if ended is not None else None
        self._running_s += elapsed_s
        is_due = self._running_s >= self._due_s
        if is_due or self.current is not None:
            self.current = LongCall(running_call(frame, *found), self._running_s)
        if not is_due:
            return None
        self._due_s += min(self._due_s, REPORT_EVERY_S_MAX)
        return self.current


class Watchdog:
    """A thread that calls `look` twice a second with the time since the last call, within a `with` block."""

    def __init__(self, look: Callable[[float], None], every_s: float = LOOK_S) -> None:
        self._look = look
        self.every_s = every_s
        self.gap_s = 0.0
        """The time between the last two looks. It is long if the program was suspended, or got no GIL or processor."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strobe-watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()

    def _run(self) -> None:
        looked_s = time.monotonic()
        while not self._stopped.wait(self.every_s):
            now_s = time.monotonic()
            self.gap_s, looked_s = now_s - looked_s, now_s
            self._look(min(self.gap_s, 2 * self.every_s))  # a longer time was not observed


def innermost_frame(thread: int) -> FrameType | None:
    """Return what the thread with this ident executes now."""
    return sys._current_frames().get(thread)
