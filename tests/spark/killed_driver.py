"""A pipeline in a process of its own, which kills itself and its Java with SIGKILL right after a step of a batch.

python killed_driver.py STORE TO INVARIANTS ALERTS [STEP BATCH]
"""

import os
import signal
import sys

from strobe.spark import Options, Pipeline, local_session
from strobe.spark.alerts import AlertHooks
from strobe.spark.invariants import read_invariants
from strobe.spark.judging import Step

BATCH_SNAPSHOTS = 3


def main(store: str, to: str, invariants: str, alerts: str, *kill_at: str) -> None:
    def kill(step: Step, batch_id: int) -> None:
        if [step, str(batch_id)] == list(kill_at):
            os.killpg(0, signal.SIGKILL)

    options = Options(
        invariants=tuple(read_invariants(invariants)),
        alerts=AlertHooks(("tee", "-a", alerts)),
        drift_window=3,
        snapshots_per_batch=BATCH_SNAPSHOTS,
    )
    pipeline = Pipeline(local_session(), store, to, options)
    pipeline.on_step = kill
    pipeline.run(once=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
