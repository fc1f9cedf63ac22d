"""The streaming query of the pipeline (D2), with retries: it judges each snapshot, and writes verdicts exactly once.

One Structured Streaming query follows the commits (commit_source.py), and judges them batch by batch (batch.py). If the
store is unreachable, or the disk with the output is full, the query ends with the reason and is restarted. Spark then
continues with the same batch.
"""

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from strobe.backoff import Backoff
from strobe.errors import MissingComponent, StoreError, StoreMissing
from strobe.spark.checks.drift import WINDOW
from strobe.spark.checks.snapshot_checker import Examination, ExpectedSigners
from strobe.spark.dataframes.by_position import tasks_max
from strobe.spark.log.offsets import LogHead, refuse_other_log
from strobe.spark.log.snapshot_reader import marked, new_marker, unavailable_reason
from strobe.spark.log.spark_errors import is_disk_full
from strobe.spark.pipeline import commit_source as source
from strobe.spark.pipeline.alerts import AlertHooks
from strobe.spark.pipeline.batch import BatchPlan, OnStep, judge
from strobe.spark.pipeline.commit_source import CommitsSource
from strobe.spark.pipeline.invariants import Invariant, check_invariants, problem_of
from strobe.spark.pipeline.output_tables import Outputs
from strobe.spark.session.shipping import ShipsPackages, carried, is_remote, is_shipped, require_on_workers
from strobe.storage.files.backend import StorageBackend
from strobe.storage.files.header import read_header
from strobe.storage.files.urls import backend_at, canonical_url

SNAPSHOTS_PER_BATCH = 2000
POLL_S = 0.2
LOG_POLL_S = 1.0
"""How often the log is polled, beside the stream."""
PAUSE_S_MIN = 1.0
PAUSE_S_MAX = 15.0
TRIES_MAX = 5
"""Maximum number of tries without progress, with `once` or after an unknown error."""


class CarriedCommits(ShipsPackages, CommitsSource):
    """The commits of a store, for clusters on which Strobe is not installed."""


class Options(NamedTuple):
    """The pipeline's options, beside the proofs."""

    invariants: tuple[Invariant, ...] = ()
    alerts: AlertHooks = AlertHooks()
    signers: ExpectedSigners | None = None
    drift_window: int = WINDOW
    snapshots_per_batch: int = SNAPSHOTS_PER_BATCH
    predicates: tuple[str, ...] = ()
    invariant_timeout_s: float | None = None
    """The limit for one run of an invariant over some snapshots; None: no limit."""


def identity_of(backend: StorageBackend, *, once: bool) -> str | None:
    """Return the identity of the store at `backend`, or None if there is no store yet. With `once` it must exist.

    Raise StoreError if waiting for it would not help.
    """
    try:
        return read_header(backend).store
    except StoreError as error:
        if once or not isinstance(error, StoreMissing) or backend.unusable(creating=True):
            raise
        return None


class PipelineObserver:
    """Gets reports while a pipeline runs, and can stop it. This one does nothing."""

    def poll(self) -> bool:
        """Called a few times a second; True ends the pipeline."""
        return False

    def report(self, reason: str) -> None:
        """Called if something fails and will be retried."""


class Pipeline:
    """A pipeline from the store at `url` to the directory `to`. Only one at a time can write there."""

    def __init__(self, spark: SparkSession, url: str | Path, to: str | Path, options: Options | None = None) -> None:
        self.spark = spark
        self.url = canonical_url(url)
        self.outputs = Outputs(to)
        self.options = options or Options()
        self.on_step: OnStep | None = None
        self._marker = new_marker()
        self._backoff = Backoff(PAUSE_S_MIN, PAUSE_S_MAX)
        self._stopping = threading.Event()
        self._head: LogHead | None = None
        self._next_poll_s = 0.0
        self._pause_s = 0.0

    def run(self, *, once: bool = False, watch: PipelineObserver | None = None) -> None:
        """Judge the committed snapshots, then stop if `once`, else continue until `watch` ends it."""
        watch = watch or PipelineObserver()
        check_invariants(self.spark, self.options.invariants, self._examination("").checks)
        if self.options.signers is not None:
            require_on_workers(self.spark, "cryptography", "signatures are checked with")
        with self.outputs:
            store_id = self._wait_for_store(once, watch)
            if store_id is None:
                return
            self.outputs.identify(store_id, self.url)
            refuse_other_log(self.url, store_id, self.outputs.recorded_offset())
            self.spark.dataSource.register(CarriedCommits if is_shipped(self.spark) else CommitsSource)
            while not self._follow(store_id, once, watch):
                if self._pause(watch):
                    return

    def _examination(self, store_id: str) -> Examination:
        options = self.options
        return Examination(self.url, store_id, options.drift_window, options.signers, options.predicates)

    def _wait_for_store(self, once: bool, watch: PipelineObserver) -> str | None:
        """Return the identity of the store once it exists; None if `watch` ends the pipeline before."""
        backend = backend_at(self.url)
        reported = False
        while (store_id := identity_of(backend, once=once)) is None:
            if not reported:
                watch.report(f"store {self.url} does not exist yet; waiting for it")
            reported = True
            if watch.poll():
                return None
            time.sleep(POLL_S)
        return store_id

    def _follow(self, store_id: str, once: bool, watch: PipelineObserver) -> bool:
        """Run one query; return True if the pipeline is done, False if it failed and must be retried."""
        self._stopping.clear()
        recorded_before = self.outputs.last_recorded()
        query: Any = None
        try:
            query = self._start(store_id, once)
            while not query.awaitTermination(POLL_S):
                self._poll_log(store_id, watch)
                if watch.poll():
                    return True
            return True
        except PySparkException as error:
            if self.outputs.last_recorded() > recorded_before:
                self._backoff.reset()
            self._pause_s = self._backoff.next()
            self._report_error(error, once, watch)
            return False
        except Py4JError as error:
            raise MissingComponent(f"Spark has ended by itself ({error}); start the pipeline again") from error
        finally:
            if query is not None:
                self._stop(query, watch)

    def _stop(self, query: Any, watch: PipelineObserver) -> None:
        # Stopping cancels running jobs. A cancelled job must not count as a failed invariant.
        self._stopping.set()
        try:
            query.stop()
        except (PySparkException, Py4JError):
            with suppress(PySparkException, Py4JError):
                if query.isActive:
                    watch.report("the batch in progress does not end; it is judged again the next time")

    @property
    def committed(self) -> int:
        """The number of known commits that earlier runs have not judged."""
        return self._head.committed if self._head is not None else 0

    def _poll_log(self, store_id: str, watch: PipelineObserver) -> None:
        """Report if the log cannot be read: to the stream, that looks like a store without new commits."""
        if time.monotonic() < self._next_poll_s:
            return
        self._next_poll_s = time.monotonic() + LOG_POLL_S
        if self._head is None:
            self._head = LogHead(self.url, store_id, self.outputs.recorded_position())
        known = self._head.problem
        self._head.poll()
        if self._head.problem is not None and self._head.problem != known:
            watch.report(f"{self._head.problem}; trying again")

    def _start(self, store_id: str, once: bool) -> Any:
        options = self.options
        examination = self._examination(store_id)
        plan = BatchPlan(self.outputs.to, examination, options.invariants, options.alerts, options.invariant_timeout_s)
        on_step, marker = self.on_step, self._marker

        # Behind a Connect server, batches are judged in another process, which ends with the query.
        stopping = _never if is_remote(self.spark) else self._stopping.is_set

        def judge_batch(commits: DataFrame, batch_id: int) -> None:
            with marked(marker):
                judge(plan, commits, batch_id, on_step, stopping)

        commits = (
            self.spark.readStream.format(source.SOURCE)
            .option(source.STORE_ID, store_id)
            .option(source.MARKER, self._marker)
            .option(source.HISTORY_LENGTH, max(0, self.options.drift_window - 1))
            .option(source.PARTITIONS, tasks_max(self.spark))
            .option(source.ROWS_MAX, self.options.snapshots_per_batch)
            .load(self.url)
        )
        # A Connect server judges in a separate process, which has only the parts of Strobe that the function ships.
        function = carried(judge_batch) if is_remote(self.spark) else judge_batch
        # Without a scheme, it would be in the cluster's file system. Not a URI: Spark does not decode %20.
        checkpoint = f"file://{self.outputs.checkpoint}"
        writer = commits.writeStream.foreachBatch(function).option("checkpointLocation", checkpoint)
        return (writer.trigger(availableNow=True) if once else writer).start()

    def _report_error(self, error: PySparkException, once: bool, watch: PipelineObserver) -> None:
        """Report an error; raise it if retrying would not help."""
        known = unavailable_reason(error, self._marker)
        if known is None and is_disk_full(error):
            known = "Spark has no space left on a disk"
        reason = known or problem_of(error)
        if (once or known is None) and self._backoff.failures >= TRIES_MAX:
            raise MissingComponent(f"the pipeline cannot continue: {reason}") from error
        watch.report(f"{reason}; trying again")

    def _pause(self, watch: PipelineObserver) -> bool:
        until_s = time.monotonic() + self._pause_s
        while time.monotonic() < until_s:
            if watch.poll():
                return True
            time.sleep(POLL_S)
        return False


def _never() -> bool:
    return False
