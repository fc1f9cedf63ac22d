"""Reads the trace that a command line names: a file of JSON lines, or the recording of a live run."""

from collections.abc import Iterator
from contextlib import contextmanager
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


EpochOption = Annotated[
    int | None, typer.Option("--epoch", metavar="N", help="Only this epoch of a directory of epochs (default: all).")
]


def epochs_of(path: str, epoch: int | None) -> list[str]:
    """Return the epoch directories in `path`, or only `epoch`; empty if `path` is itself a trace."""
    if not Path(path).is_dir():
        found: list[Path] = []
    else:
        with _needs_live():
            from strobe.traces.reading import epochs_in
        found = epochs_in(path)
    if epoch is None:
        return [str(place) for place in found]
    if not found:
        raise UsageError(f"{path} has no epochs; --epoch is for the directory of all epochs, STORE/run/trace")
    asked = [str(place) for place in found if place.name == f"epoch-{epoch:06}"]
    if not asked:
        raise UsageError(f"{path} has no epoch {epoch}; it has: {', '.join(place.name for place in found)}")
    return asked


def read_any(path: str, since: str | None, among: frozenset[str] | None = None) -> tuple[Trace, dict[str, int]]:
    """Return a trace, and how many events of each process were left out at its end.

    The trace of a live run starts at its beginning, or at one of the snapshots in `among`.
    """
    if not Path(path).is_dir():
        if since is not None:
            raise UsageError(f"{path} is a file; --since is for the directory of an epoch")
        return read_trace(path), {}
    with _needs_live():
        from strobe.traces.reading import read_live_trace
    live = read_live_trace(path, since, among)
    return live.trace, live.left_out


@contextmanager
def _needs_live() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise MissingExtra("live", "the trace of a live run") from error
