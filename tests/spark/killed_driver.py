"""A pipeline in a separate process, which kills itself and its Java with SIGKILL at a moment of a batch.

python killed_driver.py STORE TO INVARIANTS ALERTS [MOMENT BATCH]

The moment is right after a step; or IN_JOB, while the workers examine; or IN_WRITE, with a file half written. Spark
starts at once. The pipeline starts when a line comes on stdin, so that one driver can start while another one runs.
"""

import os
import signal
import sys
import threading

from strobe.spark import Options, Pipeline, local_session
from strobe.spark.pipeline import output_tables
from strobe.spark.pipeline.alerts import AlertHooks
from strobe.spark.pipeline.batch import BatchStep
from strobe.spark.pipeline.invariants import read_invariants

BATCH_SNAPSHOTS = 3
IN_JOB, IN_WRITE = "in-job", "in-write"


def kill(*_: object) -> None:
    os.killpg(0, signal.SIGKILL)


def main(store: str, to: str, invariants: str, alerts: str, *kill_at: str) -> None:
    def at(step: BatchStep, batch_id: int) -> None:
        if list(kill_at[1:]) != [str(batch_id)]:
            return
        if kill_at[0] == step:
            kill()
        if kill_at[0] == IN_JOB and step == BatchStep.BEGUN:
            threading.Timer(0.1, kill).start()
        if kill_at[0] == IN_WRITE and step == BatchStep.EVALUATED:
            output_tables.finish_file = kill

    options = Options(
        invariants=tuple(read_invariants(invariants)),
        alerts=AlertHooks(("tee", "-a", alerts)),
        drift_window=3,
        snapshots_per_batch=BATCH_SNAPSHOTS,
    )
    spark = local_session()
    sys.stdin.readline()
    pipeline = Pipeline(spark, store, to, options)
    pipeline.on_step = at
    pipeline.run(once=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
