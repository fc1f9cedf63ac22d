"""The command line: parses arguments and prints results. The work of each command is in the other packages.

In: `sys.argv`. Out: text or one JSON document on stdout, everything else on stderr, and an exit code.
"""

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, `sys.argv` by default, and return its exit code."""
    from strobe.cli.app import run

    return run(arguments)
