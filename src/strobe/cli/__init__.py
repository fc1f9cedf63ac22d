"""The command line: parses arguments and prints results. The work of each command is in the other packages."""

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, `sys.argv` by default, and return its exit code."""
    from strobe.cli.app import run

    return run(arguments)
