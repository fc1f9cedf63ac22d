"""`strobe` with a fuse: the program kills itself right after a step that a test names.

The environment names a file. If it exists, it says which program dies after which step: `coordinator ENTRY_LINKED
Commit`, `b BLOB_SYNCED`, `a OUTPUT_WRITTEN`. The program removes the file first, so each fuse works once. With STOP as
the last word, the program is stopped instead, and its process id is in a file beside. The environment may also set the
number of log entries between two checkpoints, so that a short run has several.
"""

import enum
import os
import signal
import sys
import threading
from pathlib import Path

from strobe.cli import main
from strobe.runtime.connectors import sink_staging
from strobe.runtime.node.timeline import Timeline
from strobe.runtime.restarts import handing_over
from strobe.storage.checkpoints import checkpoint_writer
from strobe.storage.files import disk
from strobe.storage.log import log

VARIABLE = "STROBE_TEST_FUSE"
EVERY = "STROBE_TEST_CHECKPOINT_EVERY"
STOP, STOPPED = "STOP", ".stopped"


class RestartStep(enum.Enum):
    """The step of a planned restart just done, first by the process and then by its successor (E11)."""

    STOPPED = (Timeline, "hand_over")
    WRITTEN = (handing_over, "write_hand_over")
    REPORTED = (handing_over.HandingOver, "_report")
    READ = (handing_over, "read_hand_over")
    CLAIMED = (handing_over, "claim_hand_over")
    REMOVED = (handing_over, "remove_used")
    RESUMED = (Timeline, "_resume")
    BEGUN = (Timeline, "start")


class Fuse:
    """Watches the steps of this program."""

    def __init__(self, name, path):
        self.name = name
        self.path = path
        self.entry = ""

    def burn(self, step):
        """Kill or stop this program if the file names it and this step."""
        try:
            words = self.path.read_text().split()
        except FileNotFoundError:  # there is none, or another program has just removed it
            return
        stop = words[-1:] == [STOP]
        here = [self.name, step.name, self.entry if step.name.startswith("ENTRY") else ""]
        if words[: -1 if stop else None] == [word for word in here if word]:
            self.path.unlink()
            self.path.with_suffix(STOPPED).write_text(str(os.getpid()))
            # Sent to this thread, which stops at once; a signal to the process may wake another thread first.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP if stop else signal.SIGKILL)

    def fit(self):
        """Call `burn` after every step from now on."""
        append, stage = log.Log.append, sink_staging.Staging.__init__

        def append_noted(this, entry, position):
            self.entry = type(entry).__name__
            append(this, entry, position)

        def stage_noted(this, path, on_step=None):
            stage(this, path, self.burn)

        log.Log.append = append_noted
        sink_staging.Staging.__init__ = stage_noted
        disk.Disk.step = lambda this, step, name: self.burn(step)
        for step in RestartStep:
            self._fit_after(step)

    def _fit_after(self, step):
        owner, name = step.value
        function = getattr(owner, name)

        def noted(*arguments):
            result = function(*arguments)
            self.burn(step)
            return result

        setattr(owner, name, noted)


def name_of(arguments):
    """Return the name of this program: `coordinator`, or the process that it runs."""
    return arguments[arguments.index("--name") + 1] if "--name" in arguments else arguments[0]


if __name__ == "__main__":
    if VARIABLE in os.environ:
        Fuse(name_of(sys.argv[1:]), Path(os.environ[VARIABLE])).fit()
    checkpoint_writer.EVERY = int(os.environ.get(EVERY, checkpoint_writer.EVERY))
    sys.exit(main())
