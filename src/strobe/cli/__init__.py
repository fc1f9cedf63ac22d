"""The command line: composition only. What a command does lives in the other packages."""

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, `sys.argv` unless told otherwise, and return its exit code."""
    from strobe.cli.app import run

    return run(arguments)
