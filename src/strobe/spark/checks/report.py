"""Verdicts as plain Python objects instead of a DataFrame, for the demo and the command line."""

from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from strobe.spark.checks.dataframe_proof import verify_proofs
from strobe.spark.dataframes.store import tables
from strobe.spark.schema import columns as c
from strobe.spark.session.embedded import local_session


class VerdictRow(msgspec.Struct, frozen=True):
    """The result of the proof of one snapshot. `verdict` is holds, violated or error; `reason` explains it."""

    snapshot_id: str
    verdict: str
    reason: str

    @property
    def holds(self) -> bool:
        return self.verdict == c.HOLDS


def verdicts(url: str | Path, spark: SparkSession | None = None) -> list[VerdictRow]:
    """Verify every committed snapshot of the store at `url`, oldest first.

    Uses the session `spark`, else this program's active session, else an embedded one.
    """
    found = tables(spark or local_session(), url)
    try:
        rows = verify_proofs(found).select(c.SNAPSHOT_ID, c.VERDICT, c.REASON).collect()
    finally:
        found.unpersist()
    return sorted((VerdictRow(*row) for row in rows), key=lambda row: row.snapshot_id)
