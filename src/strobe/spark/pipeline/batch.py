"""One batch of the pipeline, from commits to written verdicts (D2): checked by workers, then by invariants.

A crash may happen after each of these steps:
1. The workers examine every snapshot of the batch (snapshot_checker.py): one Spark job that returns a few short rows.
2. The user's invariants run over the tables of the readable snapshots (invariant_runner.py).
3. Violations, quarantine and then verdicts are written (output_tables.py). With the verdicts, the batch is done.
4. Alerts are sent. Only then does Spark record the batch as done. If Spark repeats the batch, only alerts are sent.
"""

import enum
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from strobe.spark.checks import snapshot_checker
from strobe.spark.checks.snapshot_checker import Examination, checking_function
from strobe.spark.log.snapshot_reader import SnapshotReader, Unavailable
from strobe.spark.log.spark_errors import Stopping
from strobe.spark.pipeline.alerts import Alert, AlertHooks, alert_id
from strobe.spark.pipeline.invariant_runner import Judged, evaluate
from strobe.spark.pipeline.invariants import Invariant
from strobe.spark.pipeline.output_tables import QUARANTINE, VERDICTS, VIOLATIONS, Outputs
from strobe.spark.schema import columns as c
from strobe.spark.schema.output_schema import Row, variant


class BatchStep(enum.StrEnum):
    """The steps of a batch, in order; each is reported after it is done."""

    BEGUN = enum.auto()
    EXAMINED = enum.auto()
    EVALUATED = enum.auto()
    VIOLATIONS_WRITTEN = enum.auto()
    QUARANTINE_WRITTEN = enum.auto()
    VERDICTS_WRITTEN = enum.auto()
    ALERTED = enum.auto()


OnStep = Callable[[BatchStep, int], None]
"""Called after each step with the number of the batch. An exception from it ends the batch there."""


class BatchPlan(msgspec.Struct, frozen=True):
    """Everything needed to judge a batch; plain data, so that it can be sent to other processes."""

    to: str
    examination: Examination
    invariants: tuple[Invariant, ...] = ()
    alerts: AlertHooks = AlertHooks()
    invariant_timeout_s: float | None = None

    @property
    def checks(self) -> tuple[str, ...]:
        return (*self.examination.checks, *(one.name for one in self.invariants))


def judge(
    plan: BatchPlan,
    commits: DataFrame,
    batch_id: int,
    on_step: OnStep | None = None,
    stopping: Stopping = lambda: False,
) -> None:
    """Judge the snapshots of a batch, unless that was done before, and send the alerts."""
    step = on_step or _no_step
    outputs = Outputs(plan.to)
    try:
        if not _is_done(outputs, batch_id, commits):
            step(BatchStep.BEGUN, batch_id)
            _write(outputs, batch_id, _judged(plan, commits, batch_id, step, stopping), step)
        outputs.publish()
        _alert(plan, outputs, batch_id)
    except OSError as error:
        raise Unavailable(f"{outputs.to} cannot be written to: {error.strerror or error}") from error
    step(BatchStep.ALERTED, batch_id)


def _is_done(outputs: Outputs, batch_id: int, commits: DataFrame) -> bool:
    """Return whether the verdicts on exactly these commits are written.

    Spark does not sync its checkpoint. After a power failure it may have lost a batch whose verdicts are on disk, and
    use the same number for other commits.
    """
    if not outputs.is_done(batch_id):
        return False
    given = commits.select(c.LOG_POSITION).toArrow().column(0).to_pylist()
    if outputs.positions(batch_id) == _positions(given):
        return True
    outputs.remove_from(batch_id)
    return False


def _positions(found: Iterable[int]) -> str:
    """Return positions as a short text. A batch has all commits between its first and its last, so this is unique."""
    ordered = sorted(set(found))
    return f"{len(ordered)} from {ordered[0]} to {ordered[-1]}" if ordered else "none"


def _judged(plan: BatchPlan, commits: DataFrame, batch_id: int, step: OnStep, stopping: Stopping) -> Judged:
    found = commits.mapInArrow(checking_function(plan.examination), from_arrow_schema(snapshot_checker.FOUND)).toArrow()
    _refuse_absent(found)
    step(BatchStep.EXAMINED, batch_id)
    judged = _from_examination(found)
    if plan.invariants:
        reader = SnapshotReader(plan.examination.url, plan.examination.store_id)
        evaluate(commits.sparkSession, reader, plan.invariants, judged, stopping, plan.invariant_timeout_s)
    step(BatchStep.EVALUATED, batch_id)
    return judged


def _refuse_absent(found: pa.Table) -> None:
    for row in _rows_of_kind(found, snapshot_checker.GONE):
        raise Unavailable(f"store {row[snapshot_checker.NAME]}: {row[snapshot_checker.TEXT]}")


def _from_examination(found: pa.Table) -> Judged:
    judged = Judged(_positions(found.column(c.LOG_POSITION).to_pylist()))
    for row in _rows_of_kind(found, snapshot_checker.VERDICT):
        position, snapshot_id = row[c.LOG_POSITION], row[c.SNAPSHOT_ID]
        verdict = row[snapshot_checker.NAME]
        judged.verdict(snapshot_id, row[c.CHECK], verdict, row[snapshot_checker.TEXT])
        if row[c.CHECK] == c.PROOF:
            if verdict in (c.HOLDS, c.VIOLATED):
                judged.readable[snapshot_id] = position
            else:
                judged.unreadable[snapshot_id] = verdict
    for row in _rows_of_kind(found, snapshot_checker.VIOLATION):
        judged.violation(row[c.SNAPSHOT_ID], row[c.CHECK], row[snapshot_checker.NAME], row[snapshot_checker.TEXT])
    for row in _rows_of_kind(found, snapshot_checker.QUARANTINE):
        judged.quarantine.append(
            {c.URI: row[snapshot_checker.NAME], c.SNAPSHOT_ID: row[c.SNAPSHOT_ID], c.REASON: row[snapshot_checker.TEXT]}
        )
    return judged


def _rows_of_kind(found: pa.Table, kind: str) -> Iterable[dict[str, Any]]:
    return (row for row in found.to_pylist() if row[snapshot_checker.ROW_KIND] == kind)


def _write(outputs: Outputs, batch_id: int, judged: Judged, step: OnStep) -> None:
    now = datetime.now(UTC)
    outputs.write(VIOLATIONS, batch_id, [{**row, c.DETAIL: variant(row[c.DETAIL])} for row in judged.violations])
    step(BatchStep.VIOLATIONS_WRITTEN, batch_id)
    outputs.write(QUARANTINE, batch_id, [{**row, c.FIRST_SEEN: now} for row in judged.quarantine])
    step(BatchStep.QUARANTINE_WRITTEN, batch_id)
    verdicts = [{**row, c.CHECKED_AT: now, c.BATCH_ID: batch_id} for row in judged.verdicts]
    outputs.write(VERDICTS, batch_id, verdicts, judged.positions)
    step(BatchStep.VERDICTS_WRITTEN, batch_id)


def _alert(plan: BatchPlan, outputs: Outputs, batch_id: int) -> None:
    """Send the alerts from the written tables, so that a repetition sends the same ones."""
    if plan.alerts:
        store = plan.examination.store_id
        verdicts = outputs.read(VERDICTS, batch_id)
        descriptions = {one.name: one.description or None for one in plan.invariants}
        failing = [row for row in verdicts if row[c.VERDICT] in (c.VIOLATED, c.ERROR)]
        alerts = [_of_verdict(store, row, descriptions.get(row[c.CHECK])) for row in failing]
        alerts += [_of_quarantine(store, row, batch_id) for row in outputs.read(QUARANTINE, batch_id)]
        plan.alerts.send(alerts)


def _of_verdict(store: str, row: Row, description: str | None) -> Alert:
    snapshot_id, check = row[c.SNAPSHOT_ID], row[c.CHECK]
    identity = alert_id(store, snapshot_id, check)
    return Alert(identity, store, row[c.REASON], row[c.BATCH_ID], snapshot_id, check, row[c.VERDICT], description)


def _of_quarantine(store: str, row: Row, batch_id: int) -> Alert:
    snapshot_id, uri = row[c.SNAPSHOT_ID], row[c.URI]
    return Alert(alert_id(store, snapshot_id, uri), store, row[c.REASON], batch_id, snapshot_id, uri=uri)


def _no_step(step: BatchStep, batch_id: int) -> None:
    pass
