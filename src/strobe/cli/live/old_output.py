"""Refuses to start a new history if a sink has output of another one (R2)."""

from strobe.errors import StoreMissing, UsageError
from strobe.process import System
from strobe.runtime.connectors.file_sink import FileSink
from strobe.storage import Store


def refuse_old_output(system: System, url: str) -> None:
    """Raise UsageError if a file sink has released output, but the store has no snapshot to continue from."""
    old = {name: sink for name, sink in system.sinks.items() if isinstance(sink, FileSink) and sink.released}
    if not old or _has_snapshot(url):
        return
    name, sink = next(iter(old.items()))
    raise UsageError(
        f"sink {name!r} has released {sink.released:,} bytes into {sink.path} already, and the store {url} has no "
        "snapshot that they follow from: they belong to another store. Use that store, or move "
        f"{sink.path} and {sink.path}.staged away to begin again"
    )


def _has_snapshot(url: str) -> bool:
    try:
        return bool(Store.open(url).state().committed)
    except StoreMissing:
        return False
