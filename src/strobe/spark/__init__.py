"""Snapshots as Spark tables, and their proofs as DataFrame programs. Needs the extra `spark` and Java.

In: stores and traces. Out: tables, and a verdict on each snapshot: at once for all of a store, or as commits come in
(`pipeline`).
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from strobe.errors import MissingExtra

if TYPE_CHECKING:
    from strobe.spark.checks.dataframe_proof import (
        VerdictRow,
        proof_violations,
        verdicts,
        verdicts_from,
        verify_proofs,
    )
    from strobe.spark.checks.predicates import deadlocked, garbage, terminated
    from strobe.spark.dataframes.clusters import session_for
    from strobe.spark.dataframes.store import Tables, tables, tables_from_snapshots
    from strobe.spark.pipeline.invariants import invariant
    from strobe.spark.pipeline.query import Options, Pipeline
    from strobe.spark.session.embedded import local_session, stop_local_session

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
    "dataframes.clusters": ("session_for",),
    "pipeline.invariants": ("invariant",),
    "pipeline.query": ("Options", "Pipeline"),
    "checks.predicates": ("deadlocked", "garbage", "terminated"),
    "checks.dataframe_proof": ("VerdictRow", "proof_violations", "verdicts", "verdicts_from", "verify_proofs"),
    "session.embedded": ("local_session", "stop_local_session"),
    "dataframes.store": ("Tables", "tables", "tables_from_snapshots"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

if find_spec("pyspark") is None or find_spec("pyarrow") is None:
    raise MissingExtra("spark", "reading snapshots as Spark tables")


def __getattr__(name: str) -> Any:
    # Imported on first use: the Python workers that Spark starts need only a few of these modules.
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"strobe.spark.{_HOME_OF[name]}"), name)
