"""The lines beneath the table of `strobe up`: events, which have happened, and notices, which hold until they are over.

Every line begins with its time. A notice has a *matter*, which says what it is about; its text may change meanwhile.
"""

import time
from collections import deque
from collections.abc import Callable

import msgspec

EVENTS_SHOWN = 6


class Notice(msgspec.Struct, frozen=True):
    """A notice that holds since a moment, in seconds since 1970."""

    since_s: float
    text: str


class Notices:
    """The newest events, and all notices that hold."""

    def __init__(self, clock_s: Callable[[], float] = time.time) -> None:
        self._clock_s = clock_s
        self._events: deque[Notice] = deque(maxlen=EVENTS_SHOWN)
        self._lasting: dict[str, Notice] = {}
        self._newest = ""

    @property
    def lines(self) -> list[str]:
        """The lines to show: what holds, and then what has happened."""
        return [timed(one.since_s, one.text) for one in (*self._lasting.values(), *self._events)]

    @property
    def matters(self) -> set[str]:
        """What there are notices about."""
        return set(self._lasting)

    def happened(self, text: str, at_s: float | None = None) -> str | None:
        """Add an event; return its line, or None if it repeats the one before."""
        if self._newest == text:
            return None
        self._newest = text
        at_s = self._clock_s() if at_s is None else at_s
        self._events.append(Notice(at_s, text))
        return timed(at_s, text)

    def begin(self, matter: str, text: str, since_s: float | None = None) -> str | None:
        """Add a notice, or update its text; return its line if the matter is new."""
        before = self._lasting.get(matter)
        if before is not None:
            self._lasting[matter] = Notice(before.since_s, text)
            return None
        since_s = self._clock_s() if since_s is None else since_s
        self._lasting[matter] = Notice(since_s, text)
        self._newest = text
        return timed(since_s, text)

    def end(self, matter: str) -> str | None:
        """Remove a notice; return a line that says so, or None if there is none."""
        notice = self._lasting.pop(matter, None)
        if notice is None:
            return None
        now_s, self._newest = self._clock_s(), ""
        return timed(now_s, f"over after {max(0.0, now_s - notice.since_s):.0f} s: {notice.text}")


def timed(at_s: float, text: str) -> str:
    """Return a line with its local time."""
    return f"{time.strftime('%H:%M:%S', time.localtime(at_s))} {text}"
