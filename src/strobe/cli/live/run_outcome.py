"""The outcomes of the snapshots of one `strobe up`: whether the run can be continued later.

A run whose snapshots never complete has saved nothing, however well its processes ran. So `strobe up` reports that at
its end, with the reason of the last abort and exit code 1, if not one of the run's last `LAST` snapshots completed (or
not one at all, if it tried fewer).
"""

from collections import deque

from strobe.runtime.messages.api_documents import ABORTED, COMMITTED, Status, TakeResult

LAST = 10
_SEEN_MAX = 1000


class RunOutcome:
    """The snapshots begun since `since_us`, with the outcomes that the coordinator reports."""

    def __init__(self, since_us: int) -> None:
        self._since_us = since_us
        self._seen: deque[str] = deque(maxlen=_SEEN_MAX)
        self._committed: deque[bool] = deque(maxlen=LAST)
        self._tried = 0
        self._last_abort = ""

    def update(self, status: Status) -> None:
        """Record the snapshots that have ended since the last status."""
        for finished in status.finished:
            if finished.started_us >= self._since_us:
                self._add(finished.id, finished.outcome, finished.reason)

    def take(self, taken: TakeResult) -> None:
        """Record a requested snapshot."""
        if taken.id is not None and taken.outcome in (COMMITTED, ABORTED):
            self._add(taken.id, taken.outcome, taken.reason)

    @property
    def problem(self) -> str | None:
        """Why the run has failed; None if a recent snapshot completed, or if there was no snapshot."""
        if not self._committed or any(self._committed):
            return None
        which = f"none of the last {LAST} snapshots" if self._tried > LAST else "no snapshot"
        return f"{which} completed ({self._tried:,} tried); the last one: {self._last_abort}"

    def _add(self, name: str, outcome: str, reason: str) -> None:
        if name in self._seen:
            return
        self._seen.append(name)
        self._tried += 1
        self._committed.append(outcome == COMMITTED)
        if outcome != COMMITTED:
            self._last_abort = f"{name} was aborted: {reason}"
