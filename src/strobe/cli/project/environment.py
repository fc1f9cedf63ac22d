"""What Strobe needs of this machine, and whether it is there: each finding says what to do.

`ok`; `note`: something optional is missing, or worth knowing; `missing`: something needed is missing.
"""

import contextlib
import os
import re
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import msgspec

from strobe.cli.shell.output import count, size_text
from strobe.errors import MissingComponent, StrobeError, UsageError
from strobe.runtime.addresses import parse_address
from strobe.runtime.api.client import running_for
from strobe.runtime.settings import CoordinatorSettings
from strobe.storage import Store
from strobe.storage.files.urls import is_object_url, locate

OK = "ok"
NOTE = "note"
MISSING = "missing"
DISTRIBUTION = "strobe-snapshots"
PYTHON_MIN = (3, 11)
EXTRAS = {
    "live": "strobe up, coordinator and node",
    "spark": "tables in Spark, and strobe pipeline",
    "connect": "a Spark Connect server",
    "objects": "stores in S3, Google Cloud Storage and Azure",
    "sign": "signed snapshots",
    "lattice": "strobe trace lattice on long runs",
}
FREE_BYTES_MIN = 64 << 20
FREE_BYTES_LOW = 1 << 30
OPEN_FILES_LOW = 1024
SKEW_S_MAX = 5.0
BUILT_S = 1_735_689_600.0
"""The start of 2025: a clock before that is not set."""
_REQUIREMENT = re.compile(r"([\w.-]+).*;.*extra == ['\"]([\w-]+)['\"]")


class Diagnosis(msgspec.Struct, frozen=True):
    """One thing that was checked: its verdict (ok, note, missing), what was found, and what to do."""

    name: str
    verdict: str
    found: str
    remedy: str = ""


def diagnose(store: str | None = None) -> Iterator[Diagnosis]:
    """Check everything, and the store at `store` if it is given."""
    yield _python()
    yield from _extras()
    yield _java()
    yield from _ports()
    place = locate(store) if store is not None and not is_object_url(store) else Path.cwd()
    while not place.exists():
        place = place.parent
    yield _disk(place)
    yield _clock(place)
    yield _open_files()
    if store is not None:
        yield _store(store)


def is_complete(extra: str) -> bool:
    """Return whether every package of `extra` is installed."""
    return not _absent(extra)


def _absent(extra: str) -> list[str]:
    if not _is_installed(DISTRIBUTION):
        raise UsageError(f"the package {DISTRIBUTION} is not installed here; in a checkout of it: pip install .")
    found = (_REQUIREMENT.match(line) for line in requires(DISTRIBUTION) or ())
    return [match[1] for match in found if match and match[2] == extra and not _is_installed(match[1])]


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _python() -> Diagnosis:
    found = f"{'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}"
    if sys.version_info < PYTHON_MIN:
        return Diagnosis("Python", MISSING, found, f"use Python {'.'.join(map(str, PYTHON_MIN))} or later")
    return Diagnosis("Python", OK, found)


def _extras() -> Iterator[Diagnosis]:
    for extra, purpose in EXTRAS.items():
        absent = _absent(extra)
        if absent:
            remedy = f"if you want it: pip install '{DISTRIBUTION}[{extra}]'"
            yield Diagnosis(f"extra {extra}", NOTE, f"not installed ({', '.join(absent)}): {purpose}", remedy)
        else:
            yield Diagnosis(f"extra {extra}", OK, purpose)


def _java() -> Diagnosis:
    """Java is needed if Spark is installed."""
    if not is_complete("spark"):
        return Diagnosis("Java", NOTE, "not checked: it is needed only with the extra spark")
    from strobe.spark.session.java import require_java

    try:
        return Diagnosis("Java", OK, require_java())
    except MissingComponent as error:
        found, _, remedy = str(error).partition(": ")
        return Diagnosis("Java", MISSING, found, remedy)


def _ports() -> Iterator[Diagnosis]:
    """The default ports are needed only by `strobe coordinator`; `strobe up` of a Python file takes any free ones."""
    settings = CoordinatorSettings()
    problem = _cannot_bind("127.0.0.1", 0)
    if problem:
        yield Diagnosis("ports", MISSING, f"cannot listen on 127.0.0.1: {problem}", "allow it; live systems need it")
        return
    for key in ("listen", "api"):
        address = getattr(settings, key)
        problem = _cannot_bind(*parse_address(address, key))
        remedy = f"if you use system.toml, set another {key} under [coordinator]"
        if problem:
            yield Diagnosis(f"port {key}", NOTE, f"{address}: {problem}", remedy)
        else:
            yield Diagnosis(f"port {key}", OK, f"{address} is free")


def _cannot_bind(host: str, port: int) -> str:
    """Return why nothing can listen at an address; empty if it can."""
    with socket.socket(socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen()
        except OSError as error:
            return error.strerror or str(error)
    return ""


def _disk(place: Path) -> Diagnosis:
    """A small file can be written and synced, and there is room."""
    try:
        started_s = time.perf_counter()
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"strobe")
            file.flush()
            os.fsync(file.fileno())
        took_ms = 1000 * (time.perf_counter() - started_s)
        free = shutil.disk_usage(place).free
    except OSError as error:
        remedy = "choose another directory, or allow writing there"
        return Diagnosis("disk", MISSING, f"{place} cannot be written: {error.strerror}", remedy)
    found = f"{size_text(free)} free at {place}; a write and a sync took {took_ms:.1f} ms"
    if free < FREE_BYTES_LOW:
        verdict = NOTE if free >= FREE_BYTES_MIN else MISSING
        return Diagnosis("disk", verdict, found, "make room, or set [retention] keep_last to a small number")
    return Diagnosis("disk", OK, found)


def _clock(place: Path) -> Diagnosis:
    """Snapshot times come from this clock; the file system may have another one."""
    now_s = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
    if now_s < BUILT_S:
        return Diagnosis("clock", MISSING, shown, "set the clock, and keep it right by NTP")
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=place) as file:
        skew_s = Path(file.name).stat().st_mtime - now_s
        if abs(skew_s) > SKEW_S_MAX:
            found = f"{shown}; the file system at {place} differs by {skew_s:+.0f} s"
            return Diagnosis("clock", NOTE, found, "keep both clocks right by NTP: times in snapshots are misleading")
    return Diagnosis("clock", OK, shown)


def _open_files() -> Diagnosis:
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < OPEN_FILES_LOW:
        return Diagnosis("open files", NOTE, f"at most {limit:,}", "for systems of many processes: ulimit -Hn 65536")
    return Diagnosis("open files", OK, "no limit" if limit == resource.RLIM_INFINITY else f"at most {limit:,}")


def _store(url: str) -> Diagnosis:
    try:
        committed = Store.open(url).state().committed
    except StrobeError as error:
        found, _, remedy = str(error).partition("; ")
        return Diagnosis("store", MISSING, found, remedy or "check --store")
    running = running_for(url)
    what = f"a coordinator runs for it at {running.api}" if running is not None else "no coordinator runs for it"
    return Diagnosis("store", OK, f"{url}: {count(len(committed), 'complete snapshot')}; {what}")
