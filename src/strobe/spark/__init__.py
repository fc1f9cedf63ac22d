"""Snapshots as Spark tables, and their proofs as DataFrame programs. Needs the extra `spark`, and Java."""

from strobe.errors import MissingExtra

try:
    import pyarrow as _pyarrow  # noqa: F401
    import pyspark as _pyspark  # noqa: F401
except ImportError as error:
    raise MissingExtra("spark", "reading snapshots as Spark tables") from error

from strobe.spark.clusters import session_for
from strobe.spark.invariants import invariant
from strobe.spark.pipeline import Options, Pipeline
from strobe.spark.proofs import proof_violations, verdicts_from, verify_proofs
from strobe.spark.report import VerdictRow, verdicts
from strobe.spark.session import local_session, stop_local_session
from strobe.spark.store_tables import Tables, tables, tables_from_snapshots

__all__ = [
    "Options",
    "Pipeline",
    "Tables",
    "VerdictRow",
    "invariant",
    "local_session",
    "proof_violations",
    "session_for",
    "stop_local_session",
    "tables",
    "tables_from_snapshots",
    "verdicts",
    "verdicts_from",
    "verify_proofs",
]
