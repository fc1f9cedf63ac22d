"""`strobe pipeline run`: judges every snapshot of a store on Spark as it commits (D2)."""

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strobe.causality.predicates import Predicate
from strobe.cli.shell.commands import JsonOption, KeysOption, StoreOption, ViewOption, new_app
from strobe.cli.shell.logging_setup import NoteHandler
from strobe.cli.shell.output import (
    Column,
    ProgressLine,
    beside_document,
    count,
    note,
    print_json,
    print_line,
    print_table,
    print_wrapped,
)
from strobe.cli.shell.waiting import interruptible
from strobe.cli.snapshots.verify import read_view
from strobe.errors import UsageError

if TYPE_CHECKING:
    from strobe.spark.checks.snapshot_checker import ExpectedSigners
    from strobe.spark.pipeline.query import Pipeline
    from strobe.spark.pipeline.results import Results

app = new_app("Judge the snapshots of a store on Spark, as they commit.")

EXIT_INTERRUPTED = 130
SHOWN_MAX = 10
_LOOK_AT_LOG_EVERY_S = 1.0


@app.command()
def run(
    store: StoreOption,
    to: Annotated[
        str,
        typer.Option(
            metavar="DIR|URL", help="Output for verdicts, violations and quarantine: a directory or an object store."
        ),
    ],
    invariants: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Your invariants: *.sql and *.py; see docs/pipeline.md.")
    ] = None,
    invariant_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.001,
            help="An invariant that takes longer gets the verdict error (default: no limit).",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Judge the snapshots committed so far, then end.")] = False,
    alert_command: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="Run this for each alert, with the alert as JSON on its standard input."),
    ] = None,
    alert_webhook: Annotated[
        str | None, typer.Option(metavar="URL", help="Send each alert to this URL as a POST of JSON.")
    ] = None,
    keys: KeysOption = None,
    view: ViewOption = None,
    drift_window: Annotated[
        int, typer.Option(metavar="N", min=0, max=1000, help="Look for drift over N snapshots; 0: no drift checks.")
    ] = 10,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Maximum number of snapshots per batch (2,000); fewer for large snapshots."
        ),
    ] = None,
    check: Annotated[
        list[Predicate] | None,
        typer.Option(
            metavar="|".join(Predicate),
            help="Also check this predicate on every snapshot; repeatable. See docs/predicates.md.",
        ),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Run on this Spark cluster (spark://host:7077) instead of this machine."),
    ] = None,
    remote: Annotated[
        str | None, typer.Option(metavar="URL", help="Run on this Spark Connect server (sc://host:15002).")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="With --master: a Spark setting; repeatable.")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Judge every snapshot as it commits: its proof, your invariants, and drift from earlier snapshots.

    Each snapshot gets one verdict on each check, also after crashes: start the pipeline again with the same --to, and
    it continues. Without --once it runs until Ctrl-C, and waits for a store that does not exist yet. The exit code is 0
    if everything judged in this run holds, and 1 if not; the totals also count earlier runs.

    \b
    Example:
      mkdir invariants
      echo "SELECT * FROM process_states WHERE state:balance::bigint < 0" > invariants/no-debt.sql
      strobe pipeline run --store ./strobe-demo --invariants ./invariants --to ./verdicts --once
    """
    from strobe.spark.dataframes.clusters import session_for
    from strobe.spark.pipeline.alerts import alert_hooks
    from strobe.spark.pipeline.invariants import read_invariants
    from strobe.spark.pipeline.output_tables import Outputs
    from strobe.spark.pipeline.query import SNAPSHOTS_PER_BATCH, Options, Pipeline, identity_of
    from strobe.storage.files.urls import backend_at, is_object_url

    # Check all options before Spark starts, which takes seconds.
    if drift_window == 1:
        raise UsageError("--drift-window 1 compares a snapshot with nothing; give 2 or more, or 0 for no drift checks")
    with beside_document(json):  # a user's file may print
        rules = tuple(read_invariants(invariants)) if invariants is not None else ()
    options = Options(
        rules,
        alert_hooks(alert_command, alert_webhook),
        _signers(keys, view),
        drift_window,
        batch or SNAPSHOTS_PER_BATCH,
        predicates=tuple(dict.fromkeys(one.value for one in check or ())),
        invariant_timeout_s=invariant_timeout,
    )
    settings = _settings(conf or [])
    if remote is not None and is_object_url(to):
        raise UsageError(
            f"{to}: a Spark Connect server judges on its own machine, and keeps its checkpoint there; give a path with "
            "--to, on a file system that both machines share"
        )
    Outputs(to).refuse_others()
    identity_of(backend_at(store), once=once)
    _quiet_logs()
    with interruptible() as interrupted, ProgressLine() as progress, beside_document(json):
        with progress.ticking("Spark starts"):
            spark = session_for(master, remote, settings, "strobe-pipeline")
        results = _run(Pipeline(spark, store, to, options), once, interrupted, progress)
    described = {one.name: one.description for one in rules if one.description}
    if json:
        print_json({**results.document(), "descriptions": described, "interrupted": bool(interrupted)})
    else:
        _print(results, described, to)
    return EXIT_INTERRUPTED if interrupted else 0 if results.holds else 1


def _settings(conf: list[str]) -> dict[str, str]:
    """Return the settings of NAME=VALUE options."""
    settings = {}
    for item in conf:
        name, equals, settings[name] = item.partition("=")
        if not equals:
            raise UsageError(f"--conf {item}: write it as NAME=VALUE, as in --conf spark.executor.memory=4g")
    return settings


def _run(pipeline: "Pipeline", once: bool, interrupted: list[int], progress: ProgressLine) -> "Results":
    from strobe.spark.pipeline.query import PipelineObserver
    from strobe.spark.pipeline.results import Results

    results = Results(pipeline.outputs)

    class Shown(PipelineObserver):
        looked_s = 0.0

        def poll(self) -> bool:
            if time.monotonic() - self.looked_s >= _LOOK_AT_LOG_EVERY_S:
                results.refresh()
                progress.show(
                    f"{count(results.snapshots, 'snapshot')} judged, {count(results.rows, 'row')} written, "
                    f"{max(0, pipeline.committed - results.snapshots):,} behind; {results.failing:,} do not hold",
                    now=True,
                )
                self.looked_s = time.monotonic()
            return bool(interrupted)

        def report(self, reason: str) -> None:
            note(reason)

    pipeline.run(once=once, watch=Shown())
    results.refresh()
    return results


def _signers(keys: Path | None, view: Path | None) -> "ExpectedSigners | None":
    if keys is None:
        if view is not None:
            raise UsageError("--view is the view that was signed: give the public keys as well, with --keys DIR")
        return None
    from strobe.spark.checks.snapshot_checker import ExpectedSigners
    from strobe.storage.inspection.keys import read_public_keys

    raw = {process: key.public_bytes_raw() for process, key in read_public_keys(keys).items()}
    return ExpectedSigners(raw, read_view(view) if view is not None else None)


def _print(results: "Results", described: dict[str, str], to: str) -> None:
    from strobe.spark.schema import columns as c

    names = (c.HOLDS, c.VIOLATED, c.UNDECIDED, c.ERROR)
    rows = [[check, *(f"{found.get(name, 0):,}" for name in names)] for check, found in results.checks.items()]
    if rows:
        print_table([Column("check", name=True), *(Column(name, number=True) for name in names)], rows)
        print_line()
    for check in dict.fromkeys(row[c.CHECK] for row in results.shown):
        if check in described:
            print_wrapped(f"{check}: {described[check]}")
    for row in results.shown[:SHOWN_MAX]:
        print_wrapped(f"{row[c.SNAPSHOT_ID]} {row[c.CHECK]}: {row[c.VERDICT]}, {row[c.REASON]}")
    for row in results.quarantine[:SHOWN_MAX]:
        print_wrapped(f"quarantined: {row[c.URI]}: {row[c.REASON]}")
    more = results.failing - min(len(results.shown), SHOWN_MAX)
    if more > 0:
        print_line(f"and {count(more, 'verdict')} more that do not hold; see {to}/verdicts")
    damaged = f", {count(results.quarantined, 'file')} quarantined" if results.quarantined else ""
    undecided = sum(found[c.UNDECIDED] for found in results.checks.values())
    state = "all hold" if not undecided else f"none is violated, {undecided:,} undecided"
    if not results.holds:
        state = f"{count(results.failing, 'verdict')} not good"
    print_line(f"{count(results.snapshots, 'snapshot')} judged, {count(results.rows, 'verdict')}: {state}{damaged}")
    totals = (results.totals() or {}).values()
    verdicts = sum(sum(found.values()) for found in totals)
    if verdicts > results.rows:
        failing = sum(found.get(c.VIOLATED, 0) + found.get(c.ERROR, 0) for found in totals)
        print_line(f"with those of earlier runs: {count(verdicts, 'verdict')}, {failing:,} not good")


def _quiet_logs() -> None:
    """Hide Spark's own logging of a failing query, since we print the reason; keep our own log lines."""
    from pyspark.logger import PySparkLogger

    for kind in ("SQL", "DataFrame"):
        PySparkLogger.getLogger(f"{kind}QueryContextLogger").disabled = True
    logging.getLogger("py4j").addHandler(logging.NullHandler())
    logging.getLogger("py4j").propagate = False
    # On an interrupt, py4j prints its stack through the root logger, unless that has a handler.
    logging.getLogger().addHandler(logging.NullHandler())
    logger = logging.getLogger("strobe.pipeline")
    logger.handlers[:] = [NoteHandler()]
    logger.propagate = False
