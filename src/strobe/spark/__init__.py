"""Snapshots as Spark tables, and their proofs as DataFrame programs. Needs the extra `spark`, and Java."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from strobe.errors import MissingExtra

if TYPE_CHECKING:
    from strobe.spark.clusters import session_for
    from strobe.spark.invariants import invariant
    from strobe.spark.pipeline import Options, Pipeline
    from strobe.spark.predicates import deadlocked, garbage, terminated
    from strobe.spark.proofs import proof_violations, verdicts_from, verify_proofs
    from strobe.spark.report import VerdictRow, verdicts
    from strobe.spark.session import local_session, stop_local_session
    from strobe.spark.store_tables import Tables, tables, tables_from_snapshots

__all__ = [
    "Options",
    "Pipeline",
    "Tables",
    "VerdictRow",
    "deadlocked",
    "garbage",
    "invariant",
    "local_session",
    "proof_violations",
    "session_for",
    "stop_local_session",
    "tables",
    "tables_from_snapshots",
    "terminated",
    "verdicts",
    "verdicts_from",
    "verify_proofs",
]

_HOMES = {
    "clusters": ("session_for",),
    "invariants": ("invariant",),
    "pipeline": ("Options", "Pipeline"),
    "predicates": ("deadlocked", "garbage", "terminated"),
    "proofs": ("proof_violations", "verdicts_from", "verify_proofs"),
    "report": ("VerdictRow", "verdicts"),
    "session": ("local_session", "stop_local_session"),
    "store_tables": ("Tables", "tables", "tables_from_snapshots"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

if find_spec("pyspark") is None or find_spec("pyarrow") is None:
    raise MissingExtra("spark", "reading snapshots as Spark tables")


def __getattr__(name: str) -> Any:
    # Imported when first asked for: each Python worker that Spark starts needs a few of the parts only.
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"strobe.spark.{_HOME_OF[name]}"), name)
