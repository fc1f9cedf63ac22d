"""A writer in a process of its own, which kills itself at a given step: `python -m tests.storage.crashing_writer`.

Arguments: the directory of the store, and the number of the step. Steps count from 0, over all steps of begin, blobs,
commit and checkpoint.
"""

import os
import signal
import sys

from tests.storage.samples import commit, sample

from strobe.storage import CommitStep, OnStep, Store

NEW = sample(3, balance=3)


def write_new(url: str, on_step: OnStep) -> None:
    """Take the third snapshot, with the latest one as its parent, and then write a checkpoint of the log."""
    due = Store.open(url).state().next_position + 2
    store = Store.open(url, on_step=on_step, checkpoint_every=due)
    commit(store, NEW, parent=store.resolve("latest"))
    assert store.write_checkpoint() is not None, "one is due"


def main(url: str, fatal: int) -> None:
    steps = 0

    def die_at(step: CommitStep, name: str) -> None:
        nonlocal steps
        if steps == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        steps += 1

    write_new(url, die_at)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
