"""One program of a live system under test: `strobe`, with the directory of the test as its current directory.

So relative files, such as those of sources and sinks, are those of the test. Modules are found as before.
"""

import os
import sys
from collections.abc import Sequence

from strobe.cli import main


def run(arguments: Sequence[str]) -> int:
    """Run a command of strobe, and return its exit code.

    `arguments`: the directory to work in, further directories with modules as in PYTHONPATH, and the command.
    """
    directory, modules, *words = arguments
    os.chdir(directory)
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([modules, *([known] if known else [])])
    sys.path[:0] = modules.split(os.pathsep)
    return main(words)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
