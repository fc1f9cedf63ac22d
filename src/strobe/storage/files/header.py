"""The header strobe.json: marks a directory as a store, with its format version and its identity."""

import secrets
import time
from collections.abc import Hashable

import msgspec

from strobe.errors import UNREADABLE, StoreAway, StoreCorrupt, StoreFormatError, StoreMissing
from strobe.storage.files.backend import StorageBackend
from strobe.storage.files.checksummed_json import UNSEALED, check_seal, seal
from strobe.storage.files.layout import ASIDE, CREATE_HINT, DIRECTORIES, HEADER, LOG, RESTARTS, RUN

FORMAT = "strobe-store"
VERSION = 1


class Header(msgspec.Struct, frozen=True):
    """`store` is the identity given at creation, random by default, so that no two stores have the same header."""

    blake3: str
    format: str
    version: int
    store: str


class _AnyHeader(msgspec.Struct):
    """The members that headers of every version have."""

    format: str = ""
    version: int = 0


def create_header(backend: StorageBackend, identity: str | None = None) -> bool:
    """Create the directories of a store and then its header, or return False if there is a header."""
    _refuse_foreign(backend)
    backend.make_directory("")
    for directory in DIRECTORIES:
        backend.make_directory(directory)
    backend.check_exclusive()  # before the header: once that exists, the check is not repeated
    header = Header(UNSEALED, FORMAT, VERSION, identity or secrets.token_hex(16))
    raw, _ = seal(msgspec.json.encode(header) + b"\n")
    created = backend.create(HEADER, [raw])
    backend.sync_directory("")
    return created


def may_create(backend: StorageBackend) -> bool:
    """Return whether a store could be created at `backend`: no store and no foreign files are there."""
    try:
        _refuse_foreign(backend)
    except (StoreFormatError, StoreCorrupt):
        return False
    return HEADER not in backend.names("")


def read_header(backend: StorageBackend, identity: str = "") -> Header:
    """Return the header, of the store `identity` if given. Entry 0 of the log refers to its checksum."""
    if not identity:
        return _read_header(backend)
    try:
        header = _read_header(backend)
    except StoreMissing as error:
        raise StoreAway(backend.url, identity, error.problem.partition(";")[0]) from error
    if header.store != identity:
        raise StoreAway(backend.url, identity, f"holds another store, with the identity {header.store}")
    return header


def _read_header(backend: StorageBackend) -> Header:
    problem = backend.unusable(creating=False)
    if problem is not None:
        raise StoreMissing(backend.url, problem)
    raw = backend.read(HEADER)
    if raw is None:
        raise _absent(backend)
    _refuse_other_version(raw, backend.url)
    check_seal(raw, backend.url, HEADER)
    try:
        return msgspec.json.decode(raw, type=Header)
    except UNREADABLE as error:
        raise StoreFormatError(backend.url, f"{HEADER}: its checksum holds, but it cannot be read ({error})") from error


def _refuse_other_version(raw: bytes, url: str) -> None:
    try:
        header = msgspec.json.decode(raw, type=_AnyHeader)
    except UNREADABLE:
        return  # the checksum will show what is wrong with it
    if header.format == FORMAT and header.version != VERSION:
        raise StoreFormatError(
            url,
            f"{HEADER} has version {header.version} of the format, and this Strobe reads version {VERSION}; "
            f"use a Strobe that reads version {header.version}, or another store",
        )


class StoreGuard:
    """Checks that the store `identity`, which was opened at `backend`, is still there."""

    def __init__(self, backend: StorageBackend, identity: str) -> None:
        self._backend = backend.unguarded()
        self._identity = identity
        # Fingerprint of the header when it was last read.
        self._seen: Hashable | None = None
        self._looked_s = float("-inf")

    def check(self) -> None:
        """Raise StoreMissing if the store is not here. The header is read only if its file has changed."""
        now_s = time.monotonic()
        if now_s - self._looked_s < self._backend.guarded_s:
            return
        found = self._backend.fingerprint(HEADER)
        if found is None or found != self._seen:
            read_header(self._backend, self._identity)
            self._seen = found
        self._looked_s = now_s


def _absent(backend: StorageBackend) -> StoreMissing | StoreCorrupt:
    if _has_lost_header(backend):
        return StoreCorrupt(
            backend.url, HEADER, "is missing, though there is a log; restore it from a copy of the store"
        )
    return StoreMissing(backend.url, f"holds no store (no {HEADER}); check the path, or {CREATE_HINT}")


def _has_lost_header(backend: StorageBackend) -> bool:
    # In this order: a concurrent creator writes the header before the first log entry.
    return bool(backend.names(LOG)) and HEADER not in backend.names("")


def _refuse_foreign(backend: StorageBackend) -> None:
    """Refuse a directory with foreign files; the remains of an interrupted creation are accepted."""
    problem = backend.unusable(creating=True)
    if problem is not None:
        raise StoreFormatError(backend.url, problem)
    foreign = [name for name in backend.names("") if name not in (*DIRECTORIES, HEADER, RESTARTS, ASIDE, RUN)]
    if foreign:
        raise StoreFormatError(
            backend.url,
            f"is no store and is not empty (it holds {', '.join(foreign[:3])}); give a directory of its own",
        )
    if _has_lost_header(backend):
        raise _absent(backend)
