"""The header strobe.json: what says that a directory is a store, of which version, and which one."""

import secrets
import time
from collections.abc import Hashable

import msgspec

from strobe.errors import UNREADABLE, StoreAway, StoreCorrupt, StoreFormatError, StoreMissing
from strobe.storage.files.backend import Place
from strobe.storage.files.checksummed_json import UNSEALED, check_seal, seal
from strobe.storage.files.layout import ASIDE, DIRECTORIES, HEADER, LOG, MAKE_IT, RUN

FORMAT = "strobe-store"
VERSION = 1


class Header(msgspec.Struct, frozen=True):
    """`store` is a name given at creation, random unless asked for, so that no two stores have the same header."""

    blake3: str
    format: str
    version: int
    store: str


class _AnyHeader(msgspec.Struct):
    """The members that a header of any version has."""

    format: str = ""
    version: int = 0


def create_header(place: Place, identity: str | None = None) -> bool:
    """Make the directories of a store and then its header, or return False where there is one."""
    _refuse_foreign(place)
    place.make_directory("")
    for directory in DIRECTORIES:
        place.make_directory(directory)
    place.check_exclusive()  # before the header: where that is, nobody tries it again
    header = Header(UNSEALED, FORMAT, VERSION, identity or secrets.token_hex(16))
    raw, _ = seal(msgspec.json.encode(header) + b"\n")
    created = place.create(HEADER, [raw])
    place.sync_directory("")
    return created


def may_create(place: Place) -> bool:
    """Tell whether a store could be made at `place`, as far as can be seen: nothing else lies there."""
    try:
        _refuse_foreign(place)
    except (StoreFormatError, StoreCorrupt):
        return False
    return HEADER not in place.names("")


def read_header(place: Place, identity: str = "") -> Header:
    """Return the header, of the store `identity` if that is given; its checksum is what entry 0 of the log follows."""
    if not identity:
        return _read_header(place)
    try:
        header = _read_header(place)
    except StoreMissing as error:
        raise StoreAway(place.url, identity, error.problem.partition(";")[0]) from error
    if header.store != identity:
        raise StoreAway(place.url, identity, f"holds another store, with the identity {header.store}")
    return header


def _read_header(place: Place) -> Header:
    problem = place.unusable(creating=False)
    if problem is not None:
        raise StoreMissing(place.url, problem)
    raw = place.read(HEADER)
    if raw is None:
        raise _absent(place)
    _refuse_other_version(raw, place.url)
    check_seal(raw, place.url, HEADER)
    try:
        return msgspec.json.decode(raw, type=Header)
    except UNREADABLE as error:
        raise StoreFormatError(place.url, f"{HEADER}: its checksum holds, but it cannot be read ({error})") from error


def _refuse_other_version(raw: bytes, url: str) -> None:
    try:
        header = msgspec.json.decode(raw, type=_AnyHeader)
    except UNREADABLE:
        return  # the checksum will tell what is wrong with it
    if header.format == FORMAT and header.version != VERSION:
        raise StoreFormatError(
            url,
            f"{HEADER} says version {header.version} of the format, and this Strobe reads version {VERSION}; "
            f"use a Strobe that reads version {header.version}, or another store",
        )


class Guard:
    """Sees to it that the store `identity`, which was opened at `place`, still lies there."""

    def __init__(self, place: Place, identity: str) -> None:
        self._place = place.unguarded()
        self._identity = identity
        # Of the header when it was last read.
        self._seen: Hashable | None = None
        self._looked_s = float("-inf")

    def check(self) -> None:
        """Raise StoreMissing if the store is not here. As long as its header is the same file, that is not read."""
        now_s = time.monotonic()
        if now_s - self._looked_s < self._place.guarded_s:
            return
        found = self._place.fingerprint(HEADER)
        if found is None or found != self._seen:
            read_header(self._place, self._identity)
            self._seen = found
        self._looked_s = now_s


def _absent(place: Place) -> StoreMissing | StoreCorrupt:
    if _has_lost_header(place):
        return StoreCorrupt(place.url, HEADER, "is missing, though there is a log; restore it from a copy of the store")
    return StoreMissing(place.url, f"holds no store (no {HEADER}); check the path, or {MAKE_IT}")


def _has_lost_header(place: Place) -> bool:
    # In this order: whoever creates the store meanwhile makes its header before the first entry.
    return bool(place.names(LOG)) and HEADER not in place.names("")


def _refuse_foreign(place: Place) -> None:
    """Refuse a directory with other things in it, but not what an interrupted creation has left."""
    problem = place.unusable(creating=True)
    if problem is not None:
        raise StoreFormatError(place.url, problem)
    foreign = [name for name in place.names("") if name not in (*DIRECTORIES, HEADER, ASIDE, RUN)]
    if foreign:
        raise StoreFormatError(
            place.url, f"is no store and is not empty (it holds {', '.join(foreign[:3])}); give a directory of its own"
        )
    if _has_lost_header(place):
        raise _absent(place)
