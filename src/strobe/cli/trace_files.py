"""Reading the trace that a command line names: a file of JSON lines, or what live processes recorded."""

from pathlib import Path
from typing import Annotated

import typer

from strobe.causality.trace import Trace, read_trace
from strobe.errors import MissingExtra, UsageError

PathArgument = Annotated[
    str,
    typer.Argument(metavar="PATH", help="A trace: a file of JSON lines, or the directory of an epoch."),
]
SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="SNAPSHOT", help="Begin a live run's trace at this snapshot.")
]


def read_any(path: str, since: str | None, among: frozenset[str] | None = None) -> tuple[Trace, dict[str, int]]:
    """Return a trace, and how many events of each process were left out at its end.

    That of a live run begins at its beginning, or at one of the snapshots `among` these.
    """
    if not Path(path).is_dir():
        if since is not None:
            raise UsageError(
                f"{path} is one file, which begins where it does; --since is for the directory of an epoch"
            )
        return read_trace(path), {}
    try:
        from strobe.traces.reading import read_live_trace
    except ImportError as error:
        raise MissingExtra("live", "the trace of a live run") from error
    live = read_live_trace(path, since, among)
    return live.trace, live.left_out
