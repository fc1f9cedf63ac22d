"""Runs of the pipeline, and readers of its output, for the tests."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from strobe.spark.pipeline.output_tables import TABLES
from strobe.spark.pipeline.query import Options, Pipeline, PipelineObserver

ROOT = Path(__file__).parents[2]
CONSERVATION = """-- name: conservation
-- description: The balances of a sample are 150 in all.
SELECT snapshot_id, total
FROM (SELECT snapshot_id, sum(state:balance::bigint) AS total FROM process_states GROUP BY snapshot_id)
WHERE total <> 150
"""


def judge_once(
    spark: SparkSession, store: Path | str, to: Path, watch: PipelineObserver | None = None, **options: Any
) -> Pipeline:
    Pipeline(spark, store, to, Options(**options)).run(once=True, watch=watch)


def run_module(words: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a module of Strobe or of the tests in a separate process, with its own Spark."""
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def written(to: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, sorted, without times and batch numbers, which may differ between runs."""
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for table in TABLES:
        found = [
            row for path in sorted((to / table).glob("*.parquet")) for row in pq.ParquetFile(path).read().to_pylist()
        ]
        kept = [
            tuple(repr(value) for name, value in row.items() if name not in ("checked_at", "batch_id", "first_seen"))
            for row in found
        ]
        rows[table] = sorted(kept)
    return rows


def verdicts(to: Path) -> dict[tuple[str, str], str]:
    """The verdict by snapshot and check; each may occur only once."""
    found: dict[tuple[str, str], str] = {}
    for path in sorted((to / "verdicts").glob("batch-*.parquet")):
        for row in pq.ParquetFile(path).read().to_pylist():
            key = row["snapshot_id"], row["check"]
            assert key not in found, f"{key} was judged twice"
            found[key] = row["verdict"]
    return found


def reasons(to: Path, table: str = "verdicts", column: str = "check") -> dict[tuple[str | None, str], str]:
    return {
        (row["snapshot_id"], row[column]): row["reason"]
        for path in sorted((to / table).glob("*.parquet"))
        for row in pq.ParquetFile(path).read().to_pylist()
    }
