"""The demo's judge: runs the streaming pipeline in a thread beside the bank (D2)."""

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from strobe.cli.demo.bank import TOTAL
from strobe.storage.files.urls import run_directory

if TYPE_CHECKING:
    from strobe.spark.pipeline.invariants import Invariant

MONEY = (
    "SELECT snapshot_id, state:balance::int AS money FROM process_states UNION ALL "
    "SELECT snapshot_id, payload:amount::int FROM channel_messages"
)
"""All amounts of money in a snapshot of the bank."""
POLL_EVERY_S = 0.1


class Judging:
    """A pipeline over the store at `url` that runs until the `with` block ends. Its tables are in the run directory."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.to: Path = run_directory(url) / "verdicts"
        self._started = threading.Event()
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pipeline", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join()

    def wait_started(self, timeout_s: float) -> None:
        """Wait until Spark has started, or has failed to."""
        self._started.wait(timeout_s)
        self._raise_failure()

    @property
    def has_judged(self) -> bool:
        """Whether a verdict is written. Raises the failure of the pipeline, if any."""
        from strobe.spark.pipeline.output_tables import Outputs

        self._raise_failure()
        return bool(Outputs(self.to).batches())

    def wait(self, snapshots: set[str], timeout_s: float) -> dict[str, tuple[str, str]]:
        """Return the verdict on each snapshot, and its reason, once all are judged or the time is up."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._raise_failure()
            found = self._verdicts()
            if snapshots <= found.keys() or time.monotonic() > deadline:
                return found
            time.sleep(POLL_EVERY_S)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _verdicts(self) -> dict[str, tuple[str, str]]:
        """Return the verdicts so far: for each snapshot, the first check that does not hold."""
        from strobe.spark.pipeline.output_tables import VERDICTS, Outputs
        from strobe.spark.schema import columns as c

        bad = (c.VIOLATED, c.ERROR)
        outputs = Outputs(self.to)
        found: dict[str, tuple[str, str]] = {}
        for row in (row for batch in outputs.batches() for row in outputs.read(VERDICTS, batch)):
            known = found.get(row[c.SNAPSHOT_ID])
            if known is None or (row[c.VERDICT] in bad and known[0] not in bad):
                # A check that needs more snapshots is undecided, which is no failure of this one.
                verdict = row[c.VERDICT] if row[c.VERDICT] in bad else c.HOLDS
                found[row[c.SNAPSHOT_ID]] = verdict, row[c.REASON]
        return found

    def _run(self) -> None:
        try:
            self._judge()
        except BaseException as error:  # noqa: BLE001 -- raised again in the waiting thread
            self._failure = error
            self._started.set()

    def _judge(self) -> None:
        from strobe.spark import Options, Pipeline, local_session
        from strobe.spark.pipeline.query import PipelineObserver

        ending = self._ending

        class UntilTheEnd(PipelineObserver):
            def poll(self) -> bool:
                return ending.is_set()

        spark = local_session("strobe-demo")
        self._started.set()
        pipeline = Pipeline(spark, self._url, self.to, Options(invariants=(conserved(),)))
        if not ending.is_set():
            pipeline.run(watch=UntilTheEnd())


def conserved() -> "Invariant":
    """Return the invariant that the total of all money is constant."""
    from strobe.spark.pipeline.invariants import Invariant

    query = f"SELECT snapshot_id, sum(money) AS total FROM ({MONEY}) GROUP BY snapshot_id HAVING total <> {TOTAL}"
    return Invariant("conservation", f"The total of all money is {TOTAL}.", "the demo", query)
