"""What a run of the pipeline came to, read from the tables that it wrote; and how far behind the log it is."""

from collections import Counter
from contextlib import suppress
from typing import Any

from strobe.errors import StoreError
from strobe.spark import columns as c
from strobe.spark.outputs import QUARANTINE, VERDICTS, Outputs, Row
from strobe.storage.following import Follower

SHOWN_MAX = 1000
"""Of the verdicts that do not hold, and of quarantine, so many are kept to be shown; the tables have all of them."""


class Results:
    """The batches that were not done when this was made, and those that have become so since."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        # Spark notes a batch as done after its verdicts are written: one that was killed in between is ours again.
        self._next = outputs.last_noted() + 1
        self.checks: dict[str, Counter[str]] = {}
        self.shown: list[Row] = []
        self.quarantine: list[Row] = []
        self.quarantined = 0
        self.snapshots = 0
        self.rows = 0

    @property
    def failing(self) -> int:
        return sum(found[c.VIOLATED] + found[c.ERROR] for found in self.checks.values())

    @property
    def holds(self) -> bool:
        return not self.failing and not self.quarantined

    def refresh(self) -> None:
        """Take in the batches that are new."""
        while self._outputs.is_done(self._next):
            self._take(self._outputs.read(VERDICTS, self._next))
            found = self._outputs.read(QUARANTINE, self._next)
            self.quarantined += len(found)
            self.quarantine += found[: SHOWN_MAX - len(self.quarantine)]
            self._next += 1

    def _take(self, verdicts: list[Row]) -> None:
        self.snapshots += len({row[c.SNAPSHOT_ID] for row in verdicts})
        self.rows += len(verdicts)
        for row in verdicts:
            self.checks.setdefault(row[c.CHECK], Counter())[row[c.VERDICT]] += 1
            if row[c.VERDICT] in (c.VIOLATED, c.ERROR) and len(self.shown) < SHOWN_MAX:
                self.shown.append(row)

    def document(self) -> dict[str, Any]:
        """Return all of it for `--json`."""
        return {
            "to": str(self._outputs.root),
            "holds": self.holds,
            "snapshots": self.snapshots,
            "verdicts": self.rows,
            "checks": self.checks,
            "failing": self.shown,
            "quarantined": self.quarantined,
            "quarantine": self.quarantine,
        }


class Lag:
    """How many snapshots of the store at `url` were committed at `start` of its log or after that."""

    def __init__(self, url: str, start: int) -> None:
        self._url = url
        self._follower: Follower | None = None
        self._committed = 0
        self._end = start

    def behind(self, judged: int) -> int:
        """Return how many of them are not among the `judged` ones; what is known, where the store is gone."""
        with suppress(StoreError):  # the pipeline tells why
            self._follower = self._follower or Follower(self._url)
            end = self._follower.advance()
            new = self._follower.between(self._end, end)
            self._committed += sum(one.snapshot_id is not None for one in new)
            self._end = max(self._end, end)
        return max(0, self._committed - judged)
