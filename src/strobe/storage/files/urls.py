"""Parses the path or URL of a store, and finds its run directory.

    ./snapshots  /var/snapshots  file:///var/snapshots     a directory
        s3://BUCKET/PREFIX                                     Amazon S3 and compatible object stores
    gs://BUCKET/PREFIX                                     Google Cloud Storage
    az://CONTAINER/PREFIX  abfs[s]://CONTAINER@ACCOUNT…    Azure

Credentials and endpoints come from the environment (docs/operations/stores.md). They are never part of a URL, because
URLs are shown, logged and sent to nodes.
"""

import hashlib
import os
import re
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from strobe.errors import UsageError
from strobe.private_files import make_directories, make_own
from strobe.storage.files.backend import StorageBackend
from strobe.storage.files.commit_steps import OnStep
from strobe.storage.files.disk import Disk
from strobe.storage.files.header import read_header
from strobe.storage.files.layout import RUN
from strobe.storage.files.object_store import Objects

OBJECT_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_ACCOUNT = re.compile(r"[^@:]+@[A-Za-z0-9.-]+")


def backend_at(url: str | Path, on_step: OnStep | None = None) -> StorageBackend:
    """Return the storage backend for `url`, whether or not a store exists there."""
    return Objects(canonical_url(url), on_step) if is_object_url(url) else Disk(locate(url), on_step)


def canonical_url(url: str | Path) -> str:
    """Return `url` in a form that does not depend on the working directory; raise UsageError if it is invalid."""
    return _canonical_object_url(str(url)) if is_object_url(url) else str(locate(url))


def is_object_url(url: str | Path) -> bool:
    match = _SCHEME.match(str(url))
    return match is not None and match[1].lower() in OBJECT_SCHEMES


def locate(url: str | Path) -> Path:
    """Return the directory of a path or a file:// URL."""
    match = _SCHEME.match(str(url))
    if match is None:
        return Path(url).absolute()
    parts = urlsplit(str(url))
    if match[1].lower() != "file":
        known = ", ".join(f"{scheme}://" for scheme in ("file", *OBJECT_SCHEMES))
        raise UsageError(f"{match[0]} is not a kind of store; give a path, or a URL that begins with one of {known}")
    if parts.netloc not in ("", "localhost"):
        raise UsageError(f"{url}: names the host {parts.netloc!r}; write file:///path, with three slashes")
    return Path(unquote(parts.path))


def run_directory(url: str | Path) -> Path:
    """Return the local directory for the addresses and logs of the programs that use the store at `url`.

    For a store in a directory, it is inside that directory. For an object store, it is a directory of the user on each
    machine, because this information is only useful on the same machine.
    """
    if not is_object_url(url):
        return locate(url) / RUN
    canonical = canonical_url(url)
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", canonical)[:60]
    digest = hashlib.blake2b(canonical.encode(), digest_size=6).hexdigest()
    states = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(states).absolute() / "strobe" / f"{readable}-{digest}" / RUN


def make_run_directory(url: str | Path, identity: str, name: str = "") -> Path:
    """Return the run directory of the store `identity`, or `name` in it, created if needed; raise StoreAway without it.

    Parent directories of a store are never created: the store may be unmounted or moved.
    """
    run = run_directory(url)
    if is_object_url(url):
        make_directories(run.parent)
    else:
        read_header(Disk(locate(url)), identity)
    make_own(run, run / name)
    return run / name


def _canonical_object_url(url: str) -> str:
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    # Text after an @ or a ? may be a secret: such URLs are refused, and the error does not repeat them.
    if parts.query or parts.fragment or not _is_plain_host(parts):
        raise UsageError(
            f"a {scheme}:// URL has more in it than a bucket and a prefix, and is not shown here; "
            f"write {scheme}://BUCKET/PREFIX, and give credentials and endpoints in the environment"
        )
    segments = [segment for segment in parts.path.split("/") if segment]
    if not parts.netloc or any(unquote(segment) in (".", "..") for segment in segments):
        raise UsageError(f"{url}: write {scheme}://BUCKET/PREFIX, without . or .. in it")
    return "/".join([f"{scheme}://{parts.netloc}", *segments])


def _is_plain_host(parts: SplitResult) -> bool:
    if parts.scheme.lower() in ("abfs", "abfss") and "@" in parts.netloc:
        return _ACCOUNT.fullmatch(parts.netloc) is not None
    return not {"@", ":"} & set(parts.netloc)
