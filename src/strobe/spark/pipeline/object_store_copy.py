"""The pipeline's tables in an object store: finished batches are copied there, their verdicts last.

Spark's checkpoint and the original tables stay on the local disk. So files that are missing in the object store, after
a crash or while it was unreachable, are found and copied later.
"""

from pathlib import Path

from strobe.errors import StoreError, UsageError
from strobe.storage.files.urls import backend_at


class ObjectStoreCopy:
    """The copies at `url` of the tables under `root`; `tables` are in the order in which a batch is written."""

    def __init__(self, url: str, root: Path, tables: tuple[str, ...], identity: str) -> None:
        self._backend = backend_at(url)
        self._root = root
        self._tables = tables
        self._identity = identity

    def refuse_others(self) -> None:
        """Raise UsageError if a pipeline of another machine writes there."""
        if not (self._root / self._identity).exists() and self._backend.read(self._identity) is not None:
            raise UsageError(
                f"{self._backend.url} has the verdicts of a pipeline whose checkpoint is not on this machine "
                f"({self._root}); continue on that machine, or give another --to"
            )

    def publish(self) -> None:
        """Copy finished batches that are not there yet; raise OSError if that is impossible now."""
        try:
            self._publish(self._identity)
            done = {path.name for path in (self._root / self._tables[-1]).glob("*.parquet")}
            for table in self._tables:
                found = {path.name for path in (self._root / table).glob("*.parquet")}
                for name in sorted((found & done) - self._copied(table)):
                    self._publish(f"{table}/{name}")
                    self._copied(table).add(name)
        except StoreError as error:
            raise OSError(str(error)) from error

    def forget(self, names: list[str]) -> None:
        """Remove the copies of these files."""
        try:
            for name in names:
                table, _, file = name.rpartition("/")
                self._copied(table).discard(file)
            self._backend.remove(names)
        except StoreError as error:
            raise OSError(str(error)) from error

    def _copied(self, table: str) -> set[str]:
        """Return the files of a table in the object store, listed once: only this pipeline changes them."""
        backend = f"{self._backend.url}/{table}"
        if backend not in _known:
            _known[backend] = set(self._backend.names(table))
        return _known[backend]

    def _publish(self, name: str) -> None:
        path = self._root / name
        if path.exists():
            self._backend.create(name, [path.read_bytes()])


_known: dict[str, set[str]] = {}
