"""One program of a live system under test: `strobe`, with the directory of the test as its current directory.

So relative files, such as those of sources and sinks, are those of the test. Modules are found as before.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from strobe.cli import main


def command(directory: Path, modules: Sequence[str]) -> list[str]:
    """Return what to run instead of `strobe`, to work in `directory` and find modules in the directories `modules`."""
    return [sys.executable, "-m", __name__, str(directory), os.pathsep.join(modules)]


def run(arguments: Sequence[str]) -> int:
    """Run a command of strobe, after the arguments that `command` has added, and return its exit code."""
    directory, modules, *words = arguments
    os.chdir(directory)
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([modules, *([known] if known else [])])
    sys.path[:0] = modules.split(os.pathsep)
    return main(words)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
