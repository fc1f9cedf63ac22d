"""The header strobe.json: what says that a directory is a store, of which version, and which one."""

import re
import secrets
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from strobe.errors import StoreCorrupt, StoreFormatError, UsageError
from strobe.storage.blobs import BLOBS
from strobe.storage.disk import UNFINISHED, Disk
from strobe.storage.entries import LOG
from strobe.storage.sealed import UNSEALED, check_seal, seal

HEADER = "strobe.json"
FORMAT = "strobe-store"
VERSION = 1
DIRECTORIES = (LOG, BLOBS, UNFINISHED)
RUN = "run"
"""Where those who run leave word of how to reach them, and their logs: in the directory, but no part of the store."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


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


def locate(url: str | Path) -> Path:
    """Return the directory that a path or a file:// URL names."""
    match = _SCHEME.match(str(url))
    if match is None:
        return Path(url).absolute()
    parts = urlsplit(str(url))
    if match[1].lower() != "file":
        raise UsageError(f"{url}: only stores on local disk can be used for now; give a path or a file:// URL")
    if parts.netloc not in ("", "localhost"):
        raise UsageError(f"{url}: names the host {parts.netloc!r}; write file:///path, with three slashes")
    return Path(unquote(parts.path))


def create_header(disk: Disk, identity: str | None = None) -> bool:
    """Make the directories of a store and then its header, or return False where there is one."""
    _refuse_foreign(disk)
    disk.make_directory("")
    for directory in DIRECTORIES:
        disk.make_directory(directory)
    header = Header(UNSEALED, FORMAT, VERSION, identity or secrets.token_hex(16))
    raw, _ = seal(msgspec.json.encode(header) + b"\n")
    created = disk.create(HEADER, [raw])
    disk.sync_directory("")
    return created


def read_header(disk: Disk) -> Header:
    """Return the header; its checksum is what entry 0 of the log follows."""
    raw = disk.read(HEADER) if disk.root.is_dir() else None
    if raw is None:
        raise _absent(disk)
    _refuse_other_version(raw, disk.url)
    check_seal(raw, disk.url, HEADER)
    try:
        return msgspec.json.decode(raw, type=Header)
    except ValueError as error:
        raise StoreFormatError(disk.url, f"{HEADER}: its checksum holds, but it cannot be read ({error})") from error


def _refuse_other_version(raw: bytes, url: str) -> None:
    try:
        header = msgspec.json.decode(raw, type=_AnyHeader)
    except ValueError:
        return  # the checksum will tell what is wrong with it
    if header.format == FORMAT and header.version != VERSION:
        raise StoreFormatError(
            url,
            f"{HEADER} says version {header.version} of the format, and this Strobe reads version {VERSION}; "
            f"use a Strobe that reads version {header.version}, or another store",
        )


def _absent(disk: Disk) -> StoreFormatError | StoreCorrupt:
    if not disk.root.exists():
        return StoreFormatError(
            disk.url, "does not exist; check the path, or make it by `strobe simulate --store` or Store.create"
        )
    if not disk.root.is_dir():
        return StoreFormatError(disk.url, "is not a directory; give the directory that holds strobe.json")
    if disk.names(LOG):
        return StoreCorrupt(disk.url, HEADER, "is missing, though there is a log; restore it from a copy of the store")
    return StoreFormatError(disk.url, "holds no store (no strobe.json); check the path, or make one by Store.create")


def _refuse_foreign(disk: Disk) -> None:
    """Refuse a directory with other things in it, but not what an interrupted creation has left."""
    if disk.root.exists() and not disk.root.is_dir():
        raise _absent(disk)
    foreign = [name for name in disk.names("") if name not in (*DIRECTORIES, HEADER, RUN)]
    if foreign:
        raise StoreFormatError(
            disk.url, f"is no store and is not empty (it holds {', '.join(foreign[:3])}); give a directory of its own"
        )
    if HEADER not in disk.names("") and disk.names(LOG):
        raise _absent(disk)
