"""The pipeline's output: the tables `verdicts`, `violations` and `quarantine` as Parquet, by batches (D2).

    TO/pipeline.json                        the store that the tables are about
    TO/checkpoint/                          Spark's checkpoint
    TO/verdicts/batch-00000000000000000007.parquet, and likewise in violations/ and quarantine/
    TO/tmp/                                 files being written
    TO/lock                                 held by the one pipeline that writes here

A batch is one file of each table. A file is written under a temporary name, synced, and renamed, so that a reader sees
all of it or nothing. Verdicts are written last: a reader who sees a verdict also sees its violations. A batch with
verdicts is done, however often Spark repeats it. No file is ever changed or written twice.

If TO is in an object store, this is a local directory, and finished batches are copied from it.
"""

import fcntl
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow.parquet as pq

from strobe.errors import UNREADABLE, MissingComponent, UsageError
from strobe.private_files import finish_file, sync
from strobe.spark.log.offsets import POSITION, Offset
from strobe.spark.pipeline.checkpoint import COMMITS_DIRECTORY, OFFSETS_DIRECTORY, last_batch, offset_after, repair
from strobe.spark.pipeline.object_store_copy import ObjectStoreCopy
from strobe.spark.schema import columns as c
from strobe.spark.schema.output_schema import Row, to_arrow
from strobe.storage.files.urls import canonical_url, is_object_url, locate, run_directory

VERDICTS, VIOLATIONS, QUARANTINE = "verdicts", "violations", "quarantine"
TABLES = (VIOLATIONS, QUARANTINE, VERDICTS)
"""In the order in which a batch is written."""
CHECKPOINT, IDENTITY, LOCK, UNFINISHED = "checkpoint", "pipeline.json", "lock", "tmp"
VERSION = 1
POSITIONS = b"strobe.positions"
TOTALS = b"strobe.totals"
"""The key of the totals in the metadata of a verdicts file."""

Totals = dict[str, dict[str, int]]
"""The number of verdicts of each kind for each check."""


class Identity(msgspec.Struct, frozen=True):
    """The store that the tables are about."""

    version: int
    store: str
    url: str


class Outputs:
    """The directory that a pipeline writes to; `claim` it before writing."""

    def __init__(self, to: str | Path) -> None:
        self.published: ObjectStoreCopy | None = None
        if is_object_url(to):
            self.to = canonical_url(to)
            self.root = run_directory(to) / "pipeline"
            self.published = ObjectStoreCopy(self.to, self.root, TABLES, IDENTITY)
        else:
            self.root = locate(to)
            self.to = str(self.root)
        self._lock: int | None = None

    @property
    def checkpoint(self) -> Path:
        return self.root / CHECKPOINT

    def path(self, table: str, batch_id: int) -> Path:
        return self.root / table / f"batch-{batch_id:020d}.parquet"

    def claim(self) -> Self:
        """Become the only pipeline that writes here, until `release`; refuse if there is another, or foreign files."""
        self.refuse_others()
        try:
            for name in (*TABLES, UNFINISHED):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise MissingComponent(f"{self.root} cannot be written to: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise UsageError(
                f"another pipeline is writing to {self.root}; stop it first, or give this one a directory of its own"
            ) from None
        self._clean_up()
        try:
            self.publish()  # files that a killed pipeline has not copied
        except OSError as error:
            self.release()
            raise MissingComponent(f"{self.to} cannot be written to: {error}") from error
        return self

    def publish(self) -> None:
        """Copy finished batches to the object store, if there is one; raise OSError if that is impossible now."""
        if self.published is not None:
            self.published.publish()

    def _clean_up(self) -> None:
        """Remove the unfinished files of a killed pipeline; give each table an empty file with its columns."""
        try:
            for leftover in (self.root / UNFINISHED).iterdir():
                leftover.unlink(missing_ok=True)
            repair(self.checkpoint)
            for table in TABLES:
                if not (path := self.root / table / "columns.parquet").exists():
                    self._create(path, partial(pq.write_table, to_arrow(table, [])))
        except OSError as error:
            self.release()
            raise MissingComponent(f"{self.root} cannot be written to: {error.strerror or error}") from error

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self.claim()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def identify(self, store: str, url: str) -> None:
        """Record the store; refuse a different store, and a directory whose checkpoint was removed."""
        path = self.root / IDENTITY
        if not path.exists():
            raw = msgspec.json.encode(Identity(VERSION, store, url)) + b"\n"
            try:
                self._create(path, lambda unfinished: unfinished.write_bytes(raw))
            except OSError as error:
                raise MissingComponent(f"{self.root} cannot be written to: {error.strerror or error}") from error
            return
        known = self.identity()
        assert known is not None, "it exists"
        if known.store != store:
            raise UsageError(
                f"{self.root} holds the verdicts on another store ({known.url}); "
                "give each store a directory of its own with --to"
            )
        if self.batches() and not (self.checkpoint / OFFSETS_DIRECTORY).exists():
            raise UsageError(
                f"{self.root} has verdicts but no {CHECKPOINT}, so how far they go is not known; "
                "put it back, or start over in another directory"
            )
        if (given := last_batch(self.checkpoint / OFFSETS_DIRECTORY)) >= 0:
            self._remove_unknown(given)

    def _remove_unknown(self, given: int) -> None:
        """Remove the batches after the last one that Spark has recorded: it will divide the commits differently."""
        try:
            self.remove_from(given + 1)
        except OSError as error:
            raise MissingComponent(f"{self.to} cannot be written to: {error.strerror or error}") from error

    def identity(self) -> Identity | None:
        """Return the recorded store, or None if nothing was written yet."""
        path = self.root / IDENTITY
        try:
            found = msgspec.json.decode(path.read_bytes(), type=Identity)
        except FileNotFoundError:
            return None
        except (*UNREADABLE, OSError) as error:
            raise UsageError(f"{path} cannot be read ({error}); give another directory with --to") from error
        if found.version != VERSION:
            raise UsageError(
                f"{path} is of version {found.version}, and this Strobe writes {VERSION}; give another --to"
            )
        return found

    def is_done(self, batch_id: int) -> bool:
        """Return whether all tables of a batch are written."""
        return self.path(VERDICTS, batch_id).exists()

    def positions(self, batch_id: int) -> str | None:
        """Return the log positions of a batch, as they were given to `write`."""
        found = (pq.read_schema(self.path(VERDICTS, batch_id)).metadata or {}).get(POSITIONS)
        return found.decode() if found is not None else None

    def totals(self, batch_id: int) -> Totals | None:
        """Return the number of verdicts of each kind for each check, up to and including this batch.

        Each batch adds to the totals of the one before it, so that nobody has to read all batches. None if the file of
        this batch is missing or has no totals.
        """
        if batch_id < 0:
            return {}
        path = self.path(VERDICTS, batch_id)
        found = pq.read_schema(path).metadata.get(TOTALS) if path.exists() else None
        return msgspec.json.decode(found, type=Totals) if found is not None else None

    def remove_from(self, batch_id: int) -> None:
        """Remove a batch and all later ones: Spark has lost them, and will divide their snapshots differently."""
        found = [path for table in TABLES for path in (self.root / table).glob("batch-*.parquet")]
        # Latest batch first, and its verdicts first: if this is interrupted, each batch that still has verdicts is
        # complete, and there is no gap in their numbers.
        order = {table: place for place, table in enumerate(TABLES)}
        for path in sorted(found, key=lambda path: (_batch_id(path), order[path.parent.name]), reverse=True):
            if _batch_id(path) >= batch_id:
                if self.published is not None:
                    self.published.forget([f"{path.parent.name}/{path.name}"])
                path.unlink()
                sync(path.parent)

    def last_recorded(self) -> int:
        """Return the last batch that Spark has also recorded as done, and will not repeat; -1 if none."""
        return last_batch(self.checkpoint / COMMITS_DIRECTORY)

    def recorded_offset(self) -> Offset:
        """Return the offset in the log at the end of that batch."""
        return offset_after(self.checkpoint, self.last_recorded())

    def recorded_position(self) -> int:
        return int(self.recorded_offset()[POSITION])

    def batches(self) -> list[int]:
        """Return the numbers of the finished batches."""
        found = (self.root / VERDICTS).glob("batch-*.parquet")
        return sorted(map(_batch_id, found))

    def write(self, table: str, batch_id: int, rows: list[Row], positions: str = "") -> None:
        """Write one table of a batch; raise OSError if that is impossible now. Only verdicts get a file if empty."""
        path = self.path(table, batch_id)
        if rows or table == VERDICTS or path.exists():
            found = to_arrow(table, rows)
            noted = {POSITIONS: positions.encode()}
            if table == VERDICTS and (before := self.totals(batch_id - 1)) is not None:
                noted[TOTALS] = msgspec.json.encode(_added(before, rows))
            found = found.replace_schema_metadata({**(found.schema.metadata or {}), **noted})
            self._create(path, partial(pq.write_table, found, compression="zstd"))

    def read(self, table: str, batch_id: int) -> list[Row]:
        """Return the rows of one table of a batch; details stay encoded."""
        path = self.path(table, batch_id)
        return pq.ParquetFile(path).read().to_pylist() if path.exists() else []

    def _create(self, path: Path, write: Callable[[Path], Any]) -> None:
        unfinished = self.root / UNFINISHED / f"{os.getpid()}-{path.parent.name}-{path.name}"
        try:
            write(unfinished)
            finish_file(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)

    def refuse_others(self) -> None:
        """Raise UsageError unless this is a pipeline's directory, or can become one."""
        if self.published is not None:
            self.published.refuse_others()
        if self.root.exists() and not self.root.is_dir():
            raise UsageError(f"{self.root} is not a directory; give a directory with --to")
        known = {*TABLES, CHECKPOINT, IDENTITY, LOCK, UNFINISHED}
        foreign = (
            sorted(path.name for path in self.root.iterdir() if path.name not in known) if self.root.exists() else []
        )
        if foreign:
            raise UsageError(
                f"{self.root} holds other files ({', '.join(foreign[:3])}); give a directory of its own with --to"
            )


def _added(before: Totals, verdicts: list[Row]) -> Totals:
    counts = {check: Counter(found) for check, found in before.items()}
    for row in verdicts:
        counts.setdefault(row[c.CHECK], Counter())[row[c.VERDICT]] += 1
    return {check: dict(found) for check, found in counts.items()}


def _batch_id(path: Path) -> int:
    return int(path.stem.removeprefix("batch-"))
