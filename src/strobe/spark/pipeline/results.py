"""The results of a run of the pipeline, read from the tables that it wrote."""

from collections import Counter
from typing import Any

from strobe.spark.pipeline.output_tables import QUARANTINE, VERDICTS, Outputs, Totals
from strobe.spark.schema import columns as c
from strobe.spark.schema.output_schema import Row

SHOWN_MAX = 1000
"""Maximum number of failing verdicts, and of quarantined files, kept for display; the tables have all of them."""


class Results:
    """The batches that this run judged: those that Spark had not recorded as done when this object was made."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        # Spark records a batch as done after its verdicts are written. After a crash in between, this run judges it
        # again.
        self._next = outputs.last_recorded() + 1
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
        """Read the new batches."""
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

    def totals(self) -> Totals | None:
        """Return the number of verdicts of each kind for each check, including earlier runs, if known."""
        return self._outputs.totals(self._next - 1)

    def document(self) -> dict[str, Any]:
        """Return all of it for `--json`."""
        return {
            "to": self._outputs.to,
            "holds": self.holds,
            "snapshots": self.snapshots,
            "verdicts": self.rows,
            "checks": self.checks,
            "totals": self.totals(),
            "failing": self.shown,
            "quarantined": self.quarantined,
            "quarantine": self.quarantine,
        }
