"""The files of a store in an object store: each is an object of the same name under the URL's prefix (S1).

An object exists whole or not at all, and is durable once its put has returned. Log entries and the header are put on
the condition that the object does not exist (`If-None-Match: *`), so exactly one of several writers wins. If the
response to a put is lost, the library retries, and its own object makes the retry fail. Therefore each object carries a
random token of its writer, and a refused writer checks whether the token is its own.

Blobs are put without a condition, because their names identify their bytes. Large blobs are spooled to a local file and
uploaded in parts. For reading, they are downloaded in parts to a local file that is memory-mapped. These local files
have no name and vanish with the process. A writer that dies can leave an unfinished multipart upload, which no listing
shows (docs/operations/stores.md).
"""

import mmap
import os
import secrets
import tempfile
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import IO, TYPE_CHECKING, cast

from strobe.errors import MissingExtra, StoreError
from strobe.storage.files.backend import DOCUMENT_BYTES_MAX, CheckFunction, Piece, StorageBackend, Unfinished
from strobe.storage.files.commit_steps import FileSteps, OnStep
from strobe.storage.files.layout import UNFINISHED
from strobe.storage.files.object_store_errors import explain, is_bucket_missing

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore

PART_BYTES = 8 << 20
"""Blobs up to this size are kept in memory and put at once; larger ones are transferred in parts of this size."""

PARTS_MAX = 10_000
"""Maximum number of parts that object stores accept per object."""

PARTS_AT_ONCE = 4
RETRIES_MAX = 5
RETRY_S_MAX = 30
CONNECT_S_MAX = 5
REQUEST_S_MAX = 60

WRITER = "strobewriter"
"""The metadata key for the writer's token; Azure allows no hyphen in it."""

_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")


class Objects(StorageBackend):
    """The objects of one store, under a canonical URL (urls.py)."""

    guarded_s = 1.0

    def __init__(self, url: str, on_step: OnStep | None = None) -> None:
        super().__init__(url, on_step)
        try:
            import obstore
        except ImportError as error:
            raise MissingExtra("objects", f"the store {url}") from error
        self._library = obstore
        with self.faults("", "open"):
            self._store = _connect(url)

    def create(
        self, name: str, pieces: Iterable[Piece], steps: FileSteps | None = None, check: CheckFunction | None = None
    ) -> bool:
        self.guard()
        with self.faults(name, "write"):
            self.file_step(steps, 0, name)
            raw = b"".join(pieces)
            self.file_step(steps, 1, name)
            self.file_step(steps, 2, name)
            if check is not None:
                check()
            created = self._put_new(name, raw)
            if created:
                self.file_step(steps, 3, name)
            return created

    def open_unfinished(self) -> "Upload":
        return Upload(self)

    def put(self, name: str, file: IO[bytes], size: int) -> None:
        """Put the `size` bytes of `file` under a name that identifies them."""
        self.guard()
        if size <= PART_BYTES:
            self._library.put(self._store, name, file.read(), use_multipart=False)
            return
        part = max(PART_BYTES, -(-size // PARTS_MAX))
        parts = iter(lambda: file.read(part), b"")
        self._library.put(self._store, name, parts, chunk_size=part, max_concurrency=PARTS_AT_ONCE)

    def read(self, name: str, bytes_max: int = DOCUMENT_BYTES_MAX) -> bytes | None:
        with self.faults(name, "read"):
            try:
                found = self._library.get(self._store, name)
                if found.meta["size"] <= bytes_max:
                    return bytes(found.bytes())
                return bytes(self._library.get_range(self._store, name, start=0, length=bytes_max + 1))
            except FileNotFoundError as error:
                self._require_store(error)
                return None

    def view(self, name: str, size: int) -> memoryview | None:
        with self.faults(name, "read"), tempfile.TemporaryFile() as file:
            try:
                self._download(name, size, file.fileno())
            except FileNotFoundError as error:
                self._require_store(error)
                return None
            return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))

    def size(self, name: str) -> int | None:
        with self.faults(name, "read"):
            try:
                return self._library.head(self._store, name)["size"]
            except FileNotFoundError as error:
                self._require_store(error)
                return None

    def _require_store(self, error: FileNotFoundError) -> None:
        """Raise if the bucket or the store is missing: every object would seem to be absent."""
        if is_bucket_missing(error):
            raise error
        self.guard()

    def fingerprint(self, name: str) -> Hashable | None:
        with self.faults(name, "read"):
            try:
                found = self._library.head(self._store, name)
            except FileNotFoundError as error:
                if is_bucket_missing(error):
                    raise
                return None
            return found["e_tag"], found["version"], found["last_modified"], found["size"]

    def names(self, directory: str) -> list[str]:
        with self.faults(directory, "list"):
            listed = self._library.list_with_delimiter(self._store, directory or None)
            paths = [*listed["common_prefixes"], *(found["path"] for found in listed["objects"])]
            return sorted(path.rpartition("/")[2] for path in paths)

    def sizes(self, directory: str) -> dict[str, int]:
        with self.faults(directory, "list"):
            listed = self._library.list_with_delimiter(self._store, directory)["objects"]
            return {found["path"].rpartition("/")[2]: found["size"] for found in listed}

    def is_directory(self, name: str) -> bool:
        return bool(self.names(name))

    def remove(self, names: Iterable[str]) -> None:
        doomed = list(names)
        if doomed:
            self.guard()
            with self.faults(doomed[0], "remove"):
                self._library.delete(self._store, doomed)

    def remove_abandoned(self, name: str, dry_run: bool) -> int | None:
        """Remove a file that was copied here from the tmp/ of a directory. No writer works on it."""
        size = self.size(name)
        if size is not None and not dry_run:
            self.remove([name])
        return size

    def check_exclusive(self) -> None:
        name = _unfinished_name()  # if the process dies here, garbage collection removes it
        with self.faults(name, "write"):
            self._put_new(name, b"?")
            ignored = self._put_new(name, b"?")
        self.remove([name])
        if ignored:
            raise StoreError(
                self.url,
                "ignores the condition that an object must not exist yet (If-None-Match: *), which keeps two "
                "writers of the log apart; use an object store that has conditional writes",
            )

    def make_directory(self, name: str) -> None:
        """Object stores have no directories."""

    def sync_directory(self, name: str) -> None:
        """A put is durable, including its name."""

    def remove_empty_directory(self, name: str) -> None:
        """Object stores have no directories."""

    @contextmanager
    def faults(self, name: str, action: str) -> Iterator[None]:
        try:
            yield
        except (self._library.exceptions.BaseError, OSError, ValueError) as error:
            # Without the cause: it repeats requests and responses, which may contain secrets.
            problem = f"cannot {action} {name or 'itself'}: {explain(error, self.url)}"
            raise StoreError(self.url, problem) from None

    def _put_new(self, name: str, raw: bytes) -> bool:
        nonce = secrets.token_hex(16)
        try:
            self._library.put(self._store, name, raw, mode="create", attributes={WRITER: nonce}, use_multipart=False)
        except self._library.exceptions.AlreadyExistsError:
            return self._writer_of(name) == nonce
        return True

    def _writer_of(self, name: str) -> str | None:
        try:
            return self._library.get(self._store, name).attributes.get(WRITER)
        except FileNotFoundError as error:
            self._require_store(error)
            return None

    def _download(self, name: str, size: int, descriptor: int) -> None:
        def fetch(start: int) -> None:
            length = min(PART_BYTES, size - start)
            part = memoryview(self._library.get_range(self._store, name, start=start, length=length))
            written = 0
            while written < len(part):
                written += os.pwrite(descriptor, part[written:], start + written)

        os.ftruncate(descriptor, size)
        with ThreadPoolExecutor(PARTS_AT_ONCE, "strobe-download") as threads:
            for done in [threads.submit(fetch, start) for start in range(0, size, PART_BYTES)]:
                done.result()


class Upload(Unfinished):
    """Bytes to be uploaded as one object: a few are held in memory, more in a local file without a name."""

    def __init__(self, objects: Objects) -> None:
        self.name = _unfinished_name()
        self._objects = objects
        self._bytes = 0
        # Not in a `with`: it stays open until the writer calls `close`.
        self._file = tempfile.SpooledTemporaryFile(PART_BYTES)  # noqa: SIM115

    def write(self, piece: Piece) -> None:
        self._file.write(piece)
        self._bytes += len(memoryview(piece).cast("B"))

    def finish(self, name: str, steps: FileSteps | None = None) -> bool:
        self._objects.file_step(steps, 1, name)
        self._objects.file_step(steps, 2, name)
        self._file.seek(0)
        self._objects.put(name, cast(IO[bytes], self._file), self._bytes)
        self._objects.file_step(steps, 3, name)
        return True

    def close(self) -> None:
        self._file.close()


def _unfinished_name() -> str:
    return f"{UNFINISHED}/{os.getpid()}-{secrets.token_hex(8)}"


def _connect(url: str) -> "ObjectStore":
    from obstore.store import from_url

    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=CONNECT_S_MAX),
        "timeout": timedelta(seconds=REQUEST_S_MAX),
    }
    if any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS):
        client["allow_http"] = True  # the user has configured it explicitly
    return from_url(
        url,
        client_options=client,
        retry_config={
            "max_retries": RETRIES_MAX,
            "retry_timeout": timedelta(seconds=RETRY_S_MAX),
            "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2},
        },
    )
