"""A collector in a process of its own, which kills itself at a given step.

Run as `python -m tests.storage.crashing_collector`. Arguments: the directory of the store, the number of entries
between its checkpoints, and the number of the step. Steps count from 0: all steps of the checkpoint that is due, and
the removal of each file.
"""

import os
import signal
import sys
from collections.abc import Iterable

from strobe.storage import Store, collect
from strobe.storage.files.disk import Disk


def main(url: str, every: int, fatal: int) -> None:
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        if steps == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        steps += 1

    class Counted(Disk):
        def remove(self, names: Iterable[str]) -> None:
            for name in names:
                count()
                super().remove([name])

    store = Store.open(url, on_step=count, checkpoint_every=every)
    store.backend.__class__ = Counted
    collect(store)
    sys.exit(f"there are {steps} steps")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
