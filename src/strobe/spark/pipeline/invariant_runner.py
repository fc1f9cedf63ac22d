"""Runs invariants over the snapshots of a batch, so that an error on one snapshot affects only that one (G1).

All invariants run over all snapshots in one Spark job. If that fails, they run one by one, and then over halves of the
batch, halves of those, down to the failing snapshot: it gets the verdict `error` with the reason, and the others get
their proper verdicts. A failure of Spark itself is not blamed on a snapshot: the batch is retried.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, StructField

from strobe.backoff import Backoff
from strobe.spark.checks.snapshot_checker import REMOVED, UNREAD
from strobe.spark.dataframes.by_position import SnapshotTables, tables_of_snapshots
from strobe.spark.log.snapshot_reader import SnapshotReader, Unavailable, new_marker, unavailable_reason
from strobe.spark.log.spark_errors import Stopping, is_cancelled, is_disk_full, is_worker_lost
from strobe.spark.pipeline.cancellable_call import Abandoned, CallTimedOut, Left, pause, run_cancellable
from strobe.spark.pipeline.invariants import Invariant, problem_of
from strobe.spark.schema import columns as c
from strobe.spark.schema.output_schema import TOO_LARGE, Row

ROWS_MAX = 1000
"""Maximum number of violating rows kept for one invariant and snapshot; the verdict has the full count."""
DETAIL_BYTES_MAX = 1 << 18
"""Of a row larger than this as JSON, only the size is kept: the driver holds all rows, and a VARIANT has limits."""
BINARY_BYTES_MAX = 64
"""Longer byte strings (states, frames) are shown by their length; hashes are shorter."""
SUBJECTS_SHOWN = 5
ERRORS_MAX = 20
"""After failing on this many snapshots of a batch, an invariant is not tried on the rest, which could take hours."""
LOST_PAUSE_S_MIN = 1.0
LOST_PAUSE_S_MAX = 10.0
LOST_RETRIES_MAX = 3
"""If workers are lost over a single snapshot, its invariant is retried after these pauses: it may not be the cause."""

_ROWS, _PLACE = "violating_rows", "place"


@dataclass
class Judged:
    """The results of a batch so far: rows of the output tables, without time and batch number.

    `positions` describes the commits of the batch. `readable` maps the snapshots for invariants to their positions,
    `unreadable` maps the others to the verdict on their proof.
    """

    positions: str
    verdicts: list[Row] = field(default_factory=list)
    violations: list[Row] = field(default_factory=list)
    quarantine: list[Row] = field(default_factory=list)
    readable: dict[str, int] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)

    def verdict(self, snapshot_id: str, check: str, verdict: str, reason: str | None) -> None:
        self.verdicts.append({c.SNAPSHOT_ID: snapshot_id, c.CHECK: check, c.VERDICT: verdict, c.REASON: reason})

    def violation(self, snapshot_id: str, check: str, subject: str, detail: str) -> None:
        self.violations.append({c.SNAPSHOT_ID: snapshot_id, c.CHECK: check, c.SUBJECT: subject, c.DETAIL: detail})


def evaluate(
    spark: SparkSession,
    reader: SnapshotReader,
    invariants: Sequence[Invariant],
    judged: Judged,
    stopping: Stopping,
    timeout_s: float | None = None,
) -> None:
    """Add the verdicts on every invariant to the findings of the workers; raise Unavailable if a retry is needed.

    An invariant that takes longer than `timeout_s` has failed.
    """
    for snapshot_id, verdict in judged.unreadable.items():
        for one in invariants:
            judged.verdict(snapshot_id, one.name, verdict, UNREAD)
    if judged.readable:
        _Evaluation(spark, reader, judged, stopping, timeout_s).run(invariants, judged.readable)
        reader.require_present()  # otherwise another store may have been read


class _Evaluation:
    def __init__(
        self, spark: SparkSession, reader: SnapshotReader, judged: Judged, stopping: Stopping, timeout_s: float | None
    ) -> None:
        self._spark = spark
        self._reader = reader
        self._judged = judged
        self._marker = new_marker()
        self._stopping = stopping
        self._timeout_s = timeout_s
        self._views = threading.Lock()
        self._errors: dict[str, list[str]] = {}

    def run(self, invariants: Sequence[Invariant], snapshots: Mapping[str, int]) -> None:
        """Judge `snapshots` by `invariants`. If that fails, judge by each invariant, then each half of `snapshots`."""
        errors = self._errors.get(invariants[0].name, [])
        if len(errors) >= ERRORS_MAX:
            self._fail(invariants[0].name, snapshots, f"not tried, having failed {ERRORS_MAX} times: {errors[0]}")
            return
        try:
            found = self._ask_with_retries(invariants, snapshots)
        except Exception as error:  # noqa: BLE001 -- a user's query or function may raise anything
            self._raise_if_unavailable(error)
            if len(invariants) > 1:
                for one in invariants:
                    self.run([one], snapshots)
            elif len(snapshots) > 1:
                if isinstance(error, CallTimedOut):
                    self._errors.setdefault(invariants[0].name, []).append(str(error))
                for half in _halves(snapshots):
                    self.run(invariants, half)
            else:
                (snapshot_id,) = snapshots
                self._fail_unless_removed(invariants[0].name, snapshot_id, self._problem_of(error))
            return
        for one in invariants:
            for snapshot_id in snapshots:
                self._conclude(snapshot_id, one.name, found.get((snapshot_id, one.name), []))

    def _ask_with_retries(
        self, invariants: Sequence[Invariant], snapshots: Mapping[str, int]
    ) -> dict[tuple[str, str], list[Row]]:
        """Run the invariants. Retry if workers are lost and there is nothing left to divide."""
        retries_max = LOST_RETRIES_MAX if len(invariants) == len(snapshots) == 1 else 0
        backoff = Backoff(LOST_PAUSE_S_MIN, LOST_PAUSE_S_MAX, factor=4)
        while True:
            try:
                return self._ask(invariants, snapshots)
            except Exception as error:
                if backoff.failures == retries_max or not is_worker_lost(error):
                    raise
            pause(backoff.next(), self._stopping)

    def _raise_if_unavailable(self, error: Exception) -> None:
        """Raise Unavailable if the invariant is not the cause: it was cancelled, or its input is unavailable."""
        if self._stopping() or isinstance(error, Abandoned) or is_cancelled(error):
            raise Unavailable("an invariant was cut short; its batch is judged again") from error
        if is_disk_full(error):
            raise Unavailable("Spark has no space left on a disk") from error
        self._reader.require_present()
        if (reason := unavailable_reason(error, self._marker)) is not None:
            raise Unavailable(reason) from error

    def _fail_unless_removed(self, check: str, snapshot_id: str, problem: str) -> None:
        if self._reader.is_removed(snapshot_id, self._judged.readable[snapshot_id]):
            self._judged.verdict(snapshot_id, check, c.UNDECIDED, REMOVED)
        else:
            self._fail(check, [snapshot_id], problem)

    def _problem_of(self, error: Exception) -> str:
        if isinstance(error, CallTimedOut):
            return str(error)
        _require_session(self._spark, error)
        return problem_of(error)

    def _ask(self, invariants: Sequence[Invariant], snapshots: Mapping[str, int]) -> dict[tuple[str, str], list[Row]]:
        def work(left: Left) -> dict[tuple[str, str], list[Row]]:
            return self._violating(invariants, snapshots, left)

        return run_cancellable(self._spark, work, self._stopping, self._timeout_s)

    def _violating(
        self, invariants: Sequence[Invariant], snapshots: Mapping[str, int], left: Left
    ) -> dict[tuple[str, str], list[Row]]:
        tables = tables_of_snapshots(self._spark, self._reader.url, snapshots, self._marker)
        rows = reduce(DataFrame.union, (_as_rows(self._frame(one, tables, left), one.name) for one in invariants))
        found: dict[tuple[str, str], list[Row]] = {}
        for row in _bounded(rows).toArrow().to_pylist():
            if row[c.SNAPSHOT_ID] not in snapshots:
                raise ValueError(f"returned a row of the snapshot {row[c.SNAPSHOT_ID]!r}, which is not in its tables")
            found.setdefault((row[c.SNAPSHOT_ID], row[c.CHECK]), []).append(row)
        return found

    def _frame(self, one: Invariant, tables: SnapshotTables, left: Left) -> DataFrame:
        if one.function is not None:
            return one.violating(self._spark, tables)
        with self._views:  # views belong to the session: an abandoned call must not replace those now in use
            if left():
                raise Abandoned
            return one.violating(self._spark, tables)

    def _fail(self, check: str, snapshots: Iterable[str], reason: str) -> None:
        for snapshot_id in snapshots:
            self._errors.setdefault(check, []).append(reason)
            self._judged.verdict(snapshot_id, check, c.ERROR, reason)

    def _conclude(self, snapshot_id: str, check: str, rows: Sequence[Row]) -> None:
        if not rows:
            self._judged.verdict(snapshot_id, check, c.HOLDS, None)
            return
        ordered = sorted(rows, key=lambda row: row[_PLACE])
        self._judged.verdict(snapshot_id, check, c.VIOLATED, _reason(ordered))
        for row in ordered:
            self._judged.violation(snapshot_id, check, row[c.SUBJECT], row[c.DETAIL])


def _reason(rows: Sequence[Row]) -> str:
    total = rows[0][_ROWS]
    shown = "; ".join(_brief(row) for row in rows[:SUBJECTS_SHOWN])
    kept = f"; {len(rows)} of them are kept" if total > len(rows) else ""
    return f"{total} violating row{'' if total == 1 else 's'}: {shown}{'; ...' if total > SUBJECTS_SHOWN else ''}{kept}"


def _brief(row: Row) -> str:
    try:
        found = msgspec.json.decode(row[c.DETAIL])
    except (msgspec.DecodeError, RecursionError):  # nested too deeply
        return _text(row[c.DETAIL])
    detail = {name: value for name, value in found.items() if name.lower() != c.SNAPSHOT_ID}
    return ", ".join(f"{name} {_text(value)}" for name, value in detail.items())


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}..."


def _as_rows(violating: DataFrame, check: str) -> DataFrame:
    """Convert the result of an invariant to common columns, so that several invariants fit into one job."""
    names = {name.lower(): name for name in violating.columns}
    subjects = [sf.col(f"`{names[name]}`").cast("string") for name in _SUBJECTS if name in names]
    # NULL values are shown too: a missing value may be the problem.
    detail = sf.to_json(sf.struct(*map(_shown, violating.schema)), {"ignoreNullFields": "false"})
    size = sf.octet_length(detail)
    too_large = sf.to_json(sf.struct(sf.format_string(TOO_LARGE, size).alias("problem")))
    return violating.select(
        sf.col(c.SNAPSHOT_ID).cast("string").alias(c.SNAPSHOT_ID),
        sf.lit(check).alias(c.CHECK),
        sf.coalesce(*subjects, sf.lit("")).alias(c.SUBJECT),
        sf.when(size <= DETAIL_BYTES_MAX, detail).otherwise(too_large).alias(c.DETAIL),
    )


def _shown(column: StructField) -> Column:
    value = sf.col("`" + column.name.replace("`", "``") + "`")
    if isinstance(column.dataType, BinaryType):
        size = sf.octet_length(value)
        value = sf.when(size <= BINARY_BYTES_MAX, sf.base64(value)).otherwise(sf.format_string("%d bytes", size))
        value = sf.when(size.isNotNull(), value)
    return value.alias(column.name)


_SUBJECTS = (c.SUBJECT, c.CHANNEL, c.PROCESS, c.SNAPSHOT_ID)
"""The columns that can name the subject of a row. The first one present is used, else the snapshot."""


def _bounded(rows: DataFrame) -> DataFrame:
    """Keep the first rows of each snapshot and check, and add the full count: the driver holds all rows."""
    of_one = Window.partitionBy(c.SNAPSHOT_ID, c.CHECK)
    counted = rows.withColumns(
        {_PLACE: sf.row_number().over(of_one.orderBy(c.SUBJECT, c.DETAIL)), _ROWS: sf.count(sf.lit(1)).over(of_one)}
    )
    return counted.where(sf.col(_PLACE) <= ROWS_MAX)


def _halves(snapshots: Mapping[str, int]) -> Iterator[dict[str, int]]:
    items = list(snapshots.items())
    middle = len(items) // 2
    yield dict(items[:middle])
    yield dict(items[middle:])


def _require_session(spark: SparkSession, error: Exception) -> None:
    """Raise if Spark itself no longer works: then the invariant is not at fault."""
    if isinstance(error, PySparkException):
        return
    spark.range(1).count()
