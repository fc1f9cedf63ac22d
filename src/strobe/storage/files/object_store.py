"""A store in an object store: each file of the format is an object of the same name under the URL's prefix (S1).

An object is there whole or not at all, and durable once its put has returned. Entries of the log and the header are
put on the condition that there is none (`If-None-Match: *`): of any number of writers exactly one wins. The answer to
a put can get lost, and the library then tries again and is refused by its own object; so each carries a word that only
its writer knows, and a writer that is refused looks whose it is.

Blobs are put without a condition: their names say what their bytes are. Large ones are spooled to a local file, and go
up in parts; read, they come in parts into a local file that is mapped. Neither file has a name: it ends with the
process. A dead writer can leave an unfinished multipart upload, which no listing shows (docs/operations/stores.md).
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
from strobe.storage.files.backend import DOCUMENT_BYTES_MAX, Piece, StorageBackend, Unfinished
from strobe.storage.files.commit_steps import FileSteps, OnStep
from strobe.storage.files.layout import UNFINISHED
from strobe.storage.files.object_store_errors import explain, is_bucket_missing

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore

PART_BYTES = 8 << 20
"""Up to this size a blob is put at once and kept in memory until then; beyond, it is moved in parts of this size."""

PARTS_MAX = 10_000
"""More parts than this no object store takes for one object."""

PARTS_AT_ONCE = 4
RETRIES_MAX = 5
RETRY_S_MAX = 30
CONNECT_S_MAX = 5
REQUEST_S_MAX = 60

WRITER = "strobewriter"
"""The metadata with a writer's word; Azure takes no hyphen in such a name."""

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

    def create(self, name: str, pieces: Iterable[Piece], steps: FileSteps | None = None) -> bool:
        self.guard()
        with self.faults(name, "write"):
            self.file_step(steps, 0, name)
            raw = b"".join(pieces)
            self.file_step(steps, 1, name)
            self.file_step(steps, 2, name)
            created = self._put_new(name, raw)
            if created:
                self.file_step(steps, 3, name)
            return created

    def open_unfinished(self) -> "Upload":
        return Upload(self)

    def put(self, name: str, file: IO[bytes], size: int) -> None:
        """Put the `size` bytes of `file` under a name that says what they are."""
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
                self._believe(error)
                return None

    def view(self, name: str, size: int) -> memoryview | None:
        with self.faults(name, "read"), tempfile.TemporaryFile() as file:
            try:
                self._download(name, size, file.fileno())
            except FileNotFoundError as error:
                self._believe(error)
                return None
            return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))

    def size(self, name: str) -> int | None:
        with self.faults(name, "read"):
            try:
                return self._library.head(self._store, name)["size"]
            except FileNotFoundError as error:
                self._believe(error)
                return None

    def _believe(self, error: FileNotFoundError) -> None:
        """Raise where the bucket is absent, or the store: everything in it would seem to be."""
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
        """Remove what was copied here from the tmp/ of a directory: no writer of objects works on anything there."""
        size = self.size(name)
        if size is not None and not dry_run:
            self.remove([name])
        return size

    def check_exclusive(self) -> None:
        name = _unfinished_name()  # if this ends here, any collector removes it
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
        """There are none: a name is in one as soon as it is there."""

    def sync_directory(self, name: str) -> None:
        """What was put is durable with its name."""

    def remove_empty_directory(self, name: str) -> None:
        """It goes with the last name in it."""

    @contextmanager
    def faults(self, name: str, action: str) -> Iterator[None]:
        try:
            yield
        except (self._library.exceptions.BaseError, OSError, ValueError) as error:
            # Without its cause: that repeats requests and answers, in which there may be secrets.
            problem = f"cannot {action} {name or 'itself'}: {explain(error, self.url)}"
            raise StoreError(self.url, problem) from None

    def _put_new(self, name: str, raw: bytes) -> bool:
        word = secrets.token_hex(16)
        try:
            self._library.put(self._store, name, raw, mode="create", attributes={WRITER: word}, use_multipart=False)
        except self._library.exceptions.AlreadyExistsError:
            return self._writer_of(name) == word
        return True

    def _writer_of(self, name: str) -> str | None:
        try:
            return self._library.get(self._store, name).attributes.get(WRITER)
        except FileNotFoundError as error:
            self._believe(error)
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
    """Bytes on their way to an object: in memory as long as they are few, then in a local file without a name."""

    def __init__(self, objects: Objects) -> None:
        self.name = _unfinished_name()
        self._objects = objects
        self._bytes = 0
        # Not in a `with`: it lives as long as its writer, who closes it.
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
        client["allow_http"] = True  # asked for by name
    return from_url(
        url,
        client_options=client,
        retry_config={
            "max_retries": RETRIES_MAX,
            "retry_timeout": timedelta(seconds=RETRY_S_MAX),
            "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2},
        },
    )
